"""Tables on disk: the same numbers as in memory, only the rows that are needed, and checkpoints of them."""

import json
import os
import shutil
import sys
import tracemalloc

import numpy as np
import pytest

import sample
import train as train_script
from ministem.backend import device_array
from ministem.config import Config, init_dense, init_params
from ministem.convert.lingua import to_lingua
from ministem.devices import files
from ministem.devices.disk import DiskTables
from ministem.generate import generate
from ministem.knowledge import edit, inside, naming
from ministem.model import loss_and_grads
from ministem.optim import AdamW
from ministem.run import checkpoint
from ministem.run.checkpoint import Run, load_checkpoint, place, save_checkpoint, start_run
from ministem.tables import CHUNK, Tables
from ministem.tokenizer import Tokenizer, train_bpe

CPU = device_array("cpu")
V = 2 * CHUNK + 300  # two whole chunks and a part of one
SEED = 3
TEXT = "Spain has Madrid, Peru has Lima. " * 20


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """V tokens: those of a short text, and many that no text has."""
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.tiktoken"
    train_bpe(TEXT, 280, names=(" Spain", " Peru")).save(path)
    return stretched(path)


def stretched(path):
    import base64

    lines = path.read_text().splitlines()
    n = len(lines)
    tokenizer = Tokenizer.load(path)
    more = V - tokenizer.n_vocab
    lines += [f"{base64.b64encode(f'@@{i:06d}'.encode()).decode()} {n + i}" for i in range(more)]
    path.write_text("\n".join(lines) + "\n")
    tokenizer = Tokenizer.load(path)
    assert tokenizer.n_vocab == V
    return tokenizer


def new_config():
    return Config(V, dim=8, n_layers=3, n_heads=2, ffn_dim=12, context=12, stem_layers=(0, 2))


def texts(step):
    """(4,7) ids from all parts of the tables, some of them in every step, some repeated"""
    ids = np.random.default_rng(step).integers(0, V, (4, 7))
    ids[:, 3] = 5, CHUNK - 1, CHUNK, V - 1
    return ids


def start(folder, tokenizer, where):
    config = new_config()
    params, tables = init_params(config, SEED)
    run = Run(folder, config, {}, tokenizer, params, tables)
    start_run(run)
    if where == "disk":
        run.params, run.tables = init_dense(config, SEED), DiskTables(folder, config, SEED)
    optimizer = AdamW(1e-2, threads=2)
    optimizer.start(run.params, run.tables)
    return run, optimizer


def train(run, optimizer, until):
    losses = []
    while run.step < until:
        ids = texts(run.step)
        loss, grads = loss_and_grads(run.params, run.config, run.tables.fetch(ids[:, :-1]), ids[:, 1:])
        optimizer.step(run.params, run.tables, grads)
        losses.append(float(loss))
        run.step += 1
    return losses


def resume(path, where):
    """A checkpoint, ready to be trained on, with its tables on disk or in memory."""
    run = load_checkpoint(path, moments=True)
    place(run, where, CPU)
    optimizer = AdamW(1e-2)
    optimizer.start(run.params, run.tables)
    optimizer.load(run.moments, run.step, run.table_moments)
    return run, optimizer


def whole(tables):
    """All rows, whatever the kind of tables, as bytes."""
    return {name: tables.read(name, np.arange(tables.shape(name)[0])).tobytes() for name in tables.names}


def assert_equal(a, b):
    """Two (run, optimizer): weights, tables and moments, bit for bit."""
    (run_a, optimizer_a), (run_b, optimizer_b) = a, b
    for name, p in run_a.params.items():
        assert p.tobytes() == run_b.params[name].tobytes()
        for x, y in ((optimizer_a.m, optimizer_b.m), (optimizer_a.v, optimizer_b.v)):
            assert x[name].tobytes() == y[name].tobytes()
    for x, y in ((run_a.tables, run_b.tables), (optimizer_a.table_m, optimizer_b.table_m),
                 (optimizer_a.table_v, optimizer_b.table_v)):  # fmt: skip
        assert whole(x) == whole(y)


def write(run, ids=(7, 8, 2000), n=20, override=None):
    return list(generate(run.params, run.tables, run.config, list(ids), n, seed=1, override=override))


