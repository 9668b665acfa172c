"""What this machine offers: instruction sets, and memory that may still be taken."""

from __future__ import annotations

import os
import platform
from functools import lru_cache
from pathlib import Path

import psutil


@lru_cache(maxsize=1)
def cpu_flags() -> frozenset[str]:
    """Instruction sets of this CPU in Linux's spelling; on other systems what its family always has."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return frozenset(line.partition(":")[2].split())
    except OSError:
        pass
    return frozenset({"asimd", "asimddp"} if platform.machine() in ("arm64", "aarch64") else {"avx2"})


def usable_cores(root: Path = Path("/sys/fs/cgroup")) -> int:
    """Physical cores, but no more than this process may run on (affinity, and the quota of its control group)."""
    logical = os.cpu_count() or 1
    limits = [psutil.cpu_count(logical=False) or logical, logical]
    if hasattr(os, "sched_getaffinity"):
        limits.append(len(os.sched_getaffinity(0)))
    try:
        quota, period = (root / "cpu.max").read_text().split()
        limits.append(int(quota) // int(period))
    except (OSError, ValueError):  # no such group, or "max"
        pass
    return max(min(limits), 1)


def available_memory(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """Bytes of RAM that this process may still take: what the system has, or its control group allows if less."""
    free = int(psutil.virtual_memory().available)
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        return free
    for _, controllers, place in lines:
        if controllers == "":  # version 2: one tree
            base, names = root, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base, names = root / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        group = base / place.lstrip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(base):
                free = min(free, _group_free(folder, *names))
    return max(free, 0)


def _group_free(folder: Path, limit: str, used: str, cache: str) -> int:
    """Limit less use; pages of files that the kernel would drop first do not count as used."""
    try:
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return int((folder / limit).read_text()) - int((folder / used).read_text()) + int(stat.get(cache, 0))
    except (OSError, ValueError):  # no such group, or "max"
        return 1 << 62
