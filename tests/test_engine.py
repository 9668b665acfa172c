"""Several requests at once (T10), joining and leaving at any step, and what an engine refuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import PROMPT, Always, Base, Hits, Wrong, make_drafter, markov_table, outcome, toy_engine
from slipstream.core.ports import Want
from slipstream.core.types import Array, Draft, SamplingParams, Span
from slipstream.engine import Engine
from slipstream.errors import ContextError
from slipstream.generation import Generation, Request, Result
from slipstream.models.toy import ToyModel, ToyTokenizer

N = 8
TABLE = markov_table(N, order=2, seed=12)
WARM = SamplingParams(temperature=1.2, seed=4, logit_bias={7: -9.0})
REQUESTS = [
    Request([1, 2, 3], max_tokens=30, ignore_end=True),
    Request([4], max_tokens=25, sampling=SamplingParams(temperature=0.8, seed=5), speculative=False, ignore_end=True),
    Request(
        [5, 6, 7, 5, 6, 7, 5], max_tokens=40, sampling=SamplingParams(temperature=1.0, seed=6, top_k=4), logprobs=2
    ),
    Request([2, 2, 1, 0, 3, 4, 1, 2, 5, 6, 6, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2], sampling=WARM, stop=["ab", "ce"]),
    Request([0, 3], max_tokens=35, sampling=SamplingParams(temperature=0.7, seed=3, repetition_penalty=1.2)),
    Request([7, 1, 3], max_tokens=35, sampling=SamplingParams(frequency_penalty=0.3), ignore_end=True),
]


def solo(request: Request, recurrent: bool = False) -> Result:
    engine = toy_engine(TABLE, N, ends=(7,), recurrent=recurrent)
    running = engine.submit(replace(request, speculative=False))
    while not running.done:
        engine.step()
    return running.result()


EXPECTED = {recurrent: [outcome(solo(r, recurrent)) for r in REQUESTS] for recurrent in (False, True)}


def engine_for(
    kind: str, n_slots: int, k: int = 4, width: int = 1, n_batch: int = 64, recurrent: bool = False
) -> Engine:
    drafter = make_drafter(kind, TABLE, N, n_slots=n_slots)
    return toy_engine(TABLE, N, drafter, k, width, ends=(7,), n_slots=n_slots, n_batch=n_batch, recurrent=recurrent)


def run_to_end(engine: Engine) -> None:
    while engine._active:
        engine.step()


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("n_batch", [64, 12])
@pytest.mark.parametrize("kind", ["none", "self", "random", "suffix", "wrong"])
def test_t10_each_request_is_as_if_alone(kind: str, n_batch: int, recurrent: bool) -> None:
    for k, width in ((1, 1), (4, 1), (6, 3)):
        engine = engine_for(kind, len(REQUESTS), k, width, n_batch, recurrent)
        running = [engine.submit(r) for r in REQUESTS]
        run_to_end(engine)
        assert [outcome(g.result()) for g in running] == EXPECTED[recurrent]
        assert running[1].stats.proposed == 0


@pytest.mark.parametrize("kind", ["self", "random", "suffix"])
def test_t10_a_request_that_joins_late_disturbs_nobody(kind: str) -> None:
    for join in range(12):
        engine = engine_for(kind, 3)
        running = [engine.submit(REQUESTS[0]), engine.submit(REQUESTS[1])]
        for _ in range(join):
            if engine._active:
                engine.step()
        running.append(engine.submit(REQUESTS[2]))
        run_to_end(engine)
        assert [outcome(g.result()) for g in running] == EXPECTED[False][:3]


def test_t10_acceptance_is_that_of_the_solo_run() -> None:
    alone = engine_for("suffix", 1)
    a = alone.submit(REQUESTS[2])
    run_to_end(alone)
    engine = engine_for("suffix", 3)
    g = engine.submit(REQUESTS[2])
    for other in (REQUESTS[0], REQUESTS[4]):
        engine.submit(other)
    run_to_end(engine)
    assert (g.stats.verified, g.stats.accepted) == (a.stats.verified, a.stats.accepted) and a.stats.accepted > 0


@given(st.data())
def test_any_order_of_joins_steps_and_cancels(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["self", "random", "suffix", "wrong", "none"]))
    recurrent = data.draw(st.booleans())
    k, width, n_batch = data.draw(st.tuples(st.integers(0, 7), st.sampled_from([1, 3]), st.sampled_from([10, 64])))
    engine = engine_for(kind, 3, k, width, n_batch, recurrent)
    running: dict[Generation, int] = {}
    finished = 0
    for _ in range(data.draw(st.integers(10, 60))):
        action = data.draw(st.sampled_from(["submit", "step", "step", "step", "cancel"]))
        if action == "submit" and len(engine._active) < 3:
            i = data.draw(st.integers(0, len(REQUESTS) - 1))
            reuse = data.draw(st.booleans())
            running[engine.submit(replace(REQUESTS[i], reuse_cache=reuse))] = i
        elif action == "cancel" and running:
            g = data.draw(st.sampled_from(list(running)))
            engine.cancel(g)
            i = running.pop(g)
            expected = EXPECTED[recurrent][i]
            got = g.result()
            assert got.ids == expected[0][: len(got.ids)]  # type: ignore[index]
            assert expected[1].startswith(got.text) or got.finish_reason == "cancelled"  # type: ignore[attr-defined]
            assert g.sequence.slot not in engine._active or engine._active[g.sequence.slot] is not g
        elif action == "step" and engine._active:
            engine.step()
        for g in [g for g in running if g.done]:
            i = running.pop(g)
            finished += 1
            assert outcome(g.result())[:3] == EXPECTED[recurrent][i][:3]
        assert {g.sequence.slot for g in running} == set(engine._active)
    run_to_end(engine)
    for g, i in running.items():
        assert outcome(g.result())[:3] == EXPECTED[recurrent][i][:3]
        assert outcome(g.result())[4] == EXPECTED[recurrent][i][4]


def test_a_drafter_hears_of_every_sequence_once_and_in_order() -> None:
    drafter = Wrong(TABLE, N)
    engine = toy_engine(TABLE, N, drafter, n_slots=2)
    a, b = engine.submit(REQUESTS[0]), engine.submit(replace(REQUESTS[1], speculative=False))
    engine.step()
    engine.cancel(a)
    engine.submit(REQUESTS[4])
    run_to_end(engine)
    assert [c for c in drafter.calls if c[0] != "observe"] == [("begin", 0), ("end", 0)] * 2 and drafter.params == {}
    assert b.done and all(slot == 0 for _, slot in drafter.calls)


# -- the batch: never more than the model takes, and nobody starves --------------------------------------------------


@pytest.mark.parametrize("n_batch", [4, 8, 9, 33])
@pytest.mark.parametrize("n_slots", [2, 3])
def test_a_forward_never_exceeds_the_batch(n_slots: int, n_batch: int) -> None:
    """Some draft with all the room there is, some decode plainly, some read a long prompt."""
    plain = [replace(REQUESTS[0], speculative=i % 2 == 0) for i in range(n_slots)]
    expected = solo(REQUESTS[0])
    engine = engine_for("right", n_slots, 32, 1, n_batch)
    running = [engine.submit(r) for r in plain]
    run_to_end(engine)
    assert max(engine.model.forwards) <= n_batch  # type: ignore[attr-defined]
    assert all(g.result().ids == expected.ids for g in running)


@pytest.mark.parametrize("n_batch", [4, 7, 16])
def test_a_long_prompt_is_read_in_chunks_of_the_batch(n_batch: int) -> None:
    prompt = [1, 2, 3, 4, 5, 6] * 9
    expected = toy_engine(TABLE, N).generate(prompt, max_tokens=20)
    engine = toy_engine(TABLE, N, "self", 3, n_batch=n_batch)
    r = engine.generate(prompt, max_tokens=20)
    assert outcome(r) == outcome(expected)
    assert r.stats.prefilled == len(prompt) and r.stats.first_tokens == (len(prompt) % n_batch != 1)
    assert engine.model.forwards[: len(prompt) // n_batch] == [n_batch] * (len(prompt) // n_batch)  # type: ignore[attr-defined]


def test_a_prompt_is_read_while_another_request_drafts() -> None:
    """A drafting request must leave room: the newcomer's first token comes before the other one is done."""
    engine = engine_for("right", 2, 32, 1, 8)
    first = engine.submit(Request([1, 2, 3], max_tokens=200, ignore_end=True))
    for _ in range(3):
        engine.step()
    second = engine.submit(Request([1, 2, 3, 4, 5, 6, 7, 0, 1, 2], max_tokens=4, ignore_end=True))
    for _ in range(12):
        engine.step()
    assert second.tokens and not first.done


