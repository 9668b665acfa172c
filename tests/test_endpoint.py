"""Servers on real sockets, well and badly behaved: what is measured, what is refused in which words, what is lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from fake_server import DONE, Asked, FakeServer, Reply, answer, event, good, problem, said
from slipstream.advise import endpoint as client
from slipstream.advise.counters import Counters, combine, from_timings
from slipstream.advise.endpoint import RETRIES, Answer, Ask, Endpoint
from slipstream.advise.measure import Work
from slipstream.advise.servers import GIVE_UP, Session, Try
from slipstream.cli.app import main
from slipstream.errors import InputError, ResourceError, SlipstreamError

ASK = Ask.of(Work("chat", "Hello"), 16)
SAID = {"completion_tokens": 3, "prompt_tokens": 9}


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer().running() as running:
        yield running


@pytest.fixture
def other() -> Iterator[FakeServer]:
    with FakeServer().running() as running:
        yield running


@contextmanager
def connected(server: FakeServer, **options: Any) -> Iterator[Endpoint]:
    endpoint = Endpoint(server.url, **options)
    try:
        endpoint.connect()
        yield endpoint
    finally:
        endpoint.close()


def ask(server: FakeServer, **options: Any) -> Answer:
    with connected(server, **options) as endpoint:
        found = endpoint.ask(ASK)
        assert found is not None
        return found


def in_turn(*replies: Reply) -> Callable[[Asked], Reply]:
    """These replies, then good ones."""
    left = list(replies)
    return lambda _: left.pop(0) if left else good()


# -- one answer ----------------------------------------------------------------------------------------------------


def test_an_answer_and_what_was_asked(server: FakeServer) -> None:
    server.answers = lambda _: answer("one ", "two", usage=SAID | {"prompt_tokens_details": {"cached_tokens": 4}})
    found = ask(server, api_key="secret")
    assert (found.text, found.finish_reason) == ("one two", "stop")
    assert (found.tokens, found.prompt_tokens, found.cached) == (3, 9, 4)
    assert found.first_token_s is not None and found.decode_s is not None
    assert found.decode_s > 0 and found.first_token_s > 0
    (asked,) = server.completions
    assert asked.path == "/v1/chat/completions" and asked.headers["authorization"] == "Bearer secret"
    assert asked.body == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Hello"}],
        "temperature": 0,
        "max_tokens": 16,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_what_goes_where() -> None:
    assert Ask.of(Work("", "x", raw=True), 4) == Ask("completions", {"prompt": "x", "temperature": 0, "max_tokens": 4})
    assert Ask.of(Work("", "x"), 4, raw=True).path == "completions"
    assert Ask.of(Work("", middle=("x", "y")), 4).body["suffix"] == "y"
    assert Ask.of(Work("", messages=[{"role": "user", "content": "x"}]), 4, raw=True).path == "chat/completions"


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/"])
def test_an_address_may_end_in_v1(server: FakeServer, path: str) -> None:
    endpoint = Endpoint(server.url + path)
    endpoint.connect()
    assert endpoint.model == "tiny" and endpoint.address == server.url


@pytest.mark.parametrize("url", ["", "ftp://x", "http://", "http://x:99999", "http://x/v1?key=1", "http://[", "a b"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(InputError, match="not a server's address") as e:
        Endpoint(url)
    assert "http://localhost:8080" in e.value.hint


def test_a_password_in_an_address_is_used_and_not_shown(server: FakeServer) -> None:
    endpoint = Endpoint(server.url.replace("http://", "http://me:hidden@"))
    endpoint.connect()
    assert endpoint.address == server.url and server.asked[0].headers["authorization"].startswith("Basic ")


def test_chunks_are_never_counted_as_tokens(server: FakeServer) -> None:
    server.answers = lambda _: answer("a", "b", "c")
    assert ask(server).tokens is None
    server.answers = lambda _: answer("a", "b", "c", timings={"predicted_n": 7})
    assert ask(server).tokens == 7
    server.answers = lambda _: answer("a", "b", "c", usage=SAID, timings={"predicted_n": 7})
    assert ask(server).tokens == 3, "usage is the API's own word"


def test_usage_in_every_chunk_or_in_parts(server: FakeServer) -> None:
    chunks = [said("a", usage={"completion_tokens": 1}), said("b", "length", usage={"completion_tokens": 2}), DONE]
    server.answers = lambda _: Reply([*chunks[:2], event({"usage": {"prompt_tokens": 5}}), DONE])
    found = ask(server)
    assert (found.tokens, found.prompt_tokens, found.finish_reason) == (2, 5, "length")


def test_thinking_is_text_too(server: FakeServer) -> None:
    deltas = [{"reasoning_content": "hm "}, {"reasoning": "so "}, {"content": "yes"}]
    chunks = [event({"choices": [{"delta": delta}]}) for delta in deltas]
    server.answers = lambda _: Reply([*chunks, said("", "stop"), DONE])
    assert ask(server).text == "hm so yes"


def test_an_answer_that_comes_all_at_once_has_no_speed(server: FakeServer) -> None:
    server.answers = lambda _: answer("all of it", usage=SAID)
    found = ask(server)
    assert found.decode_s is None and found.first_token_s is not None
    assert not Try(found).timed


def test_lines_end_where_the_stream_says_and_nowhere_else(server: FakeServer) -> None:
    text = "a\u2028b\x85c\x0bd 🐟"
    raw = "data:" + json.dumps({"choices": [{"text": text}]}, ensure_ascii=False) + "\r\n\r\n"
    pieces = [bytes([b]) for b in raw.encode()]  # characters are cut too
    server.answers = lambda _: Reply([b": hello\n\n", *pieces, said("", "stop"), DONE])
    found = ask(server)
    assert found.text == text and found.unreadable == 0
    assert list(client.lines([b"a\r", b"\nb\n\nc"])) == ["a", "b", "", "c"]


def test_lines_that_cannot_be_read_are_skipped_and_counted(server: FakeServer) -> None:
    bad = [b"data: {broken\n\n", b"data: [1, 2]\n\n", b"data: null\n\n", b"event: ping\n\n", b"nonsense\n"]
    strange = [
        event({"choices": "no"}),
        event({"choices": [7]}),
        event({"usage": 3}),
        event({"choices": [{"delta": 1}]}),
    ]
    server.answers = lambda _: Reply([said("a"), *bad, *strange, said("b", "stop"), DONE])
    found = ask(server)
    assert found.text == "ab" and found.unreadable == 3


def test_a_stream_may_end_without_its_mark_but_not_without_a_reason(server: FakeServer) -> None:
    server.answers = lambda _: Reply([said("a"), said("b", "stop")])
    assert ask(server).text == "ab"
    server.answers = lambda _: Reply([said("a"), said("b"), DONE])
    assert ask(server).finish_reason is None
    server.answers = lambda _: Reply([said("a"), said("b")])
    with pytest.raises(ResourceError, match="in the middle of an answer, after 2 characters"):
        ask(server)


def test_a_broken_connection(server: FakeServer) -> None:
    server.answers = lambda _: Reply([said("a"), said("b")], cut=True)
    with pytest.raises(ResourceError, match="in the middle of an answer, after 2 characters"):
        ask(server)


def test_an_error_in_the_middle_is_told_in_the_server_s_words(server: FakeServer) -> None:
    for line in (
        event({"error": {"message": "out of memory"}}),
        b'error: {"code": 500, "message": "out of memory"}\n\n',
    ):
        server.answers = lambda _, line=line: Reply([said("a"), line])  # type: ignore[misc]
        with pytest.raises(ResourceError, match="failed in the middle: out of memory"):
            ask(server)


def test_silence_has_a_limit(server: FakeServer) -> None:
    server.answers = lambda _: Reply([said("a")], hold=server.ended)
    with pytest.raises(ResourceError, match=r"said nothing for 0\.3 seconds"):
        ask(server, timeout_s=0.3)


def test_comments_do_not_break_a_silence(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = count(step=100.0)
    monkeypatch.setattr(client.time, "perf_counter", lambda: next(clock))
    server.answers = lambda _: Reply([said("a"), *[b": still here\n\n"] * 9, said("b", "stop"), DONE])
    with pytest.raises(ResourceError, match="said nothing for 150 seconds"):
        ask(server, timeout_s=150.0)


def test_times_are_from_sending_to_the_first_token_and_from_there_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 12.0, 14.0, 15.0, 19.0])
    monkeypatch.setattr(client.time, "perf_counter", lambda: next(now))
    found = Answer()
    texts = [
        {"delta": {"role": "assistant"}},
        {"delta": {"content": "a"}},
        {"text": "b"},
        {"finish_reason": "stop"},
        {},
    ]
    events = [{"choices": [choice]} for choice in texts[:4]] + [{"choices": []}]
    assert client._Listener(found, started=10.0).hear(events)
    assert (found.first_token_s, found.decode_s) == (2.0, 3.0), "to the finish reason: an end token is one too"


# -- refusals ------------------------------------------------------------------------------------------------------


PAGE = Reply([b"<html><head><title>Welcome to nginx</title></head></html>"], kind="text/html; charset=utf-8")


@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        (problem(400, "the prompt is too long"), InputError, "answered 400: the prompt is too long"),
        (problem(401, "bad key"), InputError, "answered 401: bad key"),
        (problem(404, "no such model"), InputError, "answered 404: no such model"),
        (
            Reply([b'{"detail": [{"msg": "field required"}]}'], 422, "application/json"),
            InputError,
            "422: field required",
        ),
        (Reply([b"it broke"], 500, "text/plain"), ResourceError, "answered 500: it broke"),
        (Reply(PAGE.chunks, 502, "text/html"), ResourceError, "answered 502: Welcome to nginx"),
        (Reply([], 307, headers={"Location": "http://elsewhere"}), InputError, "sends to http://elsewhere"),
        (PAGE, InputError, "answered with text/html where a stream"),
        (Reply([b'{"choices": []}'], kind="application/json"), InputError, "answered with application/json where"),
    ],
)
def test_refusals(server: FakeServer, reply: Reply, kind: type[SlipstreamError], words: str) -> None:
    server.answers = lambda _: reply
    with pytest.raises(kind, match=words) as e:
        ask(server)
    assert e.value.hint


def test_a_long_message_is_cut(server: FakeServer) -> None:
    server.answers = lambda _: problem(500, "x" * 5000)
    with pytest.raises(ResourceError) as e:
        ask(server)
    assert len(e.value.message) < 400


def test_nobody_is_there() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(ResourceError, match=r"cannot reach .* refused") as e:
        Endpoint(url).connect()
    assert "is the server running" in e.value.hint


def test_a_server_without_a_list_of_models_is_asked_all_the_same(server: FakeServer) -> None:
    server.models = problem(404, "not here")
    assert ask(server, model="mine").text == "abc"
    assert server.completions[0].body["model"] == "mine"
    server.models = problem(401, "who are you?")
    with pytest.raises(InputError, match="who are you") as e:
        ask(server)
    assert "--api-key-env" in e.value.hint


def test_a_key_that_cannot_be_one() -> None:
    with pytest.raises(InputError, match="no key has"):
        Endpoint("localhost", api_key="a\nb")


def test_stream_options_are_left_out_for_a_server_that_does_not_know_them(server: FakeServer) -> None:
    def picky(asked: Asked) -> Reply:
        return problem(400, "unknown field stream_options") if "stream_options" in asked.body else good()

    server.answers = picky
    with connected(server) as endpoint:
        assert endpoint.ask(ASK) is not None and endpoint.ask(ASK) is not None
    assert ["stream_options" in a.body for a in server.completions] == [True, False, False]


def test_a_400_for_another_reason_does_not_turn_them_off(server: FakeServer) -> None:
    server.answers = in_turn(problem(400, "too long"), problem(400, "too long"))
    with connected(server) as endpoint:
        with pytest.raises(InputError, match="too long"):
            endpoint.ask(ASK)
        assert endpoint.ask(ASK) is not None
    assert ["stream_options" in a.body for a in server.completions] == [True, False, True]


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_waited_for_as_long_as_it_says(server: FakeServer, status: int) -> None:
    waits: list[float] = []
    server.answers = in_turn(problem(status, "busy", Retry_After="7"), problem(status, "busy"))
    assert ask(server, sleep=waits.append).text == "abc"
    assert waits == [7.0, 2.0], "its own word, else ever longer"


def test_but_not_for_ever(server: FakeServer) -> None:
    waits: list[float] = []
    server.answers = lambda _: problem(503, "loading model")
    with pytest.raises(ResourceError, match="answered 503: loading model"):
        ask(server, sleep=waits.append)
    assert waits == [1.0, 2.0, 4.0] and len(server.completions) == RETRIES + 1
    server.answers = lambda _: problem(429, "tomorrow", Retry_After="86400")
    with pytest.raises(ResourceError, match="tomorrow"):
        ask(server, sleep=waits.append)
    assert len(waits) == 3


def test_retry_after_may_be_a_date() -> None:
    from slipstream.advise import refusals

    def wait(said: str) -> float | None:
        return refusals.wait(httpx.Response(503, headers={"Retry-After": said}), 0)

    assert wait("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0 and wait("soon") == 1.0
    later = wait("Wed, 21 Oct 2065 07:28:00 GMT")
    assert later is not None and later > 1e6
    assert refusals.wait(httpx.Response(500), 0) is None


def test_a_connection_closed_before_the_answer_is_opened_again(server: FakeServer) -> None:
    server.answers = in_turn(Reply(drop=True))
    assert ask(server).text == "abc"
    server.answers = lambda _: Reply(drop=True)
    with pytest.raises(ResourceError, match="cannot reach"):
        ask(server)


# -- a workload ----------------------------------------------------------------------------------------------------


WORKS = [Work("chat", "Hi"), Work("code", "Sort a list"), Work("chat", messages=[{"role": "user", "content": "Bye"}])]


def session(*servers: FakeServer, works: list[Work] | None = None) -> Session:
    found = Session([Endpoint(s.url, sleep=lambda _: None) for s in servers], works or WORKS, 16)
    found.open()
    for each in servers:
        each.asked.clear()
    return found


def test_one_failed_request_does_not_lose_the_others(server: FakeServer) -> None:
    measured = session(server)
    server.answers = in_turn(good(), problem(500, "it broke"))
    assert [w.kind for w in measured.rounds(2)] == ["chat", "code", "chat"] * 2
    chat, code, everything = measured.rows()
    assert (chat.kind, chat.sides[0].answers, chat.sides[0].failed) == ("chat", 4, 0)
    assert (code.kind, code.sides[0].answers, code.sides[0].failed) == ("code", 1, 1)
    assert (everything.kind, everything.prompts, everything.sides[0].answers) == ("all", 3, 5)
    (failure,) = measured.failures()
    assert failure["prompt"] == 1 and failure["run"] == 0 and "it broke" in failure["error"] and failure["hint"]
    assert everything.sides[0].tps and everything.ratio is None


def test_a_server_that_keeps_failing_is_left_alone(server: FakeServer) -> None:
    measured = session(server)
    server.answers = lambda _: problem(500, "it broke")
    assert len(list(measured.rounds(50))) == GIVE_UP and measured.gave_up
    assert measured.rows()[-1].sides[0].tps is None


def test_a_server_that_cannot_be_used_at_all_is_said_at_once(server: FakeServer) -> None:
    server.answers = lambda _: problem(404, "no chats here")
    with pytest.raises(InputError, match="no chats here"):
        Session([Endpoint(server.url)], WORKS, 16).open()


def test_two_servers_answer_the_same_prompts_in_turn_and_take_turns_at_being_first(
    server: FakeServer, other: FakeServer
) -> None:
    heard: list[tuple[str, str]] = []

    def note(name: str) -> Callable[[Asked], Reply]:
        return lambda a: heard.append((name, a.body["messages"][-1]["content"])) or good()  # type: ignore[func-returns-value]

    measured = session(server, other)
    server.answers, other.answers = note("A"), note("B")
    list(measured.rounds(2))
    prompts = ["Hi", "Sort a list", "Bye"]
    assert [p for _, p in heard] == [p for p in prompts * 2 for _ in "AB"]
    assert "".join(n for n, _ in heard) == "ABBAAB" + "BAABBA"


def made(tokens: int | None, decode_s: float | None, text: str = "x", **counters: Any) -> Try:
    return Try(Answer(text, "stop", tokens, 9, 0, 0.5, decode_s), Counters(**counters))


def with_tries(tries: list[list[list[Try]]], works: list[Work] | None = None) -> Session:
    found = Session([Endpoint("a"), Endpoint("b")][: len(tries[0][0])], works or WORKS[: len(tries)], 16)
    found.tries = tries
    found._readings = [None, None]
    return found


def test_speeds_ratio_and_interval() -> None:
    runs = [[made(11, 1.0), made(11, 0.5)], [made(11, 2.0), made(11, 1.0)], [made(21, 2.0), made(21, 1.0, "y")]]
    (row,) = with_tries([runs]).rows()
    assert [side.tps for side in row.sides] == [10.0, 20.0]  # the first token is not one of decoding
    assert [side.spread for side in row.sides] == [[5.0, 10.0], [10.0, 20.0]]
    assert row.ratio == 2.0 and row.interval == pytest.approx([2.0, 2.0])
    assert (row.same_text, row.compared) == (2, 3)
    (few,) = with_tries([runs[:2]]).rows()
    assert few.interval is None and few.ratio == 2.0


def test_a_pair_counts_for_speed_only_when_both_have_one() -> None:
    runs = [[made(11, 1.0), made(11, 1.0)], [made(101, 1.0), made(None, 1.0)], [made(101, 1.0), Try(error="no")]]
    (row,) = with_tries([runs]).rows()
    assert [side.tps for side in row.sides] == [10.0, 10.0] and row.sides[1].failed == 1 and row.compared == 2


def test_the_first_token_is_that_of_first_runs() -> None:
    late, early = made(11, 1.0), made(11, 1.0)
    assert late.answer is not None and early.answer is not None
    late.answer.first_token_s, early.answer.first_token_s = 2.0, 0.01
    (row,) = with_tries([[[late], [early], [early]]]).rows()
    assert row.sides[0].first_token_s == 2.0


def test_what_a_reader_has_to_know() -> None:
    learnt = [[made(11, 1.0, drafted=10, accepted=2)], [made(11, 1.0, drafted=10, accepted=9)]]
    (note,) = with_tries([learnt]).notes(0)
    assert "20 % of its drafts were accepted in the first run, 90 % in later ones" in note
    cached = made(11, 1.0, drafted=1, accepted=1)
    assert cached.answer is not None
    cached.answer.cached = 8
    assert "89 % of the prompts' tokens were in its cache" in with_tries([[[cached]]]).notes(0)[0]
    dumb = with_tries([[[made(None, 1.0)]]]).notes(0)
    assert "no speed can be told" in dumb[0] and "does not tell what it drafted" in dumb[1]
    assert "all at once" in with_tries([[[made(11, None, drafted=1, accepted=1)]]]).notes(0)[0]


@pytest.mark.parametrize(
    ("behaviour", "why"),
    [
        (
            lambda a: problem(400, "suffix is not supported") if "suffix" in a.body else good(),
            "suffix is not supported",
        ),
        (lambda a: good(), "does not read its suffix"),
        (lambda a: answer("a", "b"), "does not say whether it reads its suffix"),
    ],
)
def test_gaps_go_only_to_a_server_that_reads_the_suffix(
    server: FakeServer, behaviour: Callable[[Asked], Reply], why: str
) -> None:
    server.answers = behaviour
    measured = session(server, works=[Work("fim", middle=("def f(", "return x")), *WORKS])
    assert [w.kind for w in measured.works] == ["chat", "code", "chat"]
    ((kind, reason),) = measured.left_out
    assert kind == "fim" and why in reason
    with pytest.raises(InputError, match="no prompt is left"):
        session(server, works=[Work("fim", middle=("def f(", "return x"))])


def test_gaps_for_a_server_that_does(server: FakeServer) -> None:
    def reads(asked: Asked) -> Reply:
        longer = 4 if "suffix" in asked.body else 0
        return answer("a", "b", usage={"completion_tokens": 2, "prompt_tokens": 3 + longer})

    server.answers = reads
    measured = session(server, works=[Work("fim", middle=("def f(", "return x"))])
    assert not measured.left_out and len(list(measured.rounds(1))) == 1
    assert server.completions[-1].body["suffix"] == "return x"


def test_stopping_leaves_out_what_is_incomplete(server: FakeServer, other: FakeServer) -> None:
    measured = session(server, other)
    done = measured.rounds(3, lambda: len(other.completions) >= 2)
    assert len(list(done)) == 1
    assert [len(runs) for runs in measured.tries] == [1, 0, 0]
    assert len(measured.rows()) == 1


# -- counters of a running server ----------------------------------------------------------------------------------


def counting(server: FakeServer, lag: int = 0, foreign: int = 0) -> None:
    """Metrics as vLLM's; each answer of 9 tokens adds two drafts of 4, 5 accepted, but only `lag` readings later."""
    stale = {"n": 0, "shown": 0}

    def metrics() -> str:
        answers = len(server.completions)
        stale["n"] = stale["n"] + 1 if answers != stale["shown"] else 0
        if stale["n"] > lag:
            stale["shown"], stale["n"] = answers, 0
        n = stale["shown"]
        label = '{engine="0",model_name="tiny"}'
        grown = {"num_drafts": 2, "num_draft_tokens": 8, "num_accepted_tokens": 5}
        text = "".join(f"vllm:spec_decode_{name}_total{label} {each * n}\n" for name, each in grown.items())
        return text + f"vllm:generation_tokens_total{label} {(9 + foreign) * n}\n"

    server.answers = lambda _: answer("a", "b", usage={"completion_tokens": 9, "prompt_tokens": 3})
    server.metrics = metrics


