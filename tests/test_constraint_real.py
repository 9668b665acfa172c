"""T09 on SmolLM2: every answer is valid, whatever is drafted, and greedy text is that of plain constrained decoding."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from helpers import Base, why_bits_differ
from slipstream.advise.compare import TIE_BOUND, first_difference
from slipstream.core.policy import Fixed
from slipstream.core.ports import Drafter, Want
from slipstream.core.types import Draft, SamplingParams
from slipstream.drafters.model import ModelDrafter
from slipstream.drafters.suffix import SuffixDrafter
from slipstream.engine import Engine
from slipstream.models.llamacpp.model import LlamaModel, LlamaOptions
from slipstream.models.llamacpp.tokenizer import LlamaTokenizer
from slipstream.text.grammar import Grammars

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 999}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
PROMPTS = [f"An object with a number and a letter, number {i}:\n" for i in ("one", "7", "no", "{", "ein Objekt")]


class Hostile(Base):
    """Invalid ids, end and control tokens, random ones, broken JSON, and right JSON that goes wrong."""

    name = "hostile"

    def __init__(self, tokenizer: LlamaTokenizer) -> None:
        super().__init__()
        texts = ('{"a": 1, "b": "z"}', '{"a": 1, "b": "x"}}', "{\n\n\n", ' {"a"', '"b": "y"}', "12345", '":', '"}')
        self.chains = [tokenizer.encode(t) for t in texts]
        self.n, self.ends, self.rng = tokenizer.n_vocab, sorted(tokenizer.ends), np.random.default_rng(5)

    def propose(self, slot: int, tokens: Sequence[int], want: Want) -> Draft:
        kind = int(self.rng.integers(4))
        chain = self.chains[int(self.rng.integers(len(self.chains)))]
        if kind == 0:
            chain = [self.ends[int(self.rng.integers(len(self.ends)))], *chain]
        elif kind == 1:
            chain = [int(t) for t in self.rng.integers(0, self.n + 50, want.depth)]
        elif kind == 2:
            chain = [*chain, self.n + 7, 0]
        return Draft.chain(chain[: want.depth])


class Rig:
    def __init__(self, path: Path) -> None:
        self.model, self.small = (LlamaModel(path, LlamaOptions(n_ctx=256, n_slots=n)) for n in (2, 1))
        self.tokenizer = LlamaTokenizer(self.model.handle)
        self.grammars = Grammars(self.tokenizer, self.model.caps.n_vocab)

    def engine(self, drafter: Drafter | None, k: int = 4, width: int = 1) -> Engine:
        return Engine(self.model, self.tokenizer, drafter, Fixed(k, width))

    def drafters(self) -> list[Drafter]:
        return [Hostile(self.tokenizer), SuffixDrafter(1), ModelDrafter(self.small)]


@pytest.fixture(scope="module")
def rig(smollm2: Path) -> Iterator[Rig]:
    made = Rig(smollm2)
    yield made
    made.model.close()
    made.small.close()


def test_a_hundred_answers_are_valid_under_a_hostile_drafter(rig: Rig) -> None:
    engine, c = rig.engine(Hostile(rig.tokenizer), 3), rig.grammars.json_schema(SCHEMA)
    offered = 0
    for i in range(100):
        sampling = SamplingParams(temperature=1.0, seed=i)
        r = engine.generate(PROMPTS[i % len(PROMPTS)], constraint=c, sampling=sampling, max_tokens=48)
        answer = json.loads(r.text)
        assert r.finish_reason == "stop" and set(answer) == {"a", "b"}
        assert 0 <= answer["a"] <= 999 and answer["b"] in ("x", "y")
        offered += r.stats.by_drafter.get("draft", {"verified": 0})["verified"]
    assert 0 < offered < 1500, "some of what it says is allowed; the rest is never verified"


@pytest.mark.parametrize("which", [0, 1, 2], ids=["hostile", "suffix", "model"])
def test_greedy_text_is_that_of_plain_constrained_decoding(rig: Rig, which: int) -> None:
    """Or differs first at a near-tie, with a batch's rounding."""
    c = rig.grammars.json_schema(SCHEMA)
    for prompt in PROMPTS:
        for width in (1, 2):
            plain = rig.engine(None).generate(prompt, constraint=c, max_tokens=48, logprobs=8)
            r = rig.engine(rig.drafters()[which], 4, width).generate(prompt, constraint=c, max_tokens=48)
            json.loads(r.text)
            at = first_difference(plain.ids, r.ids)
            if at is not None:
                assert why_bits_differ(), (prompt, width, at)
                near = dict(plain.tokens[at].top_logprobs)
                gap = (plain.tokens[at].logprob or 0.0) - near.get(r.ids[at], -99.0)
                assert gap < TIE_BOUND, (prompt, width, gap)


def test_long_names_of_properties_cost_no_forwards(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["temperature_of_the_water_in_the_kettle", "number_of_people_who_want_a_cup_of_tea"]
    schema = {
        "type": "object",
        "properties": {name: {"type": "boolean"} for name in names},
        "required": names,
        "additionalProperties": False,
    }
    forwards = [0]
    forward = LlamaModel.forward
    monkeypatch.setattr(LlamaModel, "forward", lambda *a: (forwards.__setitem__(0, forwards[0] + 1), forward(*a))[1])
    counts, results = [], []
    for drafter in (None, Hostile(rig.tokenizer)):
        forwards[0] = 0
        engine = rig.engine(drafter, 16)
        results.append(engine.generate("Tea:\n", constraint=rig.grammars.json_schema(schema), max_tokens=80))
        counts.append(forwards[0])
    plain, r = results
    assert set(json.loads(r.text)) == set(names) and r.text == plain.text
    given = sum(t.origin == "grammar" for t in r.tokens)
    assert given >= 12 and counts[0] == len(plain.ids)
    assert counts[1] <= counts[0] - given


def test_any_json_object_is_json(rig: Rig) -> None:
    for seed in range(4):
        sampling = SamplingParams(temperature=0.7, seed=seed)
        engine = rig.engine(SuffixDrafter(1))
        c = rig.grammars.json_object()
        r = engine.generate("A small JSON object:\n", constraint=c, sampling=sampling, max_tokens=100)
        assert r.text.startswith("{") and (r.finish_reason == "length" or isinstance(json.loads(r.text), dict))


def test_a_request_without_a_grammar_hears_nothing_of_another_s(smollm2: Path) -> None:
    with Engine.open(str(smollm2), draft="suffix", n_ctx=512) as engine:
        grammar = engine.grammars.json_schema({"enum": ["the quick brown fox jumps over the lazy dog"]})
        constrained = engine.generate("Say it: ", max_tokens=24, constraint=grammar)
        assert "grammar" in constrained.drafters
        assert "grammar" not in engine.generate("Say it: ", max_tokens=8).drafters
