"""A dense model is a Llama: transformers' own implementation agrees, once the features stand in its order."""

import json
import random
import sys

import numpy as np
import pytest
import tiktoken
from safetensors import safe_open
from safetensors.numpy import load_file

from ministem import atlas
from ministem.config import Config, init_params
from ministem.convert.folders import export_run, import_run
from ministem.convert.llama import from_llama, halves, llama_arguments, llama_config, pairs, to_llama
from ministem.generate import generate
from ministem.model import forward
from ministem.run.checkpoint import Run, load_checkpoint
from ministem.tokenizer import Tokenizer, train_bpe

SIZES = dict(vocab_size=61, dim=48, n_layers=3, n_heads=6, ffn_dim=40, context=32, stem_layers=())


def model(**changes):
    config = Config(**SIZES | changes)
    params, tables = init_params(config, seed=3)
    rng = np.random.default_rng(4)
    for p in params.values():
        p += 0.1 * rng.standard_normal(p.shape).astype("float32")
    return params, tables, config


def test_pairs_become_halves_and_come_back():
    w = np.arange(2 * 6)[:, None] * np.ones((1, 3))
    assert halves(w, 6)[:, 0].tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]
    assert (pairs(halves(w, 6), 6) == w).all()


@pytest.mark.parametrize("n_kv_heads", [1, 3, 6])
def test_a_round_trip_gives_back_every_bit_and_the_config(n_kv_heads):
    params, tables, config = model(n_kv_heads=n_kv_heads, rope_theta=5e5, norm_eps=1e-6)
    how = llama_arguments(json.loads(json.dumps(llama_config(config, 60))))
    params2, tables2, config2 = from_llama(to_llama(params, tables, config), **how)
    assert config2 == config and params2.keys() == params.keys()
    assert all((params2[name] == params[name]).all() for name in params)
    assert (tables2["embed"] == tables["embed"]).all()


@pytest.mark.parametrize("n_kv_heads, rope_theta", [(6, 1e4), (2, 5e5)])
def test_logits_agree_with_transformers(n_kv_heads, rope_theta):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    params, tables, config = model(n_kv_heads=n_kv_heads, rope_theta=rope_theta)
    ids = np.random.default_rng(0).integers(0, config.vocab_size, (3, config.context))
    ours = forward(params, config, tables.fetch(ids))

    theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**llama_config(config, 60)))
    state = {name: torch.from_numpy(a) for name, a in to_llama(params, tables, config).items()}
    theirs.load_state_dict(state, strict=True)  # every name is there, and no other
    with torch.no_grad():
        logits = theirs.eval()(torch.from_numpy(ids)).logits.numpy()
    np.testing.assert_allclose(ours, logits, atol=1e-5 * np.abs(logits).max(), rtol=0)

    # and weights of theirs, drawn by their own code, read here
    drawn = transformers.LlamaForCausalLM(transformers.LlamaConfig(**llama_config(config, 60))).eval()
    how = llama_arguments(drawn.config.to_dict())
    read = from_llama({name: a.numpy() for name, a in drawn.state_dict().items()}, **how)
    with torch.no_grad():
        logits = drawn(torch.from_numpy(ids)).logits.numpy()
    ours = forward(read[0], read[2], read[1].fetch(ids))
    np.testing.assert_allclose(ours, logits, atol=1e-5 * np.abs(logits).max(), rtol=0)


def test_tied_weights_are_untied():
    state = to_llama(*model())
    del state["lm_head.weight"]
    params, tables, _ = from_llama(state, n_heads=6, context=32)
    assert (params["head"] == tables["embed"].T).all()
    assert not np.shares_memory(params["head"], tables["embed"])


