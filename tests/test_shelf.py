"""Conversations that share slots: what is put aside, what comes back, and that no text ever changes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from helpers import make_drafter, markov_table, toy_engine
from slipstream.core.policy import Fixed
from slipstream.core.ports import Saved
from slipstream.drafters.model import ModelDrafter
from slipstream.engine import Engine
from slipstream.models.toy import ToyModel, ToyTokenizer
from slipstream.shelf import Shelf, Shelved

N = 8
TABLE = markov_table(N, order=3, seed=5)
KIB = 1024


def state(*tokens: int, size: int = 10) -> Shelved:
    return Shelved(tokens, Saved(None, size), {})


def test_the_longest_beginning_is_found_and_the_oldest_goes_first() -> None:
    shelf = Shelf(30)
    a, b, c = state(1, 2, 3), state(1, 2, 4, 5), state(9)
    for s in (a, b, c):
        shelf.put(s)
    assert shelf.best([1, 2, 4, 7]) == (b, 3) and shelf.best([1, 2]) == (b, 2) and shelf.best([3]) == (None, 0)
    shelf.put(state(8))
    assert shelf.best([1, 2, 3]) == (b, 2) and shelf.n_bytes == 30
    shelf.put(state(7, size=31))  # larger than the shelf
    assert shelf.best([7]) == (None, 0) and shelf.n_bytes == 30
    shelf.take(b)
    assert shelf.best([1, 2, 4]) == (None, 0)


def test_a_longer_state_replaces_the_one_that_it_continues() -> None:
    shelf = Shelf(100)
    shelf.put(state(1, 2))
    shelf.put(state(1, 2, 3))
    shelf.put(state(1, 3))
    assert shelf.n_bytes == 20 and shelf.best([1, 2, 3])[1] == 3


def engine(n_slots: int = 2, cache: int = 64 * KIB, kind: str = "model", recurrent: bool = False) -> Engine:
    model = ToyModel(TABLE, N, n_ctx=400, n_slots=n_slots, recurrent=recurrent)
    drafter = make_drafter("suffix", TABLE, N)
    if kind == "model":
        drafter = ModelDrafter(ToyModel(TABLE, N, n_ctx=400, n_slots=n_slots))
    return Engine(model, ToyTokenizer([b"a"] * N), drafter, Fixed(4), cache_ram=cache)


def talk(e: Engine, prompt: list[int], n: int = 40) -> tuple[list[int], int]:
    r = e.generate(prompt, max_tokens=n, reuse_cache=True)
    return list(r.ids), r.usage.cached_tokens


def prompts(seed: int, n: int = 60) -> list[int]:
    return [random.Random(seed).randrange(N) for _ in range(n)]


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("kind", ["suffix", "model"])
def test_three_conversations_on_two_slots_are_each_read_once(kind: str, recurrent: bool) -> None:
    e, plain = engine(kind=kind, recurrent=recurrent), toy_engine(TABLE, N, n_ctx=400)
    talks = [prompts(i) for i in range(3)]
    for turn in range(3):
        for i, before in enumerate(talks):
            ids, cached = talk(e, before)
            assert ids == list(plain.generate(before, max_tokens=40).ids)
            assert cached >= (len(before) - 4 if turn else 0)
            talks[i] = [*before, *ids, i, turn, 1]
    forwards = e.model.forwards  # type: ignore[attr-defined]
    assert max(forwards[-60:]) < 20, "a prompt was read again"


def test_without_a_shelf_the_third_conversation_costs_another_its_place() -> None:
    e = engine(cache=0)
    first = prompts(0)
    for i in range(3):
        talk(e, prompts(i))
    assert talk(e, first)[1] < 10 and e.shelf.n_bytes == 0


def test_a_conversation_keeps_its_slot_when_another_begins_alike() -> None:
    e = engine()
    system = prompts(9, 20)
    one, two = [*system, *prompts(1)], [*system, *prompts(2)]
    ids, _ = talk(e, one)
    talk(e, two)
    assert e.shelf.n_bytes == 0, "there was an empty slot for the second one"
    assert talk(e, [*one, *ids, 3])[1] >= len(one) + len(ids) - 1


def test_what_is_put_aside_stays_within_the_budget() -> None:
    e = engine(n_slots=1, cache=3 * KIB)
    for i in range(20):
        talk(e, prompts(i))
        assert e.shelf.n_bytes <= 3 * KIB
    assert e.shelf.n_bytes > 0
    e.reset()
    assert e.shelf.n_bytes == 0


def test_random_conversations_never_change_any_text() -> None:
    rng = random.Random(4)
    e, plain = engine(cache=6 * KIB), toy_engine(TABLE, N, n_ctx=400)
    talks = [prompts(i, 40) for i in range(5)]
    returned = 0
    for _ in range(60):
        i = rng.randrange(len(talks))
        if len(talks[i]) > 300 or rng.random() < 0.1:
            talks[i] = talks[i][: rng.randrange(20, 40)]  # an earlier turn is edited
        ids, cached = talk(e, talks[i], 20)
        returned += cached > 32
        assert ids == list(plain.generate(talks[i], max_tokens=20).ids)
        talks[i] = [*talks[i], *ids, rng.randrange(N)]
    assert returned > 20


TOLD = "The river runs down from the mountains, past the mill and the old bridge, and "


def test_a_real_conversation_comes_back_from_ram(smollm2: Path) -> None:
    asked = [{"role": "user", "content": TOLD * 3 + word} for word in ("tell me about the mill.", "count the bridges.")]
    with Engine.open(str(smollm2), draft="suffix", n_slots=1, n_ctx=1024, cache_ram=64) as e:
        fresh = [e.generate(messages=[m], max_tokens=24) for m in asked]
        talks = [[m, {"role": "assistant", "content": r.text}] for m, r in zip(asked, fresh, strict=True)]
        assert e.shelf.n_bytes == 0, "only those that ask for it are kept"
        e.reset()
        for turn in range(2):
            for talk in talks:
                messages = [*talk, {"role": "user", "content": f"And then, {turn}?"}]
                r = e.generate(messages=messages, max_tokens=24, reuse_cache=True)
                if turn:
                    assert r.usage.cached_tokens > 60, "its state did not come back"
                assert r.ids == e_fresh(e, messages)
                talk += [messages[-1], {"role": "assistant", "content": r.text}]
        assert 0 < e.shelf.n_bytes <= 64 * 2**20


def e_fresh(e: Engine, messages: list[dict[str, str]]) -> tuple[int, ...]:
    """The same in a slot of its own, its prompt read whole; what the slot held is put back."""
    saved, held = e.model.save(0), list(e._cached[0])  # type: ignore[attr-defined]
    e.model.truncate(0, 0)
    e._cached[0] = []
    ids = e.generate(messages=messages, max_tokens=24).ids
    e.model.load(0, saved)  # type: ignore[attr-defined]
    e._cached[0] = held
    return ids
