"""Files that are replaced whole: a reader sees the old one or the new one, never half of it."""

from __future__ import annotations

import os
from pathlib import Path

from slipstream.errors import InputError


def replace_whole(path: Path, data: str | bytes) -> None:
    """Raises OSError when it cannot be written; then the old file is still there, and nothing else."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        fresh.write_bytes(data.encode() if isinstance(data, str) else data)
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


def write_whole(path: Path, data: str | bytes) -> None:
    """The same for a file that the user named: raises InputError."""
    try:
        replace_whole(path, data)
    except OSError as e:
        raise InputError(f"cannot write {path}: {e.strerror}", "choose a file in a folder that can be written") from e