def test_stream_survives_a_step_that_had_no_room_for_it() -> None:
    engine = engine_for("right", 2, 32, 1, 8)
    other = engine.submit(Request([1, 2, 3], max_tokens=40, ignore_end=True))
    for _ in range(2):
        engine.step()
    chunks = list(engine.stream([1, 2, 3, 4, 5, 6, 7, 0, 1, 2], max_tokens=4, ignore_end=True))
    assert sum(len(c.tokens) for c in chunks) == 4 and len(other.tokens) > 0


# -- the cache -------------------------------------------------------------------------------------------------------


def test_reuse_of_the_cache_saves_work_and_changes_nothing() -> None:
    engine = toy_engine(TABLE, N, "suffix", 4, n_slots=2)
    first = engine.generate([1, 2, 3, 4, 5, 6], max_tokens=10)
    prompt = [1, 2, 3, 4, 5, 6, *first.ids, 3, 4]
    before = len(engine.model.forwards)  # type: ignore[attr-defined]
    again = engine.generate(prompt, max_tokens=10, reuse_cache=True)
    fresh = toy_engine(TABLE, N).generate(prompt, max_tokens=10)
    assert again.ids == fresh.ids
    assert again.usage.cached_tokens in (15, 16) and fresh.usage.cached_tokens == 0
    assert engine.model.forwards[before] <= 3  # type: ignore[attr-defined]
    assert engine.generate(prompt, max_tokens=3).usage.cached_tokens == 0  # only when asked for


