"""What another precision does to a text, token by token: does the greedy choice stay, and how far do the
probabilities move?

One model, the reference, reads the texts, and what it thinks at every token is kept; each other model then reads the
same texts, with the same past at every token, in forwards of the same sizes, so that nothing but the weights differs.
KL divergence needs whole rows. They lie on the disk and not in memory, for where quantisation matters two targets
seldom fit side by side: 2 bytes a probability, so a token of a vocabulary of 152,000 takes 0.3 MB.

Rows are kept as logarithms of probabilities in 16 bits, whose error is relative: smallest where the probability is
large. Both models' rows are rounded alike and made to add up to 1 again: a model beside itself diverges by exactly 0,
and rounding moves the others by about 10^-7 nats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from slipstream.advise.rehearse import Script
from slipstream.core.ports import Model
from slipstream.core.types import Array, Span
from slipstream.errors import UsageError

BYTES = 2  # of a kept probability
_NEVER = lambda: False  # noqa: E731


@dataclass(frozen=True)
class Divergence:
    """Of `tokens` tokens: the share with the reference's greedy choice, and KL(reference || model) in nats a token."""

    tokens: int
    agreement: float
    kl: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Compared:
    """Each token of one text: was the greedy choice the same, and the divergence in nats; shapes (n,)."""

    kind: str
    same: npt.NDArray[np.bool_]
    kl: npt.NDArray[np.float64]


def space(n_vocab: int, tokens: int) -> int:
    """Bytes of disk that rows of so many tokens take."""
    return BYTES * n_vocab * tokens


def log_probabilities(logits: Array) -> Array:
    """Logarithms of the softmax of each row; shapes (n, n_vocab)."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    total = np.exp(shifted).sum(axis=1, keepdims=True, dtype=np.float64)
    rows: Array = shifted - np.log(total).astype(np.float32)
    return rows


def kept(logits: Array) -> npt.NDArray[np.float16]:
    """Rows as they are kept; what is too unlikely for 16 bits stays impossible."""
    return np.maximum(log_probabilities(logits), np.finfo(np.float16).min).astype(np.float16)


def divergence(reference: npt.NDArray[np.float16], other: npt.NDArray[np.float16]) -> npt.NDArray[np.float64]:
    """KL(reference || other) of kept rows in nats, shape (n,)."""
    p, q = (log_probabilities(rows.astype(np.float32)) for rows in (reference, other))
    kl: npt.NDArray[np.float64] = np.maximum((np.exp(p) * (p - q)).sum(axis=1, dtype=np.float64), 0)
    return kl


def logits(model: Model, script: Script) -> Iterator[Array]:
    """Pass a text through slot 0, which is emptied first. A row for each token that was said, a few rows at a time,
    shapes (m, n_vocab), valid until the next ones. A text that reaches the end of the context is read up to there."""
    caps, start = model.caps, len(script.prompt) - 1
    n = start + count(model, script)
    if n == start:
        return
    tokens = [*script.prompt, *script.said]
    chunk = min(caps.max_nodes + 1, caps.n_batch, 32)
    cuts = [*range(0, start, caps.n_batch), *range(start, n, chunk), n]
    model.truncate(0, 0)
    for a, b in pairwise(cuts):
        new = tokens[a:b]
        rows = model.forward([Span(0, new, range(-1, len(new) - 1), range(len(new)) if a >= start else ())])[0]
        if a >= start:
            yield rows
        model.keep(0, range(len(new)))


def count(model: Model, script: Script) -> int:
    """Tokens of what was said that the model has room to read."""
    return max(min(len(script.said), model.caps.n_ctx - len(script.prompt)), 0)


class Reference:
    """What a model thinks of texts, in a file that must not exist. `complete` unless it was stopped."""

    def __init__(
        self, model: Model, scripts: Sequence[Script], file: Path, stopped: Callable[[], bool] = _NEVER
    ) -> None:
        self.scripts, self.n_vocab = scripts, model.caps.n_vocab
        self._counts = [count(model, script) for script in scripts]
        shape = (max(sum(self._counts), 1), self.n_vocab)
        self._rows = np.memmap(file, np.float16, "w+", shape=shape)
        self._best = np.zeros(shape[0], np.int64)
        self.complete = False
        at = 0
        for script in scripts:
            for rows in logits(model, script):
                if stopped():
                    return
                self._best[at : at + len(rows)] = rows.argmax(axis=1)
                self._rows[at : at + len(rows)] = kept(rows)
                at += len(rows)
        self.complete = True

    def compare(self, model: Model, stopped: Callable[[], bool] = _NEVER) -> list[Compared] | None:
        """Another model over the same texts; None when stopped. Raises UsageError for another vocabulary or context."""
        if model.caps.n_vocab != self.n_vocab or [count(model, s) for s in self.scripts] != self._counts:
            raise UsageError("the model's vocabulary or context is not the reference's")
        found, at = [], 0
        for script in self.scripts:
            same, kl = [np.empty(0, np.bool_)], [np.empty(0, np.float64)]
            for rows in logits(model, script):
                if stopped():
                    return None
                span = slice(at, at + len(rows))
                same.append(rows.argmax(axis=1) == self._best[span])
                kl.append(divergence(self._rows[span], kept(rows)))
                at += len(rows)
            found.append(Compared(script.kind, np.concatenate(same), np.concatenate(kl)))
        return found


def summed(texts: Sequence[Compared]) -> Divergence | None:
    """All tokens of some texts together; None where there is none."""
    n = sum(len(t.kl) for t in texts)
    if not n:
        return None
    same, kl = sum(int(t.same.sum()) for t in texts), sum(float(t.kl.sum()) for t in texts)
    return Divergence(n, same / n, kl / n)


def by_kind(texts: Sequence[Compared]) -> dict[str, Divergence]:
    """For each kind of text, in order of appearance."""
    kinds = {kind: summed([t for t in texts if t.kind == kind]) for kind in dict.fromkeys(t.kind for t in texts)}
    return {kind: found for kind, found in kinds.items() if found is not None}