@pytest.fixture(scope="module")
def both(tmp_path_factory, tokenizer):
    """The same model trained for four steps, its tables in memory and on disk, and saved after 2 and 4."""
    runs, folder = {}, tmp_path_factory.mktemp("both")
    for where in ("ram", "disk"):
        run, optimizer = start(folder / where, tokenizer, where)
        losses = []
        for until in (2, 4):
            losses += train(run, optimizer, until)
            save_checkpoint(run, optimizer)
        runs[where] = run, optimizer, losses
    return runs


def test_training_gives_the_same_bits_as_in_memory(both):
    """Losses, weights, tables, moments, and what the model then writes."""
    (*ram, ram_losses), (*disk, disk_losses) = both["ram"], both["disk"]
    assert ram_losses == disk_losses and len(set(ram_losses)) == 4
    assert_equal(ram, disk)
    assert write(ram[0]) == write(disk[0])


@pytest.mark.parametrize("saved", ["ram", "disk"])
@pytest.mark.parametrize("then", ["ram", "disk"])
def test_a_checkpoint_of_either_kind_goes_on_as_either_kind(both, tmp_path, tokenizer, saved, then):
    """From step 2, bit for bit as if nothing had happened; and saved again, and opened again."""
    shutil.copytree(both[saved][0].folder, tmp_path / saved)
    run, optimizer = resume(tmp_path / saved / "step-000002", then)
    assert train(run, optimizer, 4) == both["ram"][2][2:]
    assert_equal(both["ram"][:2], (run, optimizer))
    run.step = 5
    save_checkpoint(run, optimizer)
    assert (tmp_path / saved / "step-000005" / "tables").exists() == (then == "disk")
    for kind in ("ram", "disk"):
        again = resume(tmp_path / saved, kind)
        assert again[0].step == 5
        assert_equal(both["ram"][:2], again)


def test_a_text_written_from_the_checkpoint_is_the_same(both):
    """Rows read straight from the step folder, among them rows that no step has trained."""
    opened = load_checkpoint(both["disk"][0].folder)
    assert not opened.tables.whole and opened.moments is None
    assert write(opened) == write(both["ram"][0])
    assert whole(opened.tables) == whole(both["ram"][0].tables)


def test_a_checkpoint_holds_the_rows_that_were_trained_and_no_others(both):
    trained = np.unique([texts(step)[:, :-1] for step in range(4)])
    for name in both["disk"][0].tables.names:
        folder = both["disk"][0].folder / "step-000004" / "tables"
        assert np.load(folder / f"{name}.rows.npy").tolist() == trained.tolist()
        assert len(np.load(folder / f"{name}.npy")) == len(trained) < V / 10


def test_the_files_have_no_names_and_room_only_for_what_was_touched(tmp_path):
    """So nothing has to be cleared away after a kill; and a table of 800 MB costs what is used of it."""
    config = Config(200_000, dim=16, n_layers=1, n_heads=1, ffn_dim=1024, context=4)
    tables = DiskTables(tmp_path, config, SEED)
    moments = tables.zeros()
    rows = np.array([3, 150_000])
    moments.write("layers.0.table", rows, tables.read("layers.0.table", rows))
    assert list(tmp_path.iterdir()) == []
    found = [kept.files[name] for kept, name in ((tables, "new layers.0.table"), (moments, "layers.0.table"))]
    for file, most in zip(found, (2 * CHUNK * 4096 + 65_536, 65_536), strict=True):
        assert 0 < 512 * os.fstat(file.fileno()).st_blocks <= most


def test_nothing_reads_a_whole_table_into_memory(tmp_path, tokenizer):
    """A table of 200 MB, from new to trained, saved, opened and resumed, in 30 MB."""
    config = Config(200_000, dim=8, n_layers=1, n_heads=1, ffn_dim=256, context=8)
    ids = np.array([[1, 70_000, 1, 199_999, 5, 6, 7, 8]])
    tracemalloc.start()
    try:
        params = init_dense(Config(300, dim=8, n_layers=1, n_heads=1, ffn_dim=256), 0)  # a head of its own
        tables, optimizer = DiskTables(tmp_path, config, 0), AdamW(1e-2)
        _, grads = loss_and_grads(params, config, tables.fetch(ids), ids % 300)
        optimizer.step(params, tables, grads)
        checkpoint.save_tables(tmp_path / "tables", tables, optimizer)
        opened = checkpoint.open_tables(tmp_path / "tables", config, moments=True)
        for saved, kept in zip(opened, (tables, optimizer.table_m, optimizer.table_v), strict=True):
            again = DiskTables(tmp_path, config, saved.seed).take(saved)
            a, b, c = (t.read("layers.0.table", ids[0]).tobytes() for t in (saved, again, kept))
            assert a == b == c
        assert tracemalloc.get_traced_memory()[1] < 30e6
    finally:
        tracemalloc.stop()


