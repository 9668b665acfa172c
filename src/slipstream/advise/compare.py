"""Are two texts of the same request the same, and if not: did rounding choose between two equals, or is it wrong?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from slipstream.core.sampling import Sampler
from slipstream.core.types import Array, SamplingParams, Span
from slipstream.engine import Engine

# Written down before the first comparison. The largest difference in a row of 150,000 logits is about this
# (docs/ties.md); that of the two likeliest tokens is far smaller.
TIE_BOUND = 0.7


@dataclass(frozen=True)
class Comparison:
    """`at` is the index of the first token that differs.

    `gap` says how far, in logits, the further of the two tokens is behind the best one when plain decoding is done
    again up to there.
    """

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
        return f"{self.verdict}: token {self.at + 1} differs, where the two are {self.gap:.3f} logits apart"


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
    sampler = Sampler(params, prompt)
    for token in plain[:at]:
        sampler.append(token)
    row, position = next_row(engine, prompt, plain[:at]), len(prompt) + at

    def behind(ids: Sequence[int]) -> float:  # a text that ends here said one of the end tokens
        said = ids[at : at + 1] or [t for t in engine.tokenizer.ends if t < row.size]
        return min((sampler.behind(row, position, t) for t in said), default=float("inf"))

    gap = max(behind(plain), behind(other))
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
