"""The official STEM code's own files, which take PyTorch to write and to read. Stands alone, like launch.py.

    python pth.py FOLDER                 an exported folder: add all that the official code loads
    python pth.py CHECKPOINT --back NEW  DUMP/checkpoints/NNN -> a new folder, for import without PyTorch

Needs PyTorch and safetensors and nothing of ministem. Training starts from .metadata and *.distcp (the
backbone as a distributed checkpoint) and stem_shards/ (the tables, cut along their width, one file for each
process); generation from consolidated/consolidated.pth, backbone and tables in one, which launch.py adds to
a checkpoint. No code is unpickled: of .pth and .pt files weights only are loaded, and .metadata may hold
nothing but what describes tensors.
"""

import argparse
import json
import os
import pickle
import shutil
import sys
import warnings
from pathlib import Path

try:
    import torch
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import load_file, save
except ModuleNotFoundError as error:  # --help works without
    missing = error.name
else:
    missing = None

BACKBONE, TABLE = "lm_transformer.", "stem_embeddings."
DESCRIBE_TENSORS = {
    "pathlib": ["PosixPath", "WindowsPath"],
    "torch": ["Size", "float32", "float16", "bfloat16", "float64", "int64"],
    "torch.serialization": ["_get_layout"],
    "torch.distributed.checkpoint.filesystem": ["_StorageInfo"],
    "torch.distributed.checkpoint.metadata": [
        "Metadata", "MetadataIndex", "StorageMeta", "TensorProperties", "TensorStorageMetadata",
        "ChunkStorageMetadata", "BytesStorageMetadata", "_MEM_FORMAT_ENCODING",
    ],
}  # fmt: skip


class Metadata(pickle.Unpickler):
    """Refuses whatever does not describe tensors."""

    def find_class(self, module, name):
        if name not in DESCRIBE_TENSORS.get(module, ()):
            raise ValueError(f".metadata holds {module}.{name}, which describes no tensor")
        return super().find_class(module, name)


def is_table(name):
    return name.startswith(TABLE)


# --------------------------------------------------------------------------------- to the official code


def add_official_files(folder):
    """An exported folder gets .metadata, *.distcp, stem_shards/ and consolidated/*.pth. ValueError."""
    if (folder / ".metadata").exists():
        raise ValueError(f"{folder} has the official code's files already")
    if not (folder / "model.safetensors").exists():
        raise ValueError(f"{folder}/model.safetensors is missing: ministem.convert.folders makes it")
    state = read(folder)
    consolidate(folder)
    shards = settings(folder)["distributed"]["stem_parallel_size"]
    tables = {name: a for name, a in state.items() if is_table(name)}
    for i in range(shards if tables else 0):
        part = {name: a.chunk(shards, dim=1)[i].clone() for name, a in tables.items()}
        (folder / "stem_shards").mkdir(exist_ok=True)
        torch.save(part, folder / "stem_shards" / f"stem_model_mp{i}.pt")
    # training loads into lm_transformer, and so without its name. .metadata, which it looks for, is last
    backbone = {name.removeprefix(BACKBONE): a for name, a in state.items() if not is_table(name)}
    with warnings.catch_warnings(action="ignore"):  # that there is no process group
        dcp.save({"model": backbone}, checkpoint_id=str(folder), no_dist=True)


def consolidate(folder):
    """Add consolidated/, which generation reads. That loads a STEM model with strict=False: a wrong name
    loads nothing, in silence. Its tables come from consolidated.pth, whatever consolidated_stem.pth holds."""
    state = read(folder)
    tables = {name: a for name, a in state.items() if is_table(name)}
    if not tables:  # a dense model has no lm_transformer around it
        state = {name.removeprefix(BACKBONE): a for name, a in state.items()}
    (folder / "consolidated").mkdir(exist_ok=True)
    shutil.copy(folder / "params.json", folder / "consolidated")
    contents = {"consolidated_stem.pth": tables} if tables else {}
    for name, content in (contents | {"consolidated.pth": {"model": state}}).items():
        torch.save(content, folder / "consolidated/new.tmp")
        os.replace(folder / "consolidated/new.tmp", folder / "consolidated" / name)


# ------------------------------------------------------------------------------------------- and back


