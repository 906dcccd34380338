"""A dense model's matrices become tables: means of what they gave, and what is refused."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from commands import TEXT, TINY, command

from ministem.backend import device_array, download, upload
from ministem.config import Config, init_params, shapes
from ministem.convert.folders import export_run, import_run
from ministem.knowledge.means import make_tables, with_tables
from ministem.model import forward, trunk_forward
from ministem.run.checkpoint import in_memory, load_checkpoint
from ministem.tables import Tables

V, T, F = 23, 5, 8
SHAPE = dict(vocab_size=V, dim=12, n_layers=2, n_heads=2, ffn_dim=F, context=T)
DENSE = Config(**SHAPE, stem_layers=())


def converted(config, ids, layers=(0, 1), B=2, dtype="float64"):
    """A dense model and the one that is made of it -> both, and how often each token was met"""
    params, tables = init_params(DENSE, 1, dtype)
    dense = SimpleNamespace(params=params, tables=tables, config=DENSE)
    names = [name for name in shapes(config)[1] if name != "embed"]
    rubbish = {name: np.full(shapes(config)[1][name], 7.0, dtype) for name in names}
    stem = SimpleNamespace(params=dict(params), tables=Tables(tables.arrays | rubbish), config=config)
    return dense, stem, make_tables(stem, DENSE, ids, layers, B)


def windows(ids):
    return [ids[None, i : i + T] for i in range(0, len(ids), T)]


def test_where_each_token_stands_once_nothing_is_lost():
    """Its mean is over one position: logits are the dense model's, in each window of the text."""
    ids = np.random.default_rng(0).permutation(V)
    dense, stem, seen = converted(Config(**SHAPE), ids, dtype="float32")
    assert (seen == 1).all() and stem.params.keys() == shapes(stem.config)[0].keys()
    for window in windows(ids):
        want, got = (forward(m.params, m.config, m.tables.fetch(window)) for m in (dense, stem))
        assert abs(want - got).max() < 1e-5 * abs(want).max()
        other = forward(stem.params, stem.config, stem.tables.fetch(window[:, ::-1]))
        assert abs(want[:, ::-1] - other).max() > 1e-3  # in another order it is another model


@pytest.mark.parametrize("kind, w", [("stem", "w_up"), ("gate", "w_gate")])
def test_rows_are_the_means_by_token_and_the_rest_is_read_alone(kind, w):
    """Streamed in batches, whatever was in the tables; by hand, position by position."""
    ids = np.random.default_rng(2).integers(0, 6, 33)  # tokens 0 to 5, several times each
    dense, stem, seen = converted(Config(**SHAPE, ffn=kind), ids)
    assert np.array_equal(seen, np.bincount(ids, minlength=V)) and (seen[:6] > 1).all()

    def outputs(text):  # of x W at each position of a text, layer by layer
        _, (_, _, layers, _) = trunk_forward(dense.params, DENSE, dense.tables.fetch(text))
        return [ffn[0][0][0] @ dense.params[f"layers.{i}.{w}"] for i, (*_, ffn) in enumerate(layers)]

    found = {token: [] for token in range(V)}
    for window in windows(ids):
        for token, *rows in zip(window[0], *outputs(window), strict=True):
            found[int(token)].append(rows)
    for token, rows in found.items():
        want = np.mean(rows, 0) if rows else [row[0] for row in outputs(np.array([[token]]))]
        got = [stem.tables[f"layers.{i}.table"][token] for i in (0, 1)]
        assert abs(np.array(want) - got).max() < 1e-12, token


def test_batches_do_not_matter():
    ids = np.random.default_rng(3).integers(0, V, 64)
    (_, one, _), (_, other, _) = (converted(Config(**SHAPE), ids, B=B) for B in (1, 16))
    assert abs(one.tables["layers.1.table"] - other.tables["layers.1.table"]).max() < 1e-12


def test_a_layer_alone_leaves_the_others_as_they_are():
    ids = np.arange(V)
    dense, stem, _ = converted(Config(**SHAPE, stem_layers=(1,)), ids, layers=(1,))
    assert "layers.0.w_up" in stem.params and "layers.1.w_up" not in stem.params
    assert stem.tables.names == ["embed", "layers.1.table"]
    assert stem.tables["embed"].tobytes() == dense.tables["embed"].tobytes()


def test_on_a_device_rows_come_out_alike(gpu):
    """On the stand-in for CuPy, which refuses to mix arrays of host and device."""
    ids, config, like = np.arange(40) % 9, Config(**SHAPE), device_array("gpu")
    _, stem, _ = converted(config, ids, dtype="float32")
    params, tables = init_params(DENSE, 1)
    arrays = tables.arrays | {n: np.zeros(s, "float32") for n, s in shapes(config)[1].items() if n != "embed"}
    there = SimpleNamespace(params={n: upload(p, like) for n, p in params.items()}, config=config,
                            tables=Tables({n: upload(a, like) for n, a in arrays.items()}))  # fmt: skip
    make_tables(there, DENSE, ids, (0, 1), B=2)
    name = "layers.1.table"
    assert abs(download(there.tables[name]) - stem.tables[name]).max() < 1e-5


@pytest.mark.parametrize("have, kind, layers, want, why", [
    ((0, 1), "stem", (1,), "stem", "layers 0,1 have stem tables: they stay"),
    ((0,), "stem", (0, 1), "gate", "all are of one kind"),
    ((), "stem", (1,), "additive", "additive tables take no matrix's place"),
])  # fmt: skip
def test_what_means_cannot_make_is_refused(have, kind, layers, want, why):
    with pytest.raises(ValueError, match=why):
        with_tables(Config(**SHAPE, stem_layers=have, ffn=kind), layers, want)


