"""The GGUF reader: what it reads, and that damage never gets past it as anything but a SlipstreamError."""

from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gguf_writer import gguf_bytes, tiny_llama, write_gguf
from slipstream.errors import InputError, ModelFileError, SlipstreamError
from slipstream.models.gguf import GGUFHeader, read_header
from slipstream.models.memory import Settings, estimate
from slipstream.text.vocab import from_gguf

WHOLE = gguf_bytes(*tiny_llama())


def header_of(path: Path, architecture: str = "llama", layers: int = 2, **more: Any) -> GGUFHeader:
    metadata, tensors = tiny_llama(layers)
    renamed = {key.replace("llama.", architecture + "."): value for key, value in metadata.items()}
    extra = {f"{architecture}.{key.replace('__', '.')}": value for key, value in more.items()}
    return read_header(write_gguf(path / "m.gguf", renamed | {"general.architecture": architecture} | extra, tensors))


def refused(path: Path, raw: bytes) -> ModelFileError:
    (path / "m.gguf").write_bytes(raw)
    with pytest.raises(ModelFileError) as caught:
        read_header(path / "m.gguf")
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize("version", [2, 3])
def test_reads_a_model(tmp_path: Path, version: int) -> None:
    metadata, tensors = tiny_llama(llama__rope__freq_base=10000.0, tokenizer__ggml__add_bos_token=True)
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(metadata, tensors, version))
    header = read_header(tmp_path / "m.gguf")
    assert (header.version, header.architecture, header.quantization) == (version, "llama", "Q4_K_M")
    assert (header.n_layers, header.n_ctx_train, header.n_embd, header.n_vocab) == (2, 2048, 256, 64)
    assert header.n_head == (4, 4) and header.n_head_kv == (2, 2)
    assert header.head_dim("key") == header.head_dim("value") == 64
    assert (header.bos_id, header.eos_ids, header.chat_template) == (62, (63,), None)
    assert header.metadata["llama.rope.freq_base"] == 10000.0
    assert header.metadata["tokenizer.ggml.add_bos_token"] is True
    assert header.metadata["tokenizer.ggml.tokens"][5] == b"t5"
    assert len(header.tensors) == len(tensors)
    first, last = header.tensors[0], header.tensors[-1]
    assert (first.name, first.shape, first.type.name, first.nbytes) == ("token_embd.weight", (256, 64), "Q4_0", 9216)
    assert first.offset % 32 == 0 and last.offset + last.nbytes <= header.file_size == len(
        (tmp_path / "m.gguf").read_bytes()
    )
    assert [t.layer for t in header.tensors][:3] == [None, None, 0] and last.layer == 1
    assert not (header.is_recurrent or header.is_hybrid or header.sliding_window)


def test_a_large_vocabulary_is_read_in_under_half_a_second(tmp_path: Path) -> None:
    metadata, tensors = tiny_llama()
    metadata["tokenizer.ggml.tokens"] = [f"token{i}" for i in range(152_000)]
    metadata["tokenizer.ggml.merges"] = [f"to ken{i}" for i in range(151_000)]
    path = write_gguf(tmp_path / "m.gguf", metadata, tensors)
    start = time.perf_counter()
    header = read_header(path)
    assert time.perf_counter() - start < 0.5
    assert header.n_vocab == 152_000 and header.metadata["tokenizer.ggml.merges"][-1] == b"to ken150999"


