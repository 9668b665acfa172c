"""Our matrix kernels: against llama.cpp's own arithmetic, against themselves, and what happens where they cannot be."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.models.llamacpp import kernels

# name: (ggml's number, interleaved by 8 rows, values and bytes of a block, offsets of its half floats)
FORMATS = {
    "q4_K": (12, True, 256, 144, (0, 2)),
    "q6_K": (14, True, 256, 210, (208,)),
    "q4_0": (2, True, 32, 18, (0,)),
    "q4_1": (3, False, 32, 20, (0, 2)),
    "q5_0": (6, False, 32, 22, (0,)),
    "q8_0": (8, False, 32, 34, (0,)),
}
ROWS, TOKENS = 8, 20


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(tmp_path_factory.mktemp("kernels"))


@pytest.fixture(scope="module")
def library(home: Path) -> ctypes.CDLL:
    """The kernels, compiled and checked; loaded for this file's own calls only, so that nothing else is changed."""
    try:
        return ctypes.CDLL(str(kernels.build(home)), mode=ctypes.RTLD_LOCAL)
    except kernels._Unusable as why:
        if "failed" in str(why):
            raise
        pytest.skip(str(why))


@pytest.fixture(scope="module")
def base(library: ctypes.CDLL) -> ctypes.CDLL:
    """llama.cpp's reference functions for the formats."""
    return ctypes.CDLL(str(kernels._require_machine() / "libggml-base.so.0"))


def blocks(name: str, k: int, seed: int) -> np.ndarray:
    """Random bytes as ROWS rows of weights, with scales that are finite half floats: [ROWS, blocks, bytes]."""
    _, _, values, size, halves = FORMATS[name]
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, (ROWS, k // values, size), dtype=np.uint8)
    for at in halves:
        scale = rng.standard_normal(raw.shape[:2]).astype(np.float16)
        raw[..., at : at + 2] = scale[..., None].view(np.uint8)
    return raw


def interleaved(name: str, raw: np.ndarray) -> bytes:
    """The rows as llama.cpp's repack.cpp lays them out, in plain numpy (written from the layout's description)."""
    if name == "q4_0":
        quants = raw[..., 2:].reshape(ROWS, -1, 2, 8).transpose(1, 2, 0, 3).reshape(raw.shape[1], 128) ^ 0x88
        return np.concatenate([raw[..., :2].transpose(1, 0, 2).reshape(raw.shape[1], 16), quants], 1).tobytes()
    if name == "q6_K":  # low nibbles, pairs of high bits, scales, half d: of each 8 rows in turn, d and scales first
        by_8 = raw[..., :192].reshape(ROWS, -1, 24, 8).transpose(1, 2, 0, 3).reshape(raw.shape[1], -1)
        scales = raw[..., 192:208].transpose(1, 2, 0).reshape(raw.shape[1], -1)
        return np.concatenate([raw[..., 208:].transpose(1, 0, 2).reshape(raw.shape[1], 16), scales, by_8], 1).tobytes()
    out = []
    for block in raw.transpose(1, 0, 2):  # [ROWS, 144]
        packed = block[:, 4:16].astype(int)
        low, high = packed[:, :4] & 63, (packed[:, 8:] & 15) | (packed[:, :4] >> 6 << 4)
        scales = np.concatenate([low, high], 1).T  # [sub-block, row]
        low, high = packed[:, 4:8] & 63, (packed[:, 8:] >> 4) | (packed[:, 4:8] >> 6 << 4)
        mins = np.concatenate([low, high], 1).T
        parts = [
            scales[:, :4] | (scales[:, 4:] >> 4 << 6),
            mins[:, :4] | (mins[:, 4:] >> 4 << 6),
            (scales[:, 4:] & 15) | (mins[:, 4:] & 15) << 4,
        ]
        six = np.concatenate(parts, 1).astype(np.uint8)
        quants = block[:, 16:].reshape(ROWS, 16, 8).transpose(1, 0, 2)
        out.append(block[:, :2].tobytes() + block[:, 2:4].tobytes() + six.tobytes() + quants.tobytes())
    return b"".join(out)


def multiply(library: ctypes.CDLL, name: str, raw: np.ndarray, x: np.ndarray) -> np.ndarray:
    """x [n, k] times the weights, by the kernels: [n, ROWS]."""
    kind, packed, *_ = FORMATS[name]
    data = interleaved(name, raw) if packed else raw.tobytes()
    x = np.ascontiguousarray(x, dtype=np.float32)
    out = np.full((len(x), ROWS), np.nan, np.float32)
    sizes = (ctypes.c_long(v) for v in (ROWS, x.shape[1], len(x)))
    pointer = (ctypes.c_void_p(a.ctypes.data) for a in (x, out))
    library.slipstream_multiply.restype = ctypes.c_bool
    assert library.slipstream_multiply(kind, packed, *sizes, data, *pointer)
    return out


def through(base: ctypes.CDLL, name: str, data: bytes, k: int) -> np.ndarray:
    """llama.cpp's floats for quantised bytes of one row."""
    out = np.empty(k, np.float32)
    getattr(base, f"dequantize_row_{name}")(data, ctypes.c_void_p(out.ctypes.data), ctypes.c_int64(k))
    return out


def rounded(base: ctypes.CDLL, name: str, row: np.ndarray) -> np.ndarray:
    """Activations as llama.cpp sees them: quantised to 8 bits and back."""
    row = np.ascontiguousarray(row, dtype=np.float32)
    kind = "q8_K" if FORMATS[name][2] == 256 else "q8_0"
    buffer = ctypes.create_string_buffer(2 * row.nbytes)
    getattr(base, f"quantize_row_{kind}_ref")(ctypes.c_void_p(row.ctypes.data), buffer, ctypes.c_int64(len(row)))
    return through(base, kind, buffer.raw, len(row))


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32), size=st.integers(1, 6), scale=st.sampled_from((0.003, 1.0, 200.0)))
def test_products_are_those_of_the_formats_definition(library, base, name, seed, size, scale):
    k = 256 * size
    raw = blocks(name, k, seed)
    x = np.random.default_rng(seed).standard_normal((3, k)).astype(np.float32) * np.float32(scale)
    w = np.array([through(base, name, row.tobytes(), k) for row in raw], np.float64)
    a = np.array([rounded(base, name, row) for row in x], np.float64)
    # q8_0 quants may round the other way at a tie (one unit in a value); Q4_1's sum went through half precision
    allowed = (1e-6 if FORMATS[name][2] == 256 else 1e-3) * (np.abs(a) @ np.abs(w).T)
    assert np.all(np.abs(multiply(library, name, raw, x) - a @ w.T) <= allowed)


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32), k=st.sampled_from((256, 768, 1536)), n=st.integers(2, TOKENS))
def test_a_row_has_the_same_bits_in_any_batch(library, name, seed, k, n):
    raw = blocks(name, k, seed)
    x = np.random.default_rng(seed).standard_normal((n, k)).astype(np.float32)
    alone = np.concatenate([multiply(library, name, raw, row[None]) for row in x])
    assert np.isfinite(alone).all()
    assert np.array_equal(multiply(library, name, raw, x), alone)


