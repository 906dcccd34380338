"""The official STEM code's own files from a folder that folders.py exported, and back.

    python ministem/convert/pth.py FOLDER --shards 8   before the official code: a shard of each table per GPU
    python ministem/convert/pth.py FOLDER --back       after it: safetensors, which ministem imports

Needs PyTorch and safetensors and nothing of ministem, so that it can be copied to where the GPUs are. It
makes consolidated/*.pth, which generation reads, and for training .metadata and *.distcp (the backbone as a
distributed checkpoint) and stem_shards/ (the tables, cut along their width). Files are loaded with
weights_only=True: no code is unpickled. That is also why --back starts from consolidated.pth, which the
official code writes before it generates or evaluates: a distributed checkpoint has a pickle inside.
"""

import argparse
import sys
from pathlib import Path

try:
    import torch
    from safetensors.torch import load_file, save_file
    from torch.distributed.checkpoint.format_utils import torch_save_to_dcp
except ModuleNotFoundError as error:  # --help works without
    missing = error.name
else:
    missing = None

BACKBONE = "lm_transformer."


def fail(message):
    print(f"pth.py: {message}", file=sys.stderr)
    sys.exit(2)


def there(folder, shards):
    consolidated = folder / "consolidated"
    paths = [consolidated / f"{name}.safetensors" for name in ("consolidated", "consolidated_stem")]
    for path in paths:
        if not path.exists():
            fail(f"{path} is missing: python -m ministem.convert.folders export makes it")
    backbone, stem = map(load_file, paths)
    # under "model" and without the prefix: as its training saves, and as its generation expects
    backbone = {"model": {name.removeprefix(BACKBONE): a for name, a in backbone.items()}}
    for name, a in stem.items():
        if a.shape[1] % shards:
            fail(f"{name} is {a.shape[1]} wide, which does not divide into {shards} shards")
    torch.save(backbone, consolidated / "consolidated.pth")
    torch.save(stem, consolidated / "consolidated_stem.pth")
    torch_save_to_dcp(consolidated / "consolidated.pth", folder)
    (folder / "stem_shards").mkdir(exist_ok=True)
    for i in range(shards if stem else 0):
        part = {name: a.chunk(shards, dim=1)[i].clone() for name, a in stem.items()}
        torch.save(part, folder / "stem_shards" / f"stem_model_mp{i}.pt")


def back(folder):
    consolidated = folder / "consolidated"
    if not (consolidated / "consolidated.pth").exists():
        fail(f"{consolidated / 'consolidated.pth'} is missing: apps.main.stem_generate makes it")
    backbone = torch.load(consolidated / "consolidated.pth", map_location="cpu", weights_only=True)
    backbone = backbone.get("model", backbone)
    names = {name: BACKBONE + name.removeprefix(BACKBONE) for name in backbone}
    save(consolidated / "consolidated.safetensors", {names[name]: a for name, a in backbone.items()})
    if (consolidated / "consolidated_stem.pth").exists():
        stem = torch.load(consolidated / "consolidated_stem.pth", map_location="cpu", weights_only=True)
    else:  # in the order of their numbers: mp10 comes after mp9
        shards = sorted((folder / "stem_shards").glob("stem_model_mp*.pt"), key=lambda p: int(p.stem[13:]))
        parts = [torch.load(path, map_location="cpu", weights_only=True) for path in shards]
        stem = {name: torch.cat([part[name] for part in parts], dim=1) for name in parts[0]} if parts else {}
    save(consolidated / "consolidated_stem.safetensors", stem)


def save(path, state):
    save_file({name: a.detach().float().contiguous() for name, a in state.items()}, path)


if __name__ == "__main__":
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shards", type=int, default=1, help="as many as stem_parallel_size (default: 1)")
    parser.add_argument("--back", action="store_true")
    args = parser.parse_args()
    if missing:
        fail(f"this needs {missing}, which is not installed: pip install torch safetensors")
    if args.shards < 1:
        fail("--shards must be at least 1")
    if not (args.folder / "params.json").exists():
        fail(f"{args.folder} has no params.json: not a folder of the official code")
    back(args.folder) if args.back else there(args.folder, args.shards)
