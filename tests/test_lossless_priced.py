"""T01 and T05 with the priced policy and mixed drafters: prices decide what is drafted, never what is said.

By chance: the 8 cells below make 4 tests of the distribution each at 0.001, 32 in all, so that a correct program would
fail on one choice of seeds in thirty at most (1 - 0.999 ** 32 = 3.2 %). Seeds and clocks are fixed, so the outcome
never changes from run to run. What must be found is found at 1e-6 or less.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from helpers import PROMPT, Hits, Random, Wrong, markov_table, outcome
from slipstream.core.cost import Prices
from slipstream.core.ports import Choice, Drafter, Room, Want
from slipstream.core.priced import Priced
from slipstream.core.types import EMPTY_DRAFT, Draft, SamplingParams
from slipstream.drafters.model import ModelDrafter
from slipstream.drafters.recycle import RecycleDrafter
from slipstream.drafters.suffix import SuffixDrafter
from slipstream.engine import Engine
from slipstream.generation import Request, Result
from slipstream.models.toy import Table, ToyTokenizer
from test_lossless import SETTINGS, STOPS, TABLES, params, plain
from test_lossless import N as LETTERS_N
from test_verify import ALPHA, fits, reference
from virtual import CURVES, Clock, TimedModel, curve

TREES = Want(63, 63, 2)
CHEAP = curve((1, 1), (64, 5))  # of a draft model
PRICES = CURVES | {"pad": curve((1, 30), (2, 50), (3, 55), (4, 40), (8, 44), (9, 70), (16, 72))}


def priced_engine(
    table: Table,
    n_vocab: int,
    makers: Sequence[Callable[[Clock], Drafter]],
    prices: str = "avx",
    verify: str = "exact",
    most: Want = TREES,
    policy: type[Priced] = Priced,
    *,
    ends: Sequence[int] = (),
    each: float = 1.0,
    **model: Any,
) -> Engine:
    """In virtual time. The default prices are a staircase with a step down, so that forwards are padded too."""
    clock = Clock()
    target = TimedModel(clock, PRICES[prices], table, n_vocab, **model)
    tokenizer = ToyTokenizer([bytes([97 + i]) for i in range(n_vocab)], ends)
    draft = curve((1, each), (64, 5 * each))
    drafters = [make(clock) for make in makers]
    for d in drafters:
        if isinstance(d, ModelDrafter):
            d.model.prices = draft  # type: ignore[attr-defined]
    engine = Engine(target, tokenizer, drafters, policy(Prices(PRICES[prices]), {"model": Prices(draft)}, most), verify)
    engine._loop.clock = clock
    return engine


# -- exact: the same ids, text, ends, usage and log-probabilities -----------------------------------------------------


def maker(kind: str, table: Table, n_vocab: int = LETTERS_N, **model: Any) -> Callable[[Clock], Drafter]:
    makers: dict[str, Callable[[Clock], Drafter]] = {
        "self": lambda clock: ModelDrafter(TimedModel(clock, CHEAP, table, n_vocab, **model)),
        "other": lambda clock: ModelDrafter(TimedModel(clock, CHEAP, TABLES["repetitive"], n_vocab), name="other"),
        "wrong": lambda clock: Wrong(table, n_vocab),
        "random": lambda clock: Random(n_vocab, seed=3),
        "suffix": lambda clock: SuffixDrafter(min_match=1),
        "recycle": lambda clock: RecycleDrafter(),
        "hits": lambda clock: Hits(table, n_vocab, [3, 0, None, 8, 1, 5, 2]),
    }
    return makers[kind]


ALONE = ("self", "suffix", "wrong", "random", "hits")
MIXED = ("self+suffix", "wrong+hits", "suffix+random", "recycle+suffix", "self+other", "suffix+wrong+self")
MIXED_3 = ("random+hits+suffix", "suffix+recycle+self", "wrong+random+other")


@pytest.mark.parametrize("recurrent", [False, True], ids=["attention", "recurrent"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("kinds", [*ALONE, *MIXED, *MIXED_3])
def test_exact_is_plain_whoever_drafts(kinds: str, temperature: float, recurrent: bool) -> None:
    verified: Counter[str] = Counter()
    for t, table in enumerate(TABLES):
        for s, (stop, (opened, asked)) in enumerate(STOPS.items()):
            if (t + s + recurrent) % 2:
                continue
            prices = ("avx", "flat", "small")[(t + s) % 3]
            makers = [maker(kind, TABLES[table]) for kind in kinds.split("+")]
            engine = priced_engine(TABLES[table], LETTERS_N, makers, prices, recurrent=recurrent, **opened)
            result = engine.generate(PROMPT, sampling=params(temperature), **asked)
            assert outcome(result) == outcome(plain(table, stop, temperature, recurrent=recurrent)), (table, stop)
            check_counts(result)
            verified.update({name: n["verified"] for name, n in result.stats.by_drafter.items()})
    assert sum(verified.values()) > 30, "hardly anything was drafted, so nothing was tested"


def check_counts(result: Result) -> None:
    s = result.stats
    assert s.emitted + s.first_tokens == len(result.ids)
    assert s.accepted == sum(t.origin != "target" for t in result.tokens)
    assert s.verified == sum(d["verified"] for d in s.by_drafter.values())


@pytest.mark.parametrize("kinds", ["self", "suffix+random", "suffix+wrong+self"])
@pytest.mark.parametrize("settings", SETTINGS)
def test_every_setting_acts_as_in_plain_decoding(settings: str, kinds: str) -> None:
    p = SamplingParams(seed=11, **SETTINGS[settings])  # type: ignore[arg-type]
    for table in ("markov", "repetitive"):
        expected = priced_engine(TABLES[table], LETTERS_N, []).generate(PROMPT, max_tokens=60, sampling=p)
        for prices in ("avx", "flat"):
            makers = [maker(kind, TABLES[table]) for kind in kinds.split("+")]
            result = priced_engine(TABLES[table], LETTERS_N, makers, prices).generate(PROMPT, max_tokens=60, sampling=p)
            assert outcome(result) == outcome(expected), (table, prices)
            assert result.stats.verified > 0


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_slots_that_share_a_forward_keep_their_own_texts(temperature: float) -> None:
    table, prompts = TABLES["markov"], [PROMPT, [4, 5, 6, 4, 5], [9]]
    alone = [priced_engine(table, LETTERS_N, []) for _ in prompts]
    texts = [
        e.generate(p, max_tokens=60, sampling=params(temperature, i))
        for i, (e, p) in enumerate(zip(alone, prompts, strict=True))
    ]
    for kinds in ("suffix", "suffix+wrong+self", "random+hits"):
        makers = [maker(kind, table, n_slots=3) if kind == "self" else maker(kind, table) for kind in kinds.split("+")]
        engine = priced_engine(table, LETTERS_N, makers, "flat", n_slots=3)
        running = []
        for i, prompt in enumerate(prompts):
            running.append(engine.submit(Request(prompt, max_tokens=60, sampling=params(temperature, i))))
            engine.step()
        while any(not g.done for g in running):
            engine.step()
        assert [outcome(g.result()) for g in running] == [outcome(t) for t in texts]


@pytest.mark.parametrize(("verify", "width"), [("rejection", 2), ("block", 1)])
def test_at_temperature_0_every_verifier_is_plain(verify: str, width: int) -> None:
    for kinds in ("self", "suffix+random", "suffix+wrong+self"):
        for stop, (opened, asked) in STOPS.items():
            makers = [maker(kind, TABLES["markov"]) for kind in kinds.split("+")]
            engine = priced_engine(TABLES["markov"], LETTERS_N, makers, "flat", verify, Want(63, 63, width), **opened)
            assert outcome(engine.generate(PROMPT, **asked)) == outcome(plain("markov", stop, 0.0))


# -- sampling verifiers: the target's distribution --------------------------------------------------------------------

N, FEWER = 8, 600
TARGET = markov_table(N, order=1, seed=3, spread=1.0)
NOISE = markov_table(N, order=1, seed=8, spread=1.0)
OTHER: Table = lambda past: 0.8 * TARGET(past) + 0.6 * NOISE(past)  # noqa: E731
SETTING = {"temperature": 0.9, "top_p": 0.9}
START = [2, 0, 5, 2, 0]  # the last token has stood there before, so suffix has something to say at once
EXPECTED = np.stack([reference(TARGET([t]), 0.9, top_p=0.9) for t in range(N)])


def sampled(clock: Clock, table: Table = OTHER, name: str = "model", **model: Any) -> ModelDrafter:
    return ModelDrafter(TimedModel(clock, CHEAP, table, N, **model), "sampled", name=name)


def suffix(clock: Clock) -> Drafter:
    return SuffixDrafter(min_match=1)


def second(clock: Clock) -> Drafter:
    return sampled(clock, markov_table(N, order=1, seed=9, spread=1.5), "second")


MIXES: dict[str, tuple[Callable[[Clock], Drafter], ...]] = {
    "model": (sampled,),
    "suffix+model": (suffix, sampled),
    "suffix+recycle+models": (suffix, lambda clock: RecycleDrafter(), sampled, second),
}


def texts(engine: Engine, n: int, requests: int, prompt: Sequence[int]) -> tuple[list[tuple[int, ...]], Counter[str]]:
    out, verified = [], Counter[str]()
    for seed in range(requests):
        r = engine.generate(
            prompt,
            max_tokens=n,
            sampling=SamplingParams(seed=seed, **SETTING),  # type: ignore[arg-type]
            reuse_cache=True,
        )
        out.append(r.ids)
        verified.update({name: d["verified"] for name, d in r.stats.by_drafter.items()})
    return out, verified


def pairs(ids: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    counts = np.zeros((N, N), np.int64)
    for text in ids:
        np.add.at(counts, (np.array(text[:-1]), np.array(text[1:])), 1)
    return counts


def p_values(engine: Engine, requests: int = 800, long: int = 3) -> tuple[list[float], Counter[str]]:
    """Of the first, second and third token of short texts, and of all neighbours in long ones."""
    short, verified = texts(engine, 3, requests, START)
    ids = np.array(short)
    first = np.bincount(ids[:, 0], minlength=N)
    ps = [fits(first, EXPECTED[START[-1]]), fits(pairs(ids[:, :2]), EXPECTED), fits(pairs(ids[:, 1:]), EXPECTED)]
    more, others = texts(engine, 500, long, START)
    return [*ps, fits(pairs(more), EXPECTED)], verified + others


CELLS = [  # verifier, prices, width, milliseconds of a drafted token, who
    ("rejection", "flat", 2, 1.0, "model"),
    ("rejection", "flat", 2, 6.0, "suffix+model"),
    ("rejection", "pad", 2, 1.0, "suffix+recycle+models"),
    ("rejection", "pad", 1, 6.0, "suffix+model"),
    ("rejection", "small", 1, 0.8, "suffix+model"),
    ("block", "flat", 1, 6.0, "suffix+model"),
    ("block", "pad", 1, 1.0, "suffix+recycle+models"),
    ("block", "small", 1, 0.8, "suffix+model"),
]


@pytest.mark.parametrize(("verify", "prices", "width", "each", "mix"), CELLS)
def test_the_distribution_is_the_target_s(verify: str, prices: str, width: int, each: float, mix: str) -> None:
    engine = priced_engine(TARGET, N, MIXES[mix], prices, verify, Want(63, 63, width), each=each)
    ps, verified = p_values(engine)
    assert min(ps) > ALPHA, ps
    assert verified["model"] > 100 and (mix == "model" or verified["suffix"] > 0), verified


def test_first_tokens_are_drafted_too() -> None:
    """What the test of the first position rests on: nothing of the prompt is left to read."""
    engine = priced_engine(TARGET, N, MIXES["suffix+model"], "flat", "rejection")
    texts(engine, 3, 1, START)
    r = engine.generate(START, max_tokens=3, sampling=SamplingParams(seed=1, **SETTING), reuse_cache=True)  # type: ignore[arg-type]
    assert r.stats.prefilled == 0 and r.stats.verified > 0


# -- the tests above can fail: selections that depend on what was drawn -----------------------------------------------


class Cutting(Priced):
    """Throws away drawn nodes that their own distribution finds unlikely, and what is below them."""

    def choose(self, rooms: Sequence[Room], offers: Sequence[Sequence[Draft]]) -> list[Choice]:
        return super().choose(rooms, [[_without(o, lambda t, q: q[t] > 0.2) for o in own] for own in offers])


class Agreeing(Priced):
    """Believes a drawn tree only when another drafter begins with the same token."""

    def choose(self, rooms: Sequence[Room], offers: Sequence[Sequence[Draft]]) -> list[Choice]:
        kept = []
        for own in offers:
            said = {o.tokens[0] for o in own if o.tokens and o.q[0] is None}
            kept.append([o for o in own if not o.tokens or o.q[0] is None or o.tokens[0] in said])
        return super().choose(rooms, kept)


class Sorting(Priced):
    """Tries the likelier of two drawn siblings first."""

    def choose(self, rooms: Sequence[Room], offers: Sequence[Sequence[Draft]]) -> list[Choice]:
        return [replace(c, draft=_swapped(c.draft)) for c in super().choose(rooms, offers)]


class Telling(ModelDrafter):
    """Says of a drawn token how likely it was, which draws the policy's attention to it."""

    def propose(self, slot: int, tokens: Sequence[int], want: Want) -> Draft:
        d = super().propose(slot, tokens, want)
        told = [float(q[t]) if q is not None else 1.0 for t, q in zip(d.tokens, d.q, strict=True)]
        return replace(d, prob=tuple(told), evidence=tuple(round(5 * p) for p in told))