@pytest.mark.parametrize("quant", [0x00, 0xFF])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("name", FORMATS)
def test_the_largest_sums_of_products_do_not_overflow(library, base, name, sign, quant):
    raw = np.full_like(blocks(name, 512, 0), quant)
    for at in FORMATS[name][4]:
        raw[..., at : at + 2] = np.array([1.0], np.float16).view(np.uint8)
    x = np.full((3, 512), sign, np.float32)
    w = np.array([through(base, name, row.tobytes(), 512) for row in raw], np.float64)
    a = np.array([rounded(base, name, row) for row in x], np.float64)
    assert np.all(np.abs(multiply(library, name, raw, x) - a @ w.T) <= 1e-3 * (np.abs(a) @ np.abs(w).T))


@pytest.mark.parametrize("name", FORMATS)
def test_a_wrong_bit_in_a_weight_is_seen(library, name):
    raw = blocks(name, 256, 1)
    x = np.random.default_rng(1).standard_normal((1, 256)).astype(np.float32)
    before = multiply(library, name, raw, x)
    raw[3, 0, 40 % raw.shape[2]] ^= 0x11
    changed = multiply(library, name, raw, x) != before
    assert changed[0, 3] and changed.sum() == 1


def test_the_check_ran_and_is_on_record(library, home):
    path = kernels.build(home)
    found = kernels.result(path)
    assert found["passed"] is True
    worst = found["largest_error"]
    assert worst.keys() == FORMATS.keys() | {f"attention {width}" for width in (64, 96, 128, 256)}
    assert max(worst[name] for name in FORMATS) <= found["bound"]


def test_a_checked_library_is_neither_compiled_nor_checked_again(library, home, monkeypatch):
    path = kernels.build(home)
    real = kernels._run
    monkeypatch.setattr(kernels, "_run", lambda c, what: real(c, what) if "--version" in c else pytest.fail(what))
    assert kernels.build(home) == path


def test_without_its_record_a_library_is_not_trusted(library, home, monkeypatch):
    path = kernels.build(home)
    record = path.with_suffix(".json")
    kept = record.read_text()
    record.unlink()
    asked = []

    def run(command, what):
        if "--version" in command:
            return real(command, what)
        asked.append(what)
        raise kernels._Unusable(what)

    real = kernels._run
    monkeypatch.setattr(kernels, "_run", run)
    status = kernels.load(home)
    record.write_text(kept)
    assert not status.active and asked == ["compiling failed"]