@pytest.mark.parametrize("lag", [0, 2])
def test_metrics_are_read_around_each_answer(server: FakeServer, lag: int) -> None:
    counting(server, lag)
    measured = session(server)
    list(measured.rounds(1))
    (side,) = measured.rows()[-1].sides
    found = side.counters
    assert (found.drafted, found.accepted, found.drafts, found.emitted) == (24, 15, 6, 24)
    assert found.acceptance_rate == 15 / 24 and found.mean_acceptance_length == 24 / 9
    assert measured.notes(0) == []


def test_what_others_asked_for_is_left_out(server: FakeServer) -> None:
    counting(server, foreign=100)
    measured = session(server)
    list(measured.rounds(1))
    assert measured.rows()[-1].sides[0].counters.drafted is None
    assert any("other requests ran on it" in note for note in measured.notes(0))


def test_gauges_are_shown_as_they_are_and_in_no_row(server: FakeServer) -> None:
    server.metrics = lambda: (
        'sglang:spec_accept_length{model_name="t"} 2.5\nsglang:spec_accept_rate{model_name="t"} 0.75\n'
    )
    measured = session(server)
    list(measured.rounds(1))
    assert measured.rows()[-1].sides[0].counters.acceptance_rate is None
    (note,) = measured.notes(0)
    assert "SGLang shows gauges" in note and "spec_accept_length 2.50, spec_accept_rate 0.75" in note