def read(folder):
    """A folder or a checkpoint -> {official name, with lm_transformer or stem_embeddings: tensor}.

    As exported; else from distributed checkpoint and shards, as training leaves them; else from
    consolidated/*.pth. Raises ValueError if a table is missing, or a part of one."""
    if (folder / "model.safetensors").exists():
        return load(folder / "model.safetensors")
    consolidated = folder / "consolidated"
    if (folder / ".metadata").exists():
        backbone = read_distributed(folder)
    elif (consolidated / "consolidated.pth").exists():
        backbone = load(consolidated / "consolidated.pth")
        backbone = backbone.get("model", backbone)
    else:
        raise ValueError(f"{folder} has no .metadata and no consolidated/consolidated.pth: not a checkpoint")
    state = {n if is_table(n) else BACKBONE + n.removeprefix(BACKBONE): a for n, a in backbone.items()}
    paths = {int(p.stem[13:]): p for p in (folder / "stem_shards").glob("stem_model_mp*.pt")}
    if sorted(paths) != list(range(len(paths))):
        raise ValueError(f"{folder}/stem_shards has the shards {sorted(paths)}: some are missing")
    parts = [load(paths[i]) for i in range(len(paths))]  # in the order of their numbers: 10 after 9
    if parts:
        state |= {name: torch.cat([part[name] for part in parts], dim=1) for name in parts[0]}
    elif (consolidated / "consolidated_stem.pth").exists():
        state |= load(consolidated / "consolidated_stem.pth")

    gates = [name for name in state if name.endswith(".feed_forward.w1.weight")]
    for i, gate in enumerate(g for g in gates if g.replace(".w1.", ".w3.") not in state):  # no up-projection
        name, width = f"{TABLE}{i}.weight", len(state[gate])
        if name not in state or state[name].shape[1:] != (width,):
            size = tuple(state[name].shape) if name in state else "missing"
            raise ValueError(f"{folder}: {name} is {size}, and has to be {width} wide: look at stem_shards/")
    return state


def read_distributed(folder):
    try:
        with open(folder / ".metadata", "rb") as file:
            about = Metadata(file).load().state_dict_metadata
        state = {
            name.removeprefix("model."): torch.empty(a.size, dtype=a.properties.dtype)
            for name, a in about.items()
            if name.startswith("model.") and hasattr(a, "size")
        }
        with warnings.catch_warnings(action="ignore"):  # that there is no process group
            dcp.load({"model": state}, checkpoint_id=str(folder), no_dist=True)
    except Exception as error:  # a damaged pickle fails in any way
        raise ValueError(f"{folder}: the distributed checkpoint cannot be read: {error}") from None
    return state


def load(path):
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle fails in any way
        raise ValueError(f"{path} cannot be read: {error}") from None


def back(checkpoint, new):
    """A checkpoint -> a new folder as ministem.convert.folders exports it: all that import needs."""
    if new.exists():
        raise ValueError(f"{new} is there already")
    state = {name: a.float().contiguous() for name, a in read(checkpoint).items()}
    vocabulary = find_vocabulary(checkpoint)
    temporary = new.with_name(f".{new.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        (temporary / "model.safetensors").write_bytes(save(state))
        for path in (checkpoint / "params.json", vocabulary):
            shutil.copy(path, temporary)
        os.rename(temporary, new)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def find_vocabulary(folder):
    """The vocabulary of a checkpoint: beside it, or in the exported folder that launch.py trained in."""
    places = [folder, *folder.resolve().parents[2:3]]  # FOLDER/dump/checkpoints/NNN
    found = [place / "vocab.tiktoken" for place in places if (place / "vocab.tiktoken").exists()]
    if not found:
        raise ValueError(f"{folder} has no vocab.tiktoken: copy it from the folder that was exported")
    return found[0]


def settings(folder):
    try:
        return json.loads((folder / "params.json").read_text("utf-8"))
    except (OSError, ValueError):
        raise ValueError(f"{folder} has no params.json: not a folder of the official code") from None


def main():
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--back", type=Path, metavar="NEW")
    args = parser.parse_args()
    try:
        if missing:
            raise ValueError(f"this needs {missing}, which is not installed: pip install torch safetensors")
        settings(args.folder)
        if args.back:
            back(args.folder, args.back)
        else:
            add_official_files(args.folder)
    except (ValueError, OSError) as error:
        print(f"pth.py: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
