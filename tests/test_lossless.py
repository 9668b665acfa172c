"""T01: the text is the target's own, whatever is drafted.

Plain is the same engine with no drafter. Scripted and Markov targets are exact, so everything is compared for equality.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest

from helpers import PROMPT, Wrong, cached, markov_table, outcome, toy_engine
from slipstream.core.types import SamplingParams
from slipstream.drafters.model import ModelDrafter
from slipstream.generation import Result
from slipstream.models.toy import Table, ToyModel, scripted

N = 12
SCRIPT = [1, 2, 3, 4, 5, 1, 2, 3, 6, 7, 8, 1, 2, 3, 4, 9, 10, 1, 2, 11, 3, 3, 3, 0]
TABLES: dict[str, Table] = {
    "scripted": cached(scripted(SCRIPT, N, n_prompt=len(PROMPT), sharpness=4.0)),
    "markov": markov_table(N, order=2, seed=7),
    "repetitive": markov_table(N, order=1, seed=5, spread=3.0),
}
KS = (0, 1, 2, 4, 8, 16)
WIDTHS = (1, 3)
# What ends the request: (settings of the engine, settings of the request).
STOPS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "cap": ({}, {"max_tokens": 48, "logprobs": 2}),
    "end": ({"ends": (0,)}, {"max_tokens": 200}),
    "stop": ({}, {"max_tokens": 200, "stop": ["zz", "cdj", "gh", "ka"]}),
    "context": ({"n_ctx": len(PROMPT) + 37}, {"max_tokens": None, "logprobs": 1}),
}


def params(temperature: float, seed: int = 5) -> SamplingParams:
    return SamplingParams(temperature=temperature, seed=seed)


@functools.cache
def plain(table: str, stop: str, temperature: float, seed: int = 5, recurrent: bool = False) -> Result:
    opened, asked = STOPS[stop]
    engine = toy_engine(TABLES[table], N, None, recurrent=recurrent, **opened)
    return engine.generate(PROMPT, sampling=params(temperature, seed), **asked)


def test_plain_decoding_ends_for_the_reasons_that_the_matrix_means() -> None:
    for table in TABLES:
        for temperature in (0.0, 0.8):
            assert plain(table, "cap", temperature).finish_reason == "length"
            assert plain(table, "context", temperature).finish_reason == "length"
            assert plain(table, "context", temperature).usage.completion_tokens == 37
    assert plain("scripted", "end", 0.0).finish_reason == "stop"
    assert plain("scripted", "stop", 0.0).finish_reason == "stop"
    assert plain("markov", "end", 0.8).finish_reason == "stop"
    assert plain("markov", "stop", 0.8).finish_reason == "stop"


def test_plain_decoding_is_what_the_table_and_the_sampler_say() -> None:
    """The reference itself, computed without model, loop or verifier."""
    for table in TABLES:
        for temperature in (0.0, 0.8):
            judge = Wrong(TABLES[table], N)
            judge.begin(0, PROMPT, params(temperature))
            assert list(plain(table, "cap", temperature).ids) == judge.truth(TABLES[table], 0, PROMPT, 48)
    assert list(plain("scripted", "cap", 0.0).ids) == (SCRIPT * 2)[:48]


@pytest.mark.parametrize("recurrent", [False, True], ids=["attention", "recurrent"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("kind", ["self", "wrong", "right", "random", "suffix"])
@pytest.mark.parametrize("table", TABLES)
def test_exact_is_plain_in_every_cell(table: str, kind: str, temperature: float, recurrent: bool) -> None:
    for stop, (opened, asked) in STOPS.items():
        expected = outcome(plain(table, stop, temperature, recurrent=recurrent))
        for k in KS:
            for width in WIDTHS:
                engine = toy_engine(TABLES[table], N, kind, k, width, recurrent=recurrent, **opened)
                result = engine.generate(PROMPT, sampling=params(temperature), **asked)
                assert outcome(result) == expected, (stop, k, width)
                check_counts(result, kind, k)


def check_counts(result: Result, kind: str, k: int) -> None:
    s = result.stats
    assert s.emitted + s.first_tokens == len(result.ids)
    if len(result.ids) > 20 and kind != "suffix":
        assert (s.verified > 0) == (k > 0)
    if k and kind == "wrong":
        assert s.accepted == 0 and all(t.origin == "target" for t in result.tokens)
    if k and kind == "self" and result.finish_reason == "length" and s.proposed == sum(s.verified_per_position):
        assert s.accepted == s.verified  # a chain in every step: nothing may be refused


@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.5])
@pytest.mark.parametrize("k", [1, 4, 16])
def test_a_draft_model_equal_to_the_target_is_always_accepted(k: int, temperature: float) -> None:
    engine = toy_engine(TABLES["markov"], N, "self", k)
    result = engine.generate(PROMPT, max_tokens=100, sampling=params(temperature))
    assert result.stats.acceptance_rate == 1.0
    assert result.stats.mean_acceptance_length == pytest.approx(k + 1, rel=0.15)


def test_an_always_right_drafter_needs_fewer_forwards() -> None:
    engine = toy_engine(TABLES["markov"], N, "right", 4)
    engine.generate(PROMPT, max_tokens=51)
    assert engine.model.forwards == [5] + [5] * 10  # type: ignore[attr-defined]


SETTINGS = {
    "penalties": {"temperature": 0.8, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.4},
    "greedy penalties": {"repetition_penalty": 1.5, "frequency_penalty": 0.7},
    "filters": {"temperature": 1.2, "top_k": 5, "top_p": 0.9, "min_p": 0.05},
    "bias": {"temperature": 0.7, "logit_bias": {3: 2.0, 4: -100.0, 0: 1.0}},
    "everything": {
        "temperature": 1.0,
        "top_k": 6,
        "top_p": 0.95,
        "min_p": 0.02,
        "repetition_penalty": 0.8,
        "presence_penalty": -0.3,
        "frequency_penalty": 0.2,
        "logit_bias": {1: -1.0},
    },
}


@pytest.mark.parametrize("recurrent", [False, True], ids=["attention", "recurrent"])
@pytest.mark.parametrize("kind", ["self", "wrong", "right", "random", "suffix"])
@pytest.mark.parametrize("settings", SETTINGS)
def test_every_setting_acts_as_in_plain_decoding(settings: str, kind: str, recurrent: bool) -> None:
    p = SamplingParams(seed=11, **SETTINGS[settings])  # type: ignore[arg-type]
    for table in ("markov", "repetitive"):
        expected = toy_engine(TABLES[table], N, recurrent=recurrent).generate(PROMPT, max_tokens=60, sampling=p)
        for k, width in ((1, 1), (5, 1), (9, 3)):
            engine = toy_engine(TABLES[table], N, kind, k, width, recurrent=recurrent)
            result = engine.generate(PROMPT, max_tokens=60, sampling=p)
            assert outcome(result) == outcome(expected), (table, k, width)
            if kind == "self" and width == 1:
                assert result.stats.acceptance_rate == 1.0


def test_the_seed_and_nothing_else_decides_the_text() -> None:
    texts = []
    for seed in range(6):
        runs = {
            toy_engine(TABLES["markov"], N, kind, k).generate(PROMPT, max_tokens=40, sampling=params(0.8, seed)).ids
            for kind in ("none", "self", "random", "suffix")
            for k in (1, 7)
        }
        assert len(runs) == 1
        texts += runs
    assert len(set(texts)) == 6


@pytest.mark.parametrize("verify", ["rejection", "block", "typical"])
@pytest.mark.parametrize("kind", ["self", "wrong", "random", "suffix"])
def test_at_temperature_0_every_verifier_is_plain(verify: str, kind: str) -> None:
    for table in TABLES:
        for stop, (opened, asked) in STOPS.items():
            for k, width in ((1, 1), (4, 1), (16, 1), (6, 3)):
                if verify == "block" and width > 1:
                    continue
                engine = toy_engine(TABLES[table], N, kind, k, width, verify=verify, **opened)
                assert outcome(engine.generate(PROMPT, **asked)) == outcome(plain(table, stop, 0.0))


@pytest.mark.parametrize("verify", ["rejection", "block", "typical"])
def test_sampling_verifiers_repeat_themselves_for_a_seed(verify: str) -> None:
    def run(seed: int) -> tuple[int, ...]:
        drafter = ModelDrafter(ToyModel(TABLES["repetitive"], N), "sampled")
        engine = toy_engine(TABLES["markov"], N, drafter, 3, verify=verify)
        return engine.generate(PROMPT, max_tokens=40, sampling=params(1.0, seed)).ids

    assert run(1) == run(1) and run(1) != run(2)


def test_a_second_request_finds_nothing_of_the_first() -> None:
    for kind in ("self", "random", "suffix", "wrong"):
        for reuse in (False, True):
            engine = toy_engine(TABLES["markov"], N, kind, 6, 2)
            engine.generate([4, 5, 6, 7, 8, 4, 5], max_tokens=60, sampling=params(0.8, 3))
            again = engine.generate(PROMPT, max_tokens=48, logprobs=2, sampling=params(0.8), reuse_cache=reuse)
            assert outcome(again)[:3] == outcome(plain("markov", "cap", 0.8))[:3]
