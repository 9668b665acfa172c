"""The API's other routes, and clients that go away: a slot is free at once, whatever was going on."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from asking import Asker, Json
from live import END, VOCABULARY, letters, live, smollm2, toy
from slipstream import __version__
from slipstream.core.types import Array, Span
from slipstream.engine import Engine
from slipstream.errors import ContextError
from slipstream.models.toy import ToyModel, ToyTokenizer
from slipstream.serve import documents as docs

LIMIT = 20.0
ENDLESS: Json = {"prompt": "abc", "ignore_eos": True, "max_tokens": 10_000_000, "seed": 1}
BYTES = [*(bytes([b]) for b in range(256)), b""]


def endless(n_slots: int = 2) -> Any:
    return toy(n_slots=n_slots, n_ctx=10_000_000)


def asking(url: str, path: str, body: Json) -> socket.socket:
    """A request that has been sent, and whose answer nobody has read."""
    data, at = json.dumps(body).encode(), urlsplit(url)
    connection = socket.create_connection((at.hostname, at.port), timeout=LIMIT)
    head = f"POST {path} HTTP/1.1\r\nHost: {at.netloc}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    connection.sendall(f"{head}\r\n\r\n".encode() + data)
    return connection


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 3])
def test_a_client_that_hangs_up_frees_its_slots_and_its_place(stream: bool, n: int) -> None:
    with live(endless()) as url:
        asker = Asker(url)
        for path, body in (
            ("/v1/completions", ENDLESS),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "ignore_eos": True}),
        ):
            client = asking(url, path, {**body, "stream": stream, "n": n})
            asker.until(lambda health: health["active"] == min(n, 2) and health["waiting"] == max(n - 2, 0))
            if stream:
                assert b"200 OK" in client.recv(4096)
            client.close()
            asker.until(lambda health: health["active"] == health["waiting"] == 0)
        assert asker.complete("abc", max_tokens=3)["usage"]["completion_tokens"] == 3


def test_a_client_that_hangs_up_in_the_queue_leaves_it() -> None:
    with live(endless(1)) as url:
        asker = Asker(url)
        first = asking(url, "/v1/completions", ENDLESS)
        asker.until(lambda health: health["active"] == 1)
        for stream in (True, False):
            second = asking(url, "/v1/completions", {**ENDLESS, "stream": stream})
            asker.until(lambda health: health["waiting"] == 1)
            second.close()
            asker.until(lambda health: health["waiting"] == 0 and health["active"] == 1)
        first.close()
        asker.until(lambda health: health["active"] == 0)


def test_too_many_requests_are_told_when_to_come_again() -> None:
    with live(endless(1), max_waiting=1) as url:
        asker = Asker(url)
        clients = [asking(url, "/v1/completions", {**ENDLESS, "stream": True}) for _ in range(2)]
        asker.until(lambda health: health["active"] == health["waiting"] == 1)
        for stream in (True, False):
            answer = httpx.post(url + "/v1/completions", json={**ENDLESS, "stream": stream}, timeout=LIMIT)
            assert answer.status_code == 429 and int(answer.headers["retry-after"]) >= 1
            docs.ErrorAnswer.model_validate(answer.json())
        never = httpx.post(url + "/v1/completions", json={**ENDLESS, "n": 3}, timeout=LIMIT)
        assert never.status_code == 400 and never.json()["error"]["param"] == "n"
        for client in clients:
            client.close()


def test_a_request_that_takes_too_long_is_ended() -> None:
    with live(endless(1), request_seconds=0.2) as url:
        whole = httpx.post(url + "/v1/completions", json=ENDLESS, timeout=LIMIT)
        assert whole.status_code == 504, whole.text
        streamed = httpx.post(url + "/v1/completions", json={**ENDLESS, "stream": True}, timeout=LIMIT)
        assert streamed.status_code == 200
        *_, last = [line for line in streamed.text.split("\n\n") if line]
        assert "ended after" in json.loads(last.removeprefix("data: "))["error"]["message"]


class Fails(ToyModel):
    """Its forward with this number raises this error."""

    def __init__(self, at: int, error: Exception) -> None:
        super().__init__(letters(), VOCABULARY)
        self._at, self._error = at, error

    def forward(self, spans: Sequence[Span]) -> list[Array]:
        if len(self.forwards) == self._at:
            self.forwards.append(0)
            raise self._error
        return super().forward(spans)


@pytest.mark.parametrize(
    ("error", "status", "word"),
    [(ContextError("no room", "use fewer slots"), 400, "no room"), (ZeroDivisionError("secret"), 500, "went wrong")],
)
def test_an_error_in_a_stream_is_its_last_event(error: Exception, status: int, word: str) -> None:
    with live(lambda: Engine(Fails(5, error), ToyTokenizer(BYTES, [END]))) as url:
        body = {**ENDLESS, "max_tokens": 50, "stream": True}
        answer = httpx.post(url + "/v1/completions", json=body, timeout=LIMIT)
        parts = [json.loads(p.removeprefix("data: ")) for p in answer.text.split("\n\n") if p]
        assert answer.status_code == 200 and word in parts[-1]["error"]["message"] and "secret" not in answer.text
        docs.ErrorAnswer.model_validate(parts[-1])
        assert sum(len(p["choices"][0]["text"]) for p in parts[:-1]) == 5
        again = httpx.post(url + "/v1/completions", json={**body, "stream": False}, timeout=LIMIT)
        assert again.status_code == 200
    for stream in (True, False):  # before the first token, the status is the error's own
        with live(lambda: Engine(Fails(0, error), ToyTokenizer(BYTES, [END]))) as url:
            answer = httpx.post(url + "/v1/completions", json={**ENDLESS, "stream": stream}, timeout=LIMIT)
            assert answer.status_code == status and "secret" not in answer.text, answer.text
            docs.ErrorAnswer.model_validate(answer.json())


def test_the_model_has_several_names() -> None:
    with live(toy(name="Toy-1.Q4.gguf"), aliases=("gpt-4o", "org/toy")) as url:
        asker = Asker(url)
        listed = asker.get("/v1/models")
        docs.ModelList.model_validate(listed)
        assert [m["id"] for m in listed["data"]] == ["Toy-1.Q4", "gpt-4o", "org/toy"]
        assert asker.get("/models") == listed
        for name in ("Toy-1.Q4", "Toy-1.Q4.gguf", "default", "gpt-4o", "org/toy"):
            assert asker.get(f"/v1/models/{name}")["id"] == name
            assert asker.post("/v1/completions", {"model": name, "prompt": "a"})["model"] == "Toy-1.Q4"
        for answer in (
            httpx.get(url + "/v1/models/gpt-5", timeout=LIMIT),
            httpx.post(url + "/v1/completions", json={"model": "gpt-5", "prompt": "a"}, timeout=LIMIT),
        ):
            error = answer.json()["error"]
            assert answer.status_code == 404 and error["code"] == "model_not_found"
            assert "gpt-4o" in error["message"] and "--alias" in error["message"]


def test_paths_without_v1_are_the_same() -> None:
    with live(toy()) as url:
        asker = Asker(url)
        body: Json = {"prompt": "abc", "seed": 1, "max_tokens": 9}
        a, b = (asker.post(path, body)["choices"] for path in ("/completions", "/v1/completions"))
        assert a == b
        body = {"messages": [{"role": "user", "content": "a"}], "seed": 1, "max_tokens": 9}
        a, b = (asker.post(path, body)["choices"] for path in ("/chat/completions", "/v1/chat/completions"))
        assert a == b


def test_health_and_props() -> None:
    with live(toy(n_slots=3)) as url:
        asker = Asker(url)
        assert asker.get("/health") == {"status": "ok", "slots": 3, "active": 0, "waiting": 0}
        props = asker.get("/props")
        docs.Props.model_validate_json(json.dumps(props))
        assert props["version"] == __version__ and props["n_ctx"] == 512 and props["speculative"]["active"]
        page = httpx.get(url + "/", timeout=LIMIT)
        assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
        metrics = httpx.get(url + "/metrics", timeout=LIMIT)
        assert metrics.status_code == 200 and "slipstream_" in metrics.text


def test_a_crash_shows_on_health_and_every_answer() -> None:
    def breaks(engine: Engine) -> Engine:
        def submit(request: object) -> None:
            raise SystemExit("the worker is gone")

        engine.submit = submit  # type: ignore[method-assign,assignment]
        return engine

    with live(lambda: breaks(toy()())) as url:
        first = httpx.post(url + "/v1/completions", json={"prompt": "a"}, timeout=LIMIT)
        assert first.status_code == 503, first.text
        health = httpx.get(url + "/health", timeout=LIMIT)
        assert health.status_code == 503 and health.json()["status"] == "crashed"
        assert httpx.post(url + "/v1/completions", json={"prompt": "a"}, timeout=LIMIT).status_code == 503


@pytest.mark.parametrize("content", ["plain", "é😀\n", "", "<|im_end|>", "\x00"])
def test_tokens_there_and_back(content: str) -> None:
    with live(toy()) as url:
        asker = Asker(url)
        tokens = asker.post("/tokenize", {"content": content})["tokens"]
        assert tokens == list(content.encode())
        assert asker.post("/detokenize", {"tokens": tokens}) == {"content": content}
        pieces = asker.post("/tokenize", {"content": content, "with_pieces": True})["tokens"]
        assert [p["id"] for p in pieces] == tokens
        assert all(p["piece"] == (chr(p["id"]) if p["id"] < 128 else [p["id"]]) for p in pieces)
        asker.post("/detokenize", {"tokens": [VOCABULARY]}, 400)


def test_openapi_describes_what_there_is() -> None:
    with live(toy()) as url:
        schema = Asker(url).get("/openapi.json")
        paths = {"/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/{model_id}", "/tokenize"}
        assert set(schema["paths"]) == paths | {"/detokenize", "/health", "/props", "/metrics"}
        for methods in schema["paths"].values():
            for operation in methods.values():
                assert "422" not in operation["responses"] and "200" in operation["responses"]
        chat = schema["paths"]["/v1/chat/completions"]["post"]["responses"]
        assert set(chat["200"]["content"]) == {"application/json", "text/event-stream"}
        assert set(chat) >= {"400", "401", "404", "413", "429", "503", "default"}
        assert schema["components"]["schemas"]["ChatRequest"]["additionalProperties"] is False
        assert "HTTPValidationError" not in schema["components"]["schemas"]


@pytest.fixture(scope="module")
def small() -> Any:
    with live(smollm2()) as url:
        yield Asker(url)


PROMPT = [{"role": "user", "content": "List the days of the week, one on each line, twice."}]


def test_a_real_model_says_the_same_in_every_way_of_asking(small: Asker) -> None:
    fields: Json = {"max_tokens": 40, "logprobs": True, "top_logprobs": 2}
    whole = small.chat(PROMPT, **fields)
    docs.ChatAnswer.model_validate(whole)
    assert "Monday" in whole["choices"][0]["message"]["content"]
    chunks = list(small.stream_chat(PROMPT, **fields))
    said = whole["choices"][0]["logprobs"]["content"]
    streamed = [e for c in chunks for k in c["choices"] if k["logprobs"] for e in k["logprobs"]["content"]]
    assert [e["id"] for e in streamed] == [e["id"] for e in said]
    text = "".join(k["delta"].get("content", "") for c in chunks for k in c["choices"])
    assert text == whole["choices"][0]["message"]["content"] == b"".join(bytes(e["bytes"]) for e in said).decode()
    plain = small.chat(PROMPT, **fields, speculative=False)
    assert [e["id"] for e in plain["choices"][0]["logprobs"]["content"]] == [e["id"] for e in said]
    assert plain["speculative"]["drafted"] == 0 < whole["speculative"]["verified"]


def test_a_real_model_s_tokens_there_and_back(small: Asker) -> None:
    for content in ("Hello, world", "naïve 😀 text", " leading"):
        tokens = small.post("/tokenize", {"content": content})["tokens"]
        assert small.post("/detokenize", {"tokens": tokens})["content"] == content
    special = small.post("/tokenize", {"content": "<|im_start|>user"})["tokens"]
    read = small.post("/tokenize", {"content": "<|im_start|>user", "parse_special": False})["tokens"]
    assert len(special) < len(read)
    whole = small.complete("<|im_start|>user", max_tokens=1)["usage"]["prompt_tokens"]
    assert whole == len(small.post("/tokenize", {"content": "<|im_start|>user", "add_special": True})["tokens"])


def test_a_real_model_keeps_to_a_schema(small: Asker) -> None:
    properties = {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 150}}
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}}
    ask = [{"role": "user", "content": "Describe a person as JSON with name and age."}]
    answer = small.chat(ask, response_format=form, max_tokens=120)
    value = json.loads(answer["choices"][0]["message"]["content"])
    assert set(value) == set(properties) and isinstance(value["age"], int)
    assert answer["choices"][0]["finish_reason"] == "stop"
