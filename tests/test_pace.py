"""A long prompt does not freeze the others: what is read of it beside them is bounded by the pace, in virtual time."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from helpers import LETTERS, markov_table, toy_engine
from slipstream.core.cost import Curve
from slipstream.core.pace import LEAST, PAUSE, Pace, share
from slipstream.core.policy import Off
from slipstream.core.types import SamplingParams
from slipstream.engine import Engine
from slipstream.generation import Generation, Request
from slipstream.models.toy import ToyTokenizer
from virtual import Clock, TimedModel

N = 12
TABLE = markov_table(N, order=2, seed=7)
SLOW = Curve((1, 512), (0.040, 0.040 + 511 * 0.004))  # 4 ms for each further token


def slow_engine(n_slots: int, n_batch: int = 512, noise: float = 0.03) -> tuple[Clock, TimedModel, Engine]:
    clock = Clock()
    model = TimedModel(clock, SLOW, TABLE, N, noise=noise, n_slots=n_slots, n_batch=n_batch)
    engine = Engine(model, ToyTokenizer(LETTERS[:N]), None, Off())
    engine._loop.clock = clock
    return clock, model, engine


def test_a_long_prompt_does_not_freeze_the_others() -> None:
    clock, model, engine = slow_engine(2)
    first = engine.submit(Request([1, 2, 3], max_tokens=200))
    for _ in range(10):
        engine.step()
    long = engine.submit(Request([i % N for i in range(2000)], max_tokens=5))
    took, sizes = [], []
    while not long.tokens:
        before, said = clock.now, len(first.tokens)
        engine.step()
        assert len(first.tokens) == said + 1, "one token in every forward"
        took.append(clock.now - before)
        sizes.append(model.forwards[-1])
    assert sizes[0] == 1 + LEAST, "it starts small while the pace is not known"
    assert max(took) < 1.15 * PAUSE
    assert np.mean(took[3:-1]) > 0.8 * PAUSE, "and then uses what it may"
    while not (first.done and long.done):
        engine.step()
    assert long.result().ids == slow_engine(1)[2].generate([i % N for i in range(2000)], max_tokens=5).ids
    assert first.result().ids == slow_engine(1)[2].generate([1, 2, 3], max_tokens=200).ids


def test_a_pace_that_whole_batches_have_taught_is_kept_to_from_the_start() -> None:
    clock, model, engine = slow_engine(2)
    engine.generate([i % N for i in range(1500)], max_tokens=30)
    assert max(model.forwards) == 512, "with nobody beside it a prompt is read in whole batches"
    first = engine.submit(Request([1, 2, 3], max_tokens=100))
    engine.step()
    engine.submit(Request([i % N for i in range(700)], max_tokens=1))
    before = clock.now
    engine.step()
    assert 0.8 * PAUSE < clock.now - before < 1.15 * PAUSE and not first.done


def test_a_machine_too_slow_for_the_bound_still_goes_on() -> None:
    pace = Pace()
    pace.learn(0, 1, 0.4)
    pace.learn(512, 0, 60.0)
    assert pace.most() == LEAST
    pace.learn(16, 1, 0.5)
    assert pace.most() == LEAST
    pace = Pace()
    pace.learn(4, 0, 9.0)  # too short to say anything
    assert pace.most() == LEAST
    pace.learn(100, 0, 0.1)
    assert pace.most() == 250
    pace.learn(100, 1, 0.5)
    assert pace.most() == 50, "slower is believed at once"


@given(st.lists(st.integers(2, 400), max_size=6), st.integers(-3, 600))
def test_waiting_prompts_share_what_may_be_read(missing: list[int], budget: int) -> None:
    given_ = share(missing, budget)
    assert all(0 <= g <= m for g, m in zip(given_, missing, strict=True))
    assert sum(given_) == min(sum(missing), max(budget, 0))
    if missing:
        assert given_[0] >= min(missing[0], budget // 2), "the first that came is sure of half"
        rest = sorted(range(1, len(missing)), key=lambda i: missing[i])
        for a, b in pairwise(rest):
            assert given_[a] == missing[a] or given_[b] == 0, "shortest first"


@given(st.data())
def test_no_order_of_chunks_changes_any_text(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    lengths = data.draw(st.lists(st.sampled_from([1, 2, 17, 40, 150, 300]), min_size=2, max_size=6))
    prompts = [[int(t) for t in rng.integers(0, N, n)] for n in lengths]
    sampling = SamplingParams(temperature=1.0, seed=3)
    _, _, engine = slow_engine(3, data.draw(st.sampled_from([16, 64, 512])))
    waiting = list(enumerate(prompts))
    running: dict[int, Generation] = {}
    results: dict[int, tuple[int, ...]] = {}
    while waiting or running:
        while waiting and len(running) < 3 and (not running or data.draw(st.booleans())):
            i, prompt = waiting.pop(0)
            running[i] = engine.submit(Request(prompt, max_tokens=12, sampling=sampling))
        engine.step()
        for i in [i for i, g in running.items() if g.done]:
            results[i] = running.pop(i).result().ids
    for i, prompt in enumerate(prompts):
        assert results[i] == toy_engine(TABLE, N).generate(prompt, max_tokens=12, sampling=sampling).ids