@pytest.mark.parametrize(
    ("right", "wrong", "found"),
    [
        ("-127.f / x[i]", "-126.f / x[i]", "q4_K: differs from llama.cpp"),
        ("1.f / 6,", "1.f / 7,", "attention 64: differs from its definition"),
        ("if (!seen) continue;", "if (!seen) break;", "attention 64: a row in a batch of 9 differs"),
        ("w->type == 14", "w->type == 13", ""),
    ],
)
def test_kernels_that_compute_wrong_are_refused(library, home, tmp_path, monkeypatch, right, wrong, found):
    texts = {name: (kernels._HERE / name).read_text() for name in (*kernels.SOURCES, "kernels_check.py")}
    assert any(right in text for text in texts.values())
    for name, text in texts.items():
        (tmp_path / name).write_text(text.replace(right, wrong))
    monkeypatch.setattr(kernels, "_HERE", tmp_path)
    monkeypatch.setattr(kernels, "OPTIONS", ("-O1", *kernels.OPTIONS[1:]))
    status = kernels.load(tmp_path / "cache")
    assert not status.active and status.reason.startswith(f"check failed: {found}")
    assert not list((tmp_path / "cache").iterdir())


def test_llama_cpp_calls_them_in_a_fresh_process(library, home):
    code = (
        "import sys, json; from pathlib import Path; from slipstream.models.llamacpp import kernels;"
        "s = kernels.load(Path(sys.argv[1])); import llama_cpp.llama_cpp; print(json.dumps([s.active, s.reason]))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(home)], capture_output=True, text=True, timeout=120)
    assert json.loads(done.stdout)[0] is True, done.stderr


REASONS = {
    "switched off": lambda m: m.setenv("SLIPSTREAM_KERNELS", "0"),
    "the CPU lacks avx512_vnni": lambda m: m.setattr(
        kernels, "cpu_flags", lambda: frozenset(kernels.CPU_FLAGS) - {"avx512_vnni"}
    ),
    "made for Linux": lambda m: m.setattr(sys, "platform", "darwin"),
    "made for llama-cpp-python": lambda m: m.setattr(kernels, "VERSIONS", ("0.0.1",)),
    "no C compiler": lambda m: m.setattr("shutil.which", lambda name: None),
    "has no libggml-cpu": lambda m: m.setenv("LLAMA_CPP_LIB_PATH", os.devnull),
}


@pytest.mark.parametrize("reason", REASONS)
def test_why_not(reason, tmp_path, monkeypatch):
    if sys.platform == "linux":
        monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(kernels, "cpu_flags", lambda: frozenset(kernels.CPU_FLAGS))
    REASONS[reason](monkeypatch)
    if importlib.util.find_spec("llama_cpp") is None and reason != "switched off":
        pytest.skip("llama-cpp-python is not installed")
    status = kernels.load(tmp_path / "cache")
    assert not status.active and reason in status.reason
    assert not (tmp_path / "cache").exists()


def test_a_compiler_that_fails_is_a_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(kernels, "cpu_flags", lambda: frozenset(kernels.CPU_FLAGS))
    monkeypatch.setattr(kernels, "_compiler", lambda: sys.executable)
    monkeypatch.setattr(kernels, "_require_machine", lambda: _fake_native(tmp_path))
    status = kernels.load(tmp_path / "cache")
    assert not status.active and status.reason.startswith("compiling failed")


def _fake_native(folder: Path) -> Path:
    (folder / "libggml-cpu.so.0").write_bytes(b"")
    return folder


def test_a_folder_that_cannot_be_written_is_a_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(kernels, "cpu_flags", lambda: frozenset(kernels.CPU_FLAGS))
    monkeypatch.setattr(kernels, "_require_machine", lambda: _fake_native(tmp_path))
    monkeypatch.setattr(kernels, "_compiler", lambda: sys.executable)
    (tmp_path / "file").write_text("")
    status = kernels.load(tmp_path / "file" / "cache")
    assert not status.active and "could not be built" in status.reason


def test_a_chain_has_the_bits_of_single_tokens_at_any_context(smollm2: Path) -> None:
    """From 512 cells on llama.cpp's attention for one query adds up in another order than for several."""
    from slipstream.core.types import Span
    from slipstream.models.llamacpp import library
    from slipstream.models.llamacpp.model import LlamaModel, LlamaOptions

    if not library.own_kernels().active:
        pytest.skip(library.own_kernels().reason)
    if "amx_int8" in kernels.cpu_flags():
        pytest.skip("products go to AMX here")
    model = LlamaModel(smollm2, LlamaOptions(n_ctx=1024))
    tokens = [int(t) for t in np.random.default_rng(1).integers(100, 40_000, 700)]
    try:
        for past, n in ((60, 9), (505, 17), (640, 33)):
            model.truncate(0, 0)
            for at in range(0, past, 256):
                chunk = tokens[at : min(at + 256, past)]
                model.forward([Span(0, chunk, range(-1, len(chunk) - 1), ())])
                model.keep(0, range(len(chunk)))
            chain = tokens[past : past + n]
            together = model.forward([Span(0, chain, range(-1, n - 1), range(n))])[0].copy()
            model.keep(0, ())
            for i, token in enumerate(chain):
                alone = model.forward([Span(0, [token], [-1], [0])])[0][0]
                assert np.array_equal(together[i], alone), (past, n, i)
                model.keep(0, [0])
    finally:
        model.close()