def test_what_is_no_llama_or_no_dense_model_is_named():
    with pytest.raises(ValueError, match="layers 1, 2"):
        to_llama(*model(stem_layers=(1, 2)))
    state = to_llama(*model())
    for change, word in {
        "model.layers.0.self_attn.q_proj.bias": "q_proj.bias",
        "model.layers.0.self_attn.q_norm.weight": "q_norm",
        "model.layers.9.input_layernorm.weight": "missing",
    }.items():
        with pytest.raises(ValueError, match=word):
            from_llama(state | {change: np.ones(48, "float32")}, n_heads=6, context=32)
    name = "model.layers.0.self_attn.q_proj.weight"
    with pytest.raises(ValueError, match="q_proj"):
        from_llama(state | {name: np.ones(48, "float32")}, n_heads=6, context=32)
    good = llama_config(model()[2], 60)
    for name, value in dict(model_type="qwen2", hidden_act="gelu", head_dim=10, attention_bias=True,
                            rope_scaling=dict(rope_type="llama3", factor=8.0)).items():  # fmt: skip
        with pytest.raises(ValueError, match=name):
            llama_arguments(good | {name: value})


def test_what_a_config_leaves_out_is_what_transformers_takes():
    """LlamaConfig's defaults, and both places where it has had the base of RoPE."""
    least = dict(model_type="llama", hidden_size=48, num_attention_heads=6, max_position_embeddings=32)
    assert llama_arguments(least) == dict(n_heads=6, context=32, norm_eps=1e-6, rope_theta=1e4)
    new = least | dict(rope_parameters=dict(rope_theta=5e5, rope_type="default"), rope_theta=1.0)
    assert llama_arguments(new)["rope_theta"] == 5e5
    assert llama_arguments(least | dict(rope_theta=7e5))["rope_theta"] == 7e5
    with pytest.raises(ValueError, match="rope_scaling"):
        llama_arguments(least | dict(rope_parameters=dict(rope_theta=5e5, rope_type="llama3")))


# ------------------------------------------------------------------------------------------ folders


@pytest.fixture(scope="module")
def vocabulary():
    facts, _ = atlas.corpus(0)
    return train_bpe(facts[:20_000], 1100, tuple(atlas.names()))


@pytest.fixture
def run(tmp_path, vocabulary):
    """A dense model with the vocabulary of an atlas run: names are tokens."""
    params, tables, config = model(vocab_size=vocabulary.n_vocab, n_kv_heads=3, rope_theta=5e5)
    return Run(tmp_path / "run", config, {}, vocabulary, params, tables)


