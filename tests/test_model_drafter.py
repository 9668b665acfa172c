"""The draft model's cache keeps step with the sequence, and what it proposes suits the verifier."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from scipy.stats import chisquare

from helpers import markov_table
from slipstream.core.ports import Want
from slipstream.core.sampling import Sampler
from slipstream.core.types import Draft, SamplingParams
from slipstream.drafters.model import ModelDrafter
from slipstream.models.toy import ToyModel, constant

N = 8
TABLE = markov_table(N, order=3, seed=21)
GREEDY, WARM = SamplingParams(), SamplingParams(temperature=0.8, seed=7)


def drafter(choice: str = "keyed", recurrent: bool = False, n_ctx: int = 512, n_batch: int = 16) -> ModelDrafter:
    return ModelDrafter(ToyModel(TABLE, N, n_ctx, 2, recurrent, n_batch=n_batch), choice)  # type: ignore[arg-type]


def expected_chain(tokens: Sequence[int], depth: int, params: SamplingParams, n_prompt: int) -> list[int]:
    """What a target with the same table would say, one token at a time."""
    out = list(tokens)
    for _ in range(depth):
        sampler = Sampler(params, out[:n_prompt])
        for token in out[n_prompt:]:
            sampler.append(token)
        out.append(sampler.pick(TABLE(out), len(out)))
    return out[len(tokens) :]


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize(
    "params",
    [GREEDY, WARM, SamplingParams(temperature=1, top_p=0.8, repetition_penalty=1.3, frequency_penalty=0.2, seed=3)],
    ids=["greedy", "warm", "all"],
)
def test_the_cache_keeps_step_whatever_becomes_of_a_draft(params: SamplingParams, recurrent: bool) -> None:
    rng, d = np.random.default_rng(1), drafter(recurrent=recurrent)
    prompt = [1, 2, 3]
    tokens = list(prompt)
    d.begin(0, tokens, params)
    for step in range(60):
        depth = int(rng.integers(1, 7))
        draft = d.propose(0, tokens, Want(depth, depth))
        assert list(draft.tokens) == expected_chain(tokens, depth, params, len(prompt))
        model: ToyModel = d.model  # type: ignore[assignment]
        past = model.past(0)
        assert past == [*tokens, *draft.tokens][: len(past)] and len(past) == len(tokens) + depth - 1
        accepted = int(rng.integers(0, depth + 1)) if step % 5 else depth  # sometimes none, sometimes all
        tokens += [*draft.tokens[:accepted], int(rng.integers(N))]
        if step % 7 == 0:  # steps without a draft: several new tokens at once
            tokens += [int(t) for t in rng.integers(0, N, 5)]


@pytest.mark.parametrize("choice", ["keyed", "sampled"])
@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "warm"])
@pytest.mark.parametrize("right", [0.0, 0.6, 1.0])
def test_hints_save_forwards_and_change_nothing(choice: str, params: SamplingParams, right: float) -> None:
    rng, hinted, alone = np.random.default_rng(4), drafter(choice), drafter(choice)
    tokens = [1, 2, 3]
    for d in (hinted, alone):
        d.begin(0, tokens, params)
    saved = 0
    for step in range(60):
        depth = int(rng.integers(1, 9))
        plain, made = alone.propose(0, tokens, Want(depth, depth)), len(alone.model.forwards)  # type: ignore[attr-defined]

        def hint(path: Sequence[int], read: int, most: int) -> list[int]:
            assert list(path) == list(plain.tokens[: len(path)])  # noqa: B023
            assert read >= 1 and most == min(depth - len(path) - 1, 16 - read)  # noqa: B023
            guess = plain.tokens[len(path) : len(path) + int(rng.integers(0, max(most, 0) + 1))]  # noqa: B023
            return [t if rng.random() < right else (t + 1) % N for t in guess]

        draft = hinted.propose(0, tokens, Want(depth, depth, hint=hint))
        assert draft.tokens == plain.tokens and draft.prob == plain.prob
        assert all(a is b is None or np.allclose(a, b) for a, b in zip(draft.q, plain.q, strict=True))
        assert hinted.model.past(0)[: len(tokens)] == tokens  # type: ignore[attr-defined]
        assert len(hinted.model.forwards) <= made  # type: ignore[attr-defined]
        saved += made - len(hinted.model.forwards)  # type: ignore[attr-defined]
        for d in (hinted, alone):
            del d.model.forwards[:]  # type: ignore[attr-defined]
        accepted = int(rng.integers(0, depth + 1)) if step % 5 else depth
        tokens = [*tokens, *draft.tokens[:accepted], int(rng.integers(N))]
    assert (saved > 0) == (right > 0)


def test_what_a_hint_said_is_evidence_and_a_state_that_cannot_be_cut_gets_none() -> None:
    d, tokens = drafter(), [1, 2, 3]
    d.begin(0, tokens, GREEDY)
    a, b, c = expected_chain(tokens, 3, GREEDY, 3)
    draft = d.propose(0, tokens, Want(3, 3, hint=lambda path, *_: [] if path else [a, (b + 1) % N]))
    assert draft.tokens == (a, b, c)
    assert [e[1] for e in draft.evidence[:2]] == [True, False]  # type: ignore[index]
    model: ToyModel = d.model  # type: ignore[assignment]
    assert model.forwards == [5, 1]
    r = drafter(recurrent=True)
    r.begin(0, tokens, GREEDY)
    assert r.propose(0, tokens, Want(3, 3, hint=lambda *_: pytest.fail("asked"))).tokens == (a, b, c)


def test_where_tokens_are_drawn_neither_evidence_nor_length_depends_on_the_draw() -> None:
    for choice, apart in (("sampled", False), ("keyed", True)):
        for seed in range(20):
            p, tokens = SamplingParams(temperature=1, seed=seed), [1, 2, 3]
            drafts = []
            for right in (True, False):
                d, oracle = drafter(choice), drafter(choice)
                for one in (d, oracle):
                    one.begin(0, tokens, p)
                said = oracle.propose(0, tokens, Want(6, 6)).tokens
                hint = [said[i] if right else (said[i] + 1) % N for i in range(5)]
                asked = Want(6, 6, go_on=lambda path: len(path) < 3, hint=lambda path, *_: [] if path else hint)  # noqa: B023
                drafts.append(d.propose(0, tokens, asked))
            a, b = drafts
            assert (len(a) != len(b) and a.evidence[0] != b.evidence[0]) == apart
            assert apart or (a.tokens == b.tokens and a.evidence == b.evidence and a.prob == b.prob)


def test_after_full_acceptance_only_what_is_missing_is_evaluated() -> None:
    d = drafter()
    tokens = [1, 2, 3]
    d.begin(0, tokens, GREEDY)
    draft = d.propose(0, tokens, Want(4, 4))
    model: ToyModel = d.model  # type: ignore[assignment]
    assert model.forwards == [3, 1, 1, 1]
    tokens += [*draft.tokens, 5]  # all accepted, and the target's own token
    d.propose(0, tokens, Want(4, 4))
    assert model.forwards[4:] == [2, 1, 1, 1]  # the last drafted token was never evaluated
    tokens += [(d.propose(0, tokens, Want(4, 4)).tokens[0] + 1) % N]  # all rejected
    del model.forwards[:]
    d.propose(0, tokens, Want(2, 2))
    assert model.forwards == [1, 1]


def test_a_long_prompt_is_read_in_batches() -> None:
    d = drafter(n_batch=16)
    for n in (15, 16, 17, 32, 33, 100):
        prompt = [int(t) for t in np.random.default_rng(n).integers(0, N, n)]
        d.begin(1, prompt, GREEDY)
        draft = d.propose(1, prompt, Want(3, 3))
        assert list(draft.tokens) == expected_chain(prompt, 3, GREEDY, n)
    assert max(d.model.forwards) <= 16  # type: ignore[attr-defined]


def test_a_new_sequence_keeps_the_common_beginning_and_nothing_else() -> None:
    for recurrent in (False, True):
        d = drafter(recurrent=recurrent)
        d.begin(0, [1, 2, 3, 4, 5], GREEDY)
        d.propose(0, [1, 2, 3, 4, 5], Want(3, 3))
        d.end(0)
        del d.model.forwards[:]  # type: ignore[attr-defined]
        d.begin(0, [1, 2, 3, 7], WARM, 3)
        assert list(d.propose(0, [1, 2, 3, 7], Want(3, 3)).tokens) == expected_chain([1, 2, 3, 7], 3, WARM, 4)
        assert d.model.forwards[0] == (4 if recurrent else 1)  # type: ignore[attr-defined]
        d.end(0)
        d.begin(0, [1, 2], WARM)  # shorter than what is there
        assert list(d.propose(0, [1, 2], Want(3, 3)).tokens) == expected_chain([1, 2], 3, WARM, 2)


def test_slots_do_not_meet() -> None:
    d = drafter()
    a, b = [1, 2, 3], [4, 5]
    d.begin(0, a, GREEDY)
    d.begin(1, b, WARM)
    for _ in range(5):
        da, db = d.propose(0, a, Want(3, 3)), d.propose(1, b, Want(3, 3))
        assert list(da.tokens) == expected_chain(a, 3, GREEDY, 3) and list(db.tokens) == expected_chain(b, 3, WARM, 2)
        a += da.tokens[:2]
        b += [*db.tokens, 1]


def test_the_end_of_the_draft_model_s_context_ends_the_drafts() -> None:
    d = drafter(n_ctx=12, n_batch=64)
    for n, depth in ((8, 4), (10, 2), (11, 1), (12, 0), (20, 0)):
        tokens = [1] * n
        d.begin(0, tokens, GREEDY)
        assert len(d.propose(0, tokens, Want(6, 6))) == depth


def test_at_temperature_0_branches_are_the_next_best() -> None:
    d, tokens = drafter(), [1, 2, 3]
    d.begin(0, tokens, GREEDY)
    draft = d.propose(0, tokens, Want(9, 3, 3))
    assert len(draft) == 9 and list(draft.tokens[:3]) == expected_chain(tokens, 3, GREEDY, 3)
    for node, kids in enumerate(draft.children()):
        if not kids:
            continue
        past = [*tokens, *path(draft, node - 1)]
        row = TABLE(past)
        order = np.argsort(-row)
        assert [draft.tokens[i] for i in kids] == list(order[:3])
        p = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
        assert [draft.prob[i] for i in kids] == pytest.approx([p[t] for t in order[:3]], abs=1e-6)
    fewer = d.propose(0, tokens, Want(5, 3, 3))
    assert len(fewer) == 5 and fewer.spine().tokens == draft.spine().tokens


def path(draft: Draft, node: int) -> list[int]:
    out: list[int] = []
    while node >= 0:
        out.insert(0, draft.tokens[node])
        node = draft.parents[node]
    return out


@pytest.mark.parametrize("params", [WARM, SamplingParams(temperature=1.3, top_k=4, top_p=0.9, seed=5)])
def test_sampled_drafts_come_with_the_distribution_they_were_drawn_from(params: SamplingParams) -> None:
    d = ModelDrafter(ToyModel(TABLE, N), "sampled", n_target=N + 3)
    tokens = [1, 2, 3]
    d.begin(0, tokens, params)
    draft = d.propose(0, tokens, Want(12, 4, 3))
    assert len(draft) > 4
    for node, kids in enumerate(draft.children()):
        if not kids:
            continue
        so_far = path(draft, node - 1)
        left = Sampler(params).filtered(TABLE([*tokens, *so_far])).dense(N + 3)
        for i in kids:  # each from what its earlier siblings left
            q = draft.q[i]
            assert q is not None and q.shape == (N + 3,) and q.dtype == np.float32
            assert np.allclose(q, left / left.sum(), atol=1e-6) and q[draft.tokens[i]] > 0
            left[draft.tokens[i]] = 0


def test_sampled_drafts_really_are_drawn_from_q() -> None:
    """Frequencies over 3,000 seeds: of the first token, and of its sibling given the first."""
    table = constant([2.0, -2.6, 0.4, -0.6, -0.5, -0.3, -2.0, -0.2])
    d = ModelDrafter(ToyModel(table, N), "sampled")
    pairs = np.zeros((N, N), int)
    for seed in range(3000):
        d.begin(0, [0, 1], SamplingParams(temperature=1.0, seed=seed))
        pairs[d.propose(0, [0, 1], Want(2, 1, 2)).tokens] += 1
    p = np.exp(table([]).astype(float))
    p /= p.sum()
    assert chisquare(pairs.sum(1), 3000 * p).pvalue > 0.001
    second = p[None, :] / (1 - p[:, None]) * p[:, None]
    off = ~np.eye(N, dtype=bool)
    assert pairs[~off].sum() == 0 and chisquare(pairs[off], 3000 * second[off]).pvalue > 0.001


def test_keyed_and_sampled_noise_are_apart() -> None:
    """A sampled draft must not know the noise by which the target chooses: they agree as often as by chance."""
    tokens, same = [5, 6, 7], []
    for seed in range(300):
        params = SamplingParams(temperature=4.0, seed=seed)
        pair = []
        for choice in ("keyed", "sampled"):
            d = drafter(choice)
            d.begin(0, tokens, params)
            pair.append(d.propose(0, tokens, Want(1, 1)).tokens[0])
        same.append(pair[0] == pair[1])
    p = Sampler(SamplingParams(temperature=4.0)).filtered(TABLE(tokens)).dense(N)
    assert (p**2).sum() < 0.3 and np.mean(same) == pytest.approx((p**2).sum(), abs=0.1)


def test_sampled_noise_belongs_to_the_step() -> None:
    """Guesses that a step threw away must not be drawn again by the next: block verification has looked at them."""
    again = []
    for seed in range(300):
        d = drafter("sampled")
        d.begin(0, [5, 6, 7], SamplingParams(temperature=4.0, seed=seed))
        first = d.propose(0, [5, 6, 7], Want(2, 2)).tokens
        again.append(d.propose(0, [1, 2, 3, first[0]], Want(1, 1)).tokens[0] == first[1])
    assert np.mean(again) < 0.4


def test_a_model_that_another_drafter_has_used_starts_afresh() -> None:
    for recurrent in (False, True):
        first = drafter(recurrent=recurrent)
        first.begin(0, [1, 2, 3, 4, 5], GREEDY)
        first.propose(0, [1, 2, 3, 4, 5], Want(3, 3))
        second = ModelDrafter(first.model)
        second.begin(0, [1, 2, 3, 7], GREEDY)
        assert list(second.propose(0, [1, 2, 3, 7], Want(3, 3)).tokens) == expected_chain([1, 2, 3, 7], 3, GREEDY, 4)
