"""A batch for llama_decode in numpy buffers of our own, and sequence ids for the branches of a token tree."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from slipstream.core.types import Span
from slipstream.errors import UsageError


class Batch:
    """Room for `n_tokens` tokens that each belong to up to `n_seqs` sequences."""

    def __init__(self, low: Any, n_tokens: int, n_seqs: int) -> None:
        self._token = np.zeros(n_tokens, np.int32)
        self._pos = np.zeros(n_tokens, np.int32)
        self._n_seq = np.ones(n_tokens, np.int32)
        self._seq = np.zeros((n_tokens, n_seqs), np.int32)
        self._logits = np.zeros(n_tokens, np.int8)
        rows = self._seq.ctypes.data + np.arange(n_tokens, dtype=np.uint64) * np.uint64(self._seq.strides[0])
        self._rows = rows.astype(np.uint64)
        self.n = 0
        at = ctypes.cast
        self.struct = low.llama_batch(
            n_tokens=0,
            token=at(self._token.ctypes.data, ctypes.POINTER(ctypes.c_int32)),
            embd=None,
            pos=at(self._pos.ctypes.data, ctypes.POINTER(ctypes.c_int32)),
            n_seq_id=at(self._n_seq.ctypes.data, ctypes.POINTER(ctypes.c_int32)),
            seq_id=at(self._rows.ctypes.data, ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
            logits=at(self._logits.ctypes.data, ctypes.POINTER(ctypes.c_int8)),
        )

    def clear(self) -> None:
        self.n = 0

    def add(self, span: Span, n_past: int, main: int, seqs: Sequence[Sequence[int]] | None) -> None:
        """Append a span. `seqs[i]` are the sequences of token `i`; None for a chain, which has only `main`."""
        n, a = len(span.tokens), self.n
        if a + n > self._token.size:
            raise UsageError(f"a forward of {a + n} tokens exceeds n_batch {self._token.size}")
        b = a + n
        self._token[a:b] = span.tokens
        self._logits[a:b] = 0
        self._logits[np.asarray(span.want, np.int64) + a] = 1
        if seqs is None:
            self._pos[a:b] = np.arange(n_past, n_past + n)
            self._n_seq[a:b] = 1
            self._seq[a:b, 0] = main
        else:
            depth: list[int] = []
            for i, (parent, ids) in enumerate(zip(span.parents, seqs, strict=True)):
                depth.append(n_past if parent < 0 else depth[parent] + 1)
                self._n_seq[a + i] = len(ids)
                self._seq[a + i, : len(ids)] = ids
            self._pos[a:b] = depth
        self.n = b
        self.struct.n_tokens = b


def is_chain(span: Span) -> bool:
    return all(p == i - 1 for i, p in enumerate(span.parents))


def branches(parents: Sequence[int]) -> list[list[int]]:
    """Of each leaf of a tree, in their order: its nodes from the root on."""
    has_child = set(parents)
    found = []
    for leaf in (i for i in range(len(parents)) if i not in has_child):
        path = [leaf]
        while parents[path[-1]] >= 0:
            path.append(parents[path[-1]])
        found.append(path[::-1])
    return found


def branch_ids(span: Span, main: int, spare: Sequence[int]) -> tuple[list[list[int]], list[int]]:
    """Sequence ids of each token of a tree, and the branch ids used besides `main`.

    Each leaf is a sequence of its own and a token belongs to those of all the leaves below it; the first (likeliest)
    leaf is `main`. Raises UsageError when there are more leaves than ids.
    """
    paths = branches(span.parents)
    if len(paths) - 1 > len(spare):
        raise UsageError(f"a tree of {len(paths)} branches exceeds the {len(spare) + 1} that this model keeps")
    seqs: list[list[int]] = [[] for _ in span.tokens]
    used = [main, *spare[: len(paths) - 1]]
    for path, seq in zip(paths, used, strict=True):
        for node in path:
            seqs[node].append(seq)
    return seqs, used[1:]
