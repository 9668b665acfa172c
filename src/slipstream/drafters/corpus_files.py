"""A corpus: tokens of the text files that a user names, and its file. Nothing is stored unless `save` is called."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from slipstream.errors import InputError, PairError

Encode = Callable[[str], list[int]]
LIMIT = 4_000_000  # tokens
_LARGEST = 1 << 20  # bytes of a file that is read
_SKIPPED = frozenset({".git", ".hg", ".svn", ".venv", "node_modules", "__pycache__"})
_PROBE = (
    "def f(x): return {'äöü': [1.5, -20], \"naïve\": None}\n\t# 你好, мир! SELECT * FROM t WHERE a <> b; 🙂 the 2026"
)


@dataclass(frozen=True)
class Corpus:
    """`tokens`: int32, shape (n,), each document closed by -1. `vocabulary` identifies the tokenizer.

    `skipped` counts files that were left out, by reason: binary, large, unreadable, folder (.git and the like), limit.
    """

    tokens: npt.NDArray[np.int32]
    vocabulary: str
    files: int = 0
    skipped: Counter[str] = field(default_factory=Counter)

    @classmethod
    def build(cls, paths: Sequence[str | Path], encode: Encode, limit: int = LIMIT) -> Corpus:
        """Read text files and folders, at most `limit` tokens. Raises InputError for a path that does not exist."""
        parts = [np.empty(0, np.int32)]
        skipped: Counter[str] = Counter()
        left = limit
        for path in paths:
            if not os.path.exists(path):
                raise InputError(f"no such file or folder: {path}", "a corpus is made of text files or folders of them")
            for _, text in text_files(Path(path), skipped):
                if left <= 1:
                    skipped["limit"] += 1
                    continue
                parts.append(np.array([*encode(text)[: left - 1], -1], np.int32))
                left -= len(parts[-1])
        return cls(np.concatenate(parts), identity(encode), len(parts) - 1, skipped)

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]], encode: Encode) -> Corpus:
        """From tokens at hand, such as earlier outputs."""
        tokens = np.array([t for s in sequences for t in (*s, -1)], np.int32)
        return cls(tokens, identity(encode), len(sequences))

    def save(self, path: str | Path) -> None:
        """Write the tokens to `path` in one move. Raises InputError when that cannot be done."""
        path = Path(path)
        part = path.with_name(path.name + ".part")
        try:
            with open(part, "wb") as f:
                np.savez_compressed(f, tokens=self.tokens, vocabulary=self.vocabulary, files=self.files)
            os.replace(part, path)
        except OSError as e:
            part.unlink(missing_ok=True)
            raise InputError(f"cannot write {path}: {e.strerror}", "give a path in a folder that you may write to")

    @classmethod
    def load(cls, path: str | Path, encode: Encode) -> Corpus:
        """Read a saved corpus. Raises InputError for another kind of file, PairError for another tokenizer's tokens."""
        try:
            with np.load(path, allow_pickle=False) as f:
                tokens, vocabulary, files = f["tokens"], str(f["vocabulary"]), int(f["files"])
        except OSError as e:
            raise InputError(f"cannot read {path}: {e.strerror or e}", "give a file that `Corpus.save` wrote")
        except (ValueError, KeyError, EOFError, TypeError, AttributeError, zipfile.BadZipFile):
            raise InputError(f"{path} is not a saved corpus", "build it again from its text files")
        if tokens.dtype != np.int32 or tokens.ndim != 1:
            raise InputError(f"{path} is not a saved corpus", "build it again from its text files")
        if vocabulary != identity(encode):
            raise PairError(
                f"the corpus {path} was made with another model's tokenizer", "build it again from its text files"
            )
        return cls(tokens, vocabulary, files)


def identity(encode: Encode) -> str:
    """Tells tokenizers apart by how they split a text of several scripts and kinds."""
    return hashlib.sha256(repr(list(encode(_PROBE))).encode()).hexdigest()[:32]


def text_files(path: Path, skipped: Counter[str]) -> Iterator[tuple[Path, str]]:
    """The texts of a file or a folder; `skipped` counts what was left out, by reason."""
    for file in _walk(path, skipped):
        text = _read(file, skipped)
        if text is not None:
            yield file, text


def _walk(path: Path, skipped: Counter[str]) -> Iterator[Path]:
    """The file itself, or a folder's files in order; links to folders are not followed."""
    if not path.is_dir():
        yield path
        return

    def unreadable(_: OSError) -> None:
        skipped["unreadable"] += 1

    for folder, inner, files in os.walk(path, onerror=unreadable):
        skipped["folder"] += len(_SKIPPED & set(inner))
        inner[:] = sorted(set(inner) - _SKIPPED)
        yield from (Path(folder, name) for name in sorted(files))


def _read(file: Path, skipped: Counter[str]) -> str | None:
    try:
        if not file.is_file():  # a pipe or a device would block
            skipped["unreadable"] += 1
            return None
        if file.stat().st_size > _LARGEST:
            skipped["large"] += 1
            return None
        data = file.read_bytes()
        if b"\0" in data:
            skipped["binary"] += 1
            return None
        return data.decode("utf-8")
    except UnicodeDecodeError:
        skipped["binary"] += 1
    except OSError:
        skipped["unreadable"] += 1
    return None