def test_a_recurrent_cache_is_reused_whole_or_not_at_all() -> None:
    engine = toy_engine(TABLE, N, "suffix", 4, recurrent=True)
    first = engine.generate([1, 2, 3, 4], max_tokens=6)
    held = engine.model.past(0)  # type: ignore[attr-defined]
    longer = [*held, 1, 2]
    r = engine.generate(longer, max_tokens=5, reuse_cache=True)
    assert r.usage.cached_tokens == len(held)
    assert r.ids == toy_engine(TABLE, N, recurrent=True).generate(longer, max_tokens=5).ids
    other = engine.generate([1, 2, 3, 4, *first.ids[:2], 5], max_tokens=5, reuse_cache=True)
    assert other.usage.cached_tokens == 0


def test_the_slot_that_shares_most_is_taken() -> None:
    engine = toy_engine(TABLE, N, n_slots=3)
    running = [engine.submit(Request([i, i, i, i, 1], max_tokens=3, ignore_end=True)) for i in (1, 2, 3)]
    run_to_end(engine)
    again = engine.submit(Request([2, 2, 2, 2, 5], max_tokens=2, reuse_cache=True))
    assert again.sequence.slot == running[1].sequence.slot and again.cached == 4


# -- failures --------------------------------------------------------------------------------------------------------


class Breaks(ToyModel):
    """The forward number `at` fails after the work of the first slot."""

    at = 3

    def forward(self, spans: Sequence[Span]) -> list[Array]:
        if len(self.forwards) == self.at:
            self.forwards.append(0)
            super().forward(spans[:1])
            raise ContextError("no room", "")
        return super().forward(spans)


def test_a_failed_step_ends_every_request_and_leaves_clean_slots() -> None:
    drafter = Hits(TABLE, N, [2, 0, 5])
    engine = Engine(Breaks(TABLE, N, n_slots=2), ToyTokenizer([b"a"] * N, (7,)), drafter)
    running = [engine.submit(REQUESTS[0]), engine.submit(REQUESTS[5])]
    with pytest.raises(ContextError):
        run_to_end(engine)
    assert all(g.done and g.result().finish_reason == "cancelled" for g in running)
    assert drafter.params == {} and [engine.model.n_past(i) for i in (0, 1)] == [0, 0]
    again = [engine.submit(REQUESTS[0]), engine.submit(REQUESTS[5])]
    run_to_end(engine)
    assert [g.result().ids for g in again] == [EXPECTED[False][0][0], EXPECTED[False][5][0]]


