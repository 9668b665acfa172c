"""What a conversation keeps between its turns, over HTTP: its slot, or its state in RAM when it has lost that."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from asking import Asker, Held, Json, text
from helpers import LETTERS, assert_own, make_drafter, markov_table, toy_engine
from live import live
from slipstream.advise.compare import compare
from slipstream.core.policy import Fixed
from slipstream.core.ports import Drafter
from slipstream.core.types import SamplingParams
from slipstream.drafters.model import ModelDrafter
from slipstream.engine import Engine
from slipstream.models.toy import ToyModel, ToyTokenizer

N = 8
TABLE = markov_table(N, order=2, seed=12)
OPENINGS = [[i, *[(i * 5 + j * j) % N for j in range(47)]] for i in range(3)]  # three beginnings of 48 tokens


def serving(kind: str | Drafter, n_slots: int = 2, cache_ram: int = 0, recurrent: bool = False) -> Any:
    drafter = make_drafter(kind, TABLE, N, n_slots=n_slots) if isinstance(kind, str) else kind

    def opened() -> Engine:
        model = ToyModel(TABLE, N, 512, n_slots, recurrent)
        return Engine(model, ToyTokenizer(LETTERS[:N]), drafter, Fixed(4), cache_ram=cache_ram)

    return live(opened)


class Talk:
    """A conversation of token ids that grows by what is said."""

    def __init__(self, server: Asker, opening: Sequence[int]) -> None:
        self.server, self.ids, self.length = server, list(opening), 0

    def turn(self, more: Sequence[int] = (), **fields: Any) -> Json:
        """Say something, hear 20 tokens; `length` is then that of the prompt before this one."""
        self.ids += more
        answer = self.server.complete(self.ids, max_tokens=20, **fields)
        self.ids += [ord(c) - ord("a") for c in text(answer)]
        return answer


def cached(answer: Json) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def fresh(ids: Sequence[int]) -> str:
    return toy_engine(TABLE, N).generate(ids, max_tokens=20).text


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("kind", ["suffix", "self"])
def test_a_second_turn_reads_only_what_is_new(kind: str, recurrent: bool) -> None:
    with serving(kind, n_slots=1, recurrent=recurrent) as url:
        talk = Talk(Asker(url), OPENINGS[0])
        assert cached(talk.turn()) == 0
        for _ in range(3):
            before = len(talk.ids)
            prompt = [*talk.ids, 3, 4]
            answer = talk.turn([3, 4])
            assert cached(answer) >= before - 1 and text(answer) == fresh(prompt)
            assert answer["speculative"]["prefilled"] <= 3


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("kind", ["suffix", "self", "random"])
def test_an_idle_conversation_comes_back_from_ram(kind: str, recurrent: bool) -> None:
    """Three conversations in turn on two slots: each has lost its slot when it speaks again."""
    with serving(kind, cache_ram=1 << 20, recurrent=recurrent) as url:
        talks = [Talk(Asker(url), opening) for opening in OPENINGS]
        for talk in talks:
            assert cached(talk.turn()) < 32
        for _ in range(3):
            for talk in talks:
                before, prompt = len(talk.ids), [*talk.ids, 3, 4]
                answer = talk.turn([3, 4])
                assert cached(answer) >= before - 1, "it was read again"
                assert text(answer) == fresh(prompt)
                if kind == "self":
                    assert answer["speculative"]["acceptance_rate"] == 1.0, "the draft model's state is not the text's"
                    assert answer["speculative"]["accepted"] > 10


@pytest.mark.parametrize("n_slots", [1, 2])
def test_the_draft_model_s_state_comes_back_too(n_slots: int) -> None:
    """It reads what is new and what it drafts, and nothing of the conversation so far."""
    model = ToyModel(TABLE, N, 512, n_slots)
    with serving(ModelDrafter(model), n_slots, cache_ram=1 << 20) as url:
        talks = [Talk(Asker(url), opening) for opening in OPENINGS]
        for i, talk in enumerate(talks * 3):
            before = sum(model.forwards)
            answer = talk.turn([3, 4])
            assert answer["speculative"]["acceptance_rate"] == 1.0
            read = sum(model.forwards) - before
            assert read >= len(OPENINGS[0]) if i < 3 else read <= 2 + 20 + 2, "it read the conversation again"


@pytest.mark.parametrize("kind", ["suffix", "self"])
def test_without_ram_it_is_read_again_and_says_the_same(kind: str) -> None:
    with serving(kind) as url:
        talks = [Talk(Asker(url), opening) for opening in OPENINGS]
        lost = 0
        for talk in talks * 3:
            prompt = [*talk.ids, 3, 4]
            answer = talk.turn([3, 4])
            lost += cached(answer) < 32
            assert text(answer) == fresh(prompt)
            if kind == "self":
                assert answer["speculative"]["acceptance_rate"] == 1.0
        assert lost >= 5


def test_a_budget_for_one_keeps_the_one_that_was_used_last() -> None:
    """Room for one state of 68 tokens: with three conversations in turn it is always the wrong one, but never wrong."""
    with serving("self", cache_ram=8 * 2 * 80) as url:
        talks = [Talk(Asker(url), opening) for opening in OPENINGS]
        for talk in talks * 2:
            prompt = [*talk.ids, 3, 4]
            assert text(talk.turn([3, 4])) == fresh(prompt)


def test_a_request_in_plain_mode_between_turns_leaves_the_drafter_in_step() -> None:
    with serving("self", cache_ram=1 << 20) as url:
        talks = [Talk(Asker(url), opening) for opening in OPENINGS]
        for i, talk in enumerate(talks * 3):
            prompt = [*talk.ids, 3, 4]
            answer = talk.turn([3, 4], speculative=i % 2 == 0)
            assert text(answer) == fresh(prompt)
            if i % 2 == 0:
                assert answer["speculative"]["acceptance_rate"] == 1.0
            else:
                assert answer["speculative"]["drafted"] == 0


def test_metrics_count_the_hits() -> None:
    with serving("suffix", n_slots=1) as url:
        server = Asker(url)
        talk = Talk(server, OPENINGS[0])
        total = sum(cached(talk.turn([3, 4])) for _ in range(3))
        counters = server.counters()
    assert counters["slipstream_cache_hits_total"] == 2
    assert counters["slipstream_cached_prompt_tokens_total"] == total > 0


# -- a real model ----------------------------------------------------------------------------------------------------

TOPICS = ("Tell me about the sea and its tides, and why the moon matters.", "Explain how bread is baked at home, "
          "from flour to crust.", "Describe a day in the life of a lighthouse keeper in winter.")  # fmt: skip


def conversation(server: Asker, turns: list[Json], words: str) -> Json:
    turns.append({"role": "user", "content": words})
    answer = server.chat(turns, max_tokens=32)
    turns.append({"role": "assistant", "content": text(answer)})
    return answer


@pytest.mark.parametrize("cache_ram", [64, 0])
def test_three_real_conversations_on_two_slots(smollm2: Path, cache_ram: int) -> None:
    """Text as in a run without a past; what is read again depends on the RAM alone."""
    held = Held(lambda: Engine.open("smollm2-135m", "suffix", k=3, n_slots=2, n_ctx=512, cache_ram=cache_ram))
    with live(held) as url:
        server = Asker(url)
        talks: list[list[Json]] = [[] for _ in TOPICS]
        first = [conversation(server, t, words) for t, words in zip(talks, TOPICS, strict=True)]
        second = [conversation(server, t, "Say it again, word for word.") for t in talks]
    read_again = [cached(two) < one["usage"]["prompt_tokens"] - 2 for one, two in zip(first, second, strict=True)]
    assert any(read_again) == (cache_ram == 0)
    with Engine.open("smollm2-135m", None, n_ctx=512) as alone:
        for turns, answer, ran in zip(talks, second, held.started[3:], strict=True):
            got, solo = ran.result(), alone.generate(messages=turns[:-1], max_tokens=32)
            prompt = alone.encode_chat(turns[:-1])
            assert_own(compare(alone, prompt, SamplingParams(), solo.ids, got.ids))
            assert text(answer) == got.text
