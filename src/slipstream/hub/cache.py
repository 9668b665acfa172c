"""The cache folder: where models lie, whether they are whole, and whether another one would fit."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import platformdirs

from slipstream.errors import DiskShortage, ResourceError
from slipstream.files import replace_whole
from slipstream.hub.catalog import Entry

try:
    import fcntl
except ImportError:  # not on Windows; there two pulls at once are the user's own risk
    fcntl = None  # type: ignore[assignment]

_CHUNK = 1 << 20


def cache_dir() -> Path:
    """$SLIPSTREAM_HOME if set, else the user's cache folder for slipstream. The folder may not exist yet."""
    home = os.environ.get("SLIPSTREAM_HOME")
    return Path(os.path.expanduser(home)) if home else Path(platformdirs.user_cache_dir("slipstream"))


def model_path(entry: Entry) -> Path:
    """Where the model lies, or would lie."""
    return cache_dir() / "models" / entry.file


def beside(path: Path, suffix: str) -> Path:
    """The companion of `path`: its whole name plus `suffix`."""
    return path.with_name(path.name + suffix)


def looks_installed(entry: Entry) -> bool:
    """A file of the right size is there. Quick: reads no bytes."""
    path = model_path(entry)
    return os.path.isfile(path) and os.path.getsize(path) == entry.size


def is_verified(entry: Entry) -> bool:
    """The file is there and has the catalogue's checksum; hashes it unless the sidecar says that was done."""
    if not looks_installed(entry):
        return False
    path = model_path(entry)
    if _read_sidecar(path) == _facts(path, entry.sha256):
        return True
    if sha256_of(path) != entry.sha256:
        return False
    record_verified(path, entry.sha256)
    return True


def was_verified(path: Path) -> bool:
    """The file is there, and as it was when its checksum was recorded."""
    facts = _read_sidecar(path)
    return path.is_file() and isinstance(facts, dict) and facts == _facts(path, str(facts.get("sha256")))


def record_verified(path: Path, sha256: str) -> None:
    """Writes the sidecar that spares the next start a hash of the whole file."""
    with suppress(OSError):  # a cache that cannot be written is only hashed again
        write_json(_sidecar(path), _facts(path, sha256))


def _sidecar(path: Path) -> Path:
    return beside(path, ".verified.json")


def _facts(path: Path, sha256: str) -> dict[str, object]:
    stat = path.stat()
    return {"sha256": sha256, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def _read_sidecar(path: Path) -> object:
    return read_json(_sidecar(path))


def read_json(path: Path) -> object:
    """The JSON value in a file, or None when it is missing or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def write_json(path: Path, value: object) -> None:
    """Writes JSON so that a reader sees the old file or the new one, never half of it."""
    replace_whole(path, json.dumps(value))


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def require_space(folder: Path, needed: int) -> None:
    """Raises DiskShortage when `folder` has fewer than `needed` bytes free."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise _disk_shortage(folder, needed, free)


def _disk_shortage(folder: Path, needed: int, free: int) -> DiskShortage:
    """The error for a full disk; sizes in bytes, shown in MB (10^6 bytes)."""
    return DiskShortage(
        f"not enough disk space in {folder}: {needed / 1e6:,.0f} MB needed, {free / 1e6:,.0f} MB available",
        "free some space, or set SLIPSTREAM_HOME to a folder on a larger disk",
    )


@contextmanager
def readable_errors(entry: Entry) -> Iterator[None]:
    """Turns what the system says about the cache folder into DiskShortage or ResourceError."""
    folder = model_path(entry).parent
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _disk_shortage(folder, entry.size, shutil.disk_usage(folder).free) from error
        raise ResourceError(
            f"cannot use the cache folder {folder}: {error.strerror or error}",
            "set SLIPSTREAM_HOME to a folder that can be written",
        ) from error


@contextmanager
def locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Holds a lock file, which the system frees even if this process is killed; calls `on_wait` if it must wait."""
    with path.open("a") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait()
                fcntl.flock(file, fcntl.LOCK_EX)
        yield
