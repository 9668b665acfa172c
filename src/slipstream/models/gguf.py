"""Reads the header of a GGUF file: everything about a model except its weights, without loading it.

The layout is that of ggml's `gguf.cpp` (versions 2 and 3, little endian): magic, version, counts, key/value pairs,
tensor table, padding, data. Every count is checked against what the file can hold before anything is allocated.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from slipstream.errors import InputError, ModelFileError
from slipstream.models.gguf_tables import (
    FILE_TYPES,
    FULL_ATTENTION_INTERVAL,
    GGML_TYPES,
    HYBRID,
    RECURRENT,
    SWA_PERIOD,
    GGMLType,
)

PULL_AGAIN = "the download was cut short or damaged: pull the model again"
MAX_ELEMENTS = 1 << 24  # of one array; the largest vocabularies have under 2**19
MAX_LAYERS = 4096


_SCALARS = {0: "u1", 1: "i1", 2: "u2", 3: "i2", 4: "u4", 5: "i4", 6: "f4", 7: "?", 10: "u8", 11: "i8", 12: "f8"}
_STRING, _ARRAY = 8, 9
_LOOKALIKES = {
    b"vers": "this is a git-lfs pointer, not the model: fetch the real file",
    b"<!DO": "this is a web page, not a model: download the file itself",
    b"<htm": "this is a web page, not a model: download the file itself",
    b"PK\x03\x04": "this is a zip archive (a wheel?): unpack it first",
    b"ggml": "this is a format from before GGUF: look for a newer file of the same model",
    b"ggjt": "this is a format from before GGUF: look for a newer file of the same model",
}


@dataclass(frozen=True)
class Tensor:
    """One row of the tensor table. `offset` counts bytes from the beginning of the file."""

    name: str
    shape: tuple[int, ...]
    type: GGMLType
    nbytes: int
    offset: int

    @cached_property
    def layer(self) -> int | None:
        """Number of the layer it belongs to; None for embeddings, output and the like."""
        match = re.match(r"blk\.(\d+)\.", self.name)
        return int(match[1]) if match else None


@dataclass(frozen=True)
class GGUFHeader:
    """A model file's metadata and tensor table.

    Scalars are Python values, strings `str`, arrays of numbers numpy arrays, arrays of strings lists of `bytes`.
    A property raises ModelFileError when the key that it needs is missing or of the wrong kind.
    """

    path: Path
    version: int
    metadata: Mapping[str, Any]
    tensors: tuple[Tensor, ...]
    alignment: int
    file_size: int

    def _bad(self, key: str, why: str) -> NoReturn:
        raise ModelFileError(f"{self.path.name}: {key} {why}", PULL_AGAIN)

    def get(self, key: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """A metadata value; `{arch}` in the key stands for the architecture."""
        key = key.replace("{arch}", self.architecture)
        value = self.metadata.get(key, default)
        if value is None:
            self._bad(key, "is missing")
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
            self._bad(key, f"is a {type(value).__name__}, which makes no sense")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """A metadata value that counts something: never negative."""
        value = int(self.get(key, int, default))
        return value if value >= 0 else self._bad(key, f"is {value}")

    def per_layer(self, key: str, default: int | None = None) -> tuple[int, ...]:
        """A value given once for all layers, or as an array with one for each."""
        value = self.get(key, (int, np.ndarray), default)
        if isinstance(value, int):
            return (value,) * self.n_layers if value >= 0 else self._bad(key, f"is {value}")
        if value.size < self.n_layers or value.dtype.kind not in "iub" or (value < 0).any():
            self._bad(key, "does not hold a count for each layer")
        return tuple(int(v) for v in value[: self.n_layers])

    @property
    def architecture(self) -> str:
        value = self.metadata.get("general.architecture")
        return value if isinstance(value, str) else self._bad("general.architecture", "is missing")

    @property
    def name(self) -> str:
        return str(self.metadata.get("general.name", self.path.stem))

    @property
    def quantization(self) -> str:
        """As llama.cpp names it: Q4_K_M, F16 ...; the commonest tensor type where the file does not say."""
        number = self.metadata.get("general.file_type")
        if isinstance(number, int) and number in FILE_TYPES:
            return FILE_TYPES[number]
        sizes: dict[str, int] = {}
        for t in self.tensors:
            sizes[t.type.name] = sizes.get(t.type.name, 0) + t.nbytes
        return max(sizes, key=lambda kind: sizes[kind], default="?")

    @property
    def n_layers(self) -> int:
        n = self.count("{arch}.block_count")
        return n if 0 < n <= MAX_LAYERS else self._bad("block_count", f"is {n}")

    @property
    def n_ctx_train(self) -> int:
        """Tokens of context that the model was trained with."""
        return self.count("{arch}.context_length")

    @property
    def n_embd(self) -> int:
        return self.count("{arch}.embedding_length")

    @property
    def n_vocab(self) -> int:
        """Rows of the vocabulary, padding included."""
        return len(self.metadata.get("tokenizer.ggml.tokens", ())) or self.count("{arch}.vocab_size")

    @property
    def n_head(self) -> tuple[int, ...]:
        return self.per_layer("{arch}.attention.head_count", 0)

    @property
    def n_head_kv(self) -> tuple[int, ...]:
        """Key and value heads of each layer; 0 where a layer has no attention."""
        key = "{arch}.attention.head_count_kv"
        return self.per_layer(key) if key.replace("{arch}", self.architecture) in self.metadata else self.n_head

    def head_dim(self, which: str, windowed: bool = False) -> int:
        """Numbers that a head keeps for each token; `which` is "key" or "value" (llama-model.cpp, load_hparams)."""
        heads = max(self.n_head, default=0)
        full = self.count(f"{{arch}}.attention.{which}_length", self.n_embd // heads if heads else 0)
        return self.count(f"{{arch}}.attention.{which}_length_swa", full) if windowed else full

    @property
    def is_mla(self) -> bool:
        """Multi-head latent attention: one compressed row a token, and no value cache."""
        return self.count("{arch}.attention.key_length_mla", 0) > 0

    @property
    def is_recurrent(self) -> bool:
        return self.architecture in RECURRENT

    @property
    def is_hybrid(self) -> bool:
        """Has recurrent and attention layers."""
        return self.architecture in HYBRID

    @property
    def recurrent_layers(self) -> tuple[bool, ...]:
        """Which layers keep a state instead of (Falcon H1: beside) a cache."""
        n = self.n_layers
        interval = self.count("{arch}.full_attention_interval", FULL_ATTENTION_INTERVAL.get(self.architecture, 0))
        if not self.is_hybrid:
            return (self.is_recurrent,) * n
        if self.architecture == "falcon-h1":
            return (True,) * n
        if f"{self.architecture}.attention.recurrent_layers" in self.metadata:
            return tuple(map(bool, self.per_layer("{arch}.attention.recurrent_layers")))
        if interval:
            return tuple((i + 1) % interval != 0 for i in range(n))
        return tuple(heads == 0 for heads in self.n_head_kv)

    @property
    def sliding_window(self) -> int:
        """Tokens that windowed layers look back; 0 when no layer is windowed in llama.cpp."""
        return self.count("{arch}.attention.sliding_window", 0) if any(self.sliding_window_pattern) else 0

    @property
    def sliding_window_pattern(self) -> tuple[bool, ...]:
        """Which layers have a sliding window."""
        key = f"{self.architecture}.attention.sliding_window_pattern"
        period, full_first = SWA_PERIOD.get(self.architecture, (1, False))
        given = self.metadata.get(key)
        if not self.count("{arch}.attention.sliding_window", 0) or (given is None and period == 1):
            return (False,) * self.n_layers
        if isinstance(given, np.ndarray):
            return tuple(map(bool, self.per_layer(key)))
        period = self.count(key, period)
        if full_first:
            return tuple(period == 0 or i % period != 0 for i in range(self.n_layers))
        return tuple(period == 0 or i % period < period - 1 for i in range(self.n_layers))

    @property
    def chat_template(self) -> str | None:
        value = self.metadata.get("tokenizer.chat_template")
        return value if isinstance(value, str) else None

    @property
    def bos_id(self) -> int | None:
        value = self.metadata.get("tokenizer.ggml.bos_token_id")
        return value if isinstance(value, int) else None

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Ids that the file says end a text, a turn or a message."""
        found = (self.metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom"))
        return tuple(dict.fromkeys(i for i in found if isinstance(i, int)))


class _Cursor:
    """A position in the file that cannot run past its end."""

    def __init__(self, name: str, buffer: mmap.mmap, size: int) -> None:
        self.name, self.buffer, self.size, self.at = name, buffer, size, 0

    def fail(self, why: str, hint: str = PULL_AGAIN) -> NoReturn:
        raise ModelFileError(f"{self.name}: {why}", hint)

    def take(self, n: int) -> bytes:
        if n > self.size - self.at:
            self.fail(f"ends inside its header (byte {self.size:,})")
        self.at += n
        return self.buffer[self.at - n : self.at]

    def unpack(self, fmt: str) -> Any:
        return struct.unpack("<" + fmt, self.take(struct.calcsize("<" + fmt)))[0]

    def string(self) -> bytes:
        n = self.unpack("Q")
        if n > self.size - self.at:
            self.fail(f"ends inside its header: a string of {n:,} bytes does not fit")
        return self.take(n)

    def room_for(self, n: int, each: int, what: str) -> int:
        """Refuses a count that the rest of the file could not hold."""
        if n * each > self.size - self.at:
            self.fail(f"says that it has {n:,} {what}, more than fit in the file")
        return n

    def strings(self, n: int) -> list[bytes]:
        # One loop without calls: a vocabulary has 300,000 of these.
        out, at, size, buffer = [], self.at, self.size, self.buffer
        read = int.from_bytes
        for _ in range(n):
            start = at + 8
            at = start + read(buffer[at:start], "little")
            if at > size or start > size:
                self.fail("ends inside its vocabulary")
            out.append(buffer[start:at])
        self.at = at
        return out

    def array(self) -> Any:
        kind, n = self.unpack("I"), self.unpack("Q")
        if n > MAX_ELEMENTS:
            self.fail(f"holds an array of {n:,} elements")
        if kind == _STRING:
            return self.strings(self.room_for(n, 8, "strings"))
        if kind not in _SCALARS:
            self.fail(f"holds an array of an unknown kind ({kind})")
        dtype = np.dtype(_SCALARS[kind]).newbyteorder("<")
        return np.frombuffer(self.take(self.room_for(n, dtype.itemsize, "numbers") * dtype.itemsize), dtype)

    def value(self) -> Any:
        kind = self.unpack("I")
        if kind == _STRING:
            return self.string().decode("utf-8", "replace")
        if kind == _ARRAY:
            return self.array()
        if kind not in _SCALARS:
            self.fail(f"holds a value of an unknown kind ({kind})")
        dtype = np.dtype(_SCALARS[kind]).newbyteorder("<")
        return np.frombuffer(self.take(dtype.itemsize), dtype)[0].item()

    def tensor(self) -> Tensor:
        name = self.string().decode("utf-8", "replace")
        n_dims = self.unpack("I")
        if not 0 < n_dims <= 4:
            self.fail(f"tensor {name[:64]!r} has {n_dims} dimensions")
        shape = tuple(self.unpack("Q") for _ in range(n_dims))
        number, offset = self.unpack("I"), self.unpack("Q")
        kind = GGML_TYPES.get(number)
        if kind is None:
            self.fail(
                f"tensor {name[:64]!r} is of an unknown kind ({number})", "the file may be newer than this program"
            )
        if shape[0] % kind.block:
            self.fail(f"tensor {name[:64]!r} has rows of {shape[0]:,} numbers, no multiple of {kind.block}")
        return Tensor(name, shape, kind, kind.nbytes(shape), offset)


def read_header(path: str | Path) -> GGUFHeader:
    """The header of the GGUF file at `path`; takes a few tens of milliseconds, whatever the size of the file.

    Raises InputError where there is no readable file, ModelFileError where it is not a GGUF that can be loaded: of
    another kind, of an unknown version, damaged, cut short, or one part of a split model.
    """
    path = Path(path)
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            if size < 24:
                raise ModelFileError(f"{path.name}: not a model: it has only {size} bytes", PULL_AGAIN)
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as buffer:
                return _read(path, _Cursor(path.name, buffer, min(size, len(buffer))))
    except FileNotFoundError:
        raise InputError(f"no such file: {path}", "check the path, or give a model's name to fetch it") from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None


def _read(path: Path, cursor: _Cursor) -> GGUFHeader:
    magic = cursor.take(4)
    if magic != b"GGUF":
        cursor.fail("not a GGUF file", _LOOKALIKES.get(magic, "give a model file that ends in .gguf"))
    version = cursor.unpack("I")
    if version & 0xFFFF == 0:
        cursor.fail("is a big-endian GGUF file, which is not supported", "look for the ordinary file of the same model")
    if version not in (2, 3):
        cursor.fail(f"is a GGUF of version {version}; only 2 and 3 can be read", "convert the model again, or update")
    n_tensors, n_pairs = cursor.unpack("Q"), cursor.unpack("Q")
    cursor.room_for(n_tensors, 32, "tensors")
    cursor.room_for(n_pairs, 13, "metadata values")

    metadata: dict[str, Any] = {}
    for _ in range(n_pairs):
        key = cursor.string().decode("utf-8", "replace")
        if key in metadata:
            cursor.fail(f"names {key[:64]!r} twice")
        metadata[key] = cursor.value()
    _check_whole(cursor, metadata)
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        cursor.fail(f"has an alignment of {alignment!r}, not a power of two")

    tensors = [cursor.tensor() for _ in range(n_tensors)]
    start = -(-cursor.at // alignment) * alignment
    end = max((start + t.offset + t.nbytes for t in tensors), default=cursor.at)
    if end > cursor.size:
        cursor.fail(f"is cut short: {end - cursor.size:,} of {end:,} bytes are missing")
    if len({t.name for t in tensors}) < n_tensors or any(t.offset % alignment for t in tensors):
        cursor.fail("has a damaged tensor table")
    placed = tuple(Tensor(t.name, t.shape, t.type, t.nbytes, start + t.offset) for t in tensors)
    return GGUFHeader(path, version, metadata, placed, alignment, cursor.size)


def _check_whole(cursor: _Cursor, metadata: Mapping[str, Any]) -> None:
    """Refuses what could never be loaded as one model."""
    if not isinstance(metadata.get("general.architecture"), str):
        cursor.fail("does not say which architecture it has")
    parts = metadata.get("split.count", 0)
    if isinstance(parts, int) and parts > 1:
        cursor.fail(f"is one of {parts} parts of a split model", "join them with llama.cpp's llama-gguf-split --merge")
