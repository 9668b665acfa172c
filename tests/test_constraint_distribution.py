"""A sampling verifier gives the distribution of the constrained target, also where drafts had to be cut.

By chi-square at 0.001 as in test_verify.py: 2 tests a case, fewer than 70 in all, so a correct program would fail on
fewer than one choice of seeds in fourteen (1 - 0.999 ** 70 = 6.8 %); the seeds are fixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2

from rules import Rules
from slipstream.core.constrained import permitted
from slipstream.core.sampling import Filtered, Sampler
from slipstream.core.types import EMPTY_DRAFT, Array, Draft, SamplingParams, Verdict
from slipstream.core.verify import VERIFY
from test_verify import DRAFTS, FIRST, NEXT, VIEWS, propose, reference
from test_verify import Table as Rows

V, DRAWS, ALPHA = 8, 5_000, 0.001
SECOND = {1: (0, 2, 3), 2: (5,), 4: (1, 2, 3, 4, 5, 6, 7), 7: (0, 6)}
TWO = Rules(  # the first token, then the second, then the end
    [{t: 1 + i for i, t in enumerate(SECOND)}, *(dict.fromkeys(left, 5) for left in SECOND.values()), {}],
    frozenset([5]),
    V,
)


class Known(Sampler):
    """The real sampler; a distribution that it has filtered is looked up, since only the noise differs."""

    def __init__(self, params: SamplingParams) -> None:
        super().__init__(params, (), TWO.fork())
        self.known: dict[tuple[int, ...], Filtered] = {}

    def filtered(self, row: Array, path: Sequence[int] = ()) -> Filtered:
        key = (row.__array_interface__["data"][0], len(self.constraint.said), *path)  # type: ignore[union-attr]
        if key not in self.known:
            self.known[key] = super().filtered(row, path)
        return self.known[key]


def expected(params: SamplingParams) -> NDArray[np.float64]:
    """Probability of each pair of tokens, by hand."""

    def masked(row: Array, left: Sequence[int]) -> NDArray[np.float64]:
        out = np.full(V, -1e9, np.float32)
        out[list(left)] = row[list(left)]
        return reference(out, params.temperature, params.top_k)

    first = masked(FIRST, tuple(SECOND))
    return np.array([first[t] * masked(NEXT[t], SECOND.get(t, (0,))) for t in range(V)])


def draw_pairs(
    verify: str, q: NDArray[np.float64], params: SamplingParams, width: int, own: bool, draws: int
) -> NDArray[np.float64]:
    """Texts of two tokens; what is drafted is drawn from `q`, with (`own`) or without regard to the constraint."""
    rng, sampler, pairs = np.random.default_rng(params.seed), Known(params), np.zeros((V, V), np.int64)
    constraint = sampler.constraint
    assert constraint is not None
    drawn = rng.random((draws, 2 + width))
    for trial in range(draws):
        position, text = 5 * trial, list[int]()
        while len(text) < 2:
            base = q * constraint.allowed() if own else q
            if base.sum() == 0:
                base = q
            u = drawn[trial] if not text else drawn[trial, ::-1]
            draft, _ = propose(base / base.sum(), u, width)
            if text:
                draft = draft.select([i for i, p in enumerate(draft.parents) if p < 0])
            draft = permitted(draft, constraint, frozenset())
            rows = [VIEWS[0 if not text else 1 + text[0]], *(VIEWS[1 + t] for t in draft.tokens)]
            verdict: Verdict = VERIFY[verify](draft, Rows(rows), sampler, position + len(text))  # type: ignore[arg-type]
            said = [*(draft.tokens[i] for i in verdict.path), verdict.token][: 2 - len(text)]
            for token in said:
                constraint.append(token)
            text += said
        constraint.take_back(2)
        pairs[text[0], text[1]] += 1
    return pairs


# Most of its mass on a token that is rare in the target, and on a forbidden one beside.
DRAFTED = {**DRAFTS, "aside": np.array([0.05, 0.05, 0.05, 0.05, 0.4, 0.05, 0.05, 0.3])}
CASES = [
    (verify, name, width, own, settings_)
    for verify, widths in (("exact", (1,)), ("rejection", (1, 3)), ("block", (1,)))
    for name in ("skewed", "aside", "holes", "one-hot")
    for width in widths
    for own in (False, True)
    for settings_ in ({"temperature": 1.0}, {"temperature": 0.6, "top_k": 2})
    if not (name != "skewed" and "top_k" in settings_)
    if not (name == "one-hot" and width > 1) and not (verify == "exact" and own)
]


@pytest.mark.parametrize(("verify", "name", "width", "own", "settings_"), CASES)
def test_the_distribution_is_that_of_the_constrained_target(
    verify: str, name: str, width: int, own: bool, settings_: dict[str, Any]
) -> None:
    params = SamplingParams(seed=23, **settings_)
    draws = DRAWS // 2 if verify == "exact" else DRAWS
    got, right = draw_pairs(verify, DRAFTED[name], params, width, own, draws), expected(params)
    assert got[right < 1e-12].sum() == 0
    for seen, p in ((got.sum(axis=1), right.sum(axis=1)), (got.ravel(), right.ravel())):
        inside = p * draws >= 5
        rest = seen[~inside].sum(), p[~inside].sum() * draws
        observed, due = [*seen[inside], rest[0]], [*(p[inside] * draws), rest[1]]
        statistic = sum((o - e) ** 2 / e for o, e in zip(observed, due, strict=True) if e > 1e-9)
        assert statistic < chi2.ppf(1 - ALPHA, max(sum(e > 1e-9 for e in due) - 1, 1))


def test_the_test_above_sees_a_draw_that_was_dropped_without_a_word() -> None:
    """Cutting forbidden draws, with q as if nothing had been cut, is wrong, and it is seen."""
    params = SamplingParams(temperature=1.0, seed=17)
    right, q = expected(params).sum(axis=1), DRAFTS["skewed"]
    rng, sampler, got = np.random.default_rng(3), Known(params), np.zeros(V)
    for trial in range(DRAWS):
        token = int(rng.choice(V, p=q))
        draft = Draft.chain([token], q=[q.astype(np.float32)]) if token in SECOND else EMPTY_DRAFT
        verdict = VERIFY["rejection"](
            draft, Rows([VIEWS[0], *(VIEWS[1 + t] for t in draft.tokens)]), sampler, 5 * trial
        )  # type: ignore[arg-type]
        got[draft.tokens[0] if verdict.path else verdict.token] += 1
    inside = right > 0
    assert ((got[inside] - right[inside] * DRAWS) ** 2 / (right[inside] * DRAWS)).sum() > chi2.ppf(1 - ALPHA, 3)
