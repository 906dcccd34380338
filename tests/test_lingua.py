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
from ministem.convert.folders import export_run, import_run, main, official_params
from ministem.convert.lingua import from_lingua, to_lingua
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


def saved_run(folder, **changes):
    """A run folder with a random model of 300 tokens."""
    tokenizer = train_bpe(TEXT, 300, (" South Africa",))
    params, tables, config = model(vocab_size=tokenizer.n_vocab, **changes)
    run = Run(folder, config, {}, tokenizer, params, tables, step=7)
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
    tokenizer = train_bpe(TEXT, 270)  # and 196 / 170 * 170, in floating point, is less than 196
    for dim, F in itertools.product((24, 64, 100, 960, 2048), (7, 20, 196, 2560, 8192)):
        m = official_params(Config(9, dim=dim, n_heads=2, ffn_dim=F), tokenizer)["model"]
        hidden = int(m["ffn_dim_multiplier"] * int(2 * 4 * dim / 3))
        assert m["multiple_of"] * ((hidden + m["multiple_of"] - 1) // m["multiple_of"]) == F
        assert m["stem_embedding_dim"] == F


def test_the_official_tokenizer_class_with_our_pattern_gives_our_ids(tmp_path):
    """The three lines that the README tells to change there, on the file that is exported."""
    run = saved_run(tmp_path / "run", stem_layers=(1,))
    export_run(run, tmp_path / "out", "lingua")
    said = json.loads((tmp_path / "out/params.json").read_text("utf-8"))["data"]["tokenizer"]
    ranks = tiktoken.load.load_tiktoken_bpe(str(tmp_path / "out" / said["path"]))
    pattern, special = said["pattern"], said["special"]
    theirs = tiktoken.Encoding("t", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
    text = TEXT + "South Africa and in South Africa's <|endoftext|>"
    assert theirs.encode_ordinary(text) == run.tokenizer.encode(text)
    assert theirs.n_vocab == run.config.vocab_size


def test_without_pytorch_there_is_one_line_and_help(tmp_path):
    """In a Python that finds no torch: -I -S leaves all that is installed out."""
    for args, code in (["--help"], 0), ([str(tmp_path)], 2):
        command = [sys.executable, "-I", "-S", str(PTH), *args]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
    assert done.stderr.count("\n") == 1 and "pip install torch safetensors" in done.stderr


def test_the_pth_files_are_what_the_official_loaders_expect_and_come_back_the_same(tmp_path, capsys):
    torch = pytest.importorskip("torch")
    pth = SimpleNamespace(**runpy.run_path(str(PTH)))
    run, out = saved_run(tmp_path / "run", stem_layers=(0, 2)), tmp_path / "out"
    export_run(run, out, "lingua")
    files = [out / "consolidated" / f"{name}.safetensors" for name in ("consolidated", "consolidated_stem")]
    before = [load_file(path) for path in files]
    with pytest.raises(SystemExit, match="2"):
        pth.there(out, shards=3)
    assert "20 wide" in capsys.readouterr().err
    warnings.simplefilter("ignore")  # PyTorch's own, about a process group that is not there
    pth.there(out, shards=4)

    official = to_lingua(run.params, run.tables, run.config)
    backbone = torch.load(out / "consolidated/consolidated.pth", weights_only=True)["model"]
    stem = torch.load(out / "consolidated/consolidated_stem.pth", weights_only=True)
    assert {"lm_transformer." + name for name in backbone} | set(stem) == set(official)
    shards = [torch.load(out / f"stem_shards/stem_model_mp{i}.pt", weights_only=True) for i in range(4)]
    for name, a in official.items():
        if name in stem:
            whole = torch.cat([shard[name] for shard in shards], dim=1)
            assert (whole.numpy() == a).all() and (stem[name].numpy() == a).all()
        else:
            assert (backbone[name.removeprefix("lm_transformer.")].numpy() == a).all()
    # what load_from_checkpoint does with the distributed checkpoint
    empty = {"model": {name: torch.zeros_like(a) for name, a in backbone.items()}}
    torch.distributed.checkpoint.load(empty, checkpoint_id=str(out))
    assert all((empty["model"][name] == a).all() for name, a in backbone.items())

    for path in files:
        path.unlink()
    with pytest.raises(ValueError, match="--back"):
        import_run(out, tmp_path / "new")
    pth.back(out)
    for path, state in zip(files, before, strict=True):
        again = load_file(path)
        assert again.keys() == state.keys() and all((again[n] == state[n]).all() for n in state)


def test_numbers_that_float32_cannot_hold_are_refused(tmp_path):
    saved_run(tmp_path / "run", stem_layers=(1,))
    export_run(load_checkpoint(tmp_path / "run"), tmp_path / "out", "lingua")
    path = tmp_path / "out/consolidated/consolidated.safetensors"
    state = load_file(path)
    save_file({**state, "lm_transformer.norm.weight": np.full(24, 1e300)}, path)
    with pytest.raises(ValueError, match="norm.weight holds float64"):
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
    for file in ("consolidated.safetensors", "consolidated_stem.safetensors"):
        a, b = (load_file(tmp_path / f"{name}-out/consolidated" / file) for name in ("run", "disk"))
        assert a.keys() == b.keys() and all((a[key] == b[key]).all() for key in a)


def test_the_command_line_goes_there_and_back_and_refuses_in_one_line(tmp_path, monkeypatch, capsys):
    saved_run(tmp_path / "run", stem_layers=(1,))
    assert lingua(monkeypatch, capsys, "export", tmp_path / "run", tmp_path / "out")[0] == 0
    assert lingua(monkeypatch, capsys, "import", tmp_path / "out", tmp_path / "new")[0] == 0
    (tmp_path / "wrong").mkdir()
    shutil.copytree(tmp_path / "out", tmp_path / "torn")
    (tmp_path / "torn/consolidated/consolidated.safetensors").write_bytes(b"half")
    shutil.copytree(tmp_path / "out", tmp_path / "other")
    train_bpe(TEXT, 280).save(tmp_path / "other/vocab.tiktoken")
    for args, words in {
        ("export", tmp_path / "run", tmp_path / "out"): ["out is there already"],
        ("export", tmp_path / "nothing", tmp_path / "x"): ["nothing is not a folder"],
        ("export", tmp_path / "run", tmp_path / "x", "--to", "llama"): ["no tables", "layers 1"],
        ("import", tmp_path / "wrong", tmp_path / "x"): ["no params.json", "no config.json"],
        ("import", tmp_path / "torn", tmp_path / "x"): ["consolidated.safetensors", "cannot be read"],
        ("import", tmp_path / "other", tmp_path / "x"): ["280", "model"],
        ("import", tmp_path / "out", tmp_path / "new"): ["holds a run already"],
    }.items():
        code, said = lingua(monkeypatch, capsys, *args)
        assert code == 2 and said.count("\n") == 1 and all(word in said for word in words), said
        assert not (tmp_path / "x").exists() and not list(tmp_path.glob(".*.tmp"))
