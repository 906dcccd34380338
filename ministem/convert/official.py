"""What the official STEM code needs besides weights: settings, vocabulary, training text.

FOLDER/params.json                       model, precision and tokenizer: what generation reads
       train.yaml                        all settings of a training run that starts from these weights
       tokenizer.model, splitting.json   the vocabulary in tiktoken's format; how text is cut up
       data/NAME/NAME.chunk.00.jsonl     training text, and NAME.val.jsonl
       pth.py, launch.py                 the two scripts for where the GPUs are
"""

import json
import re
import shutil
from pathlib import Path

from ..data import load_corpus
from ..run.checkpoint import write_json

DOCUMENT = 100_000  # characters at most; the official code cuts what is longer than 400,000, wherever that is
DOCUMENTS = 256  # at least, where there are so many lines: processes share the documents of a file
CUT = re.compile(r"\n(?=\S)")  # line breaks in a row, or a line break and blanks, may be one token

YAML = """\
# For the official STEM code, by way of launch.py. Paths are relative to this folder.
name: "{name}"
dump_dir: dump  # metrics.jsonl and checkpoints/
steps: {steps}
seed: {seed}

optim:
  lr: {lr}  # of tables too; a third of the run's, since all moments begin at zero
  warmup: {warmup}
  weight_decay: {weight_decay}  # of tables too, and of every row at every step
  clip: {clip}
  lr_min_ratio: 0.1

distributed:
  fsdp_type: full_shard
  dp_shard: {shards}  # processes
  dp_replicate: 1
  stem_parallel_size: {shards}  # shards of each table: as many, since gradients of replicas are not summed
  model_dtype: fp32  # the same numbers as here; bf16 is faster
  compile: false

model: {model}

data:
  root_dir: data
  sources: {{"{name}": 1.0}}
  batch_size: {batch}  # of one process
  seq_len: {context}  # the model's context: the official code takes it from here
  add_bos: false  # training here puts no token between texts
  add_eos: false
  tokenizer: {{name: tiktoken, path: tokenizer.model}}

checkpoint:
  init_ckpt_path: .
  dump: {{every: 500, keep: 2}}

logging: {{freq: 10}}
"""


def model_settings(config):
    """-> the model block. The official code knows no FFN width, only what it is computed from:
    multiple_of * ceil(int(ffn_dim_multiplier * int(8 dim / 3)) / multiple_of), which here is F."""
    F, base = config.ffn_dim, int(2 * 4 * config.dim / 3)
    model = dict(
        dim=config.dim, n_layers=config.n_layers, n_heads=config.n_heads, n_kv_heads=config.n_kv_heads,
        ffn_dim_multiplier=F / base, multiple_of=F, norm_eps=config.norm_eps, rope_theta=config.rope_theta,
        vocab_size=config.vocab_size, max_seqlen=config.context, weight_tying=False,
    )  # fmt: skip
    if config.ffn == "stem" and config.stem_layers:  # its dense models do not know these words
        model |= dict(stem_layers=list(config.stem_layers), stem_embedding_dim=F)
    return model


def training_settings(run, name, shards):
    """-> train.yaml as a string"""
    had = {"lr": 3e-3, "warmup": 50, "weight_decay": 0.1, "clip": 1.0, "batch": 16, "seed": 0, "steps": 1000}
    had |= {key: value for key, value in run.settings.items() if key in had and value is not None}
    model = json.dumps(model_settings(run.config))
    return YAML.format_map(had | dict(
        name=name, shards=shards, model=model, context=run.config.context,
        lr=f"{had['lr'] / 3:.3g}", batch=max(1, had["batch"] // shards),
    ))  # fmt: skip


def documents(text):
    """Cut a text into documents that end with a line: tokens of ours do not cross such a cut, so that all
    documents together have the ids of the whole text. (A line longer than DOCUMENT is cut anywhere.)"""
    size = max(1, min(DOCUMENT, len(text) // DOCUMENTS))
    start = 0
    while start < len(text):
        cut = CUT.search(text, start + size - 1)
        end = min(cut.end() if cut else len(text), start + DOCUMENT)
        yield text[start:end]
        start = end


def export(run, folder, shards):
    """Write all but the weights into an existing folder -> [], or a list of why there is no text in it."""
    corpus, notes, source = None, [], run.settings.get("data")
    try:
        if source is None:
            raise ValueError("this run has no text of its own")
        corpus = load_corpus(source, run.settings.get("seed") or 0)
    except ValueError as error:
        notes = [f'{error}: put {{"text": ...}} lines into data/text/text.chunk.00.jsonl']
    name = re.sub(r"[^A-Za-z0-9]+", "-", Path(corpus.name).stem if corpus else "").strip("-") or "text"
    for kind, text in (("chunk.00", corpus.train), ("val", corpus.val)) if corpus else ():
        lines = "".join(json.dumps({"text": document}) + "\n" for document in documents(text))
        (folder / "data" / name).mkdir(parents=True, exist_ok=True)
        (folder / "data" / name / f"{name}.{kind}.jsonl").write_text(lines, "ascii")
    (folder / "train.yaml").write_text(training_settings(run, name, shards), "utf-8")
    write_json(folder / "params.json", dict(
        model=model_settings(run.config),
        distributed=dict(model_dtype="fp32", stem_parallel_size=shards),
        data=dict(tokenizer=dict(name="tiktoken", path="tokenizer.model"), add_bos=False, add_eos=False),
    ))  # fmt: skip
    (folder / "tokenizer.model").write_bytes(run.tokenizer._lines())
    encoding = run.tokenizer.encoding
    write_json(folder / "splitting.json", dict(pattern=encoding._pat_str, special=encoding._special_tokens))
    for script in ("pth.py", "launch.py"):
        shutil.copy(Path(__file__).with_name(script), folder)
    return notes
