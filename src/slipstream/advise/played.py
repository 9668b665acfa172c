"""Models that are played: the target says what it said, a draft model what it was heard to guess, and a clock moves by
the measured prices. What a draft model would guess behind a wrong guess is unknown; there the text's own next
confidence stands in, and the guess counts as wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slipstream.core.cost import Curve
from slipstream.core.types import Array, Capabilities, Span

WINDOW = 64  # tokens: a draft model that has not read the whole prompt is listened to with so many of it, too
RANKS = 3  # guesses of each token that are listened to
_SURE = 0.999999


@dataclass(frozen=True)
class Heard:
    """A draft model's guesses of each token of a script, the first ones first, and their probabilities, shapes
    (n, RANKS), with the whole prompt before it (key 0) and with the last WINDOW tokens of it only. `overlap`, shape
    (n,): the chance that sampling verifies a drawn guess, where that was asked for."""

    guess: Mapping[int, npt.NDArray[np.int64]]
    sure: Mapping[int, Array]
    overlap: Array | None = None

    def at(self, position: int, skipped: int) -> tuple[npt.NDArray[np.int64], Array]:
        key = WINDOW if skipped and position < len(self.guess.get(WINDOW, ())) else 0
        return self.guess[key][position], self.sure[key][position]

    def drawn(self, said: Sequence[int], seed: int, text: int = 0) -> Heard:
        """As it guesses when each guess is drawn at random and verified by its chance: right so often, else wrong.

        `text` is a number of the text's own, so that no two texts draw alike.
        """
        assert self.overlap is not None
        n = len(self.overlap)
        right = np.random.default_rng([seed, text, n]).random(n) < self.overlap
        told = np.where(right, np.array(said[:n]), -1)[:, None]
        return Heard({w: told[: len(g)] for w, g in self.guess.items()}, {w: s[:, :1] for w, s in self.sure.items()})


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Ids:
    """Token ids of one script. Made `few`, since a row of logits is as wide as the vocabulary and most of it is never
    used; as they are where a drafter knows other texts too."""

    def __init__(self, texts: Sequence[Sequence[int]], few: bool = True, others: int = 0) -> None:
        every = dict.fromkeys(int(t) for text in texts for t in text)
        self._small = {token: i for i, token in enumerate(every)} if few else None
        self.n = (len(every) if few else max([*every, others]) + 1) + 1  # the last one is any other token

    def __call__(self, tokens: Sequence[int]) -> list[int]:
        small, other = self._small, self.n - 1
        if small is None:
            return [int(t) if 0 <= t < other else other for t in tokens]
        return [small.get(int(t), other) for t in tokens]


class Played:
    """A model with one slot. `row(past)` gives the logits behind a path."""

    def __init__(self, clock: Clock, prices: Curve, n_vocab: int, n_ctx: int) -> None:
        self.clock, self.prices = clock, prices
        self.caps = Capabilities(n_vocab, n_ctx, 1, 512, True, "free", max_leaves=16)
        self._past: list[int] = []
        self._span: Span | None = None

    def forward(self, spans: Sequence[Span]) -> list[Array]:
        (span,) = spans
        self._span = span
        self.clock.now += self.prices.at(len(span.tokens), len(self._past))
        rows = [self.row([*self._past, *self._path(span, i)]) for i in span.want]
        return [np.array(rows, np.float32).reshape(len(span.want), self.caps.n_vocab)]

    @staticmethod
    def _path(span: Span, node: int) -> list[int]:
        path: list[int] = []
        while node >= 0:
            path.append(span.tokens[node])
            node = span.parents[node]
        return path[::-1]

    def row(self, past: Sequence[int]) -> Array:
        raise NotImplementedError

    def keep(self, slot: int, path: Sequence[int]) -> None:
        assert self._span is not None
        self._past += [self._span.tokens[i] for i in path]
        self._span = None

    def truncate(self, slot: int, n_past: int) -> None:
        del self._past[n_past:]

    def n_past(self, slot: int) -> int:
        return len(self._past)

    def close(self) -> None:
        return None


class PlayedTarget(Played):
    """Says the script; behind anything else it would say something else."""

    def __init__(self, clock: Clock, prices: Curve, n_vocab: int, script: Sequence[int]) -> None:
        super().__init__(clock, prices, n_vocab, len(script) + 64)
        self.script = list(script)

    def row(self, past: Sequence[int]) -> Array:
        right = len(past) < len(self.script) and list(past) == self.script[: len(past)]
        return _peaked(self.caps.n_vocab, [self.script[len(past)] if right else self.caps.n_vocab - 1], [_SURE])


class PlayedDraft(Played):
    """Guesses what the draft model was heard to guess. `skipped` says how many tokens of the prompt it has not read."""

    def __init__(
        self, clock: Clock, prices: Curve, n_vocab: int, script: Sequence[int], n_prompt: int, heard: Heard, ids: Ids
    ) -> None:
        super().__init__(clock, prices, n_vocab, len(script) + 64)
        self.script, self.n_prompt, self.heard, self.ids = list(script), n_prompt, heard, ids
        self.skipped: Callable[[], int] = lambda: 0

    def row(self, past: Sequence[int]) -> Array:
        start, n = self.skipped(), self.caps.n_vocab
        at = start + len(past) - self.n_prompt  # of the token that is guessed, in what the target said
        if not 0 <= at < len(self.heard.guess[0]):
            return _peaked(n, [n - 1], [0.5])
        guess, sure = self.heard.at(at, start)
        if list(past) != self.script[start : start + len(past)]:
            return _peaked(n, [n - 1], sure[:1])
        return _peaked(n, self.ids(guess.tolist()), sure)


def _peaked(n: int, tokens: Sequence[int], probs: Sequence[float] | Array) -> Array:
    """Logits that give these tokens these probabilities, and all others the rest in equal parts."""
    known = {t: min(max(float(p), 1.5 / n), _SURE) for t, p in reversed(list(zip(tokens, probs, strict=True)))}
    rest = max(1 - sum(known.values()), 1e-6) / max(n - len(known), 1)
    row = np.full(n, np.log(rest), np.float32)
    for token, p in known.items():
        row[token] = np.log(p)
    return row
