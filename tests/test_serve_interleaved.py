"""T10 of shared/needs-and-cases.md over HTTP: requests beside each other are as if alone, and nobody starves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asking import LIMIT, Asker, Held, Json, at_once, joined, text
from helpers import LETTERS, assert_own, cached, make_drafter, markov_table, toy_engine
from live import live
from slipstream.advise.compare import compare
from slipstream.core.types import Array, SamplingParams
from slipstream.engine import Engine
from slipstream.generation import Generation, Request, Result
from slipstream.models.toy import markov

N = 8
CANARY = 7  # "h"


def spell(ids: Sequence[int]) -> str:
    return b"".join(LETTERS[i] for i in ids).decode()


def secretive(past: Sequence[int]) -> Array:
    """Says the canary now and then where it was heard before, and never where it was not."""
    row = np.array(BASE(past))
    row[CANARY] = 2.0 if CANARY in past else -60.0
    return row


BASE = markov(N, order=2, seed=12)
SECRETIVE = cached(secretive)


@dataclass
class Three:
    """The requests of T10, as HTTP fields; `earlier` is what C's prompt was but for its last token."""

    a: Json
    b: Json
    c: Json
    earlier: Json

    def each(self) -> list[Json]:
        return [self.a, self.b, self.c]


def as_request(fields: Json) -> Request:
    """What the engine is asked for by these fields."""
    names = ("prompt", "max_tokens", "speculative")
    sampling = SamplingParams(temperature=fields.get("temperature", 0), seed=fields.get("seed", 0))
    return Request(**{k: v for k, v in fields.items() if k in names}, sampling=sampling)


def interleaved(server: Asker, held: Held, three: Three) -> tuple[list[Json], list[Generation]]:
    """A and B run; C joins at step 10. Their answers, and what ran, in the order A, B, C."""
    server.complete(**three.earlier)
    n = len(held.started)
    first, tenth = held.halt(0), held.halt(10)
    with ThreadPoolExecutor(3) as pool:
        futures: list[Future[Json]] = [pool.submit(partial(server.complete, **three.a))]
        first.wait()  # A has got its slot
        futures.append(pool.submit(partial(server.complete, **three.b)))
        server.until(lambda h: h["waiting"] == 1)
        first.go()
        tenth.wait()
        futures.append(pool.submit(partial(server.complete, **three.c)))
        server.until(lambda h: h["waiting"] == 1)
        tenth.go()
        answers = [f.result(LIMIT) for f in futures]
    return answers, held.started[n:]


