"""The memory estimate: exact arithmetic on a tiny model, and advice that really makes things fit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_writer import tiny_llama, write_gguf
from slipstream.errors import InputError, MemoryShortage, UnknownName
from slipstream.models.gguf import GGUFHeader, read_header
from slipstream.models.machine import available_memory
from slipstream.models.memory import RAM, MemoryPlan, Settings, estimate, plan, require_fits

AVX2, AMX, NONE = frozenset({"avx2"}), frozenset({"avx2", "amx_int8", "avx512_vnni"}), frozenset[str]()
MIB = 2**20


@pytest.fixture
def tiny(tmp_path: Path) -> GGUFHeader:
    return read_header(write_gguf(tmp_path / "tiny.gguf", *tiny_llama()))


def variant(path: Path, architecture: str, layers: int = 2, **more: Any) -> GGUFHeader:
    metadata, tensors = tiny_llama(layers)
    metadata = {key.replace("llama.", architecture + "."): value for key, value in metadata.items()}
    metadata |= {f"{architecture}.{key.replace('__', '.')}": value for key, value in more.items()}
    return read_header(write_gguf(path / "v.gguf", metadata | {"general.architecture": architecture}, tensors))


def weights(header: GGUFHeader, flags: frozenset[str], **settings: Any) -> int:
    return estimate(header, Settings(1024, **settings), flags=flags).all.weights


def test_cells_have_slack_and_are_rounded_up() -> None:
    assert Settings(4096).cells == 4352
    assert Settings(1000, n_slots=3).cells == 3328


@pytest.mark.parametrize(("kind", "bytes_per_128"), [("f16", 256), ("q8_0", 136), ("q4_0", 72), ("f32", 512)])
def test_cache_size(tiny: GGUFHeader, kind: str, bytes_per_128: int) -> None:
    settings = Settings(1024, n_slots=2, kv_type_k=kind, kv_type_v=kind)
    # 2 layers, 2 heads of 64, keys and values
    assert estimate(tiny, settings).all.kv == 2 * 2 * 2304 * bytes_per_128


def test_weights_are_those_of_the_file_when_nothing_is_repacked(tiny: GGUFHeader) -> None:
    assert weights(tiny, NONE) == weights(tiny, NONE, mmap=True) == sum(t.nbytes for t in tiny.tensors)


def test_tied_embeddings_are_kept_twice_when_the_output_is_repacked(tiny: GGUFHeader) -> None:
    assert weights(tiny, AVX2) == sum(t.nbytes for t in tiny.tensors) + 9216


def test_a_mapped_file_stays_beside_the_repacked_copies(tiny: GGUFHeader) -> None:
    matrices = sum(t.nbytes for t in tiny.tensors if t.type.name == "Q4_K")
    assert weights(tiny, AVX2, mmap=True) - weights(tiny, AVX2) == matrices


def test_amx_packs_with_four_more_bytes_a_block(tiny: GGUFHeader) -> None:
    blocks = sum(t.nbytes // 144 for t in tiny.tensors if t.type.name == "Q4_K")
    assert weights(tiny, AMX) - weights(tiny, AVX2) == 4 * blocks


def test_logits_and_scratch_follow_batch_and_outputs(tiny: GGUFHeader) -> None:
    few, many = (estimate(tiny, Settings(1024, n_outputs=n)).all.compute for n in (8, 64))
    assert many - few == 4 * 56 * 64
    flash, plain = (estimate(tiny, Settings(1024, flash_attn=on)).all.compute for on in (True, False))
    assert plain - flash > 4 * 512 * 1280 * 4 / 2  # the scores of four heads
    assert estimate(tiny, Settings(1024, n_batch=64)).all.compute < flash / 2


def test_mla_keeps_no_values(tmp_path: Path) -> None:
    plain, mla = variant(tmp_path, "deepseek2"), variant(tmp_path, "deepseek2", attention__key_length_mla=64)
    assert estimate(plain, Settings(1024)).all.kv == 2 * estimate(mla, Settings(1024)).all.kv


def test_shared_caches_are_counted_once(tmp_path: Path) -> None:
    header = variant(tmp_path, "gemma4", layers=4, attention__shared_kv_layers=3)
    assert estimate(header, Settings(1024)).all.kv == estimate(variant(tmp_path, "llama", 1), Settings(1024)).all.kv


def test_recurrent_state_grows_with_sequences_not_with_context(tmp_path: Path) -> None:
    sizes = {"ssm__conv_kernel": 4, "ssm__inner_size": 512, "ssm__state_size": 16, "ssm__group_count": 1}
    mamba = variant(tmp_path, "mamba2", **sizes)
    state = 4 * (3 * (512 + 2 * 16) + 16 * 512)
    assert estimate(mamba, Settings(1024)).all.kv == estimate(mamba, Settings(8192)).all.kv == 2 * state
    assert estimate(mamba, Settings(1024, n_slots=2, extra_seqs=3)).all.kv == 5 * 2 * state
    hybrid = variant(tmp_path, "jamba", attention__head_count_kv=np.array([0, 2], "<i4"), **sizes)
    assert estimate(hybrid, Settings(1024)).all.kv == state + 1280 * 2 * 256


def test_layers_go_to_the_gpus_in_proportion_to_their_free_memory(tmp_path: Path) -> None:
    header = variant(tmp_path, "llama", layers=7)
    layer = sum(t.nbytes for t in header.tensors if t.layer == 0)
    split = estimate(header, Settings(1024, gpu_layers=-1), [("a", 3 * 2**30), ("b", 2**30)], NONE).per_device
    assert split["a"].weights == 6 * layer
    assert split["b"].weights == layer + 1024 + 9216  # with the output: its norm and a copy of the tied embeddings
    assert split[RAM].weights == 9216 and split[RAM].kv == 0
    half = estimate(header, Settings(1024, gpu_layers=3), [("a", 2**30)], NONE).per_device
    assert half["a"].kv * 5 == half[RAM].kv * 2
    assert set(estimate(header, Settings(1024, gpu_layers=-1)).per_device) == {RAM}


def test_plan_adds_target_and_draft(tiny: GGUFHeader) -> None:
    alone, both = plan(tiny, None, Settings(1024)), plan(tiny, tiny, Settings(1024), Settings(512))
    assert [row.model for row in both.rows] == ["target", "draft"]
    assert alone.fits and both.fits and not both.advice
    assert alone.needed[RAM] < both.needed[RAM] < 2 * alone.needed[RAM]
    require_fits(both)


def needed(tiny: GGUFHeader, draft: GGUFHeader | None, settings: Settings) -> int:
    return plan(tiny, draft, settings, available=2**40).needed[RAM]


def test_advice_names_the_largest_context_that_fits(tiny: GGUFHeader) -> None:
    room = needed(tiny, None, Settings(8192)) + 100_000
    result = plan(tiny, None, Settings(65536), available=room)
    assert not result.fits and result.short == {RAM: result.needed[RAM] - room}
    match = re.search(r"context of (\d+) instead of 65536 tokens \(saves (\d+) MiB\)", "\n".join(result.advice))
    assert match
    best = int(match[1])
    assert plan(tiny, None, Settings(best), available=room).fits
    assert not plan(tiny, None, Settings(best + 256), available=room).fits
    assert abs(int(match[2]) * MIB - (result.needed[RAM] - needed(tiny, None, Settings(best)))) < MIB


def test_advice_on_slots_cache_type_draft_and_file(tiny: GGUFHeader) -> None:
    settings = Settings(16384, n_slots=4)
    full, q8 = needed(tiny, tiny, settings), needed(tiny, tiny, Settings(16384, 4, "q8_0", "q8_0"))
    text = "\n".join(plan(tiny, tiny, settings, available=q8).advice)
    assert f"store the cache as q8_0 (saves {(full - q8) / MIB:.0f} MiB)" in text
    match = re.search(r"use (\d) instead of 4 slots", text)
    assert match and [n for n in range(1, 5) if needed(tiny, tiny, Settings(16384, n)) <= q8][-1] == int(match[1])
    assert f"no model (saves {(full - needed(tiny, None, settings)) / MIB:.0f} MiB)" in text
    assert "not enough alone" in "\n".join(plan(tiny, tiny, settings, available=q8 - 10_000).advice)
    smaller = plan(tiny, None, Settings(256), available=needed(tiny, None, Settings(256)) - 50_000)
    assert any("Q3_K_M file of the target instead of Q4_K_M" in line for line in smaller.advice)


def test_advice_for_a_small_gpu(tmp_path: Path) -> None:
    header = variant(tmp_path, "llama", layers=8)
    settings = Settings(4096, gpu_layers=-1)
    room = estimate(header, Settings(4096, gpu_layers=4), [("gpu", 1)]).per_device["gpu"].total
    result = plan(header, None, settings, gpus=[("gpu", room)], available=2**40)
    assert list(result.short) == ["gpu"] and result.advice[0] == "put 4 layers on the GPU"


def test_require_fits_raises_with_the_advice(tiny: GGUFHeader) -> None:
    with pytest.raises(MemoryShortage, match="free") as caught:
        require_fits(plan(tiny, tiny, Settings(4096), available=1000))
    assert "no model" in caught.value.hint


def test_a_plan_by_hand() -> None:
    assert MemoryPlan((), {RAM: 0}).fits


@pytest.mark.parametrize("wrong", [{"n_ctx": 0}, {"n_slots": 0}, {"kv_type_v": "q8_0", "flash_attn": False}])
def test_settings_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Settings(**{"n_ctx": 512} | wrong)


def test_an_unknown_cache_type_names_the_nearest() -> None:
    with pytest.raises(UnknownName) as caught:
        Settings(512, kv_type_k="q8")
    assert "q8_0" in caught.value.hint


def group(root: Path, place: str, **files: str) -> None:
    (root / place).mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (root / place / name.replace("__", ".")).write_text(text)


def test_control_groups_limit_what_is_available(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("0::/a/b\n")
    group(tmp_path, "a", memory__max="3000000\n", memory__current="2500000\n", memory__stat="inactive_file 500000\n")
    group(tmp_path, "a/b", memory__max="max\n", memory__current="7\n", memory__stat="")
    assert available_memory(tmp_path, own) == 1_000_000
    own.write_text("4:memory:/c\n0::/\n")
    group(tmp_path / "memory", "c", memory__limit_in_bytes="900000", memory__usage_in_bytes="100000",
          memory__stat="total_inactive_file 0")  # fmt: skip
    assert available_memory(tmp_path, own) == 800_000
    assert available_memory(tmp_path, tmp_path / "none") > 2**20