def test_editing_changes_memory_and_not_the_checkpoint(both, tokenizer):
    """Override, row edit, patch and revert do what they do in memory; the files stay as they are."""
    paths = sorted(p for p in both["disk"][0].folder.rglob("*") if p.is_file())
    before = [p.read_bytes() for p in paths]
    opened, ram = load_checkpoint(both["disk"][0].folder), both["ram"][0]
    ids, said = tokenizer.encode("In Spain"), {}
    for kind, run in (("disk", opened), ("ram", ram)):
        changes = naming.plan(tokenizer, "In Spain", [("Spain", "Peru")])
        said[kind] = [write(run, ids, override=edit.while_generating(run.tables, changes))]
        untouched = whole(run.tables)
        patch = edit.edit_rows(run.tables, tokenizer, "Spain", "Peru")
        patch.apply(run.tables)
        said[kind] += [whole(run.tables), write(run, ids)]
        between = edit.Patch.between(load_checkpoint(run.folder).tables, run.tables)
        assert sorted(between.changes) == sorted(patch.changes) == ["layers.0.table", "layers.2.table"]
        patch.revert(run.tables)
        assert whole(run.tables) == untouched != said[kind][1]
    assert said["disk"] == said["ram"]
    assert [p.read_bytes() for p in paths] == before


def test_similar_rows_are_found_without_the_table_in_memory(both):
    ram, disk = both["ram"][0], both["disk"][0]
    saved = load_checkpoint(disk.folder)
    found = [inside.nearest(run.tables, [5, 9], 4) for run in (ram, disk, saved)]
    assert found[0] == found[1] == found[2]


def test_the_whole_table_is_refused_and_the_way_to_it_is_named(both):
    run = both["disk"][0]
    with pytest.raises(ValueError, match="embed is on disk.*--tables ram"):
        run.tables["embed"]
    with pytest.raises(ValueError, match="--tables ram"):
        to_lingua(run.params, run.tables, Config(V, dim=8, n_layers=3, n_heads=2, stem_layers=(0, 2)))


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 3 // 4])


def empty(path):
    path.write_bytes(b"")


def garble(path):
    path.write_bytes(b"\xff" * 80 + path.read_bytes()[80:])


def of_another_type(path):
    np.save(path, np.load(path).astype("float64")) if path.suffix == ".npy" else path.write_text("[]")


FILES = ["embed.rows.npy", "layers.0.table.rows.npy", "embed.npy", "layers.2.table.npy",
         "layers.2.table.v.npy", "tables.json"]  # fmt: skip


@pytest.fixture(scope="module")
def small(tmp_path_factory, tokenizer):
    run, optimizer = start(tmp_path_factory.mktemp("small") / "run", tokenizer, "disk")
    train(run, optimizer, 1)
    save_checkpoint(run, optimizer)
    return run.folder


@pytest.mark.parametrize("damage", [truncate, empty, os.unlink, garble, of_another_type])
def test_damage_is_one_line_that_says_where(small, damage):
    for file in FILES:
        path = small / "step-000001" / "tables" / file
        kept = path.read_bytes()
        damage(path)
        with pytest.raises(ValueError, match=r"step-000001/tables") as error:
            checkpoint.open_tables(path.parent, new_config(), moments=True)
        assert "\n" not in str(error.value) and file.split(".")[0] in str(error.value)
        path.write_bytes(kept)


@pytest.mark.parametrize("rows", [[1, 1], [2, 1], [-1, 5], [5, V]])
def test_rows_that_cannot_be_are_refused(small, rows):
    path = small / "step-000001" / "tables" / "embed.rows.npy"
    kept = path.read_bytes()
    ids = np.load(path)
    ids[-2:] = rows
    np.save(path, np.sort(ids) if rows == [-1, 5] else ids)
    with pytest.raises(ValueError, match="embed do not fit this model"):
        checkpoint.open_tables(path.parent, new_config())
    path.write_bytes(kept)