def assert_one_token_remainder(answer: Json, earlier: Json) -> None:
    usage = answer["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1
    assert answer["speculative"]["prefilled"] == 0
    assert usage["prompt_tokens"] == len(earlier["prompt"]) + 1


TOY = Three(
    a={"prompt": [1, 2, 3, 1, 2], "max_tokens": 120},
    b={"prompt": [4, 7, 4], "max_tokens": 60, "temperature": 0.8, "seed": 5, "speculative": False},
    c={"prompt": [5, 6, 0, 5, 6, 0, 2, 2, 3], "max_tokens": 40},
    earlier={"prompt": [5, 6, 0, 5, 6, 0, 2, 2], "max_tokens": 1},
)


@pytest.mark.parametrize("kind", ["suffix", "self", "random", "wrong"])
def test_t10_each_one_is_as_if_alone(kind: str) -> None:
    drafter = make_drafter(kind, SECRETIVE, N, n_slots=3)
    held = Held(lambda: toy_engine(SECRETIVE, N, drafter, 4, n_slots=3))
    with live(held) as url:
        answers, _ = interleaved(Asker(url), held, TOY)
    rates = []
    for fields, answer in zip(TOY.each(), answers, strict=True):
        alone = toy_engine(SECRETIVE, N, make_drafter(kind, SECRETIVE, N), 4)
        running = alone.submit(as_request(fields))
        while not running.done:
            alone.step()
        assert text(answer) == running.result().text
        assert answer["usage"]["completion_tokens"] == fields["max_tokens"]
        rates.append((answer["speculative"]["acceptance_rate"], running.stats.acceptance_rate))
    assert [spell([CANARY]) in text(a) for a in answers] == [False, True, False]
    assert_one_token_remainder(answers[2], TOY.earlier)
    assert answers[1]["speculative"]["drafted"] == 0
    if kind != "random":  # which draws its drafts for all slots from one source
        assert rates[0][0] == pytest.approx(rates[0][1], rel=0.1)
    together = [step for step in held.steps if len(step) == 3]
    assert len(together) > 5, "they did not run at once"
    assert held.started[-1] not in held.steps[10]


def ids(server: Asker, words: str) -> list[int]:
    return list(server.post("/tokenize", {"content": words})["tokens"])


CODE = "def add(a, b):\n    return a + b\n\n\ndef subtract(a, b):\n    return a - b\n\n\ndef multiply(a, b):\n"
SECRET = "The password is Xylophon42. Remember it: Xylophon42. Say it again and again: Xylophon42, Xylophon42,"
LATE = "The river rose in the night. The river rose in the night. The river"


def real() -> Engine:
    return Engine.open("smollm2-135m", "suffix", k=4, n_slots=3, n_ctx=512)


def test_t10_of_a_real_model(smollm2: Path) -> None:
    held = Held(real)
    with live(held) as url:
        server = Asker(url)
        code, secret, late = (ids(server, t) for t in (CODE, SECRET, LATE))
        three = Three(
            a={"prompt": code, "max_tokens": 64},
            b={"prompt": secret, "max_tokens": 48, "temperature": 0.8, "seed": 5, "speculative": False},
            c={"prompt": late, "max_tokens": 32},
            earlier={"prompt": late[:-1], "max_tokens": 1},
        )
        answers, ran = interleaved(server, held, three)
    assert_one_token_remainder(answers[2], three.earlier)
    assert ["Xylophon" in text(a) for a in answers] == [False, True, False]
    with Engine.open("smollm2-135m", "suffix", k=4, n_ctx=512) as alone:
        for fields, answer, generation in zip(three.each(), answers, ran, strict=True):
            request = as_request(fields)
            solo: Result = alone.generate(**{n: getattr(request, n) for n in request.__dataclass_fields__})
            got = generation.result()
            verdict = compare(alone, fields["prompt"], request.sampling, solo.ids, got.ids)
            assert_own(verdict, text(answer))
            assert text(answer) == got.text
            if verdict.identical:
                assert answer["usage"]["completion_tokens"] == solo.usage.completion_tokens
                rate = solo.stats.acceptance_rate
                assert answer["speculative"]["acceptance_rate"] == (rate and pytest.approx(rate, rel=0.1))
        assert answers[0]["speculative"]["accepted"] > 8


# -- the queue -------------------------------------------------------------------------------------------------------

TABLE = markov_table(N, order=2, seed=12)
MANY: list[Json] = [
    {"prompt": [1, 2, 3], "max_tokens": 30},
    {"prompt": [4], "max_tokens": 25, "temperature": 0.8, "seed": 5, "speculative": False},
    {"prompt": [5, 6, 0, 5, 6, 0, 5], "max_tokens": 40, "temperature": 1.0, "seed": 6, "top_k": 4},
    {"prompt": [2, 2, 1, 0, 3, 4, 1, 2, 5, 6, 6, 1, 2, 3, 4, 5, 6, 0, 1, 2], "temperature": 1.2, "seed": 4,
     "max_tokens": 40, "logit_bias": {"7": -9}, "stop": ["ab", "ce"]},
    {"prompt": [0, 3], "max_tokens": 35, "temperature": 0.7, "seed": 3, "repetition_penalty": 1.2},
    {"prompt": [6, 1, 3], "max_tokens": 35, "frequency_penalty": 0.3},
    {"prompt": [3] * 90, "max_tokens": 12, "temperature": 0.9, "seed": 1},
    {"prompt": [1, 2, 3, 1], "max_tokens": 30, "speculative": {"max_nodes": 1}},
]  # fmt: skip


def solo_text(fields: Json) -> str:
    """What the engine says by itself, without a server and without drafts."""
    p = SamplingParams(
        temperature=fields.get("temperature", 0),
        seed=fields.get("seed", 0),
        top_k=fields.get("top_k", 0),
        repetition_penalty=fields.get("repetition_penalty", 1.0),
        frequency_penalty=fields.get("frequency_penalty", 0.0),
        logit_bias={int(k): v for k, v in fields.get("logit_bias", {}).items()},
    )
    engine = toy_engine(TABLE, N, ends=(7,))
    stop = fields.get("stop", ())
    return engine.generate(fields["prompt"], max_tokens=fields["max_tokens"], stop=stop, sampling=p).text


@pytest.mark.parametrize("kind", ["suffix", "self", "random"])
def test_eight_at_once_on_four_slots_equal_their_solo_runs(kind: str) -> None:
    """Half of them as streams, twice over, so that the second time finds what the first left in the slots."""
    drafter = make_drafter(kind, TABLE, N, n_slots=4)
    held = Held(lambda: toy_engine(TABLE, N, drafter, 4, n_slots=4, ends=(7,)))
    expected = [solo_text(fields) for fields in MANY]
    with live(held) as url:
        server = Asker(url)

        def one(i: int) -> str:
            if i % 2:
                return joined(list(server.stream(**MANY[i])))
            return text(server.complete(**MANY[i]))

        for _ in range(2):
            first = held.halt(0)
            with ThreadPoolExecutor(8) as pool:
                futures = [pool.submit(one, i) for i in range(8)]
                first.wait()
                server.until(lambda h: h["waiting"] + h["active"] == 8)
                first.go()
                assert [f.result(LIMIT) for f in futures] == expected
        assert server.get("/health")["active"] == server.get("/health")["waiting"] == 0
    assert max(len(step) for step in held.steps) == 4


@pytest.fixture
def two() -> Iterator[tuple[Held, Asker]]:
    """Two slots, batches of 16 tokens, and a context that takes seconds to fill."""
    n_ctx = 20_000
    drafter = make_drafter("self", TABLE, N, n_ctx, 2)
    held = Held(lambda: toy_engine(TABLE, N, drafter, 3, n_slots=2, n_batch=16, n_ctx=n_ctx))
    with live(held) as url:
        yield held, Asker(url)


def begun(pool: ThreadPoolExecutor, call: Callable[..., Any], **fields: Any) -> Future[Any]:
    return pool.submit(partial(call, **fields))


def test_a_request_for_eight_choices_does_not_starve_a_later_one(two: tuple[Held, Asker]) -> None:
    held, server = two
    first = held.halt(0)
    with ThreadPoolExecutor(2) as pool:
        many = begun(pool, server.complete, prompt=[1, 2], n=8, max_tokens=30, temperature=1.0, seed=1)
        first.wait()
        server.until(lambda h: h["waiting"] >= 6)
        before = server.get("/health")["waiting"]
        single = begun(pool, server.complete, prompt=[4, 5], max_tokens=30)
        server.until(lambda h: h["waiting"] == before + 1)
        first.go()
        assert text(single.result(LIMIT)) == toy_engine(TABLE, N).generate([4, 5], max_tokens=30).text
        answer = many.result(LIMIT)
    own = [g.sequence.tokens[:2] == [4, 5] for g in held.finished]
    assert len(own) == 9 and own.index(True) <= 3, "it waited for more than the two that ran and one more"
    assert sorted(c["index"] for c in answer["choices"]) == list(range(8))
    assert len({text(answer, i) for i in range(8)}) > 4, "choices of one seed must differ"


def test_first_come_first_served(two: tuple[Held, Asker]) -> None:
    held, server = two
    first = held.halt(0)
    with ThreadPoolExecutor(8) as pool:
        futures = [begun(pool, server.complete, prompt=[0, 1], max_tokens=20)]
        first.wait()
        for i in range(1, 7):
            futures.append(begun(pool, server.complete, prompt=[i, 1], max_tokens=20))
            server.until(lambda h, i=i: h["waiting"] == i)  # type: ignore[misc]
        first.go()
        for f in futures:
            f.result(LIMIT)
    assert [g.sequence.tokens[0] for g in held.started] == list(range(7))


def test_a_long_prompt_does_not_stop_another_stream(two: tuple[Held, Asker]) -> None:
    """While 400 tokens are read in pieces, the other one gets its tokens in every single step."""
    held, server = two
    tenth = held.halt(10)
    with ThreadPoolExecutor(2) as pool:
        short = pool.submit(lambda: list(server.stream([1, 2, 3], max_tokens=250, speculative={"detail": True})))
        tenth.wait()
        long = begun(pool, server.complete, prompt=[3, 4] * 200, max_tokens=5)
        server.until(lambda h: h["waiting"] == 1)
        tenth.go()
        chunks, answer = short.result(LIMIT), long.result(LIMIT)
    a, b = held.started
    reading = [step for step in held.steps if b in step and step[b].prefilled]
    assert sum(step[b].prefilled for step in reading) == 400 == answer["usage"]["prompt_tokens"]
    assert len(reading) >= 25, "it was read in pieces of a batch"
    assert all(a in step and step[a].emitted >= 1 for step in reading)
    details = [c["speculative"]["step"] for c in chunks if c.get("speculative", {}).get("step")]
    assert sum(d["emitted"] for d in details) == 250 == len(joined(chunks))
    assert len(details) == sum(a in step for step in held.steps), "a chunk for each step: nothing was held together"


def test_a_stream_that_is_left_frees_its_slot_and_changes_nobody(two: tuple[Held, Asker]) -> None:
    held, server = two
    expected = toy_engine(TABLE, N).generate([1, 2, 3], max_tokens=300).text
    with ThreadPoolExecutor(2) as pool:
        whole = pool.submit(lambda: joined(list(server.stream([1, 2, 3], max_tokens=300))))
        for i in range(3):
            leaving = server.stream([i, 4], max_tokens=19_000)
            for _ in range(3 + i):
                next(leaving)
            leaving.close()  # type: ignore[attr-defined]
        assert whole.result(LIMIT) == expected
    server.until(lambda h: h["active"] == 0)
    left = [g for g in held.started if g.sequence.tokens[1] == 4]
    assert [g.sequence.finish for g in left] == ["cancelled"] * 3


def test_the_answers_of_at_once_come_in_order() -> None:
    assert at_once([lambda i=i: i for i in range(5)], 2) == list(range(5))  # type: ignore[misc]
