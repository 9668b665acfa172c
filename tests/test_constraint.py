"""T09 on scripted targets: a constraint holds at every position, drafted or not, and costs nobody else anything."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import PROMPT, Always, Base, markov_table, outcome, toy_engine
from rules import Rules, line, random_rules
from slipstream.core.constrained import permitted
from slipstream.core.cost import Curve, Prices
from slipstream.core.policy import Fixed, Off
from slipstream.core.ports import Drafter, Want
from slipstream.core.priced import Priced
from slipstream.core.types import EMPTY_DRAFT, Draft, SamplingParams
from slipstream.drafters.model import ModelDrafter
from slipstream.drafters.suffix import SuffixDrafter
from slipstream.engine import Engine
from slipstream.generation import Request, Result
from slipstream.models.toy import Table, ToyModel, ToyTokenizer
from slipstream.text.grammar import Grammars

N, END = 12, 11
TABLE = markov_table(N, order=2, seed=7)
OTHER = markov_table(N, order=2, seed=7, spread=1.4)  # a draft model that is mostly right
FLAT = Prices(Curve((1, 64), (0.030, 0.033)))


class Misled(Base):
    """Trees of anything at all: end tokens, forbidden and unknown ones, sometimes what is right."""

    name = "misled"

    def __init__(self, n_vocab: int = N, seed: int = 1) -> None:
        super().__init__()
        self.n_vocab, self.rng = n_vocab, np.random.default_rng(seed)

    def propose(self, slot: int, tokens: Sequence[int], want: Want) -> Draft:
        n = int(self.rng.integers(0, want.nodes + 1))
        parents = [int(self.rng.integers(max(i - want.width, -1), i)) if want.width > 1 else i - 1 for i in range(n)]
        return Draft(tuple(int(t) for t in self.rng.integers(0, self.n_vocab + 3, n)), tuple(parents))


class Guesser(Base):
    """What the target says under the constraint, up to a wrong but allowed or forbidden token; `peek` knows it too."""

    name = "guesser"

    def __init__(self, ids: Sequence[int], hits: int = 99, wrong: int = 3) -> None:
        super().__init__()
        self.ids, self.hits, self.wrong = list(ids), hits, wrong

    def propose(self, slot: int, tokens: Sequence[int], want: Want) -> Draft:
        return self.peek(slot, tokens, (), want)

    def peek(self, slot: int, tokens: Sequence[int], path: Sequence[int], want: Want) -> Draft:
        at = len(tokens) - self.n_prompt[slot] + len(path)
        right = self.ids[at : at + want.depth]
        tokens = [t if i < self.hits else self.wrong for i, t in enumerate(right)]
        return Draft.chain(tokens, self.name, prob=[0.9] * len(tokens))


def drafter(kind: str, ids: Sequence[int]) -> Drafter | None:
    makers = {
        "none": lambda: None,
        "misled": Misled,
        "suffix": lambda: SuffixDrafter(min_match=1),
        "right": lambda: Guesser(ids),
        "wrong": lambda: Guesser(ids, 0),
        "half": lambda: Guesser(ids, 2),
        "self": lambda: ModelDrafter(ToyModel(TABLE, N)),
        "model": lambda: ModelDrafter(ToyModel(OTHER, N)),
        "short": lambda: ModelDrafter(ToyModel(lambda past: OTHER(past)[: N - 2], N - 2)),
        "sampled": lambda: ModelDrafter(ToyModel(OTHER, N), "sampled"),
    }
    return makers[kind]()


def policy(kind: str, width: int) -> Any:
    return {"fixed": Fixed(5, width, 8), "priced": Priced(FLAT, None, Want(16, 8, width)), "off": Off()}[kind]


def run(rules: Rules | None, kind: str, how: Any = None, ids: Sequence[int] = (), **kw: Any) -> tuple[Engine, Result]:
    opened = {k: kw.pop(k) for k in ("recurrent", "verify", "n_slots") if k in kw}
    engine = toy_engine(TABLE, N, drafter(kind, ids), policy=how or Fixed(5), ends=(END,), **opened)
    return engine, engine.generate(PROMPT, constraint=rules, **{"max_tokens": 60, **kw})


def check(rules: Rules, r: Result) -> None:
    c = rules.fork()
    for token in r.ids:
        assert c.allowed()[token]
        c.append(token)
    assert r.stats.first_tokens + r.stats.emitted == len(r.ids) == len(r.tokens)


# -- the text is that of plain constrained decoding ------------------------------------------------------------------


@given(st.data())
@settings(max_examples=150)
def test_any_drafter_gives_the_text_of_plain_constrained_decoding(data: st.DataObject) -> None:
    rules = random_rules(data.draw(st.integers(0, 400)), N, (END,) if data.draw(st.booleans()) else ())
    temperature = data.draw(st.sampled_from([0.0, 0.8, 1.5]))
    sampling = SamplingParams(
        temperature=temperature,
        seed=data.draw(st.integers(0, 9)),
        top_k=data.draw(st.sampled_from([0, 2])),
        top_p=data.draw(st.sampled_from([1.0, 0.7])),
        min_p=data.draw(st.sampled_from([0.0, 0.3])),
        repetition_penalty=data.draw(st.sampled_from([1.0, 1.3])),
        logit_bias=data.draw(st.sampled_from([{}, {2: 100.0, 5: -100.0}])),
    )
    asked = {
        "sampling": sampling,
        "max_tokens": data.draw(st.sampled_from([1, 2, 7, 40])),
        "stop": data.draw(st.sampled_from([[], ["c", "ab"]])),
        "logprobs": 2,
    }
    recurrent = data.draw(st.booleans())
    plain = run(rules, "none", recurrent=recurrent, **asked)[1]
    check(rules, plain)
    verify = data.draw(st.sampled_from(["exact", "rejection", "typical"])) if temperature == 0 else "exact"
    kinds = ["misled", "suffix", "right", "wrong", "half", "self", "model", "short"]
    kind, width = data.draw(st.sampled_from(kinds)), data.draw(st.sampled_from([1, 3]))
    how = policy(data.draw(st.sampled_from(["fixed", "priced"])), width)
    r = run(rules, kind, how, plain.ids, recurrent=recurrent, verify=verify, **asked)[1]
    assert outcome(r) == outcome(plain)


@pytest.mark.parametrize("verify", ["rejection", "block", "typical"])
@pytest.mark.parametrize("kind", ["misled", "half", "sampled", "suffix"])
def test_sampling_verifiers_keep_to_it_too(kind: str, verify: str) -> None:
    for seed in range(25):
        rules = random_rules(seed, N, (END,))
        sampling = SamplingParams(temperature=1.0, seed=seed)
        for width in (1, 3) if verify != "block" else (1,):
            _, r = run(rules, kind, Fixed(4, width, 8), [1, 2, 3] * 9, verify=verify, sampling=sampling)
            check(rules, r)
        assert outcome(run(rules, kind, Fixed(4), verify=verify)[1]) == outcome(run(rules, "none")[1])


@pytest.mark.parametrize("how", ["fixed", "priced"])
@pytest.mark.parametrize("width", [1, 3])
def test_a_forbidden_token_is_never_counted_against_a_drafter(how: str, width: int) -> None:
    """`Misled` guesses at random: what it is told of, and what is counted, is allowed."""
    seen = 0
    for seed in range(30):
        rules = random_rules(seed, N, (END,), states=12)
        engine, r = run(rules, "misled", policy(how, width))
        spoken, said = engine.drafters[0], list(r.ids)
        assert isinstance(spoken, Misled)
        c, at = rules.fork(), 0
        for draft, verdict in spoken.verdicts:
            paths: dict[int, list[int]] = {-1: []}
            for i, (token, parent, origin) in enumerate(zip(draft.tokens, draft.parents, draft.origin, strict=True)):
                assert origin == "pad" or c.valid([*paths[parent], token]) == len(paths[parent]) + 1
                paths[i] = [*paths[parent], token]
                seen += 1
            for token in said[at : at + len(verdict.path) + 1]:
                c.append(token)
                at += 1
        assert r.stats.verified - r.stats.by_drafter.get("pad", {"verified": 0})["verified"] <= r.stats.proposed
    assert seen > 20


def test_drafts_are_cut_node_by_node() -> None:
    rules = Rules([{1: 1, 2: 2}, {3: 3}, {4: 3}, {}], frozenset([3]), N, frozenset([END]))
    tree = Draft((1, 5, 2, 3, 4, 4, 3), (-1, -1, -1, 0, 0, 2, 2), prob=(0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3))
    kept = permitted(tree, rules, frozenset([END]))
    assert set(zip(kept.tokens, kept.prob, strict=True)) == {(1, 0.9), (3, 0.6), (2, 0.7), (4, 0.4)}
    chain = Draft.chain([1, 3, END, 4])
    assert permitted(chain, rules, frozenset([END])).tokens == (1, 3), "the end must come: nobody has to guess it"
    assert permitted(Draft.chain([3, END]), rules, frozenset([END]), [1]).tokens == (3,)
    assert permitted(Draft.chain([N + 5]), rules, frozenset()) == EMPTY_DRAFT
    whole = Draft((1, 2), (-1, -1))
    assert permitted(whole, rules, frozenset([END])) is whole


# -- how it ends -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("kind", ["none", "right", "self", "misled"])
def test_the_end_of_the_grammar_ends_the_request_without_another_forward(kind: str, recurrent: bool) -> None:
    ids = [3, 1, 4, 1, 5, 9, 2]
    for ends in ((END,), ()):
        engine, r = run(line(*ids, n_vocab=N, ends=ends), kind, Fixed(3), ids, recurrent=recurrent)
        assert (list(r.ids), r.finish_reason) == (ids, "stop")
        forwards = len(engine.model.forwards)  # type: ignore[attr-defined]
        assert forwards == 7 if kind == "none" else forwards == 3  # one of the prompt, then three forced and one more
        past = engine.model.past(0)  # type: ignore[attr-defined]
        assert past == [*PROMPT, *ids][: len(past)]
        again = engine.generate([*PROMPT, *ids], max_tokens=3, reuse_cache=True)
        assert again.ids == toy_engine(TABLE, N, ends=(END,)).generate([*PROMPT, *ids], max_tokens=3).ids


def test_a_run_that_completes_the_grammar_is_cut_there() -> None:
    """Drafts are accepted up to the last token of the grammar, and what a drafter guesses behind it is not heard."""
    rules = line(3, 1, 4, n_vocab=N)
    engine, r = run(rules, "right", Fixed(8), [3, 1, 4, 3, 1, 4, 3, 1, 4])
    assert list(r.ids) == [3, 1, 4] and r.stats.accepted == 2 and r.stats.verified == 2
    assert engine.drafters[0].verdicts[-1][1].path == (0, 1)  # type: ignore[attr-defined]


@pytest.mark.parametrize("cap", [0, 1, 3, 4, 5])
def test_a_cap_and_a_grammar(cap: int) -> None:
    ids = [3, 1, 4, 1]
    for kind in ("none", "right"):
        _, r = run(line(*ids, n_vocab=N), kind, Fixed(8), ids, max_tokens=cap)
        assert (list(r.ids), r.finish_reason) == (ids[:cap], "stop" if cap >= 4 else "length")


@pytest.mark.parametrize("kind", ["none", "right", "self"])
def test_a_stop_string_takes_tokens_back_in_the_grammar_too(kind: str) -> None:
    ids = [3, 1, 4, 1, 5, 9]
    engine = toy_engine(TABLE, N, drafter(kind, ids), 8, ends=(END,))
    g = engine.submit(Request(PROMPT, constraint=line(*ids, n_vocab=N), stop=["be"], max_tokens=50))
    while not g.done:
        engine.step()
    r = g.result()
    assert (list(r.ids), r.text, r.finish_reason) == ([3, 1, 4], "d", "stop")
    assert g.sequence.constraint.said == [3, 1, 4]  # type: ignore[union-attr]


def test_a_grammar_that_is_complete_at_once_says_nothing() -> None:
    engine, r = run(line(n_vocab=N), "suffix")
    assert (r.ids, r.finish_reason) == ((), "stop") and engine.model.forwards == []  # type: ignore[attr-defined]


def test_ignore_end_does_not_go_on_behind_the_grammar() -> None:
    rules = Rules([{3: 1}, {4: 1, 5: 2}, {}], frozenset([1, 2]), N, frozenset([END]))
    for kind in ("none", "misled", "self"):
        _, r = run(rules, kind, ignore_end=True, sampling=SamplingParams(temperature=1.0, seed=4))
        assert outcome(r) == outcome(
            run(rules, "none", ignore_end=True, sampling=SamplingParams(temperature=1.0, seed=4))[1]
        )
        assert r.ids[-1] == 5 or r.finish_reason == "length"


# -- nobody else -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["none", "misled", "suffix"])
@pytest.mark.parametrize("how", ["fixed", "priced"])
def test_sequences_beside_it_are_unchanged_and_a_failure_stays_its_own(kind: str, how: str) -> None:
    constraints = [None, random_rules(3, N, (END,)), random_rules(5, N, (END,), failing=True), line(1, 2, 3, n_vocab=N)]
    failed = 0
    for seed in range(6):
        constraints[2] = random_rules(seed, N, (END,), failing=True)
        sampling = SamplingParams(temperature=0.9, seed=seed)
        requests = [
            Request(PROMPT[i:], constraint=c, sampling=sampling, max_tokens=30) for i, c in enumerate(constraints)
        ]
        solo = [run_one(request) for request in requests]
        engine = toy_engine(TABLE, N, drafter(kind, ()), policy=policy(how, 1), ends=(END,), n_slots=4)
        running = [engine.submit(request) for request in requests]
        while any(not g.done for g in running):
            engine.step()
        assert [outcome(g.result()) for g in running] == solo
        failed += bool(running[2].sequence.constraint.failure)  # type: ignore[union-attr]
    assert failed > 1


def run_one(request: Request) -> tuple[object, ...]:
    engine = toy_engine(TABLE, N, ends=(END,))
    g = engine.submit(request)
    while not g.done:
        engine.step()
    return outcome(g.result())


def test_the_request_s_own_constraint_may_be_used_again() -> None:
    rules = random_rules(2, N, (END,))
    assert run(rules, "suffix")[1].ids == run(rules, "suffix")[1].ids and rules.said == []


# -- what is forced --------------------------------------------------------------------------------------------------

RUN = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
HALVES = Rules(  # ten forced tokens, a choice of two, ten more, over and over
    [*({t: i + 1} for i, t in enumerate(RUN)), {7: 0, 8: 0}], frozenset(), N
)


@pytest.mark.parametrize("how", [Fixed(16), Fixed(16, 2, 32), Priced(FLAT), Priced(FLAT, None, Want(32, 32, 3))])
def test_forced_tokens_save_forwards(how: Any) -> None:
    plain, r = run(HALVES, "none", max_tokens=56)[0], run(HALVES, "misled", how, max_tokens=56)
    assert len(plain.model.forwards) == 56  # type: ignore[attr-defined]
    assert len(r[0].model.forwards) <= 1 + 6  # type: ignore[attr-defined]
    origins = [t.origin for t in r[1].tokens]
    assert origins.count("grammar") >= 45 and r[1].stats.by_drafter["grammar"]["accepted"] >= 45


def test_guesses_behind_a_forced_run_extend_it() -> None:
    ids = list(run(HALVES, "none", max_tokens=56)[1].ids)
    for how in (Fixed(30), Fixed(30, 2, 60), Priced(FLAT)):
        engine, r = run(HALVES, "right", how, ids, max_tokens=56)
        assert list(r.ids) == ids
        assert len(engine.model.forwards) <= 1 + 4  # type: ignore[attr-defined]
        assert {"grammar", "guesser"} <= {t.origin for t in r.tokens}
    only_suffix = run(HALVES, "suffix", Fixed(30), max_tokens=56)
    assert list(only_suffix[1].ids) == ids and len(only_suffix[0].model.forwards) <= 1 + 6  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["self", "model"])
def test_a_draft_model_checks_what_is_forced_and_drafts_behind_it(kind: str) -> None:
    ids = run(HALVES, "none", max_tokens=56)[1].ids
    made = drafter(kind, ())
    assert isinstance(made, ModelDrafter)
    how = Priced(FLAT, {"model": Prices(Curve((1, 64), (0.002, 0.003)))})
    engine = toy_engine(TABLE, N, made, policy=how, ends=(END,))
    r = engine.generate(PROMPT, constraint=HALVES, max_tokens=56)
    assert r.ids == ids and len(engine.model.forwards) < 12  # type: ignore[attr-defined]
    model = engine.drafters[0].model  # type: ignore[attr-defined]
    assert len(model.forwards) < 30


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_model_draws_under_the_same_constraint(temperature: float) -> None:
    """One equal to the target says what the target says: four tokens accepted in every step."""
    rules = Rules([{0: 1, 3: 2, 5: 1, 9: 0}, {1: 2, 4: 0, 6: 1}, {2: 0, 8: 1, 10: 2}], frozenset(), N, frozenset([END]))
    engine, r = run(rules, "self", Fixed(4), max_tokens=51, sampling=SamplingParams(temperature=temperature, seed=2))
    assert r.stats.acceptance_rate == 1.0
    assert len(engine.model.forwards) == 11  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("kind", "how", "asked"),
    [
        ("suffix", Off(), {}),
        ("suffix", Fixed(0), {}),
        ("suffix", Fixed(5), {"speculative": False}),
        ("suffix", Fixed(5), {"drafters": []}),
        ("none", Fixed(5), {}),
    ],
)
def test_where_nothing_is_drafted_nothing_forced_is_either(kind: str, how: Any, asked: dict[str, Any]) -> None:
    engine, r = run(HALVES, kind, how, max_tokens=20, **asked)
    assert len(engine.model.forwards) == 20 and r.stats.proposed == 0  # type: ignore[attr-defined]
    assert {t.origin for t in r.tokens} == {"target"}


def test_max_nodes_bounds_what_is_drafted() -> None:
    for how in (Fixed(16), Fixed(8, 3, 24), Priced(FLAT)):
        for most in (1, 2, 5):
            engine, r = run(HALVES, "misled", how, max_tokens=40, max_nodes=most)
            assert r.stats.accepted > 0 and max(engine.model.forwards[1:]) <= 1 + most  # type: ignore[attr-defined]


def test_a_drafter_that_is_left_out_hears_nothing() -> None:
    chosen, other = Always(1, 2), Misled()
    engine = toy_engine(TABLE, N, [chosen, other], 4, ends=(END,), n_slots=2)  # type: ignore[arg-type]
    a = engine.submit(Request(PROMPT, max_tokens=12, drafters=["always"]))
    b = engine.submit(Request(PROMPT, max_tokens=12))
    while not (a.done and b.done):
        engine.step()
    slot = a.sequence.slot
    assert {what for what, where in chosen.calls if where == slot} == {"begin", "observe", "end"}
    assert all(where != slot for _, where in other.calls) and ("begin", b.sequence.slot) in other.calls
    assert a.result().ids == b.result().ids


# -- real grammars on a toy target -----------------------------------------------------------------------------------

WORDS = [
    b"{",
    b"}",
    b'"',
    b":",
    b",",
    b" ",
    b"n",
    b"name",
    b"colour",
    b"1",
    b"23",
    b"-",
    b"red",
    b"green",
    b'{"',
    b'":',
]
PIECES = [*WORDS, b'",', b'"}', b"\n", b"[", b"]", b"ame", b"lour", b"co", b"</s>"]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "integer"}, "colour": {"enum": ["red", "green"]}},
    "required": ["name", "colour"],
    "additionalProperties": False,
}
NOISY: Table = markov_table(len(PIECES), order=2, seed=3)
_grammars = Grammars(ToyTokenizer(PIECES, (len(PIECES) - 1,)), len(PIECES))


@given(st.integers(0, 99), st.sampled_from(["misled", "suffix", "self"]), st.sampled_from([1, 3]), st.booleans())
def test_a_compiled_schema_is_kept_and_the_text_is_that_of_plain_decoding(
    seed: int, kind: str, width: int, priced: bool
) -> None:
    constraint, n = _grammars.json_schema(SCHEMA), len(PIECES)
    sampling = SamplingParams(temperature=1.0, seed=seed)
    makers: dict[str, Drafter] = {
        "misled": Misled(n, seed),
        "suffix": SuffixDrafter(1),
        "self": ModelDrafter(ToyModel(NOISY, n)),
    }
    how = policy("priced" if priced else "fixed", width)
    results = []
    for made, chosen in ((None, Fixed(5)), (makers[kind], how)):
        engine = toy_engine(NOISY, n, made, policy=chosen, ends=(n - 1,), pieces=PIECES)
        results.append(engine.generate([5, 2], constraint=constraint, sampling=sampling, max_tokens=60))
    plain, r = results
    assert outcome(plain) == outcome(r)
    if plain.finish_reason == "stop":
        assert set(json.loads(plain.text)) == {"name", "colour"}
