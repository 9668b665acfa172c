"""The cases of shared/needs-and-cases.md about text, on scripted targets: T02, T03, T04, T06, T07 and T08.

T01 is in test_lossless.py, T05 in test_verify.py, T10 in test_engine.py, T12 to T15 in test_accounts.py; T11 is a
benchmark.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from helpers import PROMPT, Always, Hits, cached, markov_table, outcome, toy_engine
from slipstream.core.policy import Fixed
from slipstream.core.types import Draft, SamplingParams
from slipstream.drafters.model import ModelDrafter
from slipstream.engine import Engine
from slipstream.errors import InputError
from slipstream.generation import Result
from slipstream.models.toy import Table, ToyModel, ToyTokenizer, scripted
from slipstream.text.detok import TextStream
from slipstream.text.pairing import pair
from slipstream.text.vocab import Vocab

N = 8


def script(*tokens: int, n_vocab: int = N, sharpness: float = 10.0) -> Table:
    return cached(scripted(tokens, n_vocab, n_prompt=len(PROMPT), sharpness=sharpness))


# -- T02: an end token inside a block --------------------------------------------------------------------------------

EOS, EOT = 7, 6


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("at", range(1, 7))
def test_t02_nothing_behind_an_end_token_survives(at: int, recurrent: bool) -> None:
    tokens = [*range(1, at), EOS, 3, 4, 5, 1, 2]
    table = script(0, *tokens)  # token 0 comes with the prompt; the draft then holds the end token at position `at`
    for ends in ((EOS,), (EOT, EOS)):
        engine = toy_engine(table, N, Hits(table, N, [99]), 5, ends=ends, recurrent=recurrent)
        r = engine.generate(PROMPT, max_tokens=50, logprobs=1)
        plain = toy_engine(table, N, ends=ends, recurrent=recurrent).generate(PROMPT, max_tokens=50, logprobs=1)
        assert outcome(r) == outcome(plain)
        assert list(r.ids) == [0, *tokens[: at - 1]] and r.finish_reason == "stop"
        assert r.text == "a" + "bcdef"[: at - 1] and r.usage.completion_tokens == at == len(r.tokens)
        assert r.stats.first_tokens + r.stats.emitted == at and r.stats.accepted <= at - 1
        past = engine.model.past(0)  # type: ignore[attr-defined]
        assert past == [*PROMPT, *r.ids][: len(past)] and EOS not in past
        assert len(past) >= len(PROMPT) + at - 1, "the state before the end token was thrown away"


def test_t02_the_other_of_two_ends_stops_too_and_ignore_end_goes_on() -> None:
    table = script(1, 2, EOT, 3, EOS)
    r = toy_engine(table, N, "right", 5, ends=(EOS, EOT)).generate(PROMPT)
    assert (list(r.ids), r.finish_reason) == ([1, 2], "stop")
    r = toy_engine(table, N, "right", 5, ends=(EOS, EOT)).generate(PROMPT, max_tokens=9, ignore_end=True)
    assert (list(r.ids), r.finish_reason) == ([1, 2, EOT, 3, EOS, 1, 2, EOT, 3], "length")


def test_t02_without_an_end_token_it_runs_to_the_cap() -> None:
    r = toy_engine(script(1, 2, EOS, 3), N, "right", 5).generate(PROMPT, max_tokens=50)
    assert (len(r.ids), r.finish_reason) == (50, "length")


def test_t02_a_drafted_end_token_that_the_target_does_not_say_ends_nothing() -> None:
    r = toy_engine(script(1, 2, 3), N, Always(EOS), 5, ends=(EOS,)).generate(PROMPT, max_tokens=20)
    assert list(r.ids) == ([1, 2, 3] * 7)[:20] and r.finish_reason == "length"


# -- T03: a stop string inside a run ---------------------------------------------------------------------------------

WORDS = [b"x", b"ha ", b"ha", b" y", b"h", b"a ", b"z", b""]


def stop_script(before: int, *stop: int) -> list[int]:
    return [6] * before + [*stop] + [3, 0, 6, 6, 6, 6, 6, 6, 6, 6]


@pytest.mark.parametrize("k", [1, 3, 4, 16])
@pytest.mark.parametrize(
    "tokens",
    [
        stop_script(1, 1, 2),  # complete at token 3
        stop_script(13, 1, 2),  # at token 15
        stop_script(2, 4, 5, 4, 5),  # over four tokens, cut at every place by the k
        stop_script(15, 1, 2),  # across the border of two blocks of 16
        stop_script(16, 1, 2),
        [4, 4, 5, 4, 4, 5, 4, 5, 4, 5, 6, 6],  # false starts
    ],
)
def test_t03_the_stream_never_shows_a_stop_string(tokens: list[int], k: int) -> None:
    table = script(*tokens)
    plain = toy_engine(table, N, pieces=WORDS).generate(PROMPT, max_tokens=40, stop=["ha ha"], logprobs=0)
    engine = toy_engine(table, N, "right", k, pieces=WORDS)
    seen = ""
    for chunk in engine.stream(PROMPT, max_tokens=40, stop=["ha ha"], logprobs=0):
        seen += chunk.text
        assert "ha ha" not in seen and plain.text.startswith(seen)
    r = toy_engine(table, N, "right", k, pieces=WORDS).generate(PROMPT, max_tokens=40, stop=["ha ha"], logprobs=0)
    assert outcome(r) == outcome(plain) and seen == plain.text == r.text
    whole = b"".join(WORDS[t] for t in tokens).decode()
    assert plain.text == whole[: whole.index("ha ha")] and plain.finish_reason == "stop"
    assert b"".join(WORDS[t] for t in plain.ids).decode().rstrip(" ").endswith("ha ha")
    assert r.stats.first_tokens + r.stats.emitted == len(r.ids)


def test_t03_text_held_for_a_stop_that_never_comes_is_given_at_the_end() -> None:
    table = script(0, 6, 1, 4)
    for k in (0, 2, 8):
        engine = toy_engine(table, N, "right", k, pieces=WORDS)
        chunks = list(engine.stream(PROMPT, max_tokens=4, stop=["ha ha"]))
        assert "".join(c.text for c in chunks) == "xzha h"


def test_t03_after_a_stop_the_cut_tokens_are_gone_from_the_slot() -> None:
    for recurrent in (False, True):
        tokens = stop_script(2, 1, 2)
        engine = toy_engine(script(*tokens), N, "right", 16, pieces=WORDS, recurrent=recurrent)
        r = engine.generate(PROMPT, stop=["ha ha"])
        past = engine.model.past(0)  # type: ignore[attr-defined]
        assert list(r.ids) == tokens[:4] and past == [*PROMPT, *r.ids][: len(past)]
        again = engine.generate([*PROMPT, *r.ids], max_tokens=3, reuse_cache=True)
        assert list(again.ids) == tokens[4:7]


# -- T04: the exact cap ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cap", [0, 1, 2, 3, 5, 8, 9, 10])
def test_t04_exactly_so_many_tokens(cap: int) -> None:
    table = script(1, 2, 3, 4)
    for width in (1, 3):
        engine = toy_engine(table, N, "right", 8, width)
        r = engine.generate(PROMPT, max_tokens=cap)
        assert len(r.ids) == r.usage.completion_tokens == len(r.text) == cap and r.finish_reason == "length"
        if cap <= 2:  # the last token is always the target's own: with one left, a draft could not be delivered
            assert r.stats.proposed == 0
        else:
            assert r.stats.accepted > 0 and r.stats.verified == r.stats.accepted


def test_t04_the_cap_holds_for_prompts_of_one_token() -> None:
    for cap in (1, 2, 5):
        r = toy_engine(markov_table(N), N, "right", 8).generate([3], max_tokens=cap)
        assert len(r.ids) == cap and (r.stats.verified > 0) == (cap > 1)


# -- T06: logit settings act at every position -----------------------------------------------------------------------

X, Y = 2, 5


def settings_run(settings: SamplingParams, drafted: int, k: int, verify: str = "exact") -> Result:
    table = markov_table(N, order=2, seed=2, spread=1.5)
    return toy_engine(table, N, Always(drafted), k, verify=verify).generate(PROMPT, max_tokens=200, sampling=settings)


@pytest.mark.parametrize("verify", ["exact", "rejection", "block", "typical"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_t06_a_banned_token_never_appears_and_a_forced_one_always(temperature: float, verify: str) -> None:
    settings = SamplingParams(temperature=temperature, seed=1)
    assert X in settings_run(settings, X, 4, verify).ids
    banned = SamplingParams(temperature=temperature, seed=1, logit_bias={X: -100})
    assert X not in settings_run(banned, X, 4, verify).ids
    forced = SamplingParams(temperature=temperature, seed=1, logit_bias={Y: 100})
    assert set(settings_run(forced, X, 4, verify).ids) == {Y}
    r = settings_run(forced, Y, 4, verify)
    assert set(r.ids) == {Y} and r.stats.acceptance_rate == 1.0


@pytest.mark.parametrize("verify", ["exact", "rejection", "block"])
def test_t06_min_p_and_top_k_allow_what_they_allow_in_plain_decoding(verify: str) -> None:
    table = markov_table(N, order=2, seed=2, spread=1.5)
    narrow = SamplingParams(temperature=1.0, seed=4, min_p=0.9)
    for drafted in range(N):
        past = list(PROMPT)
        for token in settings_run(narrow, drafted, 4, verify).ids:
            row = table(past).astype(float)
            assert np.exp(row[token] - row.max()) >= 0.9
            past.append(token)
    greedy = settings_run(SamplingParams(), X, 0).ids
    assert settings_run(SamplingParams(temperature=1.0, seed=4, top_k=1), X, 4, verify).ids == greedy


def test_t06_a_bias_on_an_id_that_does_not_exist_changes_nothing() -> None:
    plain = settings_run(SamplingParams(), X, 4).ids
    assert settings_run(SamplingParams(logit_bias={N: 100.0, 10**6: 100.0}), X, 4).ids == plain


def test_t06_a_negative_id_is_no_way_to_count_from_the_end() -> None:
    with pytest.raises(InputError, match="-1"):
        SamplingParams(logit_bias={-1: 100.0})


# -- T07: padded vocabularies ----------------------------------------------------------------------------------------

REAL, TARGET_ROWS, DRAFT_ROWS = 8, 12, 10


def padded(rows: int) -> Vocab:
    return Vocab([f"t{i}" for i in range(REAL)] + [f"[PAD{i}]" for i in range(REAL, rows)])


def padded_engine(table: Table, draft: Table, k: int, width: int = 1, verify: str = "exact") -> Engine:
    pairing = pair(padded(TARGET_ROWS), padded(DRAFT_ROWS))
    choice = "keyed" if verify == "exact" else "sampled"
    drafter = ModelDrafter(ToyModel(draft, DRAFT_ROWS), choice, pairing.n_shared, TARGET_ROWS)  # type: ignore[arg-type]
    pieces = [b"%d" % (i % 10) for i in range(TARGET_ROWS)]
    return Engine(ToyModel(table, TARGET_ROWS), ToyTokenizer(pieces), drafter, Fixed(k, width), verify)


def narrowed(table: Table, rows: int, loud: bool = False) -> Table:
    """The same rows cut to `rows`; loud: with padding that would win if anybody looked at it."""

    def cut(past: Sequence[int]) -> np.ndarray:  # type: ignore[type-arg]
        row = table([t % TARGET_ROWS for t in past])[:rows].copy()
        row[REAL:] = 50.0 if loud else -50.0
        return row

    return cached(cut)


@pytest.mark.parametrize(
    ("temperature", "verify"), [(0.0, "exact"), (0.9, "exact"), (0.9, "rejection"), (0.9, "block")]
)
def test_t07_no_padding_is_ever_drafted(temperature: float, verify: str) -> None:
    base = markov_table(TARGET_ROWS, order=2, seed=3)
    target, draft = narrowed(base, TARGET_ROWS), narrowed(base, DRAFT_ROWS, loud=True)
    for k, width in ((1, 1), (4, 1), (4, 3)):
        if verify == "block" and width > 1:
            continue
        engine = padded_engine(target, draft, k, width, verify)
        watch: list[Draft] = []
        engine.drafters[0].observe = lambda slot, draft, verdict, rows, to=watch: to.append(draft)  # type: ignore[method-assign]
        sampling = SamplingParams(temperature=temperature, seed=2, presence_penalty=0.1)
        r = engine.generate(PROMPT, max_tokens=60, sampling=sampling)
        assert watch and all(0 <= t < REAL for d in watch for t in d.tokens)
        assert r.stats.accepted > 20
        if verify == "exact":
            off = Engine(engine.model, engine.tokenizer).generate(PROMPT, max_tokens=60, sampling=sampling)
            assert outcome(r) == outcome(off)


@pytest.mark.parametrize(
    "token", [pytest.param(9, id="known to the draft model"), pytest.param(11, id="unknown to it")]
)
@pytest.mark.parametrize("penalty", [0.0, 0.5])
def test_t07_a_target_that_says_padding_is_followed_as_in_plain_decoding(token: int, penalty: float) -> None:
    """Nobody should train such a model, but it must not crash, wherever in a draft it happens."""
    for at in range(1, 12):
        tokens = [1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5]
        tokens[at] = token
        target = cached(scripted(tokens, TARGET_ROWS, n_prompt=len(PROMPT)))
        draft = cached(scripted([t % REAL for t in tokens], DRAFT_ROWS, n_prompt=len(PROMPT)))
        sampling = SamplingParams(presence_penalty=penalty, repetition_penalty=1.0 + penalty)
        r = padded_engine(target, draft, 4).generate(PROMPT, max_tokens=30, sampling=sampling)
        engine = Engine(ToyModel(target, TARGET_ROWS), ToyTokenizer([b"%d" % (i % 10) for i in range(TARGET_ROWS)]))
        assert outcome(r) == outcome(engine.generate(PROMPT, max_tokens=30, sampling=sampling))


def test_t07_a_note_mentions_padding_and_full_size_pairs_load() -> None:
    def rows(n: int) -> Vocab:
        return Vocab([b"%d" % i for i in range(151_646)] + [b"[PAD%d]" % i for i in range(151_646, n)])

    pairing = pair(rows(152_064), rows(151_936))
    assert pairing.n_shared == 151_646 and "padding" in pairing.note


# -- T08: characters split over tokens -------------------------------------------------------------------------------

# 😀 is f0 9f 98 80, given by three tokens; é is c3 a9, given by two.
BYTES = [b"x", b"\xf0\x9f", b"\x98", b"\x80", b"\xc3", b"\xa9", b"y", b" "]
TEXT = [0, 1, 2, 3, 4, 5, 6]  # x😀éy


@pytest.mark.parametrize("k", range(9))
@pytest.mark.parametrize("before", range(8))
def test_t08_no_replacement_character_in_any_chunk(before: int, k: int) -> None:
    tokens = [7] * before + TEXT * 3
    engine = toy_engine(script(*tokens), N, "right", k, pieces=BYTES)
    chunks = [c.text for c in engine.stream(PROMPT, max_tokens=len(tokens))]
    assert all("�" not in c for c in chunks)
    assert "".join(chunks) == " " * before + "x😀éy" * 3


@pytest.mark.parametrize("cap", range(1, 8))
def test_t08_a_cap_inside_a_character_is_as_in_plain_decoding(cap: int) -> None:
    plain = toy_engine(script(*TEXT), N, pieces=BYTES).generate(PROMPT, max_tokens=cap)
    for kind, k in (("right", 8), ("right", 2), ("wrong", 3)):
        engine = toy_engine(script(*TEXT), N, kind, k, pieces=BYTES)
        assert outcome(engine.generate(PROMPT, max_tokens=cap)) == outcome(plain)
    assert plain.usage.completion_tokens == cap and "�" not in plain.text
    assert plain.text == "x😀éy"[: [0, 1, 1, 1, 2, 2, 3, 4][cap]]


def test_t08_a_stop_string_of_split_characters() -> None:
    for k in range(7):
        engine = toy_engine(script(*TEXT), N, "right", k, pieces=BYTES)
        r = engine.generate(PROMPT, max_tokens=20, stop=["é"])
        assert (r.text, r.finish_reason, list(r.ids)) == ("x😀", "stop", TEXT[:6])


def test_text_stream_by_itself() -> None:
    with pytest.raises(InputError):
        TextStream([""])
    s = TextStream(["abc", "bx"])
    shown = [
        ("".join(g.text for g in s.push(c.encode(), o)), s.stopped) for c, o in zip("zaabab", "tttddt", strict=True)
    ]
    assert shown == [("z", False), ("", False), ("a", False), ("", False), ("ab", False), ("", False)]
    assert [(g.text, g.origin) for g in s.finish()] == [("a", "d"), ("b", "t")]
    s = TextStream(["c", "bc", "zz"])  # completed by one token: the earliest begin counts
    assert [g.text for g in s.push(b"abcd", "t")] == ["a"] and s.stopped
    s = TextStream(["abc", "bx"])
    s.push(b"q", "t")
    out = s.push(b"ab", "t") + s.push(b"x!", "d")
    assert s.stopped and "".join(g.text for g in out) == "a" and s.finish() == []