class Bad(Base):
    """Offers more than was asked for: deeper, wider and out of turn."""

    def propose(self, slot: int, tokens: Sequence[int], want: Want) -> Draft:
        return Draft.chain([1] * (want.depth + 20))


@pytest.mark.parametrize("recurrent", [False, True])
def test_a_drafter_that_offers_too_much_is_cut(recurrent: bool) -> None:
    engine = toy_engine(TABLE, N, Bad(), 3, ends=(7,), recurrent=recurrent)
    r = engine.generate([1, 2, 3], max_tokens=30, ignore_end=True)
    assert r.ids == EXPECTED[recurrent][0][0]
    assert max(r.stats.verified_per_position) <= r.stats.steps and len(r.stats.verified_per_position) <= 3
    assert r.stats.discarded > 0


class Forks(Base):
    def propose(self, slot: int, tokens: Sequence[int], want: Want) -> Draft:
        return Draft((1, 2, 3), (-1, -1, 1))


def test_a_tree_for_a_model_that_takes_chains_is_cut_to_its_first_branch() -> None:
    engine = toy_engine(TABLE, N, Forks(), 3, 2, ends=(7,), recurrent=True)
    r = engine.generate([1, 2, 3], max_tokens=30, ignore_end=True)
    assert r.ids == EXPECTED[True][0][0] and r.stats.proposed > r.stats.verified > 0


def test_cancel_ends_at_once_and_frees_the_slot() -> None:
    engine = toy_engine(TABLE, N, "random", n_slots=1)
    g = engine.submit(Request([1, 2, 3], max_tokens=50, stop=["zzz"]))
    for _ in range(3):
        engine.step()
    engine.cancel(g)
    assert g.result().finish_reason == "cancelled" and len(g.result().text) == len(g.result().ids) > 0
    engine.cancel(g)  # twice is once
    assert engine.generate([1, 2, 3], max_tokens=5).ids == toy_engine(TABLE, N).generate([1, 2, 3], max_tokens=5).ids


def test_leaving_a_stream_early_frees_the_slot() -> None:
    engine = toy_engine(TABLE, N, "random")
    for _ in engine.stream([1, 2, 3], max_tokens=50):
        break
    assert len(engine.generate([1, 2, 3], max_tokens=5).ids) == 5


def test_a_finished_request_cannot_cancel_its_successor() -> None:
    engine = toy_engine(TABLE, N)
    old = engine.submit(Request([1, 2], max_tokens=2))
    run_to_end(engine)
    new = engine.submit(Request([3, 4], max_tokens=5))
    engine.cancel(old)
    assert old.result().finish_reason == "length" and not new.done and engine._active == {0: new}


def test_close_is_safe_twice_and_with_requests_running() -> None:
    with toy_engine(TABLE, N) as engine:
        engine.submit(Request([1], max_tokens=5))
    engine.close()


def test_text_prompts_and_messages() -> None:
    pieces = [b"<|im_start|>", b"<|im_end|>\n", b"user\n", b"assistant\n", b"a", b"b", b"ab", b"c"]
    engine = toy_engine(TABLE, N, pieces=pieces)
    by_ids = engine.generate([6, 7], max_tokens=5).ids
    assert engine.generate("abc", max_tokens=5).ids == by_ids
    messages = [{"role": "user", "content": "ab"}]
    assert engine.encode_chat(messages) == [0, 2, 6, 1, 0, 3]
    assert engine.generate(messages=messages, max_tokens=5).usage.prompt_tokens == 6


def test_segments_say_who_proposed_each_piece() -> None:
    hits = Hits(TABLE, N, [2, 0])
    r = toy_engine(TABLE, N, hits, 3).generate(PROMPT, max_tokens=20)
    assert "".join(s.text for s in r.segments) == r.text
    assert [s.origin for s in r.segments] == [t.origin for t in r.tokens]
    assert {s.origin for s in r.segments} == {"hits", "target"}
    assert np.mean([s.origin == "hits" for s in r.segments]) == pytest.approx(r.stats.accepted / 20)


def test_always_rejected_drafts_cost_no_token() -> None:
    engine = toy_engine(TABLE, N, Always(99 % N), 5)
    r = engine.generate(PROMPT, max_tokens=30)
    assert r.stats.emitted == r.stats.steps + r.stats.accepted
