"""The cases of shared/needs-and-cases.md about numbers and state: T12, T13, T14 and T15."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import pytest

from helpers import PROMPT, Always, Hits, Random, Wrong, markov_table, outcome, toy_engine
from slipstream.core.noise import TARGET, gumbel
from slipstream.core.policy import Fixed, Off
from slipstream.core.ports import Choice, Room
from slipstream.core.stats import Stats
from slipstream.core.types import EMPTY_DRAFT, Draft, SamplingParams, Span
from slipstream.engine import Engine
from slipstream.errors import CapabilityError, InputError, UnknownName
from slipstream.models.toy import ToyModel, ToyTokenizer

N = 8


# -- T12: log-probabilities ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("kind", ["self", "random", "wrong"])
def test_t12_logprobs_equal_plain_up_to_the_context_limit(kind: str, temperature: float) -> None:
    table, n_ctx = markov_table(N, seed=6), len(PROMPT) + 64
    asked = {"max_tokens": None, "logprobs": 3, "sampling": SamplingParams(temperature=temperature, seed=1)}
    plain = toy_engine(table, N, n_ctx=n_ctx).generate(PROMPT, **asked)
    for k, width in ((1, 1), (8, 1), (8, 3)):
        r = toy_engine(table, N, kind, k, width, n_ctx=n_ctx).generate(PROMPT, **asked)
        assert outcome(r) == outcome(plain)
    assert len(plain.tokens) == 64 and plain.finish_reason == "length"
    past = list(PROMPT)
    for t in plain.tokens:  # the reference by definition, before any sampling setting
        row = table(past).astype(float)
        logp = row - np.log(np.exp(row).sum())
        assert t.logprob == pytest.approx(logp[t.id], abs=1e-3)
        assert [i for i, _ in t.top_logprobs] == list(np.argsort(-logp)[:3])
        assert [v for _, v in t.top_logprobs] == pytest.approx(np.sort(logp)[::-1][:3], abs=1e-3)
        past.append(t.id)


def test_t12_none_are_given_when_none_are_asked() -> None:
    r = toy_engine(markov_table(N), N, "self").generate(PROMPT, max_tokens=5)
    assert all(t.logprob is None and t.top_logprobs == () for t in r.tokens) and "logprobs" not in r.as_dict()
    r = toy_engine(markov_table(N), N, "self").generate(PROMPT, max_tokens=5, logprobs=0)
    assert all(t.logprob is not None and t.top_logprobs == () for t in r.tokens) and len(r.as_dict()["logprobs"]) == 5


# -- T13: counters ---------------------------------------------------------------------------------------------------


class DropsOne(Fixed):
    """Throws away the draft of one round unverified."""

    def __init__(self, k: int, drop: int) -> None:
        super().__init__(k)
        self.round, self.drop = -1, drop

    def choose(self, rooms: Sequence[Room], offers: Sequence[Sequence[Draft]]) -> list[Choice]:
        self.round += 1
        chosen = super().choose(rooms, offers)
        return [Choice(EMPTY_DRAFT)] * len(rooms) if self.round == self.drop else chosen


def test_t13_counter_identities_at_a_cap() -> None:
    table = markov_table(N, seed=4)
    hits = Hits(table, N, [0, 3, 8, 5, 2])
    engine = toy_engine(table, N, hits, policy=DropsOne(8, drop=3))
    chunks = list(engine.stream(PROMPT, max_tokens=1 + 17 + 1))
    stats = Stats.of(c.record for c in chunks if c.record is not None)
    # The cap leaves room for 3 drafted tokens in the round that is thrown away, and for 2 in the last one.
    assert (stats.first_tokens, stats.steps, stats.verify_steps) == (1, 5, 4)
    assert (stats.accepted, stats.emitted_verifying, stats.emitted) == (13, 17, 18)
    assert (stats.verified, stats.proposed, stats.discarded) == (26, 29, 3)


def test_t13_counter_identities_with_room_for_all() -> None:
    """Four verified rounds of 8 that accept 0, 3, 8 and 2, and one draft thrown away."""
    table = markov_table(N, seed=4)
    engine = toy_engine(table, N, Hits(table, N, [0, 3, 8, 5, 2]), policy=DropsOne(8, drop=3))
    stream = engine.stream(PROMPT, max_tokens=200)
    chunks = [next(stream) for _ in range(6)]
    stream.close()  # type: ignore[attr-defined]
    stats = Stats.of(c.record for c in chunks if c.record is not None)
    assert (stats.verify_steps, stats.verified, stats.accepted, stats.emitted_verifying) == (4, 32, 13, 17)
    assert (stats.proposed, stats.discarded, stats.steps, stats.emitted) == (40, 8, 5, 18)
    assert stats.accepted_per_position == [3, 3, 2, 1, 1, 1, 1, 1]
    assert stats.verified_per_position == [4] * 8
    assert stats.acceptance_rate == 13 / 32 and stats.mean_acceptance_length == 18 / 5
    assert stats.by_drafter == {"hits": {"verified": 32, "accepted": 13}}
    origins = [t.origin for c in chunks for t in c.tokens]
    assert origins.count("hits") == 13 and origins.count("target") == 6
    assert stats.prefilled == len(PROMPT) and stats.first_tokens == 1


def test_t13_an_empty_run_has_no_rates() -> None:
    stats = Stats()
    assert stats.acceptance_rate is stats.mean_acceptance_length is stats.tokens_per_second is None
    assert stats.as_dict()["discarded"] == 0


@pytest.mark.parametrize("ends", [(), (3,)])
@pytest.mark.parametrize("kind", ["self", "random", "wrong", "suffix"])
def test_t13_counts_of_a_request_are_the_sum_of_its_chunks(kind: str, ends: tuple[int, ...]) -> None:
    table = markov_table(N, seed=4)
    for k, width in ((3, 1), (6, 3)):
        engine = toy_engine(table, N, kind, k, width, ends=ends)
        sampling = SamplingParams(temperature=0.9, seed=4)
        chunks = list(engine.stream(PROMPT, max_tokens=60, stop=["bb"], sampling=sampling))
        r = toy_engine(table, N, kind, k, width, ends=ends).generate(
            PROMPT, max_tokens=60, stop=["bb"], sampling=sampling
        )
        total = Stats.of(c.record for c in chunks if c.record is not None)
        for name in ("steps", "proposed", "verified", "accepted", "emitted", "by_drafter", "accepted_per_position"):
            assert getattr(total, name) == getattr(r.stats, name)
        delivered = [t for c in chunks for t in c.tokens]
        assert tuple(t.id for t in delivered) == r.ids
        assert total.accepted == sum(t.origin != "target" for t in delivered) == sum(total.accepted_per_position)
        assert total.emitted + total.first_tokens == len(delivered)
        assert total.verified == sum(d["verified"] for d in total.by_drafter.values())
        assert all(c.record.emitted == len(c.tokens) for c in chunks if c.record is not None)


# -- T14: a state that cannot be cut ---------------------------------------------------------------------------------


def test_t14_five_hundred_rejections_leave_the_state_of_a_replay() -> None:
    table = markov_table(N, seed=9)
    drafter = Hits(table, N, [1, 1, None, 1])  # wrong at position 2 in every round that has a draft
    engine = toy_engine(table, N, drafter, 4, recurrent=True, n_ctx=2000)
    stream = engine.stream(PROMPT, max_tokens=1500)
    ids: list[int] = []
    model: ToyModel = engine.model  # type: ignore[assignment]
    for rounds in range(501):
        ids += [t.id for t in next(stream).tokens]
        if rounds % 50 == 0:
            plain = toy_engine(table, N, recurrent=True, n_ctx=2000).generate(PROMPT, max_tokens=len(ids))
            assert ids == list(plain.ids) and model.past(0) == [*PROMPT, *ids[:-1]]
            fresh = ToyModel(table, N, recurrent=True, n_ctx=2000)
            for token in model.past(0):
                fresh.forward([Span(0, [token], [-1], [])])
                fresh.keep(0, [0])
            assert fresh.state(0) == model.state(0) != 0
    assert drafter.round == 500 and sum(1 for d, v in drafter.verdicts if len(d) and len(v.path) == 1) >= 370


def test_t14_no_rollback_no_drafter() -> None:
    model = ToyModel(markov_table(N), N, recurrent=True, rollback="none")
    tokenizer = ToyTokenizer([b"a"] * N)
    with pytest.raises(CapabilityError, match="cannot take back") as caught:
        Engine(model, tokenizer, Always(1))
    assert "none" in caught.value.hint
    assert len(Engine(model, tokenizer).generate(PROMPT, max_tokens=20).ids) == 20


# -- T15: the configuration tells the truth --------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [Fixed(0), Off()])
def test_t15_a_drafter_that_is_not_used_is_said_to_be_inactive(policy: Fixed) -> None:
    drafter = Random(N)
    engine = toy_engine(markov_table(N), N, drafter, policy=policy)
    assert not engine.status["active"] and "k is 0" in engine.status["reason"] and engine.status["drafter"] == "random"
    r = engine.generate(PROMPT, max_tokens=10)
    assert any("drafting was off" in note and "k is 0" in note for note in r.notes) and r.stats.proposed == 0


def test_t15_status_of_the_other_cases() -> None:
    engine = toy_engine(markov_table(N), N)
    assert not engine.status["active"] and "no drafter" in engine.status["reason"]
    assert any("no drafter" in n for n in engine.generate(PROMPT, max_tokens=2).notes)
    engine = toy_engine(markov_table(N), N, "random")
    assert engine.status["active"] and engine.status["reason"] == "" and not engine.status["lossy"]
    assert engine.generate(PROMPT, max_tokens=2).notes == ()
    engine = toy_engine(markov_table(N), N, "random", verify="typical")
    warm = SamplingParams(temperature=1.0)
    assert engine.status["lossy"] and any("lossy" in n for n in engine.generate(PROMPT, sampling=warm).notes)
    assert engine.generate(PROMPT).notes == ()  # greedy: typical is exact
    assert engine.generate(PROMPT, sampling=warm, verify="exact").notes == ()


def test_t15_an_unknown_option_is_named_with_its_neighbour() -> None:
    with pytest.raises(UnknownName, match="n_slot") as caught:
        Engine.open("no-such-model", n_slot=2)
    assert "n_slots" in caught.value.hint
    for options, message in (({"k": -1}, "k is -1"), ({"width": 0}, "width is 0")):
        with pytest.raises(InputError, match=message):
            Engine.open("no-such-model", **options)
    with pytest.raises(UnknownName, match="exakt") as caught:
        toy_engine(markov_table(N), N, verify="exakt")
    assert "exact" in caught.value.hint


def test_t15_a_draft_model_with_k_0_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "slipstream"), pytest.raises(UnknownName):
        Engine.open("no-such-model", draft="no-such-draft", k=0)
    assert "nothing will be drafted" in caplog.text


def test_t15_a_request_may_ask_for_plain_decoding() -> None:
    drafter = Wrong(markov_table(N), N)
    engine = toy_engine(markov_table(N), N, drafter)
    r = engine.generate(PROMPT, max_tokens=20, speculative=False)
    assert r.stats.proposed == r.stats.verified == 0 and drafter.calls == []
    assert any("asked for plain" in n for n in r.notes)
    assert engine.generate(PROMPT, max_tokens=20).stats.proposed > 0


def test_t15_block_verification_of_trees_is_refused() -> None:
    with pytest.raises(InputError, match="block"):
        toy_engine(markov_table(N), N, "random", 4, 2, verify="block")
    engine = toy_engine(markov_table(N), N, "random", 4, 2)
    with pytest.raises(InputError, match="block"):
        engine.generate(PROMPT, verify="block")
    assert len(engine.generate(PROMPT, max_tokens=4).ids) == 4  # and nothing is left of the refused one
    with pytest.raises(UnknownName):
        engine.generate(PROMPT, verify="blocks")
    assert len(engine.generate(PROMPT, max_tokens=4).ids) == 4


def test_noise_of_the_target_is_what_the_engine_uses() -> None:
    """Gumbel-max by hand: argmax(logits / T + noise(seed, position, id))."""
    table, past = markov_table(N, seed=4), list(PROMPT)
    r = toy_engine(table, N, "random", 4, 2).generate(
        PROMPT, max_tokens=30, sampling=SamplingParams(temperature=0.7, seed=9)
    )
    for token in r.ids:
        scores = table(past).astype(float) / 0.7 + gumbel(9, TARGET, len(past), np.arange(N))
        assert token == int(scores.argmax())
        past.append(token)