# -- the command ---------------------------------------------------------------------------------------------------


@pytest.fixture
def workload(tmp_path: Path) -> str:
    path = tmp_path / "w.jsonl"
    lines = [{"kind": w.kind, "prompt": w.text} for w in WORKS]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def test_the_command_with_two_servers(
    server: FakeServer, other: FakeServer, workload: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("MY_KEY", "very-secret")
    counting(other)
    out = tmp_path / "out.json"
    urls = ["--endpoint", server.url, "--endpoint", other.url + "/v1", "--api-key-env", "MY_KEY"]
    rest = ["--runs", "2", "--max-tokens", "9", "--model", "mine", "--out", str(out), "--json"]
    assert main(["bench", *urls, "--workload", workload, *rest]) == 0
    shown, told = capsys.readouterr()
    found = json.loads(shown.splitlines()[-1])
    assert json.loads(out.read_text()) == found
    assert [e["url"] for e in found["endpoints"]] == [server.url, other.url]
    assert [row["kind"] for row in found["rows"]] == ["chat", "code", "all"]
    a, b = found["rows"][-1]["sides"]
    assert a["tps"] > 0 and a["counters"]["drafted"] is None
    assert b["counters"]["drafted"] == 48 and b["counters"]["mean_acceptance_length"] == pytest.approx(48 / 18)
    assert found["rows"][-1]["ratio"] > 0 and len(found["rows"][-1]["interval"]) == 2
    assert len(found["requests"]) == 12 and found["config"]["runs"] == 2
    for word in ("tok/s", "interval", "62 %", "2.67", f"A: {server.url}, mine", "6"):
        assert word in shown
    assert "note on A: it does not tell what it drafted" in told
    assert {a.headers["authorization"] for a in server.asked} == {"Bearer very-secret"}
    assert {a.body["model"] for a in server.completions} == {"mine"}
    assert "very-secret" not in shown + told + out.read_text()


def test_the_command_says_what_failed(server: FakeServer, workload: str, capsys: Any) -> None:
    server.answers = in_turn(good(), good(), problem(500, "it broke"))
    assert main(["bench", "--endpoint", server.url, "--workload", workload, "--runs", "1", "--per-kind", "1"]) == 1
    shown, told = capsys.readouterr()
    assert "failed, 1 of the requests:" in told and "it broke" in told and "failed" in shown


def test_the_command_s_table_shows_a_dash_for_what_is_not_told(server: FakeServer, workload: str, capsys: Any) -> None:
    server.answers = lambda _: answer("a", "b", "c")
    assert main(["bench", "--endpoint", server.url, "--workload", workload, "--runs", "1"]) == 0
    shown, told = capsys.readouterr()
    row = next(line for line in shown.splitlines() if line.startswith("code"))
    assert row.split()[1] == "-" and row.split()[3:] == ["-", "-", "1"]
    assert "no speed can be told" in told


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--draft", "suffix"], "--draft and --endpoint do not go together"),
        (["--k", "0"], "--k and --endpoint"),
        (["--temperature", "0"], "--temperature and --endpoint"),
        (["--endpoint", "x", "--endpoint", "y"], "3 servers are named"),
        (["--api-key-env", "NO_SUCH_KEY"], "the environment variable NO_SUCH_KEY is not set"),
        (["--runs", "0"], "runs is 0"),
    ],
)
def test_what_makes_no_sense_together(
    options: list[str], words: str, server: FakeServer, workload: str, capsys: Any
) -> None:
    assert main(["bench", "--endpoint", server.url, "--workload", workload, *options, "--json"]) == 2
    shown, told = capsys.readouterr()
    assert words in told and json.loads(shown.splitlines()[-1])["hint"]
    assert not server.asked


