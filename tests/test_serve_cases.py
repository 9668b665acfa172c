"""Cases of shared/needs-and-cases.md about text, over HTTP: T02, T03, T04, T06 and T08.

"Plain" is the same server asked with `speculative: false`; `max_nodes` moves the borders of blocks. T09 is in
test_serve_hostile.py, T10 in test_serve_interleaved.py, T12 and T13 in test_serve_counts.py, T15 in
test_serve_truth.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from asking import TAKES_CONTENT, Asker, Json, finish, joined, report, text
from helpers import PROMPT, Always, Hits, cached, markov_table, toy_engine
from live import live
from slipstream.core.types import Array
from slipstream.engine import Engine
from slipstream.models.toy import Table, scripted
from test_cases import BYTES, EOS, EOT, TEXT, WORDS, stop_script

N, K = 8, 16


def scripts(*many: Sequence[int]) -> Table:
    """The prompt's first token says which of the scripts is followed; it starts behind a prompt of 5 tokens."""
    tables = [scripted(s, N, n_prompt=len(PROMPT)) for s in many]

    def table(past: Sequence[int]) -> Array:
        return tables[past[0]](past)

    return cached(table)


def prompt(script: int) -> list[int]:
    return [script, *PROMPT[1:]]


def serving(table: Table, **settings: Any) -> Any:
    """A server whose drafter is always right, by at most 16 tokens."""
    return live(lambda: with_template(toy_engine(table, N, Hits(table, N, [1000]), K, **settings)))


def with_template(engine: Engine) -> Engine:
    engine.tokenizer.chat_template = TAKES_CONTENT
    return engine


def essence(answer: Json) -> tuple[Any, ...]:
    """What must not depend on drafting."""
    usage = answer["usage"]
    return text(answer), finish(answer), usage["prompt_tokens"], usage["completion_tokens"], logprobs(answer)


def logprobs(answer: Json) -> Any:
    return answer["choices"][0].get("logprobs")


def both_ways(server: Asker, ids: Sequence[int], nodes: int, **fields: Any) -> Json:
    """The answer with blocks of `nodes` tokens, after a check that plain decoding and the stream say the same."""
    blocks = {"max_nodes": nodes}
    answer = server.complete(ids, speculative=blocks, **fields)
    assert essence(answer) == essence(server.complete(ids, speculative=False, **fields))
    chunks = list(server.stream(ids, speculative=blocks, stream_options={"include_usage": True}, **fields))
    assert joined(chunks) == text(answer) and finish(chunks) == finish(answer)
    assert chunks[-1]["usage"]["completion_tokens"] == answer["usage"]["completion_tokens"]
    for stop in fields.get("stop", ()):
        assert stop not in joined(chunks)
    return answer


# -- T02: an end token inside a block --------------------------------------------------------------------------------


@pytest.mark.parametrize("ends", [(EOS,), (EOT, EOS)])
def test_t02_nothing_behind_an_end_token_is_told(ends: tuple[int, ...]) -> None:
    many = [[0, *range(1, at), EOS, 3, 4, 5, 1, 2] for at in range(1, 7)]
    with serving(scripts(*many), ends=ends) as url:
        server = Asker(url)
        for i, script in enumerate(many):
            at = script.index(EOS)
            answer = both_ways(server, prompt(i), 5, max_tokens=50, logprobs=1)
            assert text(answer) == "abcdef"[:at] and finish(answer) == "stop"
            assert answer["usage"]["completion_tokens"] == at == len(logprobs(answer)["tokens"])
            assert answer["speculative"]["accepted"] == at - 1


def test_t02_without_an_end_token_it_runs_to_the_cap() -> None:
    with serving(scripts([1, 2, EOS, 3])) as url:
        answer = both_ways(Asker(url), prompt(0), 5, max_tokens=50)
        assert answer["usage"]["completion_tokens"] == 50 and finish(answer) == "length"


# -- T03: a stop string inside a run ---------------------------------------------------------------------------------

STOPPED = [
    stop_script(1, 1, 2),  # complete at token 3
    stop_script(13, 1, 2),  # at token 15
    stop_script(2, 4, 5, 4, 5),  # over four tokens
    stop_script(15, 1, 2),  # over the border of two blocks of 16
    stop_script(16, 1, 2),
    [4, 4, 5, 4, 4, 5, 4, 5, 4, 5, 6, 6],  # false starts
]


@pytest.mark.parametrize("nodes", [1, 3, 4, 16])
def test_t03_the_stream_never_shows_a_stop_string(nodes: int) -> None:
    with serving(scripts(*STOPPED), pieces=WORDS) as url:
        server = Asker(url)
        for i, script in enumerate(STOPPED):
            whole = b"".join(WORDS[t] for t in script).decode()
            answer = both_ways(server, prompt(i), nodes, max_tokens=40, stop=["ha ha"], logprobs=0)
            assert text(answer) == whole[: whole.index("ha ha")] and finish(answer) == "stop"
            said = logprobs(answer)["tokens"]
            assert len(said) == answer["usage"]["completion_tokens"] and "ha ha" in "".join(said)
            assert answer["speculative"]["accepted"] > 0


def test_t03_text_held_for_a_stop_that_never_comes_is_given_at_the_end() -> None:
    with serving(scripts([0, 6, 1, 4]), pieces=WORDS) as url:
        for nodes in (1, 2, 8):
            assert text(both_ways(Asker(url), prompt(0), nodes, max_tokens=4, stop=["ha ha"])) == "xzha h"


# -- T04: the exact cap ----------------------------------------------------------------------------------------------


