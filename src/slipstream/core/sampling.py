"""From logits to a choice: one code path for the target and for a draft model.

Order: logit bias; repetition penalty (over prompt and output), presence and frequency penalties (over the output);
what a constraint allows; temperature; top-k; top-p; min-p. The choice itself is Gumbel-max with keyed noise, so the
token at a position is a deterministic function of the filtered distribution, the seed, the position and the token ids;
greedy is temperature 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slipstream.core import noise
from slipstream.core.ports import Constraint
from slipstream.core.types import Array, SamplingParams

Probs = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Filtered:
    """A filtered distribution: the ids that are left (ascending) and their scaled logits, float64."""

    ids: npt.NDArray[np.int64]
    scores: Probs

    def probs(self) -> Probs:
        e = np.exp(self.scores - self.scores.max())
        return np.asarray(e / e.sum())

    def dense(self, n_vocab: int) -> Probs:
        """Probabilities over the whole vocabulary, shape (n_vocab,)."""
        out = np.zeros(n_vocab)
        out[self.ids] = self.probs()
        return out


class Sampler:
    """The settings of one sequence, the tokens that its penalties look at, and what its constraint allows.

    `path` arguments are drafted tokens that follow the committed ones: penalties and the constraint see them as if they
    were there, and nothing of them stays.
    """

    def __init__(
        self, params: SamplingParams, prompt: Sequence[int] = (), constraint: Constraint | None = None
    ) -> None:
        self.params, self.constraint = params, constraint
        self._seen = set(prompt) if params.repetition_penalty != 1 else set()
        self._output: Counter[int] = Counter()
        self._bias_ids = np.fromiter(params.logit_bias.keys(), np.int64)
        self._bias = np.fromiter(params.logit_bias.values(), np.float32)

    def append(self, token: int) -> None:
        if self.params.penalised:
            self._seen.add(token)
            self._output[token] += 1
        if self.constraint is not None:
            self.constraint.append(token)

    def adjusted(self, row: Array, path: Sequence[int] = ()) -> Array:
        """Logits after bias and penalties, -inf for what the constraint forbids; the row itself when there are none."""
        p = self.params
        if p.logit_bias or p.penalised:
            row = self._penalised(row.copy(), path)
        return row if self.constraint is None else _masked(row, self.constraint.allowed(path))

    def _penalised(self, row: Array, path: Sequence[int]) -> Array:
        p = self.params
        inside = self._bias_ids < row.size
        row[self._bias_ids[inside]] += self._bias[inside]
        if p.repetition_penalty != 1:  # Keskar et al. 2019
            seen = np.fromiter((t for t in self._seen.union(path) if t < row.size), np.int64)
            row[seen] = np.where(row[seen] > 0, row[seen] / p.repetition_penalty, row[seen] * p.repetition_penalty)
        counts = self._output + Counter(path) if path else self._output
        counts = Counter({t: n for t, n in counts.items() if t < row.size})  # a draft model may have fewer rows
        if counts and (p.presence_penalty or p.frequency_penalty):
            ids = np.fromiter(counts.keys(), np.int64)
            row[ids] -= (p.presence_penalty + p.frequency_penalty * np.fromiter(counts.values(), np.int64)).astype(
                np.float32
            )
        return row

    def filtered(self, row: Array, path: Sequence[int] = ()) -> Filtered:
        """The distribution that tokens are drawn from at this place. Greedy: all mass on the largest logit."""
        row = self.adjusted(row, path)
        p = self.params
        if p.greedy:
            top = int(row.argmax())
            return Filtered(np.array([top]), np.zeros(1))
        ids: npt.NDArray[np.int64] | None = None
        if self.constraint is not None:  # often a handful out of all
            ids = np.flatnonzero(row > -np.inf)
            row = row[ids]
        scores = row.astype(np.float64)
        scores /= p.temperature
        if 0 < p.top_k < scores.size:
            inside = _largest(scores, p.top_k)
            ids = inside if ids is None else ids[inside]
            scores = scores[inside]
        if p.top_p < 1:
            inside = _nucleus(scores, p.top_p)
            ids = inside if ids is None else ids[inside]
            scores = scores[inside]
        if p.min_p > 0:
            near = scores >= scores.max() + np.log(p.min_p)
            ids = np.flatnonzero(near) if ids is None else ids[near]
            scores = scores[near]
        if ids is None:
            ids = np.arange(scores.size)
        return Filtered(ids, scores)

    def pick(self, row: Array, position: int, path: Sequence[int] = ()) -> int:
        """The target's own token at `position`."""
        if self.params.greedy:
            return int(self.adjusted(row, path).argmax())
        f = self.filtered(row, path)
        scores = f.scores + noise.gumbel(self.params.seed, noise.TARGET, position, f.ids)
        return int(f.ids[scores.argmax()])

    def behind(self, row: Array, position: int, token: int) -> float:
        """How far `token` was behind the target's own choice at `position`, in logits, noise included.

        A token that the filters left out is looked at as if they had not: their border moves with rounding too.
        """
        best = self.pick(row, position)
        row = self.adjusted(row)
        ids = np.array([best, token])
        scores = row[ids].astype(np.float64)
        if not self.params.greedy:
            scores += self.params.temperature * noise.gumbel(self.params.seed, noise.TARGET, position, ids)
        return float(scores[0] - scores[1])


