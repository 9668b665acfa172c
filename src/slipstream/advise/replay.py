"""Replay: would a draft model have guessed a text that the target has written already? And how fast would that be?

The target's text is fixed, so every drafter can be judged on it in one pass over prompt and text instead of a run of
its own: while all guesses so far were right, a drafter stands exactly where the text does. What comes out is a pair of
arrays, whether each token would have been guessed and how sure the drafter was; the speed under any prices and any way
to draft follows by arithmetic (the estimate of speculative decoding's walltime, arXiv 2211.17192, with measured
prices and measured hits instead of constants).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from slipstream.core.ports import Model
from slipstream.core.types import Array, Span

Price = Callable[[int], float]  # seconds of one forward over n new tokens
DEPTHS = tuple(range(17))  # draft lengths that a forecast tries; 0 is plain decoding
SURE = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)  # and path probabilities below which drafting stops


@dataclass(frozen=True)
class Trace:
    """One text replayed. Of each token: was it the drafter's first guess, and that guess's probability; shapes (n,)."""

    kind: str
    hits: npt.NDArray[np.bool_]
    confidence: Array


@dataclass(frozen=True)
class Forecast:
    """What drafting would do to some texts. Seconds are of decoding; `depth` and `sure` are the way to draft."""

    depth: int
    sure: float
    tokens: int
    plain_s: float
    seconds: float
    drafted: int = 0
    verified: int = 0
    accepted: int = 0

    @property
    def speedup(self) -> float:
        return self.plain_s / self.seconds if self.seconds else 1.0

    def __add__(self, other: Forecast) -> Forecast:
        """Both texts one after the other, drafted in this one's way."""
        names = ("tokens", "plain_s", "seconds", "drafted", "verified", "accepted")
        return Forecast(self.depth, self.sure, **{n: getattr(self, n) + getattr(other, n) for n in names})


def judge(rows: Array, tokens: Sequence[int]) -> tuple[npt.NDArray[np.bool_], Array]:
    """Logits rows (n, n_vocab) beside the n tokens that did come: whether each was the largest, and that one's
    probability. Shapes (n,)."""
    guess = rows.argmax(axis=1)
    top = np.take_along_axis(rows, guess[:, None], axis=1)
    confidence = 1 / np.exp(rows - top).sum(axis=1)
    return guess == np.asarray(tokens), confidence.astype(np.float32)


def replay(model: Model, prompt: Sequence[int], text: Sequence[int], kind: str = "all", n_shared: int = 0) -> Trace:
    """Pass `text` behind `prompt` through slot 0, which is emptied first, and judge each of its tokens.

    `n_shared`: ids from here on are never guessed (0: all may be). A text that reaches the end of the context, or a
    token that the drafter does not have, is judged up to there.
    """
    caps = model.caps
    tokens = [*prompt, *text][: caps.n_ctx]
    tokens = tokens[: next((i for i, t in enumerate(tokens) if t >= caps.n_vocab), len(tokens))]
    start = len(prompt) - 1
    chunk = min(caps.max_nodes + 1, caps.n_batch)  # logits of a wide vocabulary take a lot of memory
    cuts = [*range(0, start, caps.n_batch), *range(start, len(tokens) - 1, chunk), len(tokens) - 1]
    parts = []
    model.truncate(0, 0)
    for a, b in pairwise(cuts):
        if b <= a:
            break
        new = tokens[a:b]
        want = range(len(new)) if a >= start else ()
        rows = model.forward([Span(0, new, range(-1, len(new) - 1), want)])[0]
        if len(rows):
            parts.append(judge(rows[:, : n_shared or None], tokens[a + 1 : b + 1]))
        model.keep(0, range(len(new)))
    hits = [p[0] for p in parts] or [np.empty(0, np.bool_)]
    return Trace(kind, np.concatenate(hits), np.concatenate([p[1] for p in parts] or [np.empty(0, np.float32)]))


def simulate(trace: Trace, target: Price, draft: Price, depth: int, sure: float = 0.0) -> Forecast:
    """Decode the text on paper: draft up to `depth` tokens, stop when the path's probability falls below `sure`
    (that token is paid for but not verified), verify the chain, go on behind the first miss. The first token comes with
    the prompt; reading that, by target and draft model, is left out.

    Behind a miss the drafter's confidence is not known; the text's own next one stands in for it.
    """
    hits, confidence, n = trace.hits.tolist(), trace.confidence.tolist(), len(trace.hits)
    plain = max(n - 1, 0) * target(1)
    if depth == 0:
        return Forecast(0, sure, max(n - 1, 0), plain, plain)
    at, seconds, behind = min(1, n), 0.0, 1  # `behind`: tokens that the draft model has not seen yet
    drafted = verified = accepted = 0
    while at < n:
        asked, kept, path = 0, 0, 1.0
        while asked < min(depth, n - at - 1):
            path *= confidence[at + asked]
            asked += 1
            if path < sure:
                break
            kept = asked
        right = 0
        while right < kept and hits[at + right]:
            right += 1
        if asked:
            seconds += draft(behind) + (asked - 1) * draft(1)
            behind = 2 if right == asked else 1
        seconds += target(1 + kept)
        at += right + 1
        drafted, verified, accepted = drafted + asked, verified + kept, accepted + right
    return Forecast(depth, sure, max(n - 1, 0), plain, seconds, drafted, verified, accepted)


def forecast(traces: Iterable[Trace], target: Price, draft: Price) -> dict[str, Forecast]:
    """For each kind of text the fastest way to draft it; depth 0, which is plain decoding, is one of them."""
    kinds: dict[str, list[Trace]] = {}
    for trace in traces:
        if len(trace.hits):
            kinds.setdefault(trace.kind, []).append(trace)
    ways = [(d, s) for d in DEPTHS for s in (SURE if d else SURE[:1])]

    def total(texts: Sequence[Trace], depth: int, sure: float) -> Forecast:
        first, *rest = [simulate(t, target, draft, depth, sure) for t in texts]
        return sum(rest, first)

    return {kind: min((total(texts, *way) for way in ways), key=lambda f: f.seconds) for kind, texts in kinds.items()}
