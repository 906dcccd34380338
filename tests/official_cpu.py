"""The official STEM code on CPUs: [torchrun --nproc-per-node 2] official_cpu.py FOLDER/launch.py CODE ...

Runs launch.py (ministem/convert) after putting stand-ins where the official code wants CUDA, NCCL, xFormers
and wandb. What is replaced here computes nothing of a model; flex_attention runs, but is not compiled. In
place of train or generate: batches N FILE, the ids that N processes begin with.
"""

import importlib.util
import os
import sys
import types
from collections import defaultdict
from contextlib import nullcontext
from functools import partial

import torch
import torch.distributed as dist


def module(name, **content):
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(content)


class Event:
    def __init__(self, enable_timing):
        pass

    def record(self):
        pass

    def elapsed_time(self, other):
        return 1.0


def use_cpu():
    torch.library.define("xformers_flash::flash_fwd", "(Tensor x) -> Tensor")
    for name in ("xformers", "xformers.ops", "xformers.profiler", "wandb", "sentencepiece"):
        module(name, run=None, fmha=None, AttentionBias=object, SentencePieceProcessor=None,
               MemSnapshotsProfiler=object, PyTorchProfiler=object)  # fmt: skip

    torch.compile = lambda function, **how: function
    cuda = torch.cuda
    cuda.Event = Event
    cuda.current_device = lambda: "cpu"
    cuda.get_device_name = lambda device: "CPU"
    cuda.get_device_properties = lambda device: types.SimpleNamespace(total_memory=2**30)
    cuda.memory_stats = lambda device: defaultdict(int)
    cuda.power_draw = lambda: 0
    for name in "synchronize empty_cache reset_peak_memory_stats reset_accumulated_memory_stats".split():
        setattr(cuda, name, lambda *_: None)
    torch.random.fork_rng = lambda devices: nullcontext()
    torch.Tensor.cuda = torch.Tensor.clone
    torch.nn.Module.cuda = lambda self: self
    to_empty = torch.nn.Module.to_empty
    torch.nn.Module.to_empty = lambda self, device: to_empty(self, device="cpu")
    start, group = dist.init_process_group, dist.new_group
    dist.init_process_group = lambda *args, **how: start(*args, **how | {"backend": "gloo"})
    dist.new_group = lambda ranks, **how: group(ranks, **how | {"backend": "gloo"})
    mesh = torch.distributed.device_mesh.init_device_mesh
    torch.distributed.device_mesh.init_device_mesh = lambda device, **how: mesh("cpu", **how)


def launcher(path):
    spec = importlib.util.spec_from_file_location("launch", path)
    launch = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(launch)
    return launch


def first_batches(processes, path):
    """Write the ids that official training begins with, (processes, B, T, 2): inputs and targets."""
    import numpy as np
    from lingua.data import DataArgs, build_dataloader_from_args, init_dataloader_state_from_args
    from omegaconf import OmegaConf

    settings = OmegaConf.merge(OmegaConf.structured(DataArgs()), OmegaConf.load("train.yaml").data)
    args = OmegaConf.to_object(OmegaConf.merge(settings, dict(load_async=False)))
    batches = []
    for rank in range(processes):
        state = init_dataloader_state_from_args(args, rank, processes)
        with build_dataloader_from_args(args, state) as loader:
            batches.append(next(loader)[0])
    np.save(path, np.stack(batches))


if __name__ == "__main__":
    use_cpu()
    sys.argv = sys.argv[1:]
    sys.path.insert(0, sys.argv[1])
    launch = launcher(sys.argv[0])
    if sys.argv[2] == "batches":
        os.chdir(launch.FOLDER)
        launch.use_our_tokenizer()
        first_batches(int(sys.argv[3]), sys.argv[4])
    else:
        stem_checkpoint = importlib.import_module("lingua.stem_checkpoint")
        stem_checkpoint.load_stem_shards = partial(stem_checkpoint.load_stem_shards, map_location="cpu")
        launch.main()
elif __name__ == "__mp_main__":  # the process that loads data; it starts in the exported folder
    use_cpu()
    launcher("launch.py").use_our_tokenizer()