def test_a_key_or_nothing_without_a_server(workload: str, capsys: Any) -> None:
    assert main(["bench", "-m", "x", "--workload", workload, "--api-key-env", "HOME"]) == 2
    assert "--api-key-env is for a server" in capsys.readouterr().err
    assert main(["bench", "--workload", workload]) == 2
    assert "no model is named" in capsys.readouterr().err


def test_ctrl_c_shows_what_was_done(server: FakeServer, workload: str) -> None:
    command = [sys.executable, "-m", "slipstream", "bench", "--endpoint", server.url, "--workload", workload]
    with subprocess.Popen([*command, "--runs", "100000", "--json"], stdout=subprocess.PIPE, text=True) as process:
        while len(server.completions) < 6 and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        shown, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    found = json.loads(shown.splitlines()[-1])
    assert found["interrupted"] is True and found["rows"]


# -- a real server -------------------------------------------------------------------------------------------------


def llama_server() -> str:
    """The program, or a skip that says why."""
    beside = Path(sys.executable).parent / "llama-server"
    found = os.environ.get("SLIPSTREAM_LLAMA_SERVER") or shutil.which("llama-server") or (str(beside) * beside.exists())
    if not found:
        if os.environ.get("SLIPSTREAM_NEED_ENGINES"):
            pytest.fail("SLIPSTREAM_NEED_ENGINES is set, and there is no llama-server")
        pytest.skip("no llama-server: name one with SLIPSTREAM_LLAMA_SERVER")
    return found