def _masked(row: Array, allowed: npt.NDArray[np.bool_]) -> Array:
    """A row may be shorter than the vocabulary (a draft model's). Where all that it has is forbidden, what is chosen
    here is never said: it stays as it is."""
    allowed = allowed[: row.size]
    if not allowed.any():
        return row
    out = np.full_like(row, -np.inf)
    left = row[: allowed.size][allowed]
    out[: allowed.size][allowed] = left if left.max() > -np.inf else 0.0
    return out


def draw(probs: Probs, seed: int, stream: int, position: int, root: int) -> int:
    """One token from a dense distribution, by keyed noise; `probs` need not sum to one."""
    ids = np.flatnonzero(probs > 0)
    scores = np.log(probs[ids]) + noise.gumbel(seed, stream, position, ids, root)
    return int(ids[scores.argmax()])


def log_probs(row: Array, token: int, top: int) -> tuple[float, list[tuple[int, float]]]:
    """The model's own log-probability of `token` and its `top` likeliest tokens, before any sampling setting."""
    x = row.astype(np.float64)
    peak = x.max()
    norm = peak + np.log(np.exp(x - peak).sum())
    best = _largest(x, min(top, x.size)) if top else np.empty(0, np.int64)
    best = best[np.argsort(-x[best], kind="stable")]
    return float(x[token] - norm), [(int(i), float(x[i] - norm)) for i in best]


def _largest(scores: Probs, k: int) -> npt.NDArray[np.int64]:
    """Ids of the `k` largest, ascending; of equal ones the lowest ids, so that the set is always the same."""
    if k >= scores.size:
        return np.arange(scores.size)
    cut = np.partition(scores, scores.size - k)[scores.size - k]
    above = np.flatnonzero(scores > cut)
    ties = np.flatnonzero(scores == cut)[: k - above.size]
    return np.sort(np.concatenate([above, ties]))


def _nucleus(scores: Probs, top_p: float) -> npt.NDArray[np.int64]:
    """Ids of the smallest set of likeliest tokens whose mass reaches `top_p`, ascending (Holtzman et al. 2020)."""
    probs = np.exp(scores - scores.max())
    probs /= probs.sum()
    # All tokens below this bound together cannot hold more than 1 - top_p: only the others need sorting.
    near = np.flatnonzero(probs >= (1 - top_p) / probs.size)
    order = near[np.argsort(-probs[near], kind="stable")]
    n = int(np.searchsorted(np.cumsum(probs[order]), top_p)) + 1
    return np.sort(order[:n])