def test_numbers_that_are_none_are_refused_when_they_are_read(small):
    path = small / "step-000001" / "tables" / "layers.0.table.npy"
    kept = path.read_bytes()
    values = np.load(path)
    values[0, 0] = np.nan
    np.save(path, values)
    tables = load_checkpoint(small, rows_only=True).tables
    first = np.load(path.with_name("embed.rows.npy"))[:1]
    with pytest.raises(ValueError, match="layers.0.table has numbers that are not finite"):
        tables.fetch([first])
    (small / "step-000001" / "SHA256SUMS").unlink()
    checkpoint.write_sums(small / "step-000001")
    with pytest.raises(ValueError, match="not finite"):
        place(load_checkpoint(small), "ram", CPU)
    path.write_bytes(kept)
    (small / "step-000001" / "SHA256SUMS").unlink()
    checkpoint.write_sums(small / "step-000001")


def test_a_numpy_that_draws_other_numbers_is_noticed(small, monkeypatch):
    """Rows that were never trained are drawn anew: they must be what they were."""
    draw = checkpoint.initial_rows
    monkeypatch.setattr(checkpoint, "initial_rows", lambda *args: draw(*args) + np.float32(1e-7))
    with pytest.raises(ValueError, match="this version of NumPy draws other numbers"):
        load_checkpoint(small)


def test_a_failure_while_saving_leaves_the_old_checkpoint_and_no_rubbish(both, monkeypatch):
    run, optimizer, _ = both["disk"]
    monkeypatch.setattr(run, "step", 9)
    before = sorted(os.listdir(run.folder))

    def full(*_):
        raise OSError(28, "No space left on device", "somewhere")

    monkeypatch.setattr(checkpoint, "save_npy", full)
    with pytest.raises(OSError):
        save_checkpoint(run, optimizer)
    assert sorted(os.listdir(run.folder)) == before


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a file that is always full")
def test_a_full_disk_while_saving_is_an_error_that_names_the_file():
    with pytest.raises(OSError, match="No space left on device") as error:
        checkpoint.save_npy("/dev/full", "float32", (3,), [np.zeros(3)])
    assert error.value.filename == "/dev/full"


def test_an_error_that_names_a_file_keeps_that_name():
    with pytest.raises(OSError) as error, files.named("outer"), files.named("inner"):
        raise OSError(28, "No space left on device")
    assert error.value.filename == "inner"


def test_a_full_disk_is_an_error_that_names_the_folder(tmp_path, monkeypatch):
    tables, write_some, room = DiskTables(tmp_path, new_config(), SEED), os.write, [70_000]

    def nearly_full(handle, data):
        n = min(len(data), room[0], 9_999)  # and what is long goes in several pieces
        room[0] -= n
        if not n:
            raise OSError(28, "No space left on device")
        return write_some(handle, data[:n])

    monkeypatch.setattr(os, "write", nearly_full)
    for _ in range(2):  # and again: what there was no room for must not count as made
        with pytest.raises(OSError, match="No space left on device") as error:
            tables.fetch([[1]])
        assert error.value.filename == str(tmp_path)
    rows, ram = np.array([1, 2, 3, 2000]), init_params(new_config(), SEED)[1]
    room[0] = 4 * 8 * CHUNK + 100  # enough to draw rows, not enough to keep four others
    values = tables.read("embed", rows) + 1
    with pytest.raises(OSError, match="No space left on device"):
        tables.write("embed", rows, values)
    assert tables.read("embed", rows).tobytes() == ram.read("embed", rows).tobytes()
    assert not len(tables.written("embed"))
    many, room[0] = np.arange(V), 10**9
    for t in (tables, ram):
        t.write("embed", rows, values)
        t.write("embed", many, t.read("embed", many) * 2)  # old ones and new ones
    assert whole(tables) == whole(ram)
    assert os.fstat(tables.files["embed"].fileno()).st_size == 4 * 8 * V  # room for the table and no more


