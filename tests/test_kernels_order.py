"""Attention over lists of cells: a query's bits do not depend on where its past lies, nor on who else is there."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from slipstream.models.llamacpp import kernels

KEY_HEADS, GROUP = 2, 3
Floats, Halves, Ints = NDArray[np.float32], NDArray[np.float16], NDArray[np.int32]


class Attention(ctypes.Structure):
    """`attention` of kernels_attention.h."""

    _fields_ = (
        *((name, ctypes.c_long) for name in ("width", "n_keys", "n_tokens", "group")),
        ("scale", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "mask")),
        *((n, ctypes.c_size_t) for n in ("q_token", "q_head", "k_cell", "k_head", "v_cell", "v_head", "mask_token")),
        ("out", ctypes.c_void_p),
        ("out_head", ctypes.c_size_t),
        ("out_token", ctypes.c_size_t),
        ("cells", ctypes.c_void_p),
        ("n_cells", ctypes.c_void_p),
        ("shift", ctypes.c_ssize_t),
    )


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(kernels.build(Path(tmp_path_factory.mktemp("kernels")))), mode=ctypes.RTLD_LOCAL)
    except kernels._Unusable as why:
        if "failed" in str(why):
            raise
        pytest.skip(str(why))


def attend(
    library: ctypes.CDLL, q: Floats, k: Halves, v: Halves, mask: Halves, lists: list[Ints] | None, sees: Ints
) -> Floats:
    """q [n, heads, width] over k and v [cells, key heads, width] with mask [n, cells]: [n, heads, width]."""
    n, heads, width = q.shape
    q, out = np.ascontiguousarray(q), np.full_like(q, np.nan)
    room = [np.append(a, np.full(16, 7, np.int32)) for a in lists or []]  # what is behind a list does not matter
    places = np.array([a.ctypes.data for a in room], np.uint64)
    a = Attention(
        width, len(k), n, heads // k.shape[1], width**-0.5,
        q.ctypes.data, k.ctypes.data, v.ctypes.data, mask.ctypes.data,
        q.strides[0], q.strides[1], k.strides[0], k.strides[1], v.strides[0], v.strides[1], mask.strides[0],
        out.ctypes.data, out.strides[1], out.strides[0],
        places.ctypes.data if lists is not None else None, sees.ctypes.data, 0,
    )  # fmt: skip
    library.slipstream_attend(ctypes.byref(a), ctypes.c_long(k.shape[1]))
    return out


@dataclass
class Past:
    """Texts of several sequences, whose last tokens are the queries, in one cache and each alone."""

    q: Floats
    k: Halves
    v: Halves
    mask: Halves
    lists: list[Ints]
    sees: Ints
    alone: Floats


def made(library: ctypes.CDLL, seed: int, width: int, lengths: list[int], tails: list[int], shared: bool) -> Past:
    """Cells of all sequences lie in a random order, with unused ones between them. `shared`: as the engine does it,
    tokens of one sequence have one list."""
    rng = np.random.default_rng(seed)
    used = sum(lengths)
    cells = -(-(used + 40) // 16) * 16
    heads = KEY_HEADS * GROUP
    k, v = (rng.standard_normal((2, cells, KEY_HEADS, width)) * [[[[1.5]]], [[[1.0]]]]).astype(np.float16)
    where = rng.permutation(cells)[:used].astype(np.int32)
    n = sum(tails)
    q = rng.standard_normal((n, heads, width), dtype=np.float32)
    mask = np.full((n, cells), -np.inf, np.float16)
    lists, sees, alone = [], [], np.empty_like(q)
    at = first = 0
    for length, tail in zip(lengths, tails, strict=True):
        own = np.ascontiguousarray(where[first : first + length])
        for t in range(length - tail, length):
            mask[at, own[: t + 1]] = 0
            if width == 64:
                mask[at, own[: max(0, t - 90)]] = -np.inf  # a window
            lists.append(own if shared else own[: t + 1].copy())
            sees.append(t + 1)
            few = -(-(t + 1) // 16) * 16
            small = np.full((1, few), -np.inf, np.float16)
            small[0, : t + 1] = mask[at, own[: t + 1]]
            kv = [np.zeros((few, KEY_HEADS, width), np.float16) for _ in range(2)]
            kv[0][: t + 1], kv[1][: t + 1] = k[own[: t + 1]], v[own[: t + 1]]
            alone[at] = attend(library, q[at : at + 1], *kv, small, None, np.zeros(1, np.int32))[0]
            at += 1
        first += length
    return Past(q, k, v, mask, lists, np.array(sees, np.int32), alone)


texts = st.lists(st.integers(1, 330), min_size=1, max_size=4)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([64, 128, 96]), texts, st.integers(1, 9), st.booleans())
def test_a_query_has_the_bits_that_it_has_alone(
    library: ctypes.CDLL, seed: int, width: int, lengths: list[int], tail: int, shared: bool
) -> None:
    past = made(library, seed, width, lengths, [min(tail, n) for n in lengths], shared)
    got = attend(library, past.q, past.k, past.v, past.mask, past.lists, past.sees)
    assert np.array_equal(got, past.alone)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["missing", "twice", "outside", "none", "swapped in"]), texts)
def test_a_list_that_does_not_agree_with_the_mask_is_not_used(
    library: ctypes.CDLL, seed: int, fault: str, lengths: list[int]
) -> None:
    """The bits are then those of the cells as they lie: never another text's, never a crash."""
    lengths = [n + 2 for n in lengths]
    past = made(library, seed, 128, lengths, [1] * len(lengths), False)
    rng = np.random.default_rng(seed)
    lists = [a.copy() for a in past.lists]
    own, at = lists[0], int(rng.integers(0, len(lists[0])))
    if fault == "missing":
        lists[0] = np.delete(own, at)
        past.sees[0] -= 1
    elif fault == "twice":
        own[at] = own[at - 1]
    elif fault == "swapped in":  # another sequence's cell, or nobody's
        own[at] = next(c for c in rng.permutation(len(past.k)) if c not in own)
    else:
        own[at] = 2**30 if fault == "outside" else -1
    as_they_lie = attend(library, past.q, past.k, past.v, past.mask, None, past.sees)
    got = attend(library, past.q, past.k, past.v, past.mask, lists, past.sees)
    assert np.array_equal(got[0], as_they_lie[0])
    assert np.array_equal(got[1:], past.alone[1:])
    np.testing.assert_allclose(got, past.alone, atol=1e-5)


@pytest.mark.parametrize("wrong", [[2, 2, 2], [0, 0, 5], [0, 1, 5], [3, 3, 0]])
def test_lists_of_the_same_sum_are_told_apart(library: ctypes.CDLL, wrong: list[int]) -> None:
    """The mask shows cells 1, 2 and 3."""
    rng = np.random.default_rng(0)
    k, v = rng.standard_normal((2, 16, KEY_HEADS, 64)).astype(np.float16)
    q = rng.standard_normal((1, KEY_HEADS * GROUP, 64), dtype=np.float32)
    mask = np.full((1, 16), -np.inf, np.float16)
    mask[0, [1, 2, 3]] = 0
    sees = np.array([3], np.int32)
    right = attend(library, q, k, v, mask, None, sees)
    assert np.array_equal(attend(library, q, k, v, mask, [np.array(wrong, np.int32)], sees), right)