def test_t04_exactly_so_many_tokens() -> None:
    with serving(scripts([1, 2, 3, 4])) as url:
        server = Asker(url)
        for cap in (1, 2, 5, 8):
            answer = both_ways(server, prompt(0), 8, max_tokens=cap)
            assert len(text(answer)) == answer["usage"]["completion_tokens"] == cap and finish(answer) == "length"
            assert answer["usage"]["total_tokens"] == len(PROMPT) + cap
            said = answer["speculative"]
            assert said["first_tokens"] + said["emitted"] == cap
            if cap == 1:  # the last token is always the target's own
                assert said["drafted"] == 0
            else:
                assert said["accepted"] > 0


def test_t04_in_a_chat_too() -> None:
    with serving(scripts([1, 2, 3, 4])) as url:
        for cap in (1, 2, 5, 8):
            answer = Asker(url).chat("abcbc", max_completion_tokens=cap)
            usage = answer["usage"]
            assert len(text(answer)) == usage["completion_tokens"] == cap and finish(answer) == "length"
            assert usage["completion_tokens_details"]["reasoning_tokens"] <= cap


# -- T06: logit settings at every position ---------------------------------------------------------------------------

X, Y = 2, 5


@pytest.mark.parametrize("verify", ["exact", "rejection", "block", "typical"])
def test_t06_a_banned_token_never_appears_and_a_forced_one_always(verify: str) -> None:
    table = markov_table(N, order=2, seed=2, spread=1.5)
    with live(lambda: toy_engine(table, N, Always(X), 4)) as url:
        server = Asker(url)

        def said(bias: dict[str, int], temperature: float) -> str:
            fields = {"temperature": temperature, "seed": 1, "logit_bias": bias, "speculative": {"verify": verify}}
            answer = server.complete(PROMPT, max_tokens=200, **fields)
            assert answer["speculative"]["verified"] > 0 and answer["speculative"]["verify"] == verify
            return text(answer)

        for temperature in (0.0, 1.0):
            assert "c" in said({}, temperature)
            assert "c" not in said({str(X): -100}, temperature)
            assert said({str(Y): 100}, temperature) == "f" * 200


# -- T08: characters split over tokens -------------------------------------------------------------------------------

SPLIT = "x😀éy"  # 😀 over three tokens, é over two


def test_t08_no_replacement_character_in_any_chunk() -> None:
    many = [[7] * before + TEXT * 3 for before in range(8)]
    with serving(scripts(*many), pieces=BYTES) as url:
        server = Asker(url)
        for before, script in enumerate(many):
            for nodes in range(1, 9):
                chunks = list(server.stream(prompt(before), max_tokens=len(script), speculative={"max_nodes": nodes}))
                assert all("\ufffd" not in text(c) for c in chunks)
                assert joined(chunks) == " " * before + SPLIT * 3
                assert report(chunks)["accepted"] > 0
            plain = server.complete(prompt(before), max_tokens=len(script), speculative=False)
            assert text(plain) == joined(chunks)


def test_t08_a_cap_inside_a_character_is_as_in_plain_decoding() -> None:
    with serving(scripts(TEXT), pieces=BYTES) as url:
        for cap in range(1, 8):
            for nodes in (1, 2, 8):
                answer = both_ways(Asker(url), prompt(0), nodes, max_tokens=cap, logprobs=0)
                assert text(answer) == SPLIT[: [0, 1, 1, 1, 2, 2, 3, 4][cap]]
                assert answer["usage"]["completion_tokens"] == cap and finish(answer) == "length"


def test_t08_in_a_chat_with_logprobs_the_bytes_are_the_tokens_own() -> None:
    with serving(scripts(TEXT), pieces=BYTES) as url:
        answer = Asker(url).chat("x" + "y" * 4, max_tokens=7, logprobs=True)
        entries = logprobs(answer)["content"]
        assert text(answer) == SPLIT and b"".join(bytes(e["bytes"]) for e in entries) == SPLIT.encode()
        assert len(entries) == 7


@pytest.fixture(scope="module")
def smol(smollm2: Path) -> Iterator[Asker]:
    """SmolLM2 with blocks of five tokens, whoever pays for them."""
    with live(lambda: Engine.open("smollm2-135m", "suffix", k=5, n_ctx=512)) as url:
        yield Asker(url)


def test_t08_emoji_of_a_real_model(smol: Asker) -> None:
    """SmolLM2 spells 😀 in three tokens; that it is repeated is what the drafter foresees."""
    asked = "He said: 😀ü😀ü😀ü😀ü😀ü😀ü😀ü😀ü😀ü"
    whole = smol.complete(asked, max_tokens=48)
    assert text(whole).count("😀") > 8 and whole["speculative"]["accepted"] > 24
    for cap in [48, *range(1, 9)]:  # the short ones end inside every character
        fields = {"max_tokens": cap, "logprobs": 0}
        drafted, plain = smol.complete(asked, **fields), smol.complete(asked, speculative=False, **fields)
        chunks = list(smol.stream(asked, **fields))
        assert all("\ufffd" not in text(c) for c in chunks)
        assert joined(chunks) == text(drafted) == text(plain)
        assert drafted["usage"]["completion_tokens"] == cap == len(logprobs(drafted)["tokens"])


def test_t03_t04_of_a_real_model(smol: Asker) -> None:
    asked = "one two three four one two three four one two three four one two three four one two"
    whole = both_ways(smol, smol.post("/tokenize", {"content": asked})["tokens"], 5, max_tokens=24)
    assert whole["speculative"]["accepted"] > 0 and " two" in text(whole)
    stopped = both_ways(smol, smol.post("/tokenize", {"content": asked})["tokens"], 5, max_tokens=24, stop=[" two"])
    assert text(stopped) == text(whole)[: text(whole).index(" two")] and finish(stopped) == "stop"
