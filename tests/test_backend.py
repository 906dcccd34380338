"""How many cores there are to use: a container may allow fewer than the machine has."""

import os

import numpy as np
import pytest

from ministem import backend

V1 = "4:memory:/elsewhere\n3:{}:{}\n1:name=systemd:/\n"


def quota(folder, quota, period=10_000):
    """The two files of version 1."""
    return {f"{folder}/cpu.cfs_quota_us": f"{quota}\n", f"{folder}/cpu.cfs_period_us": f"{period}\n"}


GROUPS = {  # what /proc/self/cgroup says; files and their content below /sys/fs/cgroup; cores
    "no control groups at all": (None, {}, 8),
    "version 2, no limit": ("0::/\n", {"cpu.max": "max 100000\n"}, 8),
    "version 2, a core and a half": ("0::/\n", {"cpu.max": "150000 100000\n"}, 2),
    "a tenth of a core": ("0::/\n", {"cpu.max": "10000 100000\n"}, 1),
    "more than the machine has": ("0::/\n", {"cpu.max": "9900000 100000\n"}, 8),
    "in a nested group": ("0::/user.slice/job\n", {"user.slice/job/cpu.max": "300000 100000\n"}, 3),
    "in the group around it": (
        "0::/a/b/c\n", {"a/b/c/cpu.max": "700000 100000\n", "a/cpu.max": "200000 100000\n"}, 2),
    "of a sibling, which is not ours": ("0::/a/b\n", {"a/c/cpu.max": "100000 100000\n"}, 8),
    "version 2 beside version 1": (
        V1.format("cpuset", "/") + "0::/a\n", {"unified/a/cpu.max": "200000 100000\n"}, 2),
    "version 1": (V1.format("cpu", "/"), quota("cpu", 25_000), 3),
    "version 1, no limit": (V1.format("cpu", "/"), quota("cpu", -1), 8),
    # of docker: the path is the host's, and what is mounted is the group
    "version 1, another path": (V1.format("cpu,cpuacct", "/docker/012"), quota("cpu,cpuacct", 50_000), 5),
    "version 1, nested": (V1.format("cpuacct,cpu", "/a/b"), quota("cpuacct,cpu/a", 50_000), 5),
    "version 1, of another controller": (V1.format("cpu", "/"), quota("cpu/elsewhere", 50_000), 8),
    "nonsense": ("0::/\n", {"cpu.max": "\n"}, 8),
}  # fmt: skip


@pytest.mark.parametrize("case", GROUPS)
def test_cores_are_those_that_the_control_groups_allow(tmp_path, monkeypatch, case):
    said, files, cores = GROUPS[case]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    for name, content in [("proc/self/cgroup", said)] * bool(said) + [*files.items()]:
        path = tmp_path / ("" if content is said else "sys/fs/cgroup") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    assert backend.available_cores(tmp_path) == cores


@pytest.mark.parametrize("count, cores", [(6, 6), (None, 1)])
def test_where_affinity_is_unknown_it_is_the_machines_cores(tmp_path, monkeypatch, count, cores):
    """On macOS and Windows; and where not even their number is known, one."""
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: count)
    assert backend.available_cores(tmp_path) == cores


def test_blocks_of_queries_are_larger_in_long_texts_and_on_a_gpu(gpu):
    sizes = [backend.block_size(T, np.empty(0)) for T in (5, 64, 1024, 2047, 2048)]
    assert sizes == [5, 64, 64, 64, 192]
    like = backend.device_array("gpu")
    assert [backend.block_size(T, like) for T in (5, 1024, 4096)] == [5, 1024, 1024]
