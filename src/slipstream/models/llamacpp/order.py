"""In which cells of the cache each slot's past lies, by position: attention that adds up in that order rounds as alone.

llama.cpp puts a token where there is room. After a rejected branch, or beside other slots, a slot's cells are no longer
in the order of its tokens, and sums by cell differ in their last bits from those of the same text alone. Our attention
(kernels_order.h) takes the lists that are kept here; a list that does not agree with llama.cpp's mask is not used.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
T = TypeVar("T")
ONE_AT_A_TIME = threading.RLock()  # the kernels know of one forward in a process
_BLOCK = 16  # cells are read by so many


class _Order(ctypes.Structure):
    """`order` of kernels_order.h."""

    _fields_ = (
        ("n_tokens", ctypes.c_int32),
        ("n_places", ctypes.c_int32),
        ("cells", ctypes.c_void_p),
        ("n_cells", ctypes.c_void_p),
        ("places", ctypes.c_void_p),
        ("of_token", ctypes.c_void_p),
        ("written", ctypes.c_void_p),
        ("second", ctypes.c_ssize_t),
        ("second_written", ctypes.c_ssize_t),
        ("index", ctypes.c_void_p * 2),
        ("first_keys", ctypes.c_void_p * 2),
        ("keys", ctypes.c_void_p),
        ("current", ctypes.c_int32),
        ("windowed", ctypes.c_int32),
    )


class _Restored(ctypes.Structure):
    """`restored` of kernels_order.h."""

    _fields_ = (
        ("room", ctypes.c_int32),
        ("n", ctypes.c_int32 * 2),
        ("cells", ctypes.c_void_p * 2),
        ("tensor", ctypes.c_void_p * 2),
        ("keys", ctypes.c_void_p),
    )


def _address(a: NDArray[Any]) -> int:
    return int(a.__array_interface__["data"][0])


@dataclass(frozen=True)
class Branch:
    """A leaf's tokens of a span, root first: where they lie in the batch."""

    slot: int
    n_past: int
    tokens: Ints


class CellOrder:
    """Lists for `n_slots`, of `n_ctx` positions each, and as many branches of a tree as `leaves`.

    There are two of each: a model with windowed layers (`window` > 0) has a cache of their own. There llama.cpp gives
    cells away that their text does not see any more; -1 stands for what was lost so.
    """

    def __init__(self, library: ctypes.CDLL, n_slots: int, leaves: int, n_ctx: int, n_batch: int, window: int) -> None:
        self._order = ctypes.c_void_p.in_dll(library, "slipstream_order")
        self._note_rows = library.slipstream_restoring
        room = -(-(n_ctx + n_batch) // _BLOCK) * _BLOCK
        self._lists = np.zeros((2, n_slots, leaves, room), np.int32)
        self._start = _address(self._lists)
        self._written = np.zeros((2, n_batch), np.int32)
        self._window = window
        self.blind = False  # the last forward did not go through our kernels: nothing is known of the cells
        self._first_keys: int | None = None  # of the first layer that a forward comes to: its cache has the first lists

    def during(self, branches: Sequence[Branch], n_tokens: int, forward: Callable[[], int]) -> int:
        """The status of `forward` over a batch of these branches; the first one of a slot is its likeliest."""
        cells, n_cells = np.zeros(n_tokens, np.int64), np.zeros(n_tokens, np.int32)
        places = []
        leaf, slot = 0, -1
        for branch in branches:
            leaf, slot = (leaf + 1 if branch.slot == slot else 0), branch.slot
            n, new = branch.n_past, branch.tokens
            start = self._start + slot * self._lists.strides[1] + leaf * self._lists.strides[2]
            after = np.arange(n + 1, n + 1 + len(new))
            n_cells[new] = after
            places.append(start + (after - 1) * self._lists.itemsize)
            if leaf:
                self._lists[:, slot, leaf, :n] = self._lists[:, slot, 0, :n]
                new = new[cells[new] == 0]  # the others lie on an earlier branch as well
            cells[new] = start
        where, of_token = np.concatenate(places), np.concatenate([b.tokens for b in branches])
        addresses = [_address(a) for a in (cells, n_cells, where, of_token, self._written)]
        order = _Order(n_tokens, len(where), *addresses, self._lists[0].size, self._written[0].size)
        order.windowed = self._window > 0
        with ONE_AT_A_TIME:
            self._order.value = ctypes.addressof(order)
            try:
                status = forward()
            finally:  # an interrupt comes right after the call
                self._order.value = None
                self._settle(branches, n_tokens, order)
        if status == 0:
            self.blind = not order.index[0] or (self._window > 0 and not order.index[1])
        return status

    def _settle(self, branches: Sequence[Branch], n_tokens: int, order: _Order) -> None:
        """After a forward that may have failed before anything was written."""
        self._first_keys = order.first_keys[0] or self._first_keys
        if not self._window:
            return
        for kind in (k for k in (0, 1) if order.index[k]):
            self._forget(kind, self._written[kind, :n_tokens])
            for branch in reversed(branches):  # the likeliest one last
                at = slice(branch.n_past, branch.n_past + len(branch.tokens))
                self._lists[kind, branch.slot, 0, at] = self._written[kind, branch.tokens]

    def _forget(self, kind: int, written: Ints) -> None:
        """What these cells held is lost."""
        lists = self._lists[kind, :, 0]
        lists[np.isin(lists, written)] = -1

    def whole(self, slot: int, n_past: int) -> bool:
        """Whether the cache still has all that a token behind the first `n_past` sees."""
        return bool((self._lists[:, slot, 0, max(0, n_past + 1 - self._window) : n_past] >= 0).all())

    def keep(self, slot: int, n_past: int, tokens: Ints) -> None:
        """Of the last forward, these tokens of the batch are the slot's now."""
        self._lists[:, slot, 0, n_past : n_past + len(tokens)] = self._written[:, tokens]

    def saved(self, slot: int, n_past: int) -> Ints:
        """What `restoring` has to know of a slot whose state is saved."""
        return self._lists[:, slot, 0, :n_past].copy()

    def restoring(self, slot: int, saved: Ints, restore: Callable[[], T]) -> T:
        """Runs `restore`, which puts a saved state into this slot, wherever there is room.

        llama.cpp saves in the order of cells, and of a windowed cache only the positions that are still seen.
        """
        n_past = saved.shape[1]
        cells = np.full((2, n_past), -1, np.int32)
        noted = _Restored(n_past, cells=tuple(map(_address, cells)))
        try:
            self._note_rows(ctypes.byref(noted))
            return restore()
        finally:
            self._note_rows(None)
            first = 0 if noted.keys == self._first_keys else 1
            self._lists[:, slot, 0, :n_past] = -1
            for kind, was in enumerate(saved if self._first_keys else ()):
                n = noted.n[kind ^ first]
                if self._window:
                    self._forget(kind, cells[kind ^ first, :n])
                new = np.full(n_past, -1, np.int32)
                new[n_past - n + np.argsort(was[n_past - n :])] = cells[kind ^ first, :n]
                self._lists[kind, slot, 0, :n_past] = new
