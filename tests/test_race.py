"""The race's pure parts: who comes when, what a server's answer means, and the tables; on a toy model also a heat."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from helpers import markov_table, toy_engine

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import llama_server  # noqa: E402
import race  # noqa: E402
import race_tables as tables  # noqa: E402
from contestants import LATE, Answer, Asked, Prophet, Slipstream  # noqa: E402
from results import prompts  # noqa: E402
from slipstream import SamplingParams  # noqa: E402
from slipstream.errors import CapabilityError, UnknownName  # noqa: E402

SERVER = {
    "tokens": [5, 6, 7, 2],
    "timings": {"predicted_n": 4, "predicted_ms": 200.0, "prompt_ms": 500.0, "draft_n": 6, "draft_n_accepted": 2},
}


def run(contestant: str, seconds: float, prompt: int = 0, kind: str = "maths", **fields: Any) -> dict[str, Any]:
    """A run of 101 tokens."""
    program = "llama-server" if contestant.startswith("llama-server") else "slipstream"
    row = {"contestant": contestant, "program": program, "table": 1, "kind": kind, "prompt": prompt, "round": 0}
    row |= {"tokens": 100, "decode_s": seconds, "first_s": 1.0, "wall_s": seconds + 1, "drafted": 10, "accepted": 5}
    return row | {"late_tokens": 36, "late_s": seconds / 2, "verdict": "identical"} | fields


class Failing:
    name, program = "llama-server:plain", "llama-server"

    def answer(self, asked: Asked, plain: Sequence[int] | None) -> Answer:
        raise CapabilityError("it ended", "look")

    def close(self) -> None:
        return None


# -- order and choice --------------------------------------------------------------------------------------------------


def test_order_rotates_and_everyone_runs_once() -> None:
    names = ["plain", "priced", "x", "y"]
    assert [race.order(names, turn)[0] for turn in range(5)] == ["plain", "priced", "x", "y", "plain"]
    assert all(sorted(race.order(names, turn)) == sorted(names) for turn in range(4))


def test_those_who_need_the_plain_answer_come_after_it() -> None:
    names = ["plain", "priced", "oracle", "wrong"]
    for turn in range(4):
        placed = race.order(names, turn)
        assert placed.index("plain") < min(placed.index("oracle"), placed.index("wrong"))
    assert race.order(names, 2) == ["plain", "oracle", "wrong", "priced"]
    assert race.order(["oracle"], 3) == ["oracle"]


def test_patterns_bring_the_plain_decoding_they_are_compared_with() -> None:
    known = ["plain", "priced", "oracle", "llama-server:plain", "llama-server:ngram-mod"]
    assert race.wanted(["priced"], known) == ["plain", "priced"]
    assert race.wanted(["*ngram*"], known) == ["plain", "llama-server:plain", "llama-server:ngram-mod"]
    with pytest.raises(UnknownName):
        race.wanted(["prized"], known)


def test_prompts_are_of_ten_kinds_and_none_comes_twice() -> None:
    lines = prompts(BENCHMARKS.parent / "src" / "slipstream" / "data" / "suite.jsonl")
    kinds = [line["kind"] for line in lines]
    assert len({line["prompt"] for line in lines}) == len(lines)
    assert len(set(kinds)) == 10 and min(kinds.count(k) for k in set(kinds)) >= 4
    assert set(tables.ASKED["priced+draft"]) <= set(kinds)


# -- the server --------------------------------------------------------------------------------------------------------


def test_a_servers_end_token_counts_for_nothing() -> None:
    answer = llama_server.parse(SERVER, 0.9, frozenset({2}))
    assert answer.ids == (5, 6, 7) and answer.finish == "stop"
    assert answer.tps == pytest.approx(2 / 0.2)  # two tokens after the first in 0.2 s
    assert (answer.first_s, answer.wall_s, answer.drafted, answer.accepted) == (0.5, 0.9, 6, 2)
    assert llama_server.parse(SERVER, 0.9, frozenset()).finish == "length"


def test_an_answer_without_drafts_and_one_of_a_single_token() -> None:
    plain = {"tokens": [5], "timings": {"predicted_ms": 0.001, "prompt_ms": 500.0}}
    answer = llama_server.parse(plain, 0.5, frozenset({2}))
    assert (answer.drafted, answer.tokens, answer.tps) == (0, 0, None)


def test_modes_are_those_of_the_issue() -> None:
    default = llama_server.modes(Path("d.gguf"))
    assert [m.name.split(":")[1] for m in default] == [
        "plain", "ngram-simple", "ngram-simple-3-7", "ngram-mod", "ngram-cache", "draft-simple",
    ]  # fmt: skip
    assert {m.table for m in default} == {1}
    tuned = llama_server.modes(None, Path("t.gguf"), (1, 5))
    assert [m.flags[-1] for m in tuned if m.table == 2] == ["1", "5"]


def test_greedy_and_sampled_requests() -> None:
    greedy = llama_server.body([1, 2], 8, SamplingParams())
    assert (greedy["top_k"], greedy["temperature"], greedy["cache_prompt"]) == (1, 0.0, False)
    warm = llama_server.body([1, 2], 8, SamplingParams(temperature=0.9, seed=3))
    assert (warm["samplers"], warm["top_k"], warm["seed"]) == (["temperature"], 0, 3)


# -- tables ------------------------------------------------------------------------------------------------------------


def test_ratios_are_paired_by_prompt_and_round() -> None:
    rows = [run("plain", 4.0), run("priced", 2.0), run("plain", 8.0, 1), run("priced", 2.0, 1), run("priced", 1.0, 2)]
    assert tables.paired(rows, "priced", "plain") == [2.0, 4.0]  # prompt 2 has no plain run
    figure = tables.figures(rows)["maths"]["priced"]
    assert figure["speedup"]["median"] == 3.0 and figure["speedup"]["interval"] is None
    assert (figure["speedup"]["low"], figure["speedup"]["high"]) == (2.0, 4.0)


def test_the_interval_holds_the_median_and_is_the_same_each_time() -> None:
    ratios = [1.1, 1.2, 1.3, 1.4, 1.9]
    found = tables.summary(ratios)
    assert found is not None and found["interval"][0] <= 1.3 <= found["interval"][1]
    assert found == tables.summary(ratios)
    assert tables.summary([]) is None


def test_the_best_mode_is_chosen_for_each_kind_and_by_hand_only_in_the_second_table() -> None:
    rows = []
    for i, kind in enumerate(("maths", "chat")):
        rows += [run("plain", 4.0, i, kind), run("priced", 2.0, i, kind), run("llama-server:plain", 4.0, i, kind)]
        rows += [run("llama-server:ngram-mod", 3.0 if kind == "maths" else 5.0, i, kind)]
        rows += [run("llama-server:tuned-3", 2.5, i, kind, table=2)]
    found = tables.duels(rows)
    assert {k: v["best"] for k, v in found["best_mode"].items()} == {
        "maths": "llama-server:ngram-mod", "chat": "llama-server:plain", "all": "each kind's best",
    }  # fmt: skip
    assert found["best_mode"]["maths"]["median"] == 1.5 and found["best_mode"]["chat"]["median"] == 2.0
    assert found["best_mode_tuned"]["chat"]["median"] == 1.25
    assert found["default_draft"]["all"] is None
    text = tables.markdown(rows)
    assert "| maths | 1.00 (1.00 to 1.00) | ngram-mod | 1.50 (1.50 to 1.50) | tuned-3 | 1.25" in text


def test_a_failed_run_is_counted_and_stands_in_no_ratio() -> None:
    rows = [run("plain", 4.0), {**run("priced", 2.0), "error": "it ended"}, run("priced", 2.0, 1), run("plain", 4.0, 1)]
    figure = tables.figures(rows)["all"]["priced"]
    assert figure["errors"] == 1 and figure["identical"] == 1 and figure["speedup"]["runs"] == 1


# -- a heat ------------------------------------------------------------------------------------------------------------


def test_a_heat_on_a_toy_model() -> None:
    table = markov_table(12)
    wrong = Prophet("wrong", 0.9, off=1, n_vocab=12)
    oracle = Prophet("oracle", 1.0)
    racers = [
        Slipstream("plain", toy_engine(table, 12), speculative=False),
        Slipstream("oracle", toy_engine(table, 12, oracle), prophet=oracle),
        Slipstream("wrong", toy_engine(table, 12, wrong), prophet=wrong),
        Failing(),
    ]
    r = race.Race(racers, racers[0].engine, {})
    asked = Asked(7, "maths", (1, 2, 3), LATE + 20, SamplingParams())
    rows = {row["contestant"]: row for row in r.heat(asked, 0, 2)}
    assert [rows[n]["verdict"] for n in ("plain", "oracle", "wrong")] == ["identical"] * 3
    assert rows["oracle"]["accepted"] == rows["oracle"]["drafted"] > LATE // 2
    assert rows["wrong"]["drafted"] > LATE and rows["wrong"]["accepted"] == 0
    assert rows["plain"]["late_tokens"] == 20 and rows["plain"]["tokens"] == LATE + 19
    assert rows["llama-server:plain"]["error"] == "it ended; look"
    assert "ids" not in rows["plain"] and len(r.plain[7]) == LATE + 20


def test_another_text_is_looked_up_in_plain_decoding() -> None:
    engine = toy_engine(markov_table(12), 12)
    r = race.Race([Slipstream("plain", engine, speculative=False)], engine, {})
    asked = Asked(1, "chat", (1, 2, 3), 8, SamplingParams())
    r.heat(asked, 0, 0)
    plain = r.plain[1]
    other = Answer((*plain[:4], (plain[4] + 1) % 12, *plain[5:]), "length", 7, 1.0, 0.1, 1.1)
    said = r.sameness(asked, "slipstream", other)
    assert said is not None and (said.at, said.identical) == (4, False)
    hot = Asked(1, "chat", (1, 2, 3), 8, SamplingParams(temperature=0.9))
    assert r.sameness(hot, "llama-server", other) is None  # other dice
