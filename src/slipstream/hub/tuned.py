"""Models that were made on this machine (`slipstream tune-draft`) and have a name, beside those of the catalogue."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from slipstream.errors import ChecksumError, InputError, ResourceError
from slipstream.hub import cache
from slipstream.hub.catalog import Catalog, builtin


@dataclass(frozen=True)
class Tuned:
    """A made model; `facts` say of what, how, when, and what was measured: keys "sha256", "recipe", "draft", "target",
    "licence", "date" and others."""

    name: str
    path: Path
    facts: Mapping[str, Any]


def folder() -> Path:
    return cache.cache_dir() / "tuned"


def find(name: str) -> Tuned | None:
    """The made model of this name, if there is one. Reads only the facts."""
    path = folder() / f"{name}.gguf"
    facts = cache.read_json(_facts(path)) if _well_formed(name) and path.is_file() else None
    return Tuned(name, path, facts) if isinstance(facts, dict) else None


def every() -> list[Tuned]:
    """All of them, by name."""
    return [found for path in sorted(folder().glob("*.gguf")) if (found := find(path.stem))]


def checked(model: Tuned) -> Path:
    """Its file, hashed unless that was done before. Raises ChecksumError when it is not what was made."""
    if not cache.was_verified(model.path):
        sha256 = cache.sha256_of(model.path)
        if sha256 != model.facts.get("sha256"):
            raise ChecksumError(
                f"{model.path.name} is not the file that was made", "make it again: slipstream tune-draft"
            )
        cache.record_verified(model.path, sha256)
    return model.path


def check_name(name: str, catalog: Catalog | None = None) -> None:
    """Raises InputError for a name that a made model cannot have."""
    if not _well_formed(name):
        raise InputError(f"not a name for a model: {name}", "use letters, digits, '-', '_' and '.', and no .gguf")
    if name in (builtin() if catalog is None else catalog):
        raise InputError(f"{name} is a model of the catalogue", "choose another --name")


@contextmanager
def workshop(needed: int) -> Iterator[Path]:
    """A folder on the cache's disk for files in the making, removed afterwards whatever happens.

    Raises DiskShortage when fewer than `needed` bytes are free, ResourceError when the cache cannot be written.
    """
    try:
        folder().mkdir(parents=True, exist_ok=True)
        for left in folder().glob(".making-*"):  # by a process that was killed
            owner = left.name.split("-")[1]
            if owner.isdigit() and not psutil.pid_exists(int(owner)):
                shutil.rmtree(left, ignore_errors=True)
        place = Path(tempfile.mkdtemp(prefix=f".making-{os.getpid()}-", dir=folder()))
    except OSError as e:
        hint = "set SLIPSTREAM_HOME to a folder that can be written"
        raise ResourceError(f"cannot use the cache folder {folder()}: {e.strerror or e}", hint) from e
    try:
        cache.require_space(place, needed)
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def keep(name: str, file: Path, facts: Mapping[str, Any]) -> Path:
    """Move a file of the same disk into place under this name, in place of an earlier one; adds size and sha256."""
    check_name(name)
    path = folder() / f"{name}.gguf"
    sha256 = cache.sha256_of(file)
    os.replace(file, path)
    cache.write_json(_facts(path), {"name": name, **facts, "size": path.stat().st_size, "sha256": sha256})
    cache.record_verified(path, sha256)
    return path


def _well_formed(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name) is not None and not name.lower().endswith(".gguf")


def _facts(path: Path) -> Path:
    return path.with_suffix(".json")