def texts(n=2_000):
    """Of all that a text can hold: names whole and in parts, scripts, emoji, blanks, control characters."""
    facts, _ = atlas.corpus(1)
    draw = random.Random(0)
    parts = [
        *atlas.names(), "한국어", "대한민국", "日本の首都", "हिन्दी", "e\u0301", "😀", "👨\u200d👩\u200d👧",
        "\r\n", "\n\n", " ", "   ", "\t", "\0", "\x1b[0m", "\x85", "\u2028", "\ufeff", "\ufffd", "\U0003fffd",
        "'s", "'ll", "'tis", "1234", "...", "the", "South", "<|endoftext|>",
        "a" * 70, "!" * 70, " " * 70, "\n" * 70,
    ]  # fmt: skip
    return ["", "<|endoftext|>", *facts.splitlines(True)[: n // 2],
            *("".join(draw.choices(parts, k=draw.randint(1, 12))) for _ in range(n // 2))]  # fmt: skip


def test_auto_tokenizer_gives_our_ids_on_every_text(tmp_path, run):
    transformers = pytest.importorskip("transformers")
    assert not export_run(run, tmp_path / "hf", "llama")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    some = texts()
    assert len(some) > 1_510
    for text in some:
        ids = run.tokenizer.encode(text)
        assert theirs(text)["input_ids"] == ids, repr(text)
        assert theirs.decode(ids) == text
    assert len(theirs) == run.config.vocab_size and theirs.eos_token_id == run.tokenizer.eot
    settings = json.loads((tmp_path / "hf/tokenizer_config.json").read_text())
    assert settings["model_input_names"] == ["input_ids", "attention_mask"]  # generate() takes no other


def test_without_the_library_there_is_no_tokenizer_and_one_sentence_why(tmp_path, run, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    (note,) = export_run(run, tmp_path / "hf", "llama")
    assert "pip install tokenizers" in note
    # tokenizer.model would be taken, with another pattern, by AutoTokenizer
    assert {path.name for path in (tmp_path / "hf").iterdir()} == {
        "config.json", "model.safetensors", "vocab.tiktoken"
    }  # fmt: skip


def test_transformers_loads_the_folder_and_goes_on_as_we_do(tmp_path, run):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    export_run(run, tmp_path / "hf", "llama")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype="float32")
    assert theirs.config.eos_token_id == theirs.config.bos_token_id == run.tokenizer.eot
    prompt = run.tokenizer.encode("The capital of Spain is")
    ours = list(generate(run.params, run.tables, run.config, prompt, 20, temperature=0))
    found = theirs.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False, pad_token_id=0)
    assert found[0, len(prompt) :].tolist() == ours
    with safe_open(tmp_path / "hf/model.safetensors", "numpy") as file:
        assert file.metadata() == {"format": "pt"}  # transformers 4.45 refuses a file without


def test_bfloat16_in_shards_is_imported(tmp_path, run):
    """As models are published: written here by hand, which NumPy can, and by transformers where it is."""
    export_run(run, tmp_path / "hf", "llama")
    state = load_file(tmp_path / "hf/model.safetensors")
    (tmp_path / "hf/model.safetensors").unlink()
    upper = {name: (a.view("<u4") >> 16).astype("<u2") for name, a in state.items()}
    weight_map = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(state)}
    for file in set(weight_map.values()):
        header, data = {}, b""
        for name in (n for n in upper if weight_map[n] == file):
            place = [len(data), len(data) + upper[name].nbytes]
            header[name] = dict(dtype="BF16", shape=upper[name].shape, data_offsets=place)
            data += upper[name].tobytes()
        header = json.dumps(header).encode()
        (tmp_path / "hf" / file).write_bytes(len(header).to_bytes(8, "little") + header + data)
    index = tmp_path / "hf/model.safetensors.index.json"
    index.write_text(json.dumps(dict(weight_map=weight_map)))
    import_run(tmp_path / "hf", tmp_path / "new")
    new = load_checkpoint(tmp_path / "new")
    expected = from_llama(
        {name: (a.astype("<u4") << 16).view("<f4") for name, a in upper.items()},
        **llama_arguments(llama_config(run.config, 0)),
    )
    assert all((new.params[name] == a).all() for name, a in expected[0].items())
    assert new.config == run.config and (new.tables["embed"] == expected[1]["embed"]).all()

    for change, words in {
        ("lm_head.weight", "model-9.safetensors"): "model-9.safetensors is missing",
        ("model.norm.weight", "../model-0.safetensors"): "outside of the folder",
        ("model.nothing.weight", "model-0.safetensors"): "no model.nothing.weight",
    }.items():
        index.write_text(json.dumps(dict(weight_map=weight_map | dict([change]))))
        with pytest.raises(ValueError, match=words):
            import_run(tmp_path / "hf", tmp_path / "other")


def test_what_transformers_writes_in_bfloat16_and_in_shards_comes_back(tmp_path, run):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    export_run(run, tmp_path / "hf", "llama")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.bfloat16)
    theirs.save_pretrained(tmp_path / "saved", max_shard_size="100KB")
    assert len(list((tmp_path / "saved").glob("model-*.safetensors"))) > 1
    with pytest.raises(ValueError, match="vocab.tiktoken is missing"):
        import_run(tmp_path / "saved", tmp_path / "new")
    (tmp_path / "saved/vocab.tiktoken").write_bytes(run.tokenizer.to_bytes())
    import_run(tmp_path / "saved", tmp_path / "new")
    new = load_checkpoint(tmp_path / "new")
    assert new.config == run.config
    for name, a in new.params.items():
        expected = torch.from_numpy(run.params[name].copy()).bfloat16().float().numpy()
        assert (a == expected).all(), name


def test_a_stock_vocabulary_has_its_own_tokenizer_at_hugging_face(tmp_path, run, vocabulary):
    ranks, special = vocabulary.encoding._mergeable_ranks, vocabulary.encoding._special_tokens
    stock = tiktoken.Encoding("gpt2", pat_str="x", mergeable_ranks=ranks, special_tokens=special)
    run.tokenizer = Tokenizer(stock)
    (note,) = export_run(run, tmp_path / "hf", "llama")
    assert 'AutoTokenizer has "gpt2"' in note and not (tmp_path / "hf/tokenizer.json").exists()
