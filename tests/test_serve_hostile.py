"""T09 of shared/needs-and-cases.md over HTTP: a JSON schema on a real model, and a drafter that tries to break it."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from asking import Asker, Held, Json, at_once, finish, joined, report, text
from helpers import Base, assert_own
from live import live
from slipstream.advise.compare import compare
from slipstream.core.ports import Want
from slipstream.core.types import Draft, SamplingParams
from slipstream.engine import Engine

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "pair", "schema": SCHEMA, "strict": True}}
PROMPTS = (
    "Give me a number and a letter as JSON.",
    "How many legs has a spider? Answer in JSON with a and b.",
    "Write a Python function in a code block.",
    'Reply with the text "quoted" and nothing else.',
    "List three cities, one on each line.",
)
CAP = 300  # far more than an answer takes, so that one that never ends is seen as such


class Hostile(Base):
    """Code fences, stray quotes, raw newlines, an early end, digits without end: another one every round."""

    name = "hostile"
    TEXTS = (
        "```json\n{",
        '"""""',
        "\n\n\n\n",
        '{"a": "',
        "11111111",
        "}}}}",
        '{"a":1,"b":"z"}',
        ' {"a"\n:',
        "\\\"'```",
    )

    def __init__(self) -> None:
        super().__init__()
        self.drafts: list[tuple[int, ...]] = []
        self.round = self.offered = 0

    def learn(self, engine: Engine) -> Engine:
        ends = tuple(engine.tokenizer.ends)
        self.drafts = [*(tuple(engine.tokenizer.encode(t)) for t in self.TEXTS), ends * 3]
        return engine

    def propose(self, slot: int, tokens: Sequence[int], want: Want) -> Draft:
        self.round += 1
        draft = self.drafts[self.round % len(self.drafts)][: want.depth]
        self.offered += len(draft)
        return Draft.chain(draft, self.name)


@pytest.fixture(scope="module")
def hostile() -> Hostile:
    return Hostile()


@pytest.fixture(scope="module")
def held(hostile: Hostile, smollm2: Path) -> Held:
    return Held(lambda: hostile.learn(Engine.open("smollm2-135m", hostile, k=6, n_slots=4, n_ctx=512)))


@pytest.fixture(scope="module")
def server(held: Held) -> Iterator[Asker]:
    with live(held) as url:
        yield Asker(url)


def asked(**fields: Any) -> Json:
    return {"response_format": FORMAT, "max_tokens": CAP, **fields}


def assert_valid(answer: str) -> None:
    value = json.loads(answer)
    assert set(value) == {"a", "b"} and type(value["a"]) is int and value["b"] in ("x", "y"), answer


def test_t09_a_hundred_requests_give_a_hundred_valid_answers(
    server: Asker, hostile: Hostile, caplog: pytest.LogCaptureFixture
) -> None:
    """Five prompts, five seeds, four temperatures, four at a time; every answer ends where the schema is complete."""
    ways = list(itertools.product(PROMPTS, range(5), (0.0, 0.5, 1.0, 1.5)))
    before = len(hostile.verdicts)
    with caplog.at_level(logging.DEBUG, "slipstream"):
        answers = at_once([partial(server.chat, p, **asked(seed=s, temperature=t)) for p, s, t in ways], 4)
    assert len(answers) == 100
    for answer in answers:
        assert_valid(text(answer))
        assert finish(answer) == "stop" and text(answer) == text(answer).rstrip()
        assert answer["choices"][0]["message"].get("refusal") is None
    assert [r for r in caplog.records if r.levelno >= logging.ERROR] == []
    own, forced = ([a["speculative"]["by_drafter"].get(n) for a in answers] for n in ("hostile", "grammar"))
    verified = sum(n["verified"] for n in own if n)
    assert hostile.offered > 4000 and 50 < verified < hostile.offered / 5, "what breaks the grammar goes no further"
    free = sum(n["accepted"] for n in forced if n)
    assert free > 100 and free > 0.9 * sum(n["verified"] for n in forced if n), "what it forces comes for nothing"
    for draft, _ in hostile.verdicts[before:]:
        assert hostile.drafts[0][0] not in draft.tokens  # a code fence can stand nowhere in this schema
    assert server.get("/health")["status"] == "ok"
    assert set(text(server.chat("Say hello.", max_tokens=4))) - set(" \n")  # and the next one is as free as before


def test_t09_greedy_ids_equal_plain_constrained_decoding(server: Asker, held: Held) -> None:
    with Engine.open("smollm2-135m", None, n_ctx=512) as judge:
        for prompt in PROMPTS:
            server.chat(prompt, **asked())
            drafted = held.started[-1]
            plain = server.chat(prompt, **asked(speculative=False))
            assert plain["speculative"]["drafted"] == 0
            plain_ids = held.started[-1].result().ids
            seen = drafted.sequence.tokens[: drafted.sequence.n_prompt]
            answer = compare(judge, seen, SamplingParams(), plain_ids, drafted.result().ids)
            assert_own(answer, prompt)


def test_t09_the_stream_says_the_same(server: Asker) -> None:
    for prompt in PROMPTS[:2]:
        for seed in range(3):
            fields = asked(temperature=0.8, seed=seed)
            chunks = list(server.stream_chat(prompt, **fields))
            assert_valid(joined(chunks))
            assert finish(chunks) == "stop" and report(chunks)["seed"] == seed
            assert joined(chunks) == text(server.chat(prompt, **fields))


def test_t09_json_object_is_kept_to_as_well(server: Asker) -> None:
    for prompt in PROMPTS[1:3]:
        answer = server.chat(prompt, response_format={"type": "json_object"}, max_tokens=40, stop=["\n\n"])
        assert text(answer).lstrip().startswith("{")
        if finish(answer) == "stop":
            json.loads(text(answer))


def test_t09_a_schema_that_cannot_be_compiled_is_a_400_and_costs_nothing(server: Asker) -> None:
    bad: list[Json] = [
        {"type": "json_schema", "json_schema": {"name": "p", "schema": {"type": "integr"}}},
        {"type": "json_schema", "json_schema": {"name": "p", "schema": {"$ref": "#/nowhere"}}},
        {"type": "json_schemas"},
    ]
    for response_format in bad:
        error = server.chat("Hello", 400, response_format=response_format)["error"]
        assert error["type"] == "invalid_request_error" and error["message"]
    assert server.get("/health")["active"] == 0