def test_no_file_and_a_directory(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_header(tmp_path / "none.gguf")
    with pytest.raises(InputError, match="cannot read"):
        read_header(tmp_path)


@pytest.mark.parametrize(("raw", "hint"), [
    (b"version https://git-lfs" + b" " * 50, "git-lfs"), (b"<!DOCTYPE html>" + b" " * 50, "web page"),
    (b"PK\x03\x04" + b" " * 50, "zip"), (b"\0" * 64, ".gguf"),
])  # fmt: skip
def test_other_kinds_of_file_are_named(tmp_path: Path, raw: bytes, hint: str) -> None:
    assert hint in refused(tmp_path, raw).hint


def test_an_empty_file(tmp_path: Path) -> None:
    assert "0 bytes" in refused(tmp_path, b"").message


@pytest.mark.parametrize(("version", "text"), [(1, "version 1"), (4, "version 4"), (3 << 24, "big-endian")])
def test_versions_that_cannot_be_read(tmp_path: Path, version: int, text: str) -> None:
    assert text in refused(tmp_path, WHOLE[:4] + struct.pack("<I", version) + WHOLE[8:]).message


def test_cut_short_says_how_much_is_missing(tmp_path: Path) -> None:
    error = refused(tmp_path, WHOLE[:-1000])
    assert "1,000 of" in error.message and "pull" in error.hint


def test_cut_inside_the_header(tmp_path: Path) -> None:
    assert "ends inside" in refused(tmp_path, WHOLE[: HEADER - 100]).message


@pytest.mark.parametrize("at", [8, 16])
@pytest.mark.parametrize("count", [2**63, 10**6])
def test_absurd_counts_are_refused_at_once(tmp_path: Path, at: int, count: int) -> None:
    start = time.perf_counter()
    assert "more than fit" in refused(tmp_path, WHOLE[:at] + struct.pack("<Q", count) + WHOLE[at + 8 :]).message
    assert time.perf_counter() - start < 0.5


def test_a_part_of_a_split_model(tmp_path: Path) -> None:
    metadata, tensors = tiny_llama(split__count=3)
    error = refused(tmp_path, gguf_bytes(metadata, tensors))
    assert "3 parts" in error.message and "merge" in error.hint


def test_no_architecture(tmp_path: Path) -> None:
    assert "architecture" in refused(tmp_path, gguf_bytes({"a": 1})).message


def test_a_key_of_the_wrong_kind_is_an_error_when_used(tmp_path: Path) -> None:
    header = header_of(tmp_path, block_count="many", context_length=True)
    for name in ("n_layers", "n_ctx_train", "n_head"):
        with pytest.raises(ModelFileError):
            getattr(header, name)


@pytest.mark.parametrize("layers", [0, 10**9])
def test_absurd_layers(tmp_path: Path, layers: int) -> None:
    with pytest.raises(ModelFileError):
        _ = header_of(tmp_path, block_count=layers).n_head_kv


def test_sliding_windows(tmp_path: Path) -> None:
    gemma = header_of(tmp_path, "gemma3", layers=12, attention__sliding_window=512)
    assert gemma.sliding_window == 512
    assert [i for i, windowed in enumerate(gemma.sliding_window_pattern) if not windowed] == [5, 11]
    given = header_of(tmp_path, "gemma4", attention__sliding_window=64,
                      attention__sliding_window_pattern=np.array([True, False]))  # fmt: skip
    assert given.sliding_window_pattern == (True, False)
    # llama.cpp switches the window of Phi-3 off, and knows none for llama.
    assert header_of(tmp_path, "phi3", attention__sliding_window=512).sliding_window == 0


def test_recurrent_and_hybrid_models(tmp_path: Path) -> None:
    mamba = header_of(tmp_path, "mamba2")
    assert mamba.is_recurrent and not mamba.is_hybrid and mamba.recurrent_layers == (True, True)
    jamba = header_of(tmp_path, "jamba", attention__head_count_kv=np.array([0, 2], "<i4"))
    assert jamba.is_hybrid and jamba.recurrent_layers == (True, False)
    qwen = header_of(tmp_path, "qwen3next", layers=8)
    assert [i for i, recurrent in enumerate(qwen.recurrent_layers) if not recurrent] == [3, 7]
    assert not any(header_of(tmp_path).recurrent_layers)


def test_quantization_without_a_name(tmp_path: Path) -> None:
    metadata, tensors = tiny_llama()
    del metadata["general.file_type"]
    assert read_header(write_gguf(tmp_path / "m.gguf", metadata, tensors)).quantization == "Q4_K"


def use(raw: bytes, path: Path) -> None:
    """Reads a damaged file and everything that is worked out from it; only a SlipstreamError may come out."""
    path.write_bytes(raw)
    start = time.perf_counter()
    try:
        header = read_header(path)
        for name in ("n_ctx_train", "n_embd", "n_vocab", "sliding_window", "recurrent_layers", "quantization",
                     "chat_template", "eos_ids", "bos_id", "name"):  # fmt: skip
            getattr(header, name)
        estimate(header, Settings(n_ctx=512))
        _ = from_gguf(header).n_real
    except SlipstreamError as error:
        assert error.message
    assert time.perf_counter() - start < 1


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, len(WHOLE) - 1))
def test_fuzz_truncated(tmp_path: Path, cut: int) -> None:
    use(WHOLE[:cut], tmp_path / "m.gguf")
    with pytest.raises(SlipstreamError):
        read_header(tmp_path / "m.gguf")


HEADER = len(gguf_bytes(*tiny_llama(), data=False))


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(flips=st.lists(st.tuples(st.integers(0, HEADER - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_fuzz_flipped_bytes(tmp_path: Path, flips: list[tuple[int, int]]) -> None:
    raw = bytearray(WHOLE)
    for at, value in flips:
        raw[at] = value
    use(bytes(raw), tmp_path / "m.gguf")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, HEADER - 8), value=st.integers(0, 2**64 - 1))
def test_fuzz_eight_bytes_at_once(tmp_path: Path, at: int, value: int) -> None:
    use(WHOLE[:at] + struct.pack("<Q", value) + WHOLE[at + 8 :], tmp_path / "m.gguf")