def test_layers_that_get_a_table():
    assert with_tables(DENSE, (0, 1), "gate") == (Config(**SHAPE, ffn="gate"), [0, 1])
    assert with_tables(Config(**SHAPE, stem_layers=(1,)), (0, 1), "stem") == (Config(**SHAPE), [0])
    assert with_tables(Config(**SHAPE, ffn="dense"), (1,), "stem")[1] == [1]
    additive = Config(**SHAPE, ffn="additive")
    assert with_tables(additive, (0, 1), "additive") == (additive, [])


# -------------------------------------------------------------------------------------------- train.py

FOX = ["--data", "fox.txt", "--batch", 4, "--threads", 1]


def run(*args, cwd, code=0):
    done = command("train.py", *args, cwd=cwd)
    assert done.code == code, done.err.decode()
    return done.err.decode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a text, a dense run, and two that were made of it."""
    path = tmp_path_factory.mktemp("means")
    (path / "fox.txt").write_text(TEXT)
    run(*TINY, *FOX, "--stem-layers", "none", "--steps", 20, "--out", "dense", cwd=path)
    more = ["--init-from", "dense", "--stem-layers", "all", "--steps", 0, *FOX]
    said = run(*more, "--out", "stem", cwd=path)
    run(*more, "--tables", "disk", "--out", "disk", cwd=path)
    (path / "said.txt").write_text(said)
    return path


def test_a_dense_run_becomes_a_stem_run(folder):
    said = (folder / "said.txt").read_text()
    stem, dense = (load_checkpoint(folder / name) for name in ("stem", "dense"))
    assert "new tables for layers 0,1" in said and "what w_up gave" in said and "validation loss from" in said
    assert stem.step == 0 and stem.config == Config(**vars(dense.config) | dict(stem_layers=(0, 1)))
    kept = stem.params.keys() & dense.params.keys()
    assert len(kept) == len(dense.params) - 2 and all((stem.params[n] == dense.params[n]).all() for n in kept)
    assert all(np.abs(stem.tables[f"layers.{i}.table"]).min(1).max() > 0 for i in (0, 1))


def test_tables_on_disk_get_the_same_rows(folder):
    stem, disk = (load_checkpoint(folder / name).tables for name in ("stem", "disk"))
    for name, table in in_memory(disk).items():
        assert table.tobytes() == stem[name].tobytes(), name


def test_it_trains_on_from_there_and_goes_on_after_a_stop(folder):
    run("--init-from", "dense", "--stem-layers", "1", "--steps", 4, *FOX, "--out", "one", cwd=folder)
    run("--init-from", "one", "--stem-layers", "0,1", "--steps", 0, *FOX, "--out", "two", cwd=folder)
    one, two = load_checkpoint(folder / "one"), load_checkpoint(folder / "two")
    assert one.step == 4 and one.config.stem_layers == (1,) and two.config.stem_layers == (0, 1)
    assert one.tables["layers.1.table"].tobytes() == two.tables["layers.1.table"].tobytes()
    lines = (folder / "one" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [4]
    run("--resume", "one", cwd=folder)  # is at its end: nothing is made anew
    again = load_checkpoint(folder / "one").tables["layers.1.table"]
    assert again.tobytes() == one.tables["layers.1.table"].tobytes()


@pytest.mark.parametrize("args, why", [
    (["--init-from", "stem", "--stem-layers", "1"], "a table cannot become a matrix"),
    (["--init-from", "stem", "--stem-layers", "none"], "a table cannot become a matrix"),
    (["--init-from", "stem", "--ffn", "dense"], "all are of one kind"),
    (["--init-from", "dense", "--stem-layers", "all", "--ffn", "additive"], "take no matrix's place"),
    (["--init-from", "dense", "--stem-layers", "2"], "stem_layers [2] are not all in 0..1"),
    (["--init-from", "dense", "--stem-layers", "all", "--dim", "32"], "--dim 32: dense has 16"),
    (["--init-from", "dense", "--stem-layers", "all", "--tables-only", "--save-patch", "p"], "lacks"),
])  # fmt: skip
def test_what_cannot_be_is_refused_in_a_line(folder, args, why):
    said = run(*args, *FOX, "--out", "x", cwd=folder, code=2)
    assert why in said and said.count("\n") == 1 and not (folder / "x").exists()


def test_a_run_made_with_ffn_dense_gets_tables_too(folder):
    run(*TINY, *FOX, "--ffn", "dense", "--steps", 1, "--out", "ffn", cwd=folder)
    run("--init-from", "ffn", "--stem-layers", "1", "--steps", 0, *FOX, "--out", "ffn-1", cwd=folder)
    config = load_checkpoint(folder / "ffn-1").config
    assert config.ffn == "stem" and config.stem_layers == (1,)


def test_a_llama_folder_becomes_a_stem_model(folder):
    """By way of convert: out as a Llama, in again, then with tables like those of the run itself."""
    export_run(load_checkpoint(folder / "dense"), folder / "llama", "llama")
    import_run(folder / "llama", folder / "imported")
    run("--init-from", "imported", "--stem-layers", "all", "--steps", 0, *FOX, "--out", "l", cwd=folder)
    stem, made = load_checkpoint(folder / "stem"), load_checkpoint(folder / "l")
    assert abs(stem.tables["layers.1.table"] - made.tables["layers.1.table"]).max() < 1e-6
