"""ministem: STEM (arXiv 2601.10639) from scratch in NumPy. Start reading at model.py.

The core is the files beside this one. Around it are four rooms: devices/ (where arrays live besides RAM),
run/ (what makes a run out of a model), knowledge/ (what a model knows, and changing it), convert/ (other
code). The core imports nothing of the last three.
"""

from .config import Config, init_params
from .convert.lingua import from_lingua, to_lingua
from .generate import KVCache
from .knowledge.edit import Patch
from .model import forward, loss_and_grads
from .optim import AdamW, cosine_schedule
from .run.checkpoint import load_checkpoint, save_checkpoint
from .tables import RowSparse, Tables
from .tokenizer import StreamDecoder, Tokenizer, train_bpe

__all__ = [
    "AdamW", "Config", "KVCache", "Patch", "RowSparse", "StreamDecoder", "Tables", "Tokenizer",
    "cosine_schedule", "forward", "from_lingua", "init_params", "load_checkpoint", "loss_and_grads",
    "save_checkpoint", "to_lingua", "train_bpe",
]  # fmt: skip
