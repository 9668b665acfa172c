"""Writes tiny GGUF files for tests: enough of the format to exercise the reader, and nothing more."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.models.gguf_tables import GGML_TYPES

TYPE_IDS = {t.name: number for number, t in GGML_TYPES.items()}
NUMPY_IDS = {"u1": 0, "i1": 1, "u2": 2, "i2": 3, "u4": 4, "i4": 5, "f4": 6, "b1": 7, "u8": 10, "i8": 11, "f8": 12}


def _string(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, (str, bytes)):
        return struct.pack("<I", 8) + _string(value)
    if isinstance(value, np.ndarray):
        return struct.pack("<IIQ", 9, NUMPY_IDS[value.dtype.str[1:]], value.size) + value.tobytes()
    return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_string, value))


def gguf_bytes(
    metadata: Mapping[str, Any],
    tensors: Iterable[tuple[str, tuple[int, ...], str]] = (),
    version: int = 3,
    data: bool = True,
) -> bytes:
    """The bytes of a file whose tensors hold zeros. `tensors` are (name, shape, ggml type name)."""
    align, table, offset = 32, b"", 0
    tensors = list(tensors)
    for name, shape, kind in tensors:
        table += _string(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        table += struct.pack("<IQ", TYPE_IDS[kind], offset)
        offset += -(-GGML_TYPES[TYPE_IDS[kind]].nbytes(shape) // align) * align
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(_string(key) + _value(value) for key, value in metadata.items()) + table
    return head + b"\0" * (-len(head) % align) + (b"\0" * offset if data else b"")


def write_gguf(
    path: Path, metadata: Mapping[str, Any], tensors: Iterable[tuple[str, tuple[int, ...], str]] = ()
) -> Path:
    path.write_bytes(gguf_bytes(metadata, tensors))
    return path


def tiny_llama(layers: int = 2, **more: Any) -> tuple[dict[str, Any], list[tuple[str, tuple[int, ...], str]]]:
    """Metadata and tensors of a small llama with tied embeddings: 256 wide, 4 heads (2 for the cache), 64 tokens."""
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "general.file_type": 15,
        "llama.block_count": layers,
        "llama.context_length": 2048,
        "llama.embedding_length": 256,
        "llama.feed_forward_length": 512,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "tiny",
        "tokenizer.ggml.tokens": [f"t{i}" for i in range(64)],
        "tokenizer.ggml.token_type": np.full(64, 1, "<i4"),
        "tokenizer.ggml.eos_token_id": 63,
        "tokenizer.ggml.bos_token_id": 62,
    } | {key.replace("__", "."): value for key, value in more.items()}
    tensors = [("token_embd.weight", (256, 64), "Q4_0"), ("output_norm.weight", (256,), "F32")]
    for i in range(layers):
        for part, shape in (("attn_q", (256, 256)), ("attn_k", (256, 128)), ("attn_v", (256, 128))):
            tensors.append((f"blk.{i}.{part}.weight", shape, "Q4_K"))
        for part, shape in (("ffn_up", (256, 512)), ("ffn_gate", (256, 512)), ("ffn_down", (512, 256))):
            tensors.append((f"blk.{i}.{part}.weight", shape, "Q4_K"))
        tensors.append((f"blk.{i}.attn_norm.weight", (256,), "F32"))
    return metadata, tensors
