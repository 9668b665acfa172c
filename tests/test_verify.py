"""T05: verification gives the target's own distribution, at every position and after a rejection.

Each case draws 20,000 texts (4,000 for `exact`, which has no randomness of its own, and for more trees) of two tokens
over a vocabulary of 8, in steps of at most two drafted tokens, and tests by chi-square, against the target's
probabilities computed here by hand: the first token; the second one given the first; the second one in those trials
alone in which the first draft was rejected. A case makes 3 tests at 0.001; a token outside the filtered set fails
at once. With fewer than 100 tests in this file, a correct program would fail on fewer than one choice of seeds in
ten (family-wise false-alarm rate below 1 - 0.999 ** 100 = 9.5 %); the seeds are fixed, so the outcome never changes
from run to run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2

from helpers import markov_table
from slipstream.core.policy import Fixed
from slipstream.core.sampling import Filtered, Sampler
from slipstream.core.types import Array, Draft, SamplingParams, Verdict
from slipstream.core.verify import LOSSY, VERIFY, block, exact, rejection, typical, verifier
from slipstream.drafters.model import ModelDrafter
from slipstream.engine import Engine
from slipstream.errors import UnknownName, UsageError
from slipstream.models.toy import ToyModel, ToyTokenizer

N, DRAWS, FEWER, ALPHA = 8, 20_000, 4_000, 0.001
Probs = NDArray[np.float64]
# Logits of the first token, and of the second one for each first; skewed, and not symmetric in any way.
FIRST = np.array([2.0, 1.4, 1.0, 0.3, 0.0, -0.5, -1.2, -2.5], np.float32)
NEXT = np.random.default_rng(4).standard_normal((N, N)).astype(np.float32) * 1.3

skewed = np.array([0.02, 0.05, 0.38, 0.05, 0.3, 0.1, 0.05, 0.05])
holes = np.array([0.0, 0.5, 0.0, 0.2, 0.0, 0.3, 0.0, 0.0])  # no mass where the target has most
one_hot = np.eye(N)[1]
DRAFTS = {"skewed": skewed, "holes": holes, "one-hot": one_hot}

FILTERS: dict[str, dict[str, float]] = {
    "t0.3": {"temperature": 0.3},
    "t1": {"temperature": 1.0},
    "t1 top_k": {"temperature": 1.0, "top_k": 3},
    "t1 top_p": {"temperature": 1.0, "top_p": 0.8},
    "t1 min_p": {"temperature": 1.0, "min_p": 0.1},
    "t0.3 all": {"temperature": 0.3, "top_k": 3, "top_p": 0.8, "min_p": 0.1},
}


def reference(row: Array, temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> Probs:
    """The filtered distribution, by the definitions of the filters."""
    p = np.exp(row.astype(float) / temperature)
    order = sorted(range(N), key=lambda i: -p[i])
    keep = order[: top_k or N]
    p /= sum(p[i] for i in keep)
    total, nucleus = 0.0, []
    for i in keep:
        if total < top_p:
            nucleus.append(i)
            total += p[i]
    out = np.zeros(N)
    for i in nucleus:
        if p[i] >= min_p * p[order[0]]:
            out[i] = p[i]
    return out / out.sum()


class Remembering(Sampler):
    """The real sampler; filtering the same row again is looked up, since only the noise differs between trials."""

    def __init__(self, params: SamplingParams) -> None:
        super().__init__(params)
        self.known: dict[int, Filtered] = {}

    def filtered(self, row: Array, path: Sequence[int] = ()) -> Filtered:
        key = row.__array_interface__["data"][0]
        if key not in self.known:
            self.known[key] = super().filtered(row, path)
        return self.known[key]


ROWS = np.concatenate([FIRST[None], NEXT])


class Table:
    """Rows for a chain or tree without copying, so that `Remembering` knows them again."""

    def __init__(self, rows: list[Array]) -> None:
        self.rows, self.shape = rows, (len(rows), N)

    def __getitem__(self, i: int) -> Array:
        return self.rows[i]


VIEWS = [ROWS[i] for i in range(N + 1)]


@dataclass
class Counts:
    pairs: NDArray[np.int64] = field(default_factory=lambda: np.zeros((N, N), np.int64))
    after: NDArray[np.int64] = field(default_factory=lambda: np.zeros((N, N), np.int64))  # the first draft was rejected
    emitted: int = 0
    steps: int = 0


def sample(verify: str, q: Probs, params: SamplingParams, width: int = 1, draws: int = DRAWS) -> Counts:
    """`draws` texts of two tokens. The trials lie at different positions of one seed, as in one long text."""
    rng, sampler, counts = np.random.default_rng(params.seed), Remembering(params), Counts()
    drawn = rng.random((draws, 2 + width))
    for trial in range(draws):
        position = 5 * trial
        draft, q_rows = propose(q, drawn[trial], width)
        rows = [VIEWS[0], *(VIEWS[1 + t] for t in draft.tokens)]
        verdict = VERIFY[verify](draft, Table(rows), sampler, position)  # type: ignore[arg-type]
        counts.emitted += len(verdict.path) + 1
        counts.steps += 1
        text = [*(draft.tokens[i] for i in verdict.path), verdict.token]
        if len(text) == 1:  # go on with a step of one drafted token
            token = int(np.searchsorted(np.cumsum(q), drawn[trial, -1]))
            step = Draft.chain([token], q=q_rows)
            rows = [VIEWS[1 + text[0]], VIEWS[1 + token]]
            verdict = VERIFY[verify](step, Table(rows), sampler, position + 1)  # type: ignore[arg-type]
            text += [token] if verdict.path else [verdict.token]
            counts.after[text[0], text[1]] += 1
        counts.pairs[text[0], text[1]] += 1
    return counts


def propose(q: Probs, u: Probs, width: int) -> tuple[Draft, list[Array | None]]:
    """A chain of two, or `width` siblings drawn without replacement with a child below the first."""
    sure = q.max() == 1
    tokens, qs, left = [], [], q.copy()
    for i in range(width):
        left /= left.sum()
        token = min(int(np.searchsorted(np.cumsum(left), u[i])), int(np.flatnonzero(left)[-1]))
        tokens.append(token)
        qs.append(None if sure else left.astype(np.float32))
        left = left * (np.arange(N) != token)
        if not left.any():
            break
    child = int(np.searchsorted(np.cumsum(q), u[width]))
    siblings = len(tokens)
    q_child = None if sure else q.astype(np.float32)
    draft = Draft((*tokens, child), (*[-1] * siblings, 0), q=(*qs, q_child))
    if siblings == 1:
        assert draft.is_chain
    return draft, [q_child]


def fits(observed: NDArray[np.int64], expected: Probs) -> float:
    """p-value of counts against probabilities, row by row where there are several; zero where mass should not be."""
    rows, probs = np.atleast_2d(observed), np.atleast_2d(expected)
    assert not observed[expected == 0].any(), "a token outside the filtered set"
    statistic, freedom = 0.0, 0
    for row, p in zip(rows, probs, strict=True):
        n = row.sum()
        expect = n * p
        few = expect < 5  # pooled, as the approximation needs
        o, e = [*row[~few], row[few].sum()], [*expect[~few], expect[few].sum()]
        cells = [(a, b) for a, b in zip(o, e, strict=True) if b >= 1]
        statistic += sum((a - b) ** 2 / b for a, b in cells)
        freedom += max(len(cells) - 1, 0)
    return float(chi2.sf(statistic, freedom)) if freedom else 1.0


def check(verify: str, draft: str, filters: str, width: int = 1, draws: int = DRAWS) -> None:
    settings = FILTERS[filters]
    first = reference(FIRST, **settings)  # type: ignore[arg-type]
    second = np.stack([reference(row, **settings) for row in NEXT])  # type: ignore[arg-type]
    seed = sum(map(ord, verify + draft + filters)) + width
    counts = sample(verify, DRAFTS[draft], SamplingParams(seed=seed, **settings), width, draws)  # type: ignore[arg-type]
    assert fits(counts.pairs.sum(1), first) > ALPHA, "position 1"
    assert fits(counts.pairs, second) > ALPHA, "position 2"
    assert counts.after.sum() > 0.02 * draws
    assert fits(counts.after, second) > ALPHA, "the position after a rejection"


@pytest.mark.parametrize("filters", ["t1", "t0.3 all"])
@pytest.mark.parametrize("verify", ["rejection", "block"])
def test_the_distribution_is_the_target_s(verify: str, filters: str) -> None:
    check(verify, "skewed", filters)


@pytest.mark.parametrize("filters", ["t0.3", "t1 top_k", "t1 top_p", "t1 min_p"])
@pytest.mark.parametrize("verify", ["rejection", "block"])
def test_each_filter_alone(verify: str, filters: str) -> None:
    check(verify, "skewed", filters)


@pytest.mark.parametrize("filters", ["t1", "t1 top_p"])
@pytest.mark.parametrize("draft", ["holes", "one-hot"])
@pytest.mark.parametrize("verify", ["rejection", "block"])
def test_drafts_that_lack_what_the_target_wants(verify: str, draft: str, filters: str) -> None:
    check(verify, draft, filters)


@pytest.mark.parametrize(("draft", "filters"), [("skewed", "t1"), ("holes", "t0.3 all")])
def test_exact_has_the_distribution_too(draft: str, filters: str) -> None:
    check("exact", draft, filters, draws=FEWER)


@pytest.mark.parametrize(
    ("draft", "filters", "draws"), [("skewed", "t1", DRAWS), ("holes", "t1", FEWER), ("skewed", "t1 top_k", FEWER)]
)
def test_trees_of_siblings_drawn_without_replacement(draft: str, filters: str, draws: int) -> None:
    check("rejection", draft, filters, 3, draws)


@pytest.mark.parametrize("draft", ["skewed", "holes", "one-hot"])
def test_block_accepts_at_least_as_much_as_rejection(draft: str) -> None:
    """Theorem 2 of arXiv 2403.10444. Both numbers are means of 4,000 steps or more: allow three standard errors."""
    rates = {}
    for verify in ("rejection", "block"):
        c = sample(verify, DRAFTS[draft], SamplingParams(temperature=1.0, seed=9), draws=FEWER)
        rates[verify] = c.emitted / c.steps
    assert rates["block"] >= rates["rejection"] - 3 * np.sqrt(2 * 1.0 / FEWER)


def test_block_accepts_strictly_more_where_the_theory_says_so() -> None:
    """The example of the paper: p = (1/3, 2/3) and q = (2/3, 1/3) everywhere; two drafted tokens: 10/9 against 11/9."""
    p, q = np.log(np.array([1, 2], np.float32) / 3), np.array([2, 1]) / 3
    rng, means = np.random.default_rng(1), {}
    rows = np.tile(p, (3, 1)).astype(np.float32)
    for name in ("rejection", "block"):
        accepted = 0
        sampler = Sampler(SamplingParams(temperature=1.0, seed=2))
        for i in range(6_000):
            tokens = [int(t) for t in rng.choice(2, 2, p=q)]
            draft = Draft.chain(tokens, q=[q.astype(np.float32)] * 2)
            accepted += len(VERIFY[name](draft, rows, sampler, 4 * i).path)
        means[name] = accepted / 6_000
    assert means["rejection"] == pytest.approx(10 / 9, abs=0.04)
    assert means["block"] == pytest.approx(11 / 9, abs=0.04)


def test_typical_is_labelled_lossy_and_is() -> None:
    assert frozenset({"typical"}) == LOSSY
    counts = sample("typical", skewed, SamplingParams(temperature=1.0, seed=1), draws=FEWER)
    assert fits(counts.pairs.sum(1), reference(FIRST, 1.0)) < 1e-9
    # It lets through what is plausible and nothing else: token 7 has too little mass to be accepted.
    draft = Draft.chain([7])
    verdicts = {len(typical(draft, ROWS[[0, 8]], Sampler(SamplingParams(temperature=1.0)), i).path) for i in range(50)}
    assert verdicts == {0}
    assert len(typical(Draft.chain([0]), ROWS[[0, 1]], Sampler(SamplingParams(temperature=1.0)), 3).path) == 1


# -- properties that need no statistics ------------------------------------------------------------------------------


def row_of(*probs: float) -> Array:
    return np.log(np.maximum(np.array(probs), 1e-30)).astype(np.float32)


@pytest.mark.parametrize("name", ["rejection", "block"])
def test_a_draft_from_the_target_s_own_distribution_is_always_accepted(name: str) -> None:
    params = SamplingParams(temperature=1.0, seed=3)
    q = Sampler(params).filtered(FIRST).dense(N).astype(np.float32)
    rows = np.tile(FIRST, (4, 1))
    accepted = [len(VERIFY[name](Draft.chain([2, 0, 5], q=[q] * 3), rows, Sampler(params), i).path) for i in range(500)]
    assert sum(accepted) >= 1498  # float32 rounding may refuse one in a million


@pytest.mark.parametrize("name", ["rejection", "block", "exact", "typical"])
def test_a_token_that_the_filter_removes_is_never_accepted_nor_said(name: str) -> None:
    params = SamplingParams(temperature=1.0, top_k=2, seed=1)
    rows = np.stack([FIRST, FIRST])
    for i in range(300):
        verdict = VERIFY[name](Draft.chain([4], q=[np.full(N, 0.125, np.float32)]), rows, Sampler(params), i)
        assert verdict.path == () and verdict.token in (0, 1)


@pytest.mark.parametrize("name", ["rejection", "block", "typical", "exact"])
def test_the_verdict_is_a_pure_function(name: str) -> None:
    draft = Draft.chain([2, 1], q=[skewed.astype(np.float32)] * 2)
    rows, before = ROWS[[0, 3, 2]], ROWS.copy()
    sampler = Sampler(SamplingParams(temperature=1.0, seed=8))
    first = [VERIFY[name](draft, rows, sampler, p) for p in range(60)]
    again = [VERIFY[name](draft, rows, sampler, p) for p in reversed(range(60))][::-1]
    assert first == again and len({(v.path, v.token) for v in first}) > 2
    assert (before == ROWS).all() and (draft.q[0] == skewed.astype(np.float32)).all()


@pytest.mark.parametrize("name", ["rejection", "exact", "typical"])
def test_the_path_follows_the_tree(name: str) -> None:
    """Sure tokens at every node: 3, then 5, then 6; the right nodes are second children."""
    sure = {t: row_of(*np.eye(N)[t]) for t in range(N)}
    draft = Draft((1, 3, 2, 5, 6), (-1, -1, 0, 1, 3))
    rows = np.stack([sure[3], sure[0], sure[5], sure[0], sure[6], sure[7]])
    verdict = VERIFY[name](draft, rows, Sampler(SamplingParams(temperature=1.0)), 0)
    assert verdict == Verdict((1, 3, 4), 7)


def test_exact_accepts_what_plain_decoding_would_say_and_stops_there() -> None:
    params = SamplingParams(temperature=1.0, seed=6)
    sampler = Sampler(params)
    for position in range(200):
        right = sampler.pick(FIRST, position)
        after = sampler.pick(NEXT[right], position + 1)
        rows = np.stack([FIRST, NEXT[(right + 1) % N], NEXT[right], NEXT[after]])
        draft = Draft(((right + 1) % N, right, after), (-1, -1, 1))
        assert exact(draft, rows, sampler, position) == Verdict((1, 2), sampler.pick(NEXT[after], position + 2))
        wrong = Draft(((right + 1) % N, right, (after + 1) % N), (-1, -1, 1))
        assert exact(wrong, rows, sampler, position) == Verdict((1,), after)


def test_penalties_see_the_accepted_path() -> None:
    """A token said twice is dearer the third time: the second drafted position must know of the first."""
    row = row_of(0.6, 0.4, *[0.0] * 6)
    params = SamplingParams(temperature=0.0, presence_penalty=5.0)
    draft, rows = Draft.chain([0, 0, 0]), np.stack([row] * 4)
    assert exact(draft, rows, Sampler(params), 0) == Verdict((0,), 1)
    warm = SamplingParams(temperature=1.0, presence_penalty=40.0)
    for name in ("exact", "rejection", "block", "typical"):
        for i in range(50):
            verdict = VERIFY[name](draft, rows, Sampler(warm), i)
            assert len(verdict.path) < 2
            assert not verdict.path or verdict.token == 1


def test_block_refuses_trees_and_names_are_known() -> None:
    with pytest.raises(UsageError, match="chains"):
        block(Draft((1, 2), (-1, -1)), ROWS[:3], Sampler(SamplingParams(temperature=1.0)), 0)
    assert verifier("rejection") is rejection
    with pytest.raises(UnknownName) as caught:
        verifier("rejektion")
    assert "rejection" in caught.value.hint


def test_an_empty_draft_is_a_plain_step() -> None:
    for name in ("rejection", "block", "typical"):
        said = np.bincount(
            [VERIFY[name](Draft(), ROWS[:1], Remembering(SP), i).token for i in range(4000)], minlength=N
        )
        assert fits(said, reference(FIRST, 1.0)) > ALPHA


SP = SamplingParams(temperature=1.0, seed=77)


@pytest.mark.parametrize(("verify", "width"), [("rejection", 1), ("rejection", 3), ("block", 1), ("exact", 3)])
def test_through_the_engine_with_a_draft_model(verify: str, width: int) -> None:
    """All seams together: the draft model's q, the loop's positions, the cache. Pairs of neighbours in long texts."""
    settings = {"temperature": 0.9, "top_p": 0.9}
    target, draft = markov_table(N, order=1, seed=3, spread=1.0), markov_table(N, order=1, seed=8, spread=1.0)
    counts = np.zeros((N, N), np.int64)
    choice = "keyed" if verify == "exact" else "sampled"
    engine = Engine(
        ToyModel(target, N, n_ctx=600),
        ToyTokenizer([bytes([97 + i]) for i in range(N)]),
        ModelDrafter(ToyModel(draft, N, n_ctx=600), choice),  # type: ignore[arg-type]
        Fixed(3, width),
        verify,
    )
    for seed in range(5):
        params = SamplingParams(seed=seed, **settings)  # type: ignore[arg-type]
        ids = engine.generate([0], max_tokens=500, sampling=params).ids
        np.add.at(counts, (np.array([0, *ids[:-1]]), np.array(ids)), 1)
    expected = np.stack([reference(target([t]), 0.9, top_p=0.9) for t in range(N)])
    assert fits(counts, expected) > ALPHA
