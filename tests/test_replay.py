"""Replays of a text, what follows from them for the speed, and prices on a machine that others use too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from helpers import markov_table, toy_engine
from slipstream.advise.replay import Trace, forecast, judge, replay, simulate
from slipstream.advise.scale import Scale
from slipstream.core.types import Array
from slipstream.drafters.model import ModelDrafter
from slipstream.models.toy import ToyModel, constant

TABLE = markov_table(8, order=2)


def sloppy(table: Callable[[Any], Array], every: int = 5) -> Callable[[Any], Array]:
    """The same table, but for one context in `every`, where it says something else."""

    def wrong(past: Any) -> Array:
        row: Array = table(past)
        return np.roll(row, 1) if sum(past[-2:]) % every == 0 else row

    return wrong


def trace(hits: str, sure: float = 0.9, kind: str = "all") -> Trace:
    """1: guessed, 0: missed."""
    return Trace(kind, np.array([c == "1" for c in hits]), np.full(len(hits), sure, np.float32))


# -- replay ---------------------------------------------------------------------------------------------------------


def test_judging_rows() -> None:
    rows = np.log(np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]], np.float32)) + 5
    hits, confidence = judge(rows, [0, 1])
    assert hits.tolist() == [True, False]
    assert confidence == pytest.approx([0.7, 0.6], rel=1e-5)


@pytest.mark.parametrize(("n_prompt", "n_text"), [(1, 1), (3, 2), (70, 100), (65, 33), (64, 34)])
def test_a_replay_sees_what_one_token_at_a_time_sees(n_prompt: int, n_text: int) -> None:
    rng = np.random.default_rng(n_prompt)
    tokens = rng.integers(0, 8, n_prompt + n_text).tolist()
    model = ToyModel(TABLE, 8)
    found = replay(model, tokens[:n_prompt], tokens[n_prompt:], "x")
    rows = np.stack([TABLE(tokens[: n_prompt + i]) for i in range(n_text)])
    hits, confidence = judge(rows, tokens[n_prompt:])
    assert found.hits.tolist() == hits.tolist() and found.kind == "x"
    assert found.confidence == pytest.approx(confidence, rel=1e-5)
    again = replay(model, tokens[:n_prompt], tokens[n_prompt:])
    assert again.hits.tolist() == hits.tolist(), "nothing is left of the first one"


def test_a_replay_ends_with_the_context_and_with_the_vocabulary() -> None:
    tokens = [1, 2, 3, 4] * 10
    assert len(replay(ToyModel(TABLE, 8, n_ctx=24), tokens[:20], tokens[20:]).hits) == 4
    assert len(replay(ToyModel(TABLE, 8, n_ctx=24), tokens[:30], tokens[30:]).hits) == 0
    assert len(replay(ToyModel(TABLE, 8), tokens[:20], [1, 2, 9, 1]).hits) == 2
    assert len(replay(ToyModel(TABLE, 8), [1, 9], [1, 2]).hits) == 0


def test_a_replay_never_guesses_padding() -> None:
    model = ToyModel(constant([0, 1, 2, 3]), 4)
    assert replay(model, [1], [3, 3]).hits.all()
    assert replay(model, [1], [2, 2], n_shared=3).hits.all()


# -- forecasts ------------------------------------------------------------------------------------------------------


def target(n: int) -> float:
    return 100.0 + n


def draft(n: int) -> float:
    return 10.0 if n == 1 else 13.0


@pytest.mark.parametrize(
    ("hits", "depth", "sure", "seconds", "counts"),
    [
        ("1111", 0, 0.0, 4 * 101, (0, 0, 0)),
        ("1" * 10, 4, 0.0, 105 + 40 + 105 + 43, (8, 8, 8)),  # all right: the draft model is one token behind
        ("0000", 2, 0.0, 103 + 20 + 103 + 20 + 102 + 10 + 101, (5, 5, 0)),
        ("1101", 3, 0.0, 104 + 30 + 101, (3, 3, 2)),
        ("1111", 3, 0.85, 102 + 20 + 102 + 10, (3, 2, 2)),  # 0.9 is verified, 0.81 is drafted in vain
        ("1111", 3, 0.95, 101 + 10 + 101 + 10 + 101 + 10 + 101, (3, 0, 0)),
    ],
)
def test_a_text_on_paper(hits: str, depth: int, sure: float, seconds: float, counts: tuple[int, int, int]) -> None:
    f = simulate(trace("0" + hits), target, draft, depth, sure)  # the first token comes with the prompt
    assert f.seconds == pytest.approx(seconds)
    assert (f.drafted, f.verified, f.accepted) == counts
    assert f.plain_s == pytest.approx(len(hits) * 101) and f.tokens == len(hits)


@pytest.mark.parametrize("k", [1, 3, 6])
def test_what_is_predicted_is_what_the_engine_does(k: int) -> None:
    """The same forwards, tokens verified and tokens accepted as a real run with that draft length."""
    table = markov_table(8, order=6)  # does not go round in circles soon
    small = sloppy(table)
    engine = toy_engine(table, 8, ModelDrafter(ToyModel(small, 8)), k)
    prompt = [1, 2, 3, 1, 2]
    result = engine.generate(prompt, max_tokens=120)
    f = simulate(replay(ToyModel(small, 8), prompt, result.ids), lambda n: 1.0, lambda n: 0.0, k)
    assert 0 < f.accepted < f.verified
    assert (f.verified, f.accepted, f.seconds) == (result.stats.verified, result.stats.accepted, result.stats.steps)


def test_a_forecast_drafts_where_it_pays_and_only_there() -> None:
    traces = [trace("1" * 40, 0.99, "easy"), trace("1" * 20, 0.99, "easy"), trace("0" * 40, 0.3, "hard")]
    found = forecast(traces, target, draft)
    assert list(found) == ["easy", "hard"]
    assert found["easy"].depth > 4 and found["easy"].speedup > 3 and found["easy"].tokens == 58
    assert (found["hard"].depth, found["hard"].speedup) == (0, 1.0)
    dear = forecast(traces, target, lambda n: 100.0)
    assert {f.depth for f in dear.values()} == {0}
    assert forecast([trace("")], target, draft) == {}


def test_confidence_that_means_something_is_used() -> None:
    hits = np.array([int(c) > 0 for c in "1111011001111110101111111100111" * 3])
    knows = Trace("all", hits, np.where(hits, 0.99, 0.01).astype(np.float32))
    blind = Trace("all", hits, np.full(len(hits), 0.5, np.float32))
    with_it, without = (forecast([t], lambda n: 50.0 + 25 * n, draft)["all"] for t in (knows, blind))
    assert with_it.sure > 0 and with_it.seconds < without.seconds


# -- prices on a busy machine ---------------------------------------------------------------------------------------


class Timed(ToyModel):
    """Each forward takes `cost(n)` seconds of a clock of its own, times what the neighbours cost at the moment."""

    now, forwards_ever = 0.0, 0

    def __init__(self, cost: Callable[[int], float], **more: Any) -> None:
        super().__init__(TABLE, 8, **more)
        self.cost = cost

    def forward(self, spans: Any) -> list[Array]:
        load = 1 if Timed.forwards_ever // 40 % 2 == 0 else 4
        Timed.forwards_ever += 1
        Timed.now += load * self.cost(len(spans[0].tokens))
        return super().forward(spans)


@pytest.mark.parametrize("recurrent", [False, True])
def test_a_price_is_right_though_the_neighbours_come_and_go(recurrent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Timed, "now", 0.0)
    monkeypatch.setattr(Timed, "forwards_ever", 0)
    monkeypatch.setattr("slipstream.advise.scale.time.perf_counter", lambda: Timed.now)
    big = Timed(lambda n: {3: 9.0, 4: 7.0}.get(n, 4.0 + n), n_ctx=128, recurrent=recurrent)
    small = Timed(lambda n: 0.5 + n / 4)
    weigh = Scale(big, [1, 2, 3])
    price = weigh.price(big, (1, 2, 3, 4, 8), True, rounds=9)
    unit = price(1)
    assert unit in (5.0, 20.0)  # of that moment
    ratios = [price(n) / unit for n in (2, 3, 4, 5, 8, 16)]
    assert ratios == pytest.approx([6 / 5, 7 / 5, 7 / 5, 12 / 5, 12 / 5, 24 / 5]), "3 is padded to 4, 5 to 8"
    own = weigh.price(small, (1, 2), False, rounds=25)
    assert (own(1) / unit, own(2) / unit) == pytest.approx((0.75 / 5, 1 / 5))