@contextmanager
def llama(model: Path, *options: str) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = llama_server()
    libraries = os.pathsep.join(filter(None, (str(Path(program).parent), os.environ.get("LD_LIBRARY_PATH"))))
    command = [program, "-m", str(model), "--port", str(port), "-c", "2048", "-np", "1", *options]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(
        command, stdout=quiet, stderr=quiet, env=os.environ | {"LD_LIBRARY_PATH": libraries}
    ) as process:
        try:
            for _ in range(600):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                assert process.poll() is None, "llama-server did not start"
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


LIST = "\n".join(f"item number {i} is in the store" for i in range(1, 13)) + "\n"
REAL = [Work("list", LIST, raw=True), Work("chat", "Say hello in one short sentence.")]


@pytest.mark.large
def test_a_real_llama_server_s_counters_add_up(smollm2: Path) -> None:
    drafts = ("--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "4", "--spec-ngram-simple-size-m", "8")
    with llama(smollm2, "--metrics") as plain, llama(smollm2, "--metrics", *drafts) as drafting:
        measured = Session([Endpoint(plain), Endpoint(drafting)], REAL, 48)
        measured.open()
        assert len(list(measured.rounds(2))) == 4 and measured.failures() == []
    for runs in measured.tries:
        for one, two in runs:
            assert one.answer is not None and two.answer is not None
            assert one.counters.drafted == 0 and one.counters.mean_acceptance_length == 1.0
            found = two.counters
            assert found.drafted is not None and found.accepted is not None and found.drafts is not None
            assert two.answer.tokens == (found.emitted or 0) + 1 and found.accepted <= found.drafted
            assert sum(found.per_position or ()) == found.accepted
            assert list(found.per_position or ()) == sorted(found.per_position or (), reverse=True)
            alone = from_timings(two.answer.timings, two.answer.tokens)
            assert combine(alone, found, True) == (found, True), "an answer's timings and the metrics agree"
    row = measured.rows()[0]
    assert row.kind == "list" and row.ratio and row.sides[1].counters.acceptance_rate
    length = row.sides[1].counters.mean_acceptance_length
    assert length is not None and 1.0 < length <= (row.sides[1].counters.length_with_draft or 0)
    for side in row.sides:
        assert side.tps and side.server_tps and side.first_token_s


@pytest.mark.large
def test_a_real_llama_server_without_metrics_tells_by_its_answers(smollm2: Path) -> None:
    gap = Work("fim", middle=("def add(a, b):\n", "\n\nprint(add(1, 2))\n"))
    with llama(smollm2, "--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "4") as url:
        measured = Session([Endpoint(url)], [*REAL, gap], 48)
        measured.open()
        list(measured.rounds(1))
    assert [kind for kind, _ in measured.left_out] == ["fim"], "it takes a suffix and does not read it"
    counters = measured.rows()[-1].sides[0].counters
    assert counters.drafted and counters.drafts is None and counters.by_position == []
    assert counters.emitted == sum(
        (run[0].answer.tokens or 0) - 1 for runs in measured.tries for run in runs if run[0].answer
    )
