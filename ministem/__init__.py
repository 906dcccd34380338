"""ministem: STEM (arXiv 2601.10639) from scratch in NumPy. Start reading at model.py.

Names are imported when first used, so that `import ministem` and `--help` cost nothing.
"""

_HOME = {
    "Config": "model", "init_params": "model", "forward": "model", "loss_and_grads": "model",
    "KVCache": "model", "Tables": "tables", "RowSparse": "tables", "AdamW": "optim",
    "cosine_schedule": "optim", "train_bpe": "tokenizer", "Tokenizer": "tokenizer",
    "StreamDecoder": "tokenizer", "save_checkpoint": "checkpoint",
    "load_checkpoint": "checkpoint", "to_lingua": "lingua", "from_lingua": "lingua",
    "Patch": "edit",
}  # fmt: skip
__all__ = list(_HOME)


def __getattr__(name):
    from importlib import import_module

    if name not in _HOME:
        raise AttributeError(f"module 'ministem' has no attribute {name!r}")
    return getattr(import_module(f"ministem.{_HOME[name]}"), name)