def _without(draft: Draft, keep: Callable[[int, Any], bool]) -> Draft:
    kept: list[int] = []
    for i, (token, parent, q) in enumerate(zip(draft.tokens, draft.parents, draft.q, strict=True)):
        if (q is None or keep(token, q)) and (parent < 0 or parent in kept):
            kept.append(i)
    return draft.select(kept) if kept else EMPTY_DRAFT


def _swapped(draft: Draft) -> Draft:
    """The first two children of the root in the order of their tokens' logits, if both are leaves."""
    kids = draft.children()
    if len(kids[0]) < 2 or any(draft.q[i] is None or kids[i + 1] for i in kids[0][:2]):
        return draft
    a, b = kids[0][:2]
    if draft.q[a][draft.tokens[a]] >= draft.q[a][draft.tokens[b]]:  # type: ignore[index]
        return draft
    order = list(range(len(draft)))
    order[a], order[b] = b, a
    return replace(draft, tokens=tuple(draft.tokens[i] for i in order))


@pytest.mark.parametrize("biased", [Cutting, Agreeing, Sorting])
def test_a_biased_policy_is_found_out(biased: type[Priced]) -> None:
    most = Want(63, 63 if biased is not Sorting else 1, 2)
    engine = priced_engine(TARGET, N, MIXES["suffix+model"], "flat", "rejection", most, biased)
    ps, _ = p_values(engine, 1000) if biased is Sorting else p_values(engine, FEWER, 2)
    assert min(ps) < 1e-6, ps


def test_a_drafter_that_tells_what_it_drew_is_found_out() -> None:
    def telling(clock: Clock) -> Drafter:
        return Telling(TimedModel(clock, CHEAP, OTHER, N), "sampled")

    ps, _ = p_values(priced_engine(TARGET, N, (telling,), "avx", "rejection"), FEWER, 2)
    assert min(ps) < 1e-6, ps


@functools.cache
def labels(seed: int) -> tuple[Any, ...]:
    d = sampled(Clock())
    d.begin(0, START, SamplingParams(seed=seed, temperature=1.0))
    draft = d.propose(0, START, Want(12, 6, 2))
    return draft.parents, draft.prob, draft.evidence


def test_the_draft_model_tells_nothing_of_what_it_drew() -> None:
    assert all(labels(seed) == labels(0) for seed in range(40))
