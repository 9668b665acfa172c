"""The API over a real socket: what OpenAI's two endpoints promise, and our own fields. Toys are exact."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpx
import numpy as np
import pytest

from asking import Asker, Json, conversation, joined, report, text
from helpers import cached
from live import END, VOCABULARY, live, toy
from slipstream.core.types import Array
from slipstream.models.toy import Table
from slipstream.serve import documents as docs

LIMIT = 20.0
MARK = "\x01"  # ends the prompt of a toy that says what it was told to
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}" + MARK
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a town",
        "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
    },
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"town": "Köln"}}\n</tool_call>'


def says(words: str) -> Table:
    """Behind the mark, these words and an end."""
    script = [*words.encode(), END]

    def table(past: Sequence[int]) -> Array:
        past = list(past)
        n = past[::-1].index(1) if 1 in past else 0
        row = np.zeros(VOCABULARY, np.float32)
        row[script[min(n, len(script) - 1)]] = 30
        return row

    return cached(table)


@pytest.fixture(scope="module")
def letters() -> Iterator[Asker]:
    with live(toy()) as url:
        yield Asker(url)


@pytest.fixture(scope="module")
def caller() -> Iterator[Asker]:
    with live(
        toy(table=says(f"Let me see. {CALL}\n{CALL.replace('Köln', 'Rom')}"), template=TEMPLATE, n_ctx=4096)
    ) as url:
        yield Asker(url)


def refused(asker: Asker, path: str, status: int = 400, **body: Any) -> Json:
    answer = httpx.post(asker.url + path, json=body, timeout=LIMIT)
    assert answer.status_code == status, answer.text
    docs.ErrorAnswer.model_validate(answer.json())
    return dict(answer.json()["error"])


def complete(asker: Asker, prompt: Any, **fields: Any) -> Json:
    answer = asker.post("/v1/completions", {"prompt": prompt, **fields})
    docs.TextAnswer.model_validate(answer)
    return answer


def chat(asker: Asker, messages: Any = "hello", **fields: Any) -> Json:
    answer = asker.post("/v1/chat/completions", conversation(messages, fields))
    docs.ChatAnswer.model_validate(answer)
    return answer


def entries(answers: Sequence[Mapping[str, Any]], choice: int = 0) -> list[Any]:
    """Log-probabilities of chat, of a whole answer or of all chunks."""
    found = [c["logprobs"] for a in answers for c in a["choices"] if c["index"] == choice and c["logprobs"]]
    return [entry for one in found for entry in one["content"]]


def ids(answer: Json, choice: int = 0) -> list[int]:
    return list(answer["choices"][choice]["logprobs"]["token_ids"])


# -- answers ----------------------------------------------------------------------------------------------------------


def test_a_completion_has_openai_s_shape_and_counts(letters: Asker) -> None:
    answer = complete(letters, "abc", max_tokens=9, seed=3, logprobs=2)
    assert answer["usage"]["prompt_tokens"] == 3 and answer["usage"]["completion_tokens"] == 9
    assert answer["usage"]["total_tokens"] == 12
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "length" and len(choice["text"]) == 9
    said = choice["logprobs"]
    assert said["tokens"] == list(choice["text"]) and said["text_offset"] == list(range(9))
    assert bytes(said["token_ids"]).decode() == choice["text"]
    assert all(len(top) == 2 for top in said["top_logprobs"]) and all(lp < 0 for lp in said["token_logprobs"])


def test_a_chat_answer_has_openai_s_shape(letters: Asker) -> None:
    answer = chat(letters, max_tokens=6, temperature=1, seed=3, logprobs=True, top_logprobs=3)
    content = answer["choices"][0]["message"]["content"]
    said = entries([answer])
    assert [e["token"] for e in said] == list(content) and all(e["bytes"] == list(e["token"].encode()) for e in said)
    assert all(len(e["top_logprobs"]) == 3 for e in said)
    assert all(e["logprob"] <= e["top_logprobs"][0]["logprob"] for e in said)
    parts = [{"role": "user", "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]}]
    whole = [{"role": "user", "content": "hel\nlo"}]
    assert text(chat(letters, parts, max_tokens=9)) == text(chat(letters, whole, max_tokens=9))


def test_defaults_are_openai_s(letters: Asker) -> None:
    plain = complete(letters, "abc", seed=1, ignore_eos=True)
    assert plain["usage"]["completion_tokens"] == 16
    given = complete(letters, "abc", seed=1, temperature=1, top_p=1, n=1, max_tokens=16, ignore_eos=True)
    assert text(plain) == text(given) != text(complete(letters, "abc", temperature=0, ignore_eos=True))
    seeds = {complete(letters, "a", max_tokens=1)["speculative"]["seed"] for _ in range(3)}
    assert len(seeds) == 3


def test_a_seed_that_was_drawn_gives_the_same_text_again(letters: Asker) -> None:
    first = complete(letters, "abc", max_tokens=20)
    assert text(first) == text(complete(letters, "abc", max_tokens=20, seed=first["speculative"]["seed"]))
    assert text(complete(letters, "ab", max_tokens=20, seed=-1)) == text(
        complete(letters, "ab", max_tokens=20, seed=-1)
    )


@pytest.mark.parametrize("drafting", [True, False])
def test_n_choices_are_as_many_requests_with_their_seeds(letters: Asker, drafting: bool) -> None:
    fields: Json = {"max_tokens": 24, "logprobs": 1, "speculative": drafting}
    several = complete(letters, "abc", n=6, seed=40, **fields)
    alone = [complete(letters, "abc", seed=40 + i, **fields) for i in range(6)]
    assert [c["text"] for c in several["choices"]] == [text(a) for a in alone]
    assert [ids(several, i) for i in range(6)] == [ids(a) for a in alone]
    assert len({text(a) for a in alone}) > 1
    assert several["usage"]["prompt_tokens"] == 3
    assert several["usage"]["completion_tokens"] == sum(a["usage"]["completion_tokens"] for a in alone)


def test_several_prompts_have_choices_of_their_own(letters: Asker) -> None:
    fields: Json = {"max_tokens": 12, "seed": 2, "n": 2}
    several = complete(letters, ["abc", "b"], **fields)
    assert [c["index"] for c in several["choices"]] == [0, 1, 2, 3]
    apart = [complete(letters, p, **fields) for p in ("abc", "b")]
    assert [c["text"] for c in several["choices"]] == [c["text"] for a in apart for c in a["choices"]]
    assert several["usage"]["prompt_tokens"] == 4
    assert text(complete(letters, [97, 98, 99], **fields)) == text(apart[0])
    tokens = complete(letters, [[97, 98, 99], [98]], **fields)
    assert [c["text"] for c in tokens["choices"]] == [c["text"] for c in several["choices"]]


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("drafting", [True, False])
def test_a_stream_joined_is_the_whole_answer(letters: Asker, n: int, drafting: bool) -> None:
    fields: Json = {"max_tokens": 30, "seed": 8, "n": n, "temperature": 1, "speculative": drafting}
    whole = complete(letters, "abc", logprobs=2, **fields)
    chunks = list(letters.stream("abc", logprobs=2, stream_options={"include_usage": True}, **fields))
    for i in range(n):
        assert joined(chunks, i) == text(whole, i)
        some = [c["logprobs"] for k in chunks for c in k["choices"] if c["index"] == i and c["logprobs"]]
        assert {key: [x for part in some for x in part[key]] for key in some[0]} == whole["choices"][i]["logprobs"]
    assert chunks[-1]["choices"] == []
    same = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [chunks[-1]["usage"][k] for k in same] == [whole["usage"][k] for k in same]
    assert all(c["usage"] is None for c in chunks[:-1])


@pytest.mark.parametrize("n", [1, 3])
def test_a_streamed_conversation(letters: Asker, n: int) -> None:
    fields: Json = {"max_tokens": 30, "seed": 8, "n": n, "temperature": 1, "logprobs": True, "top_logprobs": 2}
    whole, chunks = chat(letters, **fields), list(letters.stream_chat("hello", **fields))
    for i in range(n):
        mine = [c for k in chunks for c in k["choices"] if c["index"] == i]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert mine[-1]["delta"] == {} and mine[-1]["finish_reason"] == whole["choices"][i]["finish_reason"]
        assert all(c["finish_reason"] is None and "role" not in c["delta"] for c in mine[1:-1])
        assert joined(chunks, i) == text(whole, i) and entries(chunks, i) == entries([whole], i)
    assert {c["object"] for c in chunks} == {"chat.completion.chunk"} and len({c["id"] for c in chunks}) == 1
    assert "usage" not in chunks[0]
    assert [bool(c.get("speculative")) for c in chunks] == [False] * (len(chunks) - 1) + [True]
    docs.Speculative.model_validate(report(chunks))


def test_several_tokens_of_a_step_are_one_chunk() -> None:
    with live(toy(table=says("ab" * 30))) as url:
        asker = Asker(url)
        whole = complete(asker, "x" + MARK, temperature=0, max_tokens=60)
        chunks = list(asker.stream("x" + MARK, max_tokens=60))
        steps = whole["speculative"]["steps"] + 1
        assert text(whole) == joined(chunks) == "ab" * 30
        assert steps < 40 and len([c for c in chunks if text(c)]) == steps


def test_detail_tells_the_origin_of_each_piece_and_every_step(letters: Asker) -> None:
    fields: Json = {"max_tokens": 40, "seed": 5, "temperature": 0.5, "speculative": {"detail": True}}
    whole = complete(letters, "abcabc", **fields)
    segments = whole["speculative"]["segments"]
    assert "".join(s["text"] for s in segments) == text(whole)
    assert {s["origin"] for s in segments} <= {"target", "suffix"}
    chunks = list(letters.stream("abcabc", **fields))
    told = [c["speculative"] for c in chunks]
    streamed = [s for t in told for s in t["segments"]]
    assert "".join(s["text"] for s in streamed) == text(whole) and {s["origin"] for s in streamed} >= {"target"}
    steps = [t["step"] for t in told if t["step"]]
    for key in ("verified", "accepted"):
        assert sum(s[key] for s in steps) == told[-1][key]
    assert sum(s["emitted"] for s in steps) == 40 == told[-1]["emitted"] + told[-1]["first_tokens"]


# -- settings ---------------------------------------------------------------------------------------------------------


def test_stop_strings_cut_the_text_and_never_show() -> None:
    with live(toy(table=says("one two three four"))) as url:
        asker = Asker(url)
        for stop in ("thr", ["never", "thr"]):
            whole = complete(asker, MARK, temperature=0, max_tokens=30, stop=stop)
            assert text(whole) == "one two " and whole["choices"][0]["finish_reason"] == "stop"
            chunks = list(asker.stream(MARK, max_tokens=30, stop=stop))
            assert joined(chunks) == "one two "
            assert whole["usage"]["completion_tokens"] == len("one two thr")
        assert refused(asker, "/v1/completions", prompt="a", stop=["x"] * 65)["param"] == "stop"
        assert refused(asker, "/v1/completions", prompt="a", stop=[""])["param"] == "stop[0]"


def test_logit_bias_and_penalties_reach_the_sampler(letters: Asker) -> None:
    banned = complete(letters, "a", max_tokens=40, seed=1, logit_bias={"97": -100, "98": -100})
    assert not set(text(banned)) & set("ab")
    forced = complete(letters, "a", max_tokens=5, logit_bias={str(ord("z")): 100})
    assert text(forced) == "zzzzz"
    error = refused(letters, "/v1/completions", prompt="a", logit_bias={str(VOCABULARY): 1})
    assert error["param"] == "logit_bias" and "256" in error["message"]
    fields: Json = {"max_tokens": 40, "temperature": 0, "ignore_eos": True}
    plain = text(complete(letters, "a", **fields))
    for setting in ("frequency_penalty", "presence_penalty"):
        assert text(complete(letters, "a", **{setting: 2}, **fields)) != plain
    repetition = [
        text(complete(letters, "a", **{name: 3}, **fields)) for name in ("repetition_penalty", "repeat_penalty")
    ]
    assert repetition[0] == repetition[1] != plain
    assert text(complete(letters, "a", max_tokens=20, top_p=0, seed=4)) == plain[:20]
    assert text(complete(letters, "a", max_tokens=20, top_k=1, seed=4)) == plain[:20]
    assert text(complete(letters, "a", max_tokens=20, min_p=1, seed=4)) == plain[:20]


def test_caps_are_kept_to_the_token(letters: Asker) -> None:
    for cap in (0, 1, 2, 5):
        answer = complete(letters, "abc", max_tokens=cap, ignore_eos=True)
        assert answer["usage"]["completion_tokens"] == cap and answer["choices"][0]["finish_reason"] == "length"
    for name in ("max_tokens", "max_completion_tokens"):
        assert chat(letters, **{name: 4}, ignore_eos=True)["usage"]["completion_tokens"] == 4
    both = {"max_tokens": 4, "max_completion_tokens": 4}
    assert chat(letters, **both, ignore_eos=True)["usage"]["completion_tokens"] == 4
    assert list(letters.stream("abc", max_tokens=0))[-1]["choices"][0]["finish_reason"] == "length"


def test_the_server_s_own_cap_says_so() -> None:
    with live(toy(), max_tokens=5) as url:
        answer = complete(Asker(url), "a", max_tokens=9, ignore_eos=True)
        assert answer["usage"]["completion_tokens"] == 5 and "5 tokens" in answer["speculative"]["notes"][0]
        assert chat(Asker(url), ignore_eos=True)["usage"]["completion_tokens"] == 5


def test_echo_puts_the_prompt_before_the_text(letters: Asker) -> None:
    fields: Json = {"max_tokens": 6, "seed": 1}
    plain = text(complete(letters, "abc", **fields))
    assert text(complete(letters, "abc", echo=True, **fields)) == "abc" + plain
    assert text(complete(letters, [97, 98, 99], echo=True, **fields)) == "abc" + plain
    assert joined(list(letters.stream("abc", echo=True, temperature=1, **fields))) == "abc" + plain


def test_suffix_fills_a_gap_where_the_model_can(letters: Asker) -> None:
    assert refused(letters, "/v1/completions", prompt="a", suffix="b")["param"] == "suffix"
    with live(toy(fim=(2, 3, 4))) as url:
        fields: Json = {"max_tokens": 12, "seed": 1}
        filled = complete(Asker(url), "ab", suffix="cd", **fields)
        same = complete(Asker(url), [2, 97, 98, 3, 99, 100, 4], **fields)
        assert text(filled) == text(same) and filled["usage"]["prompt_tokens"] == 7
        assert text(complete(Asker(url), "ab", suffix="", **fields)) == text(complete(Asker(url), "ab", **fields))


EMOJI, ACCENT = "😀".encode(), "é".encode()
PIECES = [b"a", EMOJI[:1], EMOJI[1:3], EMOJI[3:], ACCENT[:1], ACCENT[1:], b" b", b"\x01", b""]
SPLIT = [1, 2, 3, 0, 4, 5, 6, 1, 2, 3, 8]  # the emoji, a, the accent, b, the emoji, the end


def split_characters(past: Sequence[int]) -> Array:
    row = np.zeros(len(PIECES), np.float32)
    row[SPLIT[min(len(past) - 1, len(SPLIT) - 1)]] = 20
    return row


@pytest.mark.parametrize("max_nodes", [1, 2, 4])
@pytest.mark.parametrize("cap", [2, 3, 6, 9, 20])
def test_split_characters_never_show_a_replacement(max_nodes: int, cap: int) -> None:
    with live(toy("self", pieces=PIECES, ends=[8], table=split_characters)) as url:
        asker = Asker(url)
        fields: Json = {"max_tokens": cap, "logprobs": 1, "speculative": {"max_nodes": max_nodes}}
        whole = complete(asker, [7], temperature=0, **fields)
        chunks = list(asker.stream([7], **fields))
        expected = b"".join(PIECES[t] for t in SPLIT[:cap]).decode("utf-8", "ignore")
        assert text(whole) == joined(chunks) == expected
        said = whole["choices"][0]["logprobs"]
        assert said["token_ids"] == [t for t in SPLIT[:cap] if t != 8]
        assert said["tokens"][:2] == ["bytes:\\xf0", "bytes:\\x9f\\x98"] and said["text_offset"][:2] == [0, 0]
        if cap > 9:
            assert said["text_offset"] == [0, 0, 0, 1, 2, 2, 3, 5, 5, 5]


# -- formats and calls ------------------------------------------------------------------------------------------------


_LIKED = np.frombuffer(b'0123456789{}":,abxy', np.uint8)


@cached
def numbers(past: Sequence[int]) -> Array:
    """What may stand in JSON, and no white space, of which there would be no end."""
    row = np.full(VOCABULARY, -30.0, np.float32)
    row[_LIKED] = np.random.default_rng(past[-2:]).standard_normal(len(_LIKED))
    row[END] = 0
    return row


def as_schema(schema: Any, **more: Any) -> Json:
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, **more}}


@pytest.mark.parametrize("drafter", ["suffix", "random", None])
def test_a_schema_is_kept(drafter: str | None) -> None:
    with live(toy(drafter, table=numbers)) as url:
        answer = chat(
            Asker(url), n=8, seed=1, temperature=1, max_tokens=200, response_format=as_schema(SCHEMA, strict=True)
        )
        for choice in answer["choices"]:
            assert choice["finish_reason"] == "stop", choice
            value = json.loads(choice["message"]["content"])
            assert isinstance(value["a"], int) and value["b"] in ("x", "y") and len(value) == 2
        fields: Json = {"max_tokens": 100, "response_format": as_schema(SCHEMA)}
        assert joined(list(Asker(url).stream_chat("hello", **fields))) == text(chat(Asker(url), **fields))


def test_a_json_object_is_kept_to_and_text_is_text() -> None:
    with live(toy(table=says('{"k": [1, 2]}'), template=TEMPLATE)) as url:
        answer = chat(Asker(url), response_format={"type": "json_object"})
        assert json.loads(text(answer)) == {"k": [1, 2]} and answer["choices"][0]["finish_reason"] == "stop"
    with live(toy(table=says("no JSON"), template=TEMPLATE)) as url:
        assert text(chat(Asker(url), response_format={"type": "text"})) == "no JSON"
        assert text(chat(Asker(url), max_tokens=1, response_format={"type": "json_object"})).strip() in ("{", "")


def test_a_schema_that_cannot_be_compiled_names_its_field(letters: Asker) -> None:
    for schema in ({"type": "nonsense"}, {"$ref": "#/missing"}):
        error = refused(letters, "/v1/completions", prompt="a", response_format=as_schema(schema))
        assert error["param"] == "response_format" and "compile" in error["message"]
    error = refused(letters, "/v1/chat/completions", messages=USER, tools=[with_parameters({"type": "nonsense"})])
    assert error["param"] in ("tools", "tool_choice")


@pytest.mark.parametrize("depth", [50, 300, 900])
def test_a_deep_schema_is_compiled_or_refused(letters: Asker, depth: int) -> None:
    deep: Any = {"type": "string"}
    for _ in range(depth):
        deep = {"type": "array", "items": deep}
    for fields in ({"response_format": as_schema(deep)}, {"tools": [with_parameters({"properties": {"a": deep}})]}):
        body = {"messages": USER, "max_tokens": 2, **fields}
        answer = httpx.post(letters.url + "/v1/chat/completions", json=body, timeout=LIMIT)
        assert answer.status_code in (200, 400), answer.text


def with_parameters(parameters: Any) -> Json:
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


def test_calls_are_read_whole_and_in_a_stream(caller: Asker) -> None:
    whole = chat(caller, tools=[TOOL])
    message, choice = whole["choices"][0]["message"], whole["choices"][0]
    assert choice["finish_reason"] == "tool_calls" and message["content"].strip() == "Let me see."
    calls = [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in message["tool_calls"]]
    assert calls == [("weather", {"town": "Köln"}), ("weather", {"town": "Rom"})]
    assert len({c["id"] for c in message["tool_calls"]}) == 2
    chunks = list(caller.stream_chat("hello", tools=[TOOL]))
    deltas = [d for k in chunks for c in k["choices"] for d in c["delta"].get("tool_calls", ())]
    assert [d["index"] for d in deltas] == [0, 1] and len({d["id"] for d in deltas}) == 2
    assert [(d["function"]["name"], json.loads(d["function"]["arguments"])) for d in deltas] == calls
    assert joined(chunks) == message["content"]
    assert [c["choices"][0]["finish_reason"] for c in chunks][-1] == "tool_calls"


def test_tool_choice_is_obeyed(caller: Asker) -> None:
    ignored = chat(caller, tools=[TOOL], tool_choice="none")
    assert "tool_calls" not in ignored["choices"][0]["message"] and "<tool_call>" in text(ignored)
    with live(toy(table=says(f"{CALL} and {CALL}"), template=TEMPLATE, n_ctx=4096)) as url:
        for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
            fields: Json = {"tools": [TOOL], "tool_choice": choice, "parallel_tool_calls": False}
            forced = chat(Asker(url), **fields)["choices"][0]
            assert forced["finish_reason"] == "tool_calls" and forced["message"]["content"] is None
            (call,) = forced["message"]["tool_calls"]
            assert json.loads(call["function"]["arguments"]) == {"town": "Köln"}
            chunks = list(Asker(url).stream_chat("hello", **fields))
            deltas = [d["function"] for k in chunks for d in k["choices"][0]["delta"].get("tool_calls", ())]
            assert deltas == [call["function"]] and joined(chunks) == ""


def test_calls_and_their_results_may_be_sent_back(caller: Asker) -> None:
    message = chat(caller, tools=[TOOL])["choices"][0]["message"]
    results = [{"role": "tool", "tool_call_id": c["id"], "content": "rain"} for c in message["tool_calls"]]
    history = [{"role": "user", "content": "weather?"}, message, *results]
    assert chat(caller, history, tools=[TOOL])["usage"]["prompt_tokens"] > len(CALL)
    no_id = [{"role": "tool", "content": "rain"}]
    assert refused(caller, "/v1/chat/completions", messages=no_id)["param"] == "messages[0].tool_call_id"


# -- speculation ------------------------------------------------------------------------------------------------------


def test_a_prediction_is_drafted_from_and_counted() -> None:
    from slipstream.drafters.predicted import PredictedDrafter

    words = "the quick brown fox jumps over the lazy dog"
    with live(toy(PredictedDrafter(), table=says(words), template=TEMPLATE)) as url:
        prediction = {"type": "content", "content": words}
        with_it, without = chat(Asker(url), prediction=prediction), chat(Asker(url))
        assert text(with_it) == text(without) == words
        details = with_it["usage"]["completion_tokens_details"]
        counts = with_it["speculative"]["by_drafter"]["predicted"]
        assert details["accepted_prediction_tokens"] == counts["accepted"] > 10
        assert details["rejected_prediction_tokens"] == counts["verified"] - counts["accepted"]
        parts = {"type": "content", "content": [{"type": "text", "text": words}]}
        assert chat(Asker(url), prediction=parts)["speculative"]["accepted"] == counts["accepted"]
    with live(toy(None, table=says(words), template=TEMPLATE)) as url:
        notes = chat(Asker(url), prediction=prediction)["speculative"]["notes"]
        assert any("prediction was not used" in note for note in notes)


def test_speculation_changes_nothing_but_itself(letters: Asker) -> None:
    fields: Json = {"max_tokens": 50, "seed": 2, "temperature": 0.6, "ignore_eos": True}
    answers = [
        complete(letters, "abab", **fields, speculative=s)
        for s in (False, True, {"mode": "off"}, {"drafters": ["suffix"], "max_nodes": 1}, {"drafters": []}, None)
    ]
    assert len({text(a) for a in answers}) == 1
    told = [a["speculative"] for a in answers]
    assert [t["mode"] for t in told] == ["off", "auto", "off", "auto", "auto", "auto"]
    assert told[0]["drafted"] == told[2]["drafted"] == told[4]["drafted"] == 0 < told[1]["verified"]
    assert len(told[3]["verified_per_position"]) == 1
    assert all(t["active"] == (t["reason"] == "") == (t["verified"] > 0) for t in told)
    assert "asked for plain decoding" in told[0]["reason"] and "named no drafter" in told[4]["reason"]
    error = refused(letters, "/v1/completions", prompt="a", speculative={"drafters": ["sufix"]})
    assert error["param"] == "speculative.drafters" and "suffix" in error["message"]
    lossy = complete(letters, "abab", **fields, speculative={"verify": "typical"})["speculative"]
    assert lossy["lossy"] and lossy["verify"] == "typical" and any("lossy" in n for n in lossy["notes"])


def test_a_reason_is_given_whenever_nothing_was_verified(letters: Asker) -> None:
    assert "max_tokens is 1" in complete(letters, "a", max_tokens=1)["speculative"]["reason"]
    assert "max_tokens is 0" in complete(letters, "a", max_tokens=0)["speculative"]["reason"]
    nothing = complete(letters, "x", max_tokens=3, temperature=0, ignore_eos=True)["speculative"]
    assert nothing["verified"] or "proposed" in nothing["reason"]
    with live(toy(table=says("o"), template=TEMPLATE)) as url:
        assert complete(Asker(url), MARK, temperature=0, max_tokens=1)["speculative"]["reason"]
    with live(toy(table=says(""))) as url:
        assert "first token" in complete(Asker(url), "abc" + MARK, temperature=0)["speculative"]["reason"]
    with live(toy(None)) as url:
        assert complete(Asker(url), "a")["speculative"]["reason"] == "no drafter was given"


def test_the_prompt_of_a_turn_is_found_in_the_cache(letters: Asker) -> None:
    complete(letters, "h" * 60, max_tokens=4)
    again = complete(letters, "h" * 60 + "a", max_tokens=4)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 50


# -- refusals ---------------------------------------------------------------------------------------------------------

USER = [{"role": "user", "content": "a"}]
CHAT_REFUSALS: list[tuple[Json, str, str]] = [
    ({"temprature": 1}, "temprature", "did you mean temperature?"),
    ({"max_token": 1}, "max_token", "max_tokens"),
    ({"functions": []}, "functions", "unknown field"),
    ({"stream_options": {"include_use": True}}, "stream_options.include_use", "include_usage"),
    ({"speculative": {"node": 1}}, "speculative.node", "mode"),
    ({"speculative": {"max_nodes": 0}}, "speculative.max_nodes", "1"),
    ({"speculative": {"verify": "exakt"}}, "speculative.verify", "exact"),
    ({"top_logprobs": 2}, "top_logprobs", "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "20"),
    ({"tool_choice": "auto"}, "tool_choice", "tools"),
    ({"parallel_tool_calls": True}, "parallel_tool_calls", "tools"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "wether"}}}, "tool_choice", "weather"),
    ({"tools": [TOOL], "tool_choice": "required", "response_format": as_schema(SCHEMA)}, "response_format", "call"),
    ({"tools": [TOOL], "response_format": {"type": "json_object"}}, "response_format", "call"),
    ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens", "4"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "stream"),
    ({"n": 0}, "n", "1"),
    ({"n": 33}, "n", "32"),
    ({"temperature": "1"}, "temperature", "number"),
    ({"seed": 2**63}, "seed", "less"),
    ({"store": True}, "store", "False"),
    ({"max_tokens": 0}, "max_tokens", "1"),
    ({"response_format": {"type": "yaml"}}, "response_format", "json_schema"),
    ({"ignore_eos": True, "response_format": {"type": "json_object"}}, "ignore_eos", "ends"),
    ({"repetition_penalty": 2, "repeat_penalty": 3}, "repeat_penalty", "one"),
    ({"messages": []}, "messages", "1"),
    ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role", "assistant"),
    ({"messages": [*USER, {"role": "user"}]}, "messages[1].content", "no content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
     "messages[0].content[0].type", "text only"),
    ({"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
     "messages[0].content[0].type", "text only"),
]  # fmt: skip
TEXT_REFUSALS: list[tuple[Json, str, str]] = [
    ({"best_of": 2}, "best_of", "n"),
    ({"echo": True, "logprobs": 1}, "echo", "not supported"),
    ({"messages": USER}, "messages", "unknown field"),
    ({"prompt": []}, "prompt", "at least 1"),
    ({"prompt": ""}, "prompt", "empty"),
    ({"prompt": [97, VOCABULARY]}, "prompt", "vocabulary"),
    ({"prompt": ["a", 1]}, "prompt[1]", "string"),
    ({"logprobs": True}, "logprobs", "integer"),
]


@pytest.mark.parametrize(("fields", "param", "word"), CHAT_REFUSALS, ids=lambda x: str(x)[:40])
def test_what_a_conversation_may_not_ask(letters: Asker, fields: Json, param: str, word: str) -> None:
    error = refused(letters, "/v1/chat/completions", **{"messages": USER, **fields})
    assert error["param"] == param and word in error["message"] and error["type"] == "invalid_request_error"


@pytest.mark.parametrize(("fields", "param", "word"), TEXT_REFUSALS, ids=lambda x: str(x)[:40])
def test_what_a_completion_may_not_ask(letters: Asker, fields: Json, param: str, word: str) -> None:
    error = refused(letters, "/v1/completions", **{"prompt": "a", **fields})
    assert error["param"] == param and word in error["message"]


def test_what_changes_nothing_is_accepted(letters: Asker) -> None:
    same: Json = {"user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "safety_identifier": "s"}
    same |= {"prompt_cache_key": "k", "modalities": ["text"], "logprobs": None, "stop": None, "tools": None}
    assert text(chat(letters, max_tokens=9, **same)) == text(chat(letters, max_tokens=9))


@pytest.mark.parametrize(
    ("content", "kind", "word"),
    [
        (b"{", "application/json", "not JSON"),
        (b"[1]", "application/json", "not a JSON object"),
        (b"", "application/json", "not a JSON object"),
        (b'{"prompt": "a"}', "text/plain", "Content-Type"),
        (b'{"prompt": "a"}', None, "Content-Type"),
        (b"[" * 100_000, "application/json", "body"),
        (b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}", "application/json", "body"),
        (b'{"prompt": "a", "temperature": NaN}', "application/json", "finite"),
        (b'{"prompt": "\\ud800"}', "application/json", "surrogate"),
        (b"\xff\xfe", "application/json", "body"),
    ],
)
def test_bodies_that_are_none(letters: Asker, content: bytes, kind: str | None, word: str) -> None:
    headers = {"content-type": kind} if kind else {}
    answer = httpx.post(letters.url + "/v1/completions", content=content, headers=headers, timeout=LIMIT)
    assert answer.status_code == 400 and word in answer.json()["error"]["message"], answer.text
    docs.ErrorAnswer.model_validate(answer.json())


def test_a_prompt_beyond_the_context_is_told_both_numbers(letters: Asker) -> None:
    for fields in ({}, {"stream": True}):
        error = refused(letters, "/v1/completions", prompt="a" * 600, **fields)
        assert error["code"] == "context_length_exceeded" and "600" in error["message"] and "512" in error["message"]


def test_errors_of_routes_have_the_same_shape(letters: Asker) -> None:
    for method, path, status in (("GET", "/v2", 404), ("GET", "/v1/completions", 405), ("GET", "/static/none", 404)):
        answer = httpx.request(method, letters.url + path, timeout=LIMIT)
        assert answer.status_code == status
        docs.ErrorAnswer.model_validate(answer.json())
    assert httpx.get(letters.url + "/docs", timeout=LIMIT).status_code == 404


def test_the_page_may_not_be_framed_and_no_script_is_stale(letters: Asker) -> None:
    page = httpx.get(f"{letters.url}/", timeout=LIMIT)
    assert page.status_code == 200 and page.headers["content-security-policy"] == "frame-ancestors 'none'"
    script = httpx.get(f"{letters.url}/static/app.js", timeout=LIMIT)
    for found in (page, script):
        assert (found.headers["cache-control"], found.headers["x-content-type-options"]) == ("no-cache", "nosniff")
