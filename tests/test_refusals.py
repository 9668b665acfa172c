"""What an engine refuses, in words."""

from __future__ import annotations

import threading

import pytest

from helpers import markov_table, toy_engine
from slipstream.core.policy import Fixed
from slipstream.core.types import SamplingParams
from slipstream.errors import ContextError, InputError, UsageError
from slipstream.generation import Request

N = 8
TABLE = markov_table(N, order=2, seed=12)


def test_what_is_refused() -> None:
    engine = toy_engine(TABLE, N, n_ctx=16)
    cases: list[tuple[type[Exception], str, object]] = [
        (ContextError, "17 tokens", lambda: engine.generate([1] * 17)),
        (InputError, "empty", lambda: engine.generate([])),
        (InputError, "empty", lambda: engine.generate("")),
        (InputError, "outside", lambda: engine.generate([N])),
        (InputError, "outside", lambda: engine.generate([-1])),
        (InputError, "either", lambda: engine.generate()),
        (InputError, "either", lambda: engine.generate([1], messages=[{"role": "user", "content": "a"}])),
        (InputError, "max_tokens", lambda: engine.generate([1], max_tokens=-1)),
        (InputError, "logprobs", lambda: engine.generate([1], logprobs=101)),
        (InputError, "stop", lambda: engine.generate([1], stop="abc")),
        (InputError, "empty", lambda: engine.generate([1], stop=[""])),
        (UsageError, "no request", engine.step),
    ]
    for error, message, act in cases:
        with pytest.raises(error, match=message):
            act()  # type: ignore[operator]
    assert len(engine.generate([1] * 16).ids) == 0  # full: nothing fits, and that is no error
    assert len(engine.generate([1] * 15, max_tokens=None).ids) == 1
    engine.submit(Request([1], max_tokens=5))
    with pytest.raises(UsageError, match="busy"):
        engine.submit(Request([1]))


def test_sampling_settings_out_of_range_are_refused() -> None:
    bad: list[dict[str, object]] = [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"top_p": 0},
        {"top_p": 1.1},
        {"min_p": -1},
        {"top_k": -1},
        {"seed": -1},
        {"repetition_penalty": 0},
        {"logit_bias": {1: float("inf")}},
    ]
    for settings in bad:
        with pytest.raises(InputError) as caught:
            SamplingParams(**settings)  # type: ignore[arg-type]
        assert caught.value.hint
    for policy in ({"k": -1}, {"k": 1, "width": 0}, {"k": 4, "nodes": 2}):
        with pytest.raises(InputError):
            Fixed(**policy)


def test_another_thread_is_refused() -> None:
    engine = toy_engine(TABLE, N)
    failures: list[BaseException] = []

    def use() -> None:
        for act in (lambda: engine.generate([1]), engine.step):
            try:
                act()
            except UsageError as e:
                failures.append(e)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert len(failures) == 2 and all("thread" in str(e) for e in failures)
