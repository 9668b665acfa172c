"""Are two texts of the same request the same, and if not: did rounding choose between two equals, or is it wrong?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from slipstream.core.sampling import Sampler
from slipstream.core.types import Array, SamplingParams, Span
from slipstream.engine import Engine

# Logits of a batch differ from those of one token at a time by up to 0.6 in the builds measured (docs/build.md).
TIE_BOUND = 0.7


@dataclass(frozen=True)
class Comparison:
    """`at` is the index of the first token that differs, `gap` what plain's best two were apart there, in logits."""

    verdict: Literal["identical", "near tie", "mismatch"]
    at: int | None = None
    gap: float | None = None

    @property
    def identical(self) -> bool:
        return self.verdict == "identical"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        if self.at is None:
            return self.verdict
        return f"{self.verdict}: token {self.at + 1} differs, where the best two are {self.gap:.3f} logits apart"


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """The first index at which they differ (the shorter one's end counts), or None."""
    if list(a) == list(b):
        return None
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def compare(
    engine: Engine, prompt: Sequence[int], params: SamplingParams, plain: Sequence[int], other: Sequence[int]
) -> Comparison:
    """Compare the output of plain decoding with another one. Needs an idle engine; where they differ, plain decoding is
    done again up to there to see how close it was."""
    at = first_difference(plain, other)
    if at is None:
        return Comparison("identical")
    gap = gap_after(engine, prompt, plain[:at], params)
    return Comparison("near tie" if gap < TIE_BOUND else "mismatch", at, gap)


def next_row(engine: Engine, prompt: Sequence[int], output: Sequence[int] = ()) -> Array:
    """The target's logits after prompt and output, shape (n_vocab,), evaluated in the pieces of plain decoding."""
    model, n_batch = engine.model, engine.model.caps.n_batch
    engine.reset()
    row = np.empty(0, np.float32)
    pieces = [prompt[i : i + n_batch] for i in range(0, len(prompt), n_batch)] + [[token] for token in output]
    for piece in pieces:
        n = len(piece)
        row = model.forward([Span(0, piece, range(-1, n - 1), (n - 1,))])[0][0].copy()
        model.keep(0, range(n))
    engine.reset()
    return row


def gap_after(engine: Engine, prompt: Sequence[int], output: Sequence[int], params: SamplingParams) -> float:
    """How far the second best choice is behind after prompt and output, in logits; with sampling, noise included."""
    sampler = Sampler(params, prompt)
    for token in output:
        sampler.append(token)
    return sampler.pick(next_row(engine, prompt, output), len(prompt) + len(output), gap=True).gap
