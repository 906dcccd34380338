"""Weights survive the trip to the official names, layouts and folders and back, bit for bit."""

import itertools
import json
import runpy
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tiktoken.load
from safetensors.numpy import load_file, save_file

from ministem.config import Config, init_params
from ministem.convert import official
from ministem.convert.folders import export_run, import_run, main
from ministem.convert.lingua import from_lingua, to_lingua
from ministem.knowledge import edit
from ministem.optim import AdamW
from ministem.run.checkpoint import Run, load_checkpoint, place, save_checkpoint, start_run
from ministem.tokenizer import train_bpe

SIZES = dict(vocab_size=11, dim=24, n_layers=3, n_heads=4, ffn_dim=20, context=9)


def model(**changes):
    config = Config(**{**SIZES, **changes})
    params, tables = init_params(config, seed=3)
    rng = np.random.default_rng(4)
    for name in params:  # norms start at one: swapped ones would go unnoticed
        params[name][...] = rng.standard_normal(params[name].shape)
    return params, tables, config


def there_and_back(state, config):
    return from_lingua(
        state,
        n_heads=config.n_heads,
        context=config.context,
        norm_eps=config.norm_eps,
        rope_theta=config.rope_theta,
    )


@pytest.mark.parametrize("stem_layers", [(), (0,), (1, 2), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
def test_a_round_trip_gives_back_every_bit_and_the_config(stem_layers, n_kv_heads):
    params, tables, config = model(
        stem_layers=stem_layers, n_kv_heads=n_kv_heads, norm_eps=1e-6, rope_theta=5e5
    )
    params2, tables2, config2 = there_and_back(to_lingua(params, tables, config), config)
    assert config2 == config
    assert params2.keys() == params.keys() and set(tables2.names) == set(tables.names)
    for name in params:
        np.testing.assert_array_equal(params2[name], params[name], err_msg=name)
        assert params2[name].dtype == params[name].dtype and params2[name].flags.c_contiguous
    for name in tables.names:
        np.testing.assert_array_equal(tables2[name], tables[name], err_msg=name)


def test_ffn_dense_in_the_stem_layers_is_a_model_without_tables_on_both_sides():
    """Then stem_layers says nothing, and it comes back empty: the same model, described shorter."""
    params, tables, config = model(ffn="dense", stem_layers=(1, 2))
    params2, tables2, config2 = there_and_back(to_lingua(params, tables, config), config)
    assert config2.stem_layers == () and tables2.names == ["embed"]
    assert params2.keys() == params.keys()
    for name in params:
        np.testing.assert_array_equal(params2[name], params[name], err_msg=name)


def test_every_matrix_is_out_by_in_and_contiguous_and_heads_stand_in_order():
    """The layouts, spelled out once by hand for the one STEM layer of a three-layer model."""
    params, tables, config = model(stem_layers=(1,), n_kv_heads=2)
    state = to_lingua(params, tables, config)
    layer = "lm_transformer.layers.1."
    wqkv = params["layers.1.wqkv"]  # (24, 24 + 12 + 12)
    for name, ours in {
        layer + "attention.wq.weight": wqkv[:, :24].T,
        layer + "attention.wk.weight": wqkv[:, 24:36].T,
        layer + "attention.wv.weight": wqkv[:, 36:].T,
        layer + "attention.wo.weight": params["layers.1.wo"].T,
        layer + "feed_forward.w1.weight": params["layers.1.w_gate"].T,
        layer + "feed_forward.w2.weight": params["layers.1.w_down"].T,
        layer + "attention_norm.weight": params["layers.1.norm1"],
        layer + "ffn_norm.weight": params["layers.1.norm2"],
        "lm_transformer.layers.2.feed_forward.w3.weight": params["layers.2.w_up"].T,
        "lm_transformer.tok_embeddings.weight": tables["embed"],
        "lm_transformer.norm.weight": params["norm"],
        "lm_transformer.output.weight": params["head"].T,
        "stem_embeddings.0.weight": tables["layers.1.table"],
    }.items():
        np.testing.assert_array_equal(state[name], ours, err_msg=name)
    assert layer + "feed_forward.w3.weight" not in state
    assert all(a.flags.c_contiguous for a in state.values())
    assert not any(np.shares_memory(a, params[name]) for a in state.values() for name in params)


@pytest.mark.parametrize("ffn", ["gate", "additive"])
def test_variants_the_official_code_lacks_are_refused_by_name(ffn):
    with pytest.raises(ValueError, match=ffn):
        to_lingua(*model(ffn=ffn, stem_layers=(1,)))


def test_what_does_not_fit_is_named():
    params, tables, config = model(stem_layers=(1, 2), n_kv_heads=2)
    good = to_lingua(params, tables, config)

    def refused(state, *words, n_heads=4):
        with pytest.raises(ValueError) as error:
            from_lingua(state, n_heads=n_heads, context=9)
        assert all(word in str(error.value) for word in words), str(error.value)

    for name in good:
        without = {k: a for k, a in good.items() if k != name}
        # one w3 fewer reads as one STEM layer more, so there it is the table that is missed
        refused(without, "missing", "stem_embeddings.2.weight" if ".w3." in name else name)
    refused(
        {**good, "lm_transformer.layers.1.attention.bias": good["stem_embeddings.0.weight"]},
        "unexpected lm_transformer.layers.1.attention.bias",
    )
    refused(
        {**good, "stem_embeddings.7.weight": good["stem_embeddings.0.weight"]},
        "unexpected stem_embeddings.7.weight",
    )
    read = (
        "lm_transformer.tok_embeddings.weight",
        "lm_transformer.layers.0.attention.wk.weight",
        "lm_transformer.layers.0.feed_forward.w1.weight",
    )
    for name in good:
        shape = (good[name].shape[0] + 4, *good[name].shape[1:])
        # sizes are read from these three: if one of them is wrong, it is the others that misfit
        blamed = "" if name in read else f"{name} is {shape}"
        refused({**good, name: np.zeros(shape)}, "expected", blamed)
        refused({**good, name: np.zeros(())}, name)
    refused({**good, "lm_transformer.layers.99999999.x": np.zeros(1)}, "99999999")  # without a long wait
    refused(good, "24", "5", n_heads=5)
    refused({}, "tok_embeddings")


# ------------------------------------------------------------------------------------------ folders

PTH = Path(__file__).resolve().parent.parent / "ministem/convert/pth.py"  # stands alone: no package
TEXT = "a little text, from which a little vocabulary is made; and then some more of it. " * 4


def saved_run(folder, data=None, **changes):
    """A run folder with a random model of 300 tokens."""
    tokenizer = train_bpe(TEXT, 300, (" South Africa",))
    params, tables, config = model(vocab_size=tokenizer.n_vocab, **changes)
    run = Run(folder, config, dict(data=data), tokenizer, params, tables, step=7)
    optimizer = AdamW()
    optimizer.start(params, tables)
    start_run(run)
    save_checkpoint(run, optimizer)
    return run


def lingua(monkeypatch, capsys, *args):
    """python -m ministem.convert.folders ARGS -> its exit code, what it says"""
    monkeypatch.setattr(sys, "argv", ["lingua", *map(str, args)])
    try:
        main()
        code = 0
    except SystemExit as stop:
        code = stop.code
    return code, capsys.readouterr().err


@pytest.mark.parametrize("to, changes", [
    ("lingua", dict(stem_layers=(0, 2), n_kv_heads=2, norm_eps=1e-6, rope_theta=5e5)),
    ("lingua", dict(stem_layers=(), ffn_dim=27)),
    ("llama", dict(stem_layers=(), n_kv_heads=2, rope_theta=5e5)),
])  # fmt: skip
def test_export_and_import_give_back_the_same_bytes(tmp_path, to, changes):
    old = saved_run(tmp_path / "run", **changes)
    export_run(load_checkpoint(tmp_path / "run"), tmp_path / "out", to)
    import_run(tmp_path / "out", tmp_path / "new")
    new = load_checkpoint(tmp_path / "new")
    assert new.config == old.config and new.tokenizer.hash == old.tokenizer.hash
    weights = [tmp_path / "run/step-000007", tmp_path / "new/step-000000"]
    assert len({(step / "model.safetensors").read_bytes() for step in weights}) == 1


def test_params_json_says_the_width_in_the_way_the_official_code_computes_it():
    # 196 / 170 * 170, in floating point, is less than 196
    for dim, F in itertools.product((24, 64, 100, 960, 2048), (7, 20, 196, 2560, 8192)):
        m = official.model_settings(Config(9, dim=dim, n_heads=2, ffn_dim=F, stem_layers=(1,)))
        hidden = int(m["ffn_dim_multiplier"] * int(2 * 4 * dim / 3))
        assert m["multiple_of"] * ((hidden + m["multiple_of"] - 1) // m["multiple_of"]) == F
        assert m["stem_embedding_dim"] == F and m["stem_layers"] == [1]


@pytest.mark.parametrize("changes", [dict(stem_layers=()), dict(stem_layers=(1,), ffn="dense")])
def test_settings_of_a_dense_model_have_no_word_of_tables(changes):
    """apps.main.train does not know the words, and stem_train would look for tables that are not there."""
    assert not [key for key in official.model_settings(model(**changes)[2]) if "stem" in key]


def test_the_official_tokenizer_class_with_our_pattern_gives_our_ids(tmp_path):
    """What launch.py puts in its place, on the files that are exported."""
    run = saved_run(tmp_path / "run", stem_layers=(1,))
    export_run(run, tmp_path / "out", "lingua")
    how = json.loads((tmp_path / "out/splitting.json").read_text("utf-8"))
    path = json.loads((tmp_path / "out/params.json").read_text("utf-8"))["data"]["tokenizer"]["path"]
    ranks = tiktoken.load.load_tiktoken_bpe(str(tmp_path / "out" / path))
    theirs = tiktoken.Encoding(
        "t", pat_str=how["pattern"], mergeable_ranks=ranks, special_tokens=how["special"]
    )
    text = TEXT + "South Africa and in South Africa's <|endoftext|>"
    assert theirs.encode_ordinary(text) == run.tokenizer.encode(text)
    assert theirs.n_vocab == run.config.vocab_size


@pytest.mark.parametrize("text", [
    "one\n" * 50_000, "a b\n\n  c d\r\ne\n" * 3_000, "x" * 350_000, "short", "two\nlines\n \n", "\n" * 900,
])  # fmt: skip
def test_documents_are_short_and_together_have_the_ids_of_the_text(text):
    tokenizer = train_bpe(TEXT, 300)
    found = list(official.documents(text))
    assert "".join(found) == text and all(0 < len(d) <= official.DOCUMENT for d in found)
    if "\n" in text:
        assert sum(map(tokenizer.encode, found), []) == tokenizer.encode(text)
    if text.count("\n") > 10_000:
        assert len(found) > 100, "processes share the documents of a file"


def test_the_text_of_the_run_goes_along_and_none_of_its_validation_part(tmp_path):
    text = "".join(f"line {i} of the text\n" for i in range(2_000))
    (tmp_path / "2024.txt").write_text(text)
    run = saved_run(tmp_path / "run", stem_layers=(1,), data=str(tmp_path / "2024.txt"))
    export_run(run, tmp_path / "out", "lingua", shards=2)
    read = {
        kind: "".join(json.loads(line)["text"] for line in path.read_text().splitlines())
        for kind in ("chunk.00", "val")
        for path in [tmp_path / f"out/data/2024/2024.{kind}.jsonl"]
    }
    cut = int(0.9 * len(text))
    assert read == {"chunk.00": text[:cut], "val": text[cut:]}
    settings = (tmp_path / "out/train.yaml").read_text()
    assert 'sources: {"2024": 1.0}' in settings and "seq_len: 9 " in settings
    assert "lr: 0.001 " in settings and "dp_shard: 2 " in settings and "stem_parallel_size: 2 " in settings


def test_a_run_whose_text_is_gone_is_exported_and_says_so(tmp_path):
    run = saved_run(tmp_path / "run", stem_layers=(1,), data=str(tmp_path / "gone.txt"))
    note = export_run(run, tmp_path / "out", "lingua")[0]
    assert "gone.txt" in note and "data/text/text.chunk.00.jsonl" in note
    assert (tmp_path / "out/train.yaml").exists() and not (tmp_path / "out/data").exists()


def test_without_pytorch_there_is_one_line_and_help(tmp_path):
    """In a Python that finds no torch: -I -S leaves all that is installed out."""
    for args, code in (["--help"], 0), ([str(tmp_path)], 2):
        command = [sys.executable, "-I", "-S", str(PTH), *args]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
    assert done.stderr.count("\n") == 1 and "pip install torch safetensors" in done.stderr


@pytest.fixture
def pth():
    """pth.py as it runs where nothing of ministem is."""
    pytest.importorskip("torch")
    return SimpleNamespace(**runpy.run_path(str(PTH)))


@pytest.mark.parametrize("stem_layers, shards", [((0, 2), 4), ((), 1)])
def test_the_official_files_are_what_its_loaders_expect(tmp_path, pth, stem_layers, shards):
    import torch

    run, out = saved_run(tmp_path / "run", stem_layers=stem_layers), tmp_path / "out"
    export_run(run, out, "lingua", shards)
    state = {name: torch.from_numpy(a) for name, a in to_lingua(run.params, run.tables, run.config).items()}
    tables = {name: state.pop(name) for name in list(state) if name.startswith("stem_")}
    backbone = {name.removeprefix("lm_transformer."): a for name, a in state.items()}

    def load(path):
        return torch.load(out / path, weights_only=True)

    def equal(found, expected):
        assert found.keys() == expected.keys() and all(torch.equal(found[n], expected[n]) for n in expected)

    # training: what load_from_checkpoint does
    empty = {"model": {name: torch.zeros_like(a) for name, a in backbone.items()}}
    with warnings.catch_warnings(action="ignore"):  # that there is no process group
        torch.distributed.checkpoint.load(empty, checkpoint_id=str(out), no_dist=True)
    equal(empty["model"], backbone)
    # generation: a STEM model's load_state_dict(strict=False) takes what has the right name, and nothing else
    equal(load("consolidated/consolidated.pth")["model"], state | tables if stem_layers else backbone)
    if stem_layers:
        parts = [load(f"stem_shards/stem_model_mp{i}.pt") for i in range(shards)]
        equal({n: torch.cat([part[n] for part in parts], dim=1) for n in tables}, tables)
        equal(load("consolidated/consolidated_stem.pth"), tables)
    else:
        assert not (out / "stem_shards").exists()


def as_trained(folder, out):
    """An exported folder as official training leaves its checkpoints: with the prefix, and an optimizer."""
    import torch
    from torch.distributed.checkpoint import save

    shutil.copytree(folder / "stem_shards", out / "stem_shards")
    for name in ("params.json", "vocab.tiktoken"):
        shutil.copy(folder / name, out)
    consolidated = torch.load(folder / "consolidated/consolidated.pth", weights_only=True)["model"]
    state = {n: a for n, a in consolidated.items() if n.startswith("lm_transformer.")}
    with warnings.catch_warnings(action="ignore"):
        save({"model": state, "optim": {"lr": 0.1}}, checkpoint_id=str(out), no_dist=True)


def test_a_checkpoint_comes_back_from_its_shards_in_one_step_or_two(tmp_path, pth):
    """The tables trained are in stem_shards. The official consolidate_stem_shards looks for them elsewhere
    and writes an empty file: it must not be believed."""
    import torch

    old = saved_run(tmp_path / "run", stem_layers=(0, 2), ffn_dim=24)
    export_run(old, tmp_path / "out", "lingua", shards=12)  # so that mp10 comes after mp9
    as_trained(tmp_path / "out", tmp_path / "ckpt")
    (tmp_path / "ckpt/consolidated").mkdir()
    torch.save({}, tmp_path / "ckpt/consolidated/consolidated_stem.pth")
    pth.back(tmp_path / "ckpt", tmp_path / "carried")
    for folder in ("ckpt", "carried"):
        import_run(tmp_path / folder, tmp_path / f"from-{folder}")
        new = load_checkpoint(tmp_path / f"from-{folder}")
        assert new.config == old.config and new.tokenizer.hash == old.tokenizer.hash
        assert all((new.params[name] == a).all() for name, a in old.params.items())
        assert all((new.tables[name] == old.tables[name]).all() for name in old.tables.names)
    with pytest.raises(ValueError, match="there already"):
        pth.back(tmp_path / "ckpt", tmp_path / "carried")

    # consolidated for generation, and back from that alone
    pth.consolidate(tmp_path / "ckpt")
    exported, made = (
        torch.load(tmp_path / f / "consolidated/consolidated.pth", weights_only=True) for f in ("out", "ckpt")
    )
    assert made["model"].keys() == exported["model"].keys()
    (tmp_path / "ckpt/.metadata").unlink()
    shutil.rmtree(tmp_path / "ckpt/stem_shards")
    import_run(tmp_path / "ckpt", tmp_path / "again")
    new = load_checkpoint(tmp_path / "again")
    assert all((new.tables[name] == old.tables[name]).all() for name in old.tables.names)


def test_a_checkpoint_that_is_not_whole_is_refused_by_name(tmp_path, pth):
    export_run(saved_run(tmp_path / "run", stem_layers=(0, 2)), tmp_path / "out", "lingua", shards=4)

    def refused(words, change):
        shutil.rmtree(tmp_path / "ckpt", ignore_errors=True)
        as_trained(tmp_path / "out", tmp_path / "ckpt")
        change(tmp_path / "ckpt")
        for take in (import_run, pth.back):
            with pytest.raises(ValueError, match=words):
                take(tmp_path / "ckpt", tmp_path / "new")
            assert not (tmp_path / "new").exists() and not list(tmp_path.glob(".*.tmp"))

    refused(r"shards \[0, 2, 3\]", lambda f: (f / "stem_shards/stem_model_mp1.pt").unlink())
    refused(r"\(300, 15\), and has to be 20", lambda f: (f / "stem_shards/stem_model_mp3.pt").unlink())
    refused("stem_embeddings.0.weight is missing", lambda f: shutil.rmtree(f / "stem_shards"))
    refused("mp2.pt cannot be read", lambda f: (f / "stem_shards/stem_model_mp2.pt").write_bytes(b"half"))
    refused("distributed checkpoint cannot be read", lambda f: (f / ".metadata").write_bytes(b"half"))
    refused("no vocab.tiktoken", lambda f: (f / "vocab.tiktoken").unlink())
    code = b"cposix\nsystem\n(S'touch %s'\ntR." % str(tmp_path / "run-by-a-pickle").encode()
    refused("posix.system", lambda f: (f / ".metadata").write_bytes(code))
    assert not (tmp_path / "run-by-a-pickle").exists()


def test_pth_py_makes_the_same_files_elsewhere_and_refuses_in_one_line(tmp_path, pth, monkeypatch, capsys):
    run, out = saved_run(tmp_path / "run", stem_layers=(0, 2)), tmp_path / "out"
    with pytest.raises(ValueError, match="20 wide do not divide into 3"):
        export_run(run, out, "lingua", shards=3)
    with monkeypatch.context() as here:  # a machine without PyTorch
        here.setattr("ministem.convert.folders.find_spec", lambda name: None)
        notes = export_run(run, out, "lingua", shards=4)
        assert "python out/pth.py out" in notes[-1] and not (out / ".metadata").exists()
        as_trained_without = tmp_path / "ckpt"
        as_trained_without.mkdir()
        (as_trained_without / "params.json").write_text('{"model": {}}')
        with pytest.raises(ValueError, match="--back NEW"):
            import_run(as_trained_without, tmp_path / "new")

    def pth_py(*args):
        monkeypatch.setattr(sys, "argv", ["pth.py", *map(str, args)])
        with pytest.raises(SystemExit) as stop:
            pth.main()
        said = capsys.readouterr().err
        assert stop.value.code == 2 and said.count("\n") == 1
        return said

    assert "model.safetensors is missing" in pth_py(as_trained_without)
    (as_trained_without / "model.safetensors").write_bytes(b"half")
    assert "model.safetensors cannot be read" in pth_py(as_trained_without)
    assert "no params.json" in pth_py(tmp_path)
    monkeypatch.setattr(sys, "argv", ["pth.py", str(out)])
    pth.main()
    assert (out / ".metadata").exists() and len(list((out / "stem_shards").iterdir())) == 4
    assert "already" in pth_py(out)
    assert not list(out.glob("**/*.tmp"))


def test_a_patch_is_applied_to_what_is_exported_and_only_where_it_fits(tmp_path, monkeypatch, capsys):
    run = saved_run(tmp_path / "run", stem_layers=(0, 2))
    patch = edit.edit_rows(run.tables, run.tokenizer, "little", "text")
    patch.save(tmp_path / "patch.safetensors")
    patch.apply(run.tables)
    args = ("--patch", tmp_path / "patch.safetensors")
    assert lingua(monkeypatch, capsys, "export", tmp_path / "run", tmp_path / "out", *args)[0] == 0
    state = load_file(tmp_path / "out/model.safetensors")
    assert (state["stem_embeddings.1.weight"] == run.tables["layers.2.table"]).all()
    saved_run(tmp_path / "other", stem_layers=(1,))
    code, said = lingua(monkeypatch, capsys, "export", tmp_path / "other", tmp_path / "out2", *args)
    assert code == 2 and "layers.0.table is not a table of this model" in said
    edit.Patch(patch.changes, vocabulary="0" * 64).save(tmp_path / "patch.safetensors")
    code, said = lingua(monkeypatch, capsys, "export", tmp_path / "run", tmp_path / "out2", *args)
    assert code == 2 and "for another vocabulary" in said
    assert not (tmp_path / "out2").exists()


def test_launch_py_refuses_in_one_line(tmp_path, monkeypatch, capsys):
    """Before it imports anything of PyTorch or the official code."""
    launch = SimpleNamespace(**runpy.run_path(str(PTH.with_name("launch.py"))))
    (tmp_path / "code/lingua").mkdir(parents=True)
    code = tmp_path / "code"
    for args, words in {
        (): "usage",
        (code, "fly"): "usage",
        (code, "generate"): "usage",
        (code, "generate", tmp_path): "no params.json",
        (tmp_path, "train"): "not a checkout",
        (code, "train"): "no train.yaml",
    }.items():
        monkeypatch.setattr(sys, "argv", ["launch.py", *map(str, args)])
        with pytest.raises(SystemExit, match="2"):
            launch.main()
        assert words in capsys.readouterr().err


def test_numbers_that_float32_cannot_hold_are_refused(tmp_path):
    saved_run(tmp_path / "run", stem_layers=(1,))
    export_run(load_checkpoint(tmp_path / "run"), tmp_path / "out", "lingua")
    path = tmp_path / "out/model.safetensors"
    state = load_file(path)
    save_file({**state, "lm_transformer.norm.weight": np.full(24, 1e300)}, path)
    with pytest.raises(ValueError, match="norm.weight holds numbers that are not finite in float32"):
        import_run(tmp_path / "out", tmp_path / "new")


def test_tables_on_disk_are_exported_too(tmp_path, monkeypatch, capsys):
    run = saved_run(tmp_path / "run", stem_layers=(1,))
    disk = Run(tmp_path / "disk", run.config, {}, run.tokenizer, run.params, run.tables, step=7)
    start_run(disk)
    place(disk, "disk", np.empty(0, "float32"))
    optimizer = AdamW()
    optimizer.start(disk.params, disk.tables)
    save_checkpoint(disk, optimizer)
    for name in ("run", "disk"):
        code, said = lingua(monkeypatch, capsys, "export", tmp_path / name, tmp_path / f"{name}-out")
        assert code == 0, said
    a, b = (load_file(tmp_path / f"{name}-out/model.safetensors") for name in ("run", "disk"))
    assert a.keys() == b.keys() and all((a[key] == b[key]).all() for key in a)


def test_the_command_line_goes_there_and_back_and_refuses_in_one_line(tmp_path, monkeypatch, capsys):
    saved_run(tmp_path / "run", stem_layers=(1,))
    assert lingua(monkeypatch, capsys, "export", tmp_path / "run", tmp_path / "out")[0] == 0
    assert lingua(monkeypatch, capsys, "import", tmp_path / "out", tmp_path / "new")[0] == 0
    (tmp_path / "wrong").mkdir()
    shutil.copytree(tmp_path / "out", tmp_path / "torn")
    (tmp_path / "torn/model.safetensors").write_bytes(b"half")
    shutil.copytree(tmp_path / "out", tmp_path / "other")
    train_bpe(TEXT, 280).save(tmp_path / "other/vocab.tiktoken")
    for args, words in {
        ("export", tmp_path / "run", tmp_path / "out"): ["out is there already"],
        ("export", tmp_path / "nothing", tmp_path / "x"): ["nothing is not a folder"],
        ("export", tmp_path / "run", tmp_path / "x", "--to", "llama"): ["no tables", "layers 1"],
        ("import", tmp_path / "wrong", tmp_path / "x"): ["no params.json", "no config.json"],
        ("import", tmp_path / "torn", tmp_path / "x"): ["model.safetensors", "cannot be read"],
        ("import", tmp_path / "other", tmp_path / "x"): ["280", "model"],
        ("import", tmp_path / "out", tmp_path / "new"): ["holds a run already"],
        ("export", tmp_path / "run", tmp_path / "x", "--shards", "0"): ["--shards must be at least 1"],
        ("export", tmp_path / "run", tmp_path / "x", "--patch", tmp_path / "no"): ["no: No such file"],
    }.items():
        code, said = lingua(monkeypatch, capsys, *args)
        assert code == 2 and said.count("\n") == 1 and all(word in said for word in words), said
        assert not (tmp_path / "x").exists() and not list(tmp_path.glob(".*.tmp"))