def test_tables_that_were_never_trained_can_be_saved(tmp_path):
    """Training only STEM tables leaves the token embedding alone: a file with no rows."""
    config, optimizer = new_config(), AdamW(1e-2)
    params, tables = init_dense(config, SEED), DiskTables(tmp_path, config, SEED)
    ids = texts(0)
    _, grads = loss_and_grads(params, config, tables.fetch(ids[:, :-1]), ids[:, 1:])
    optimizer.step(params, tables, edit.only_tables(grads))
    checkpoint.save_tables(tmp_path / "tables", tables, optimizer)
    (opened,) = checkpoint.open_tables(tmp_path / "tables", config)
    assert len(opened.rows["embed"]) == 0 < len(opened.rows["layers.0.table"])
    assert whole(opened) == whole(tables)


def test_tables_of_several_kinds_are_walked_through_alike(both, tmp_path):
    """parts() of a table on disk draws what nobody has read, and does not write it."""
    fresh = DiskTables(tmp_path, new_config(), SEED)
    _, ram = init_params(new_config(), SEED)
    assert isinstance(ram, Tables)
    for name in ram.names:
        for (i, a), (j, b) in zip(ram.parts(name), fresh.parts(name), strict=True):
            assert i == j and a.tobytes() == b.tobytes()
        assert not fresh.made[name].any()


def test_parts_have_the_row_that_was_written_first(tmp_path):
    """... which lies in slot 0."""
    tables = DiskTables(tmp_path, new_config(), SEED)
    tables.write("embed", np.array([7]), np.full((1, new_config().dim), 5, "float32"))
    ((_, part), *_) = tables.parts("embed")
    assert (part[7] == 5).all() and (part[6] != 5).all()


def test_the_commands(tmp_path, monkeypatch, capsys):
    """train.py and sample.py with tables on disk, in memory, and from one to the other."""
    (tmp_path / "fox.txt").write_text("The quick brown fox jumps over the lazy dog. " * 60)
    monkeypatch.chdir(tmp_path)
    tiny = ("--data fox.txt --dim 16 --layers 2 --heads 2 --context 8 --batch 4 --vocab-size 300 --threads 1"
            " --steps 4 --eval-every 2")  # fmt: skip

    def command(script, line, code=None):
        monkeypatch.setattr(sys, "argv", [script.__file__, *line.split()])
        if code is None:
            script.main()
        else:
            with pytest.raises(SystemExit, match=str(code)):
                script.main()
        return capsys.readouterr()

    def metrics(name):
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        return [{k: v for k, v in json.loads(line).items() if k != "tokens_per_s"} for line in lines]

    command(train_script, f"{tiny} --out ram")
    said = command(train_script, f"{tiny} --out disk --tables disk").err
    assert "memory     0 MiB of" in said and "on disk tables and their moments, up to 0 MiB" in said
    assert metrics("ram") == metrics("disk")
    out = [command(sample, f"--tokens 9 --run {name}").out for name in ("ram", "disk", "disk --tables ram")]
    assert out[0] == out[1] == out[2] != ""
    assert "leave out --tables disk" in command(sample, "--run ram --tables disk", 2).err
    assert "is for --device cpu" in command(train_script, f"{tiny} --tables disk --device gpu", 2).err
    # on the tables of another run, which are then where they were
    line = "--init-from disk --tables-only --data fox.txt --steps 2 --out more --save-patch new.safetensors"
    command(train_script, line)
    assert (tmp_path / "more" / "step-000002" / "tables").exists()
    command(sample, "--run disk --patch new.safetensors --tokens 2")
    line = "--init-from disk --patch new.safetensors --tables-only --table-lr 0 --data fox.txt --steps 1"
    for where in ("disk", "ram"):  # nothing is learned, so the patch from there to here is the same
        command(train_script, f"{line} --tables {where} --out on-{where} --save-patch same.safetensors")
        assert (tmp_path / "same.safetensors").read_bytes() == (tmp_path / "new.safetensors").read_bytes()
    # stopped in the middle and moved: each half elsewhere
    shutil.rmtree(tmp_path / "ram" / "step-000004")
    command(train_script, "--resume ram --tables disk")
    assert metrics("ram") == metrics("disk")
    assert (tmp_path / "ram" / "step-000004" / "tables").exists()
    assert command(sample, "--tokens 9 --run ram").out == out[0]
