"""Life and death of the server: real processes and real sockets. Every wait has a limit: a hang is a failure."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from slipstream.cli.serve import warnings
from slipstream.core.cost import Curve
from slipstream.core.types import Array, Span
from slipstream.engine import Engine
from slipstream.errors import InputError
from slipstream.hub.cache import cache_dir, read_json
from slipstream.serve.options import ServeOptions
from slipstream.serve.run import Server, bind, url
from toy_server import ByteModel, byte_engine

LIMIT = 60.0
CHAT = {"messages": [{"role": "user", "content": "Count from one to a hundred."}], "temperature": 0, "seed": 1}
LONG = {"prompt": "one two three one two", "temperature": 0, "seed": 1, "stream": True, "ignore_eos": True}


def until(condition: Callable[[], object], what: str = "it") -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen within {LIMIT:g} s"
        time.sleep(0.005)


# -- real processes ---------------------------------------------------------------------------------------------------


class Child:
    """`slipstream serve` on SmolLM2; its words on stderr are collected as they come."""

    def __init__(self, *args: str, **env: str) -> None:
        command = [sys.executable, "-m", "slipstream", "serve", "-m", "smollm2-135m", *args]
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env={**os.environ, **env}
        )
        self.said = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            self.said += line

    @property
    def url(self) -> str:
        until(lambda: "Ctrl-C ends it" in self.said or self.process.poll() is not None, "the start")
        found = re.search(r"serving \S+ on (\S+)", self.said)
        assert found, self.said
        return found[1]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        code = self.process.wait(LIMIT)
        self._reader.join(LIMIT)
        assert "Traceback" not in self.said, self.said
        return code


@contextlib.contextmanager
def child(*args: str, **env: str) -> Iterator[Child]:
    made = Child(*args, **env)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()


def events(response: httpx.Response) -> Iterator[Any]:
    for line in response.iter_lines():
        if line.startswith("data: "):
            yield line[6:] if line == "data: [DONE]" else json.loads(line[6:])


def test_sigterm_lets_a_stream_come_to_its_natural_end() -> None:
    with child("--port", "0", "--k", "4", "--ctx", "1024") as server:
        base = server.url
        health = httpx.get(f"{base}/health").json()
        assert health == {"status": "ok", "slots": 4, "active": 0, "waiting": 0}
        answer = httpx.post(f"{base}/v1/chat/completions", json={**CHAT, "max_tokens": 8}, timeout=LIMIT)
        assert answer.status_code == 200 and answer.json()["choices"][0]["message"]["content"]
        seen: list[Any] = []
        with httpx.stream("POST", f"{base}/v1/completions", json={**LONG, "max_tokens": 150}, timeout=LIMIT) as r:
            for event in events(r):
                if not seen:
                    server.signal(signal.SIGTERM)
                seen.append(event)
        assert seen[-1] == "[DONE]" and seen[-2]["choices"][0]["finish_reason"] == "length"
        done = seen[-2]["speculative"]
        assert done["first_tokens"] + done["emitted"] == 150
        assert server.wait() == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{base}/health")


@pytest.mark.parametrize("way", ["two signals", "no time to drain"])
def test_a_stream_that_may_not_end_by_itself_ends_with_an_error(way: str) -> None:
    drain = "0.2" if way == "no time to drain" else "600"
    with child("--port", "0", "--k", "4", "--ctx", "8192", "--parallel", "1", "--drain", drain) as server:
        last, request = None, {**LONG, "max_tokens": 8000}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=request, timeout=LIMIT) as r:
            for event in events(r):
                if last is None:
                    server.signal(signal.SIGINT)
                    if way == "two signals":
                        time.sleep(0.2)
                        server.signal(signal.SIGINT)
                if event != "[DONE]":
                    last = event
        assert last and "shutting down" in last["error"]["message"]
        assert server.wait() == 0


def digests(folder: Path) -> dict[str, str]:
    files = [p for p in folder.rglob("*") if p.is_file()]
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.fixture
def home(tmp_path: Path, smollm2: Path) -> Path:
    """A cache folder of its own, with one model and its price lists."""
    home = tmp_path / "home"
    (home / "models").mkdir(parents=True)
    for file in smollm2.parent.glob(f"{smollm2.name}*"):
        shutil.copy2(file, home / "models")
    if (prices := cache_dir() / "prices").is_dir():
        shutil.copytree(prices, home / "prices")
    return home


def test_a_killed_server_leaves_a_clean_error_and_nothing_damaged(home: Path) -> None:
    with child("--port", "0", "--ctx", "1024", SLIPSTREAM_HOME=str(home)) as first:
        base = first.url
        before = digests(home)
        assert any("models" in name for name in before)
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):  # noqa: PT012, SIM117
            with httpx.stream("POST", f"{base}/v1/completions", json={**LONG, "max_tokens": 900}, timeout=LIMIT) as r:
                for _ in events(r):
                    first.signal(signal.SIGKILL)
        assert first.wait() == -signal.SIGKILL
    assert digests(home) == before
    for file in (home / "prices").glob("*.json"):
        value = read_json(file)
        assert isinstance(value, dict) and Curve.of(value["curve"])
    with child("--port", base.rpartition(":")[2], "--ctx", "1024", SLIPSTREAM_HOME=str(home)) as second:
        assert second.url == base
        answer = httpx.post(f"{base}/v1/chat/completions", json={**CHAT, "max_tokens": 4}, timeout=LIMIT)
        assert answer.status_code == 200


def test_a_port_in_use_is_told_before_a_model_is_opened() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with child("--port", str(port)) as server:
            assert server.wait() == 2
            assert f"error: port {port} is in use" in server.said and "hint:" in server.said
            assert "opening" not in server.said


def test_keys_and_what_is_said_about_the_network() -> None:
    key = "sesame-4711"
    with child("--port", "0", "--k", "4", "--ctx", "512", "--host", "0.0.0.0", SLIPSTREAM_API_KEY=key) as server:
        base = server.url
        assert httpx.get(f"{base}/health").status_code == 200
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            refused = httpx.get(f"{base}/v1/models", headers=headers)
            assert refused.status_code == 401 and refused.json()["error"]["code"] == "invalid_api_key"
        models = httpx.get(f"{base}/v1/models", headers={"Authorization": f"Bearer {key}"})
        assert models.status_code == 200 and models.json()["data"]
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
    assert "warning: 0.0.0.0 can be reached from other machines" in server.said
    assert key not in server.said and "$SLIPSTREAM_API_KEY" in server.said


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--parallel", "0"], "--parallel is 0"),
        (["--port", "70000"], "port is 70000"),
        (["--host", "no such host"], "there is no host"),
        (["--max-body", "0"], "max_body is 0"),
        (["--drian", "1"], "--drain"),
        (["-m", "no-such-model"], "no-such-model"),
        (["--draft", "no-such-drafter"], "no-such-drafter"),
    ],
)
def test_bad_input_is_told_in_two_lines(args: list[str], said: str) -> None:
    with child("--port", "0", *args) as server:
        assert server.wait() == 2
        assert server.said.count("error: ") == 1 and "hint: " in server.said and said in server.said


def test_a_draft_that_will_not_be_used_is_warned_of() -> None:
    with child("--port", "0", "--ctx", "512", "--draft", "suffix", "--policy", "off") as server:
        status = httpx.get(f"{server.url}/props").json()["speculative"]
        assert status["active"] is False and status["reason"]
    assert "warning: --draft suffix is given, but nothing will be drafted" in server.said
    assert f"not drafting: {status['reason']}" in server.said


def test_warnings() -> None:
    assert (
        warnings(ServeOptions()) == warnings(ServeOptions(host="localhost")) == warnings(ServeOptions(host="::1")) == []
    )
    [loud] = warnings(ServeOptions(host="192.168.1.2"))
    assert "ANYONE" in loud and "SLIPSTREAM_API_KEY" in loud
    [quiet] = warnings(ServeOptions(host="myhost", api_keys=("secret",)))
    assert "unencrypted" in quiet and "secret" not in quiet
    [everybody] = warnings(ServeOptions(cors_origins=("*",)))
    assert "every web page" in everybody


def test_addresses() -> None:
    assert url("0.0.0.0", 1) == url("127.0.0.1", 1) == "http://127.0.0.1:1"
    assert url("::", 1) == "http://[::1]:1"
    with bind(ServeOptions(port=0)) as one:
        one.listen()
        with pytest.raises(InputError, match="in use"):
            bind(ServeOptions(port=one.getsockname()[1]))
    with pytest.raises(InputError, match="cannot listen"):
        bind(ServeOptions(host="203.0.113.1", port=0))


# -- a server in this process, on toy models that misbehave ------------------------------------------------------------


class Misbehaving(ByteModel):
    """Its forward waits for a gate; `error` is raised once, after so many more forwards."""

    def __init__(self, n_slots: int = 1) -> None:
        super().__init__(4096, n_slots)
        self.gate, self.begun = threading.Event(), threading.Event()
        self.gate.set()
        self.error: BaseException | None = None
        self.after = 0

    def forward(self, spans: Sequence[Span]) -> list[Array]:
        self.begun.set()
        assert self.gate.wait(LIMIT)
        self.after -= 1
        if self.error is not None and self.after < 0:
            error, self.error = self.error, None
            raise error
        return super().forward(spans)


class Asker:
    """Requests from threads, so that several can wait at once."""

    def __init__(self, base: str, key: str = "none") -> None:
        self.client = httpx.Client(base_url=base, timeout=LIMIT, headers={"Authorization": f"Bearer {key}"})
        self.pool = ThreadPoolExecutor(16)

    def health(self) -> tuple[int, dict[str, Any]]:
        answer = self.client.get("/health")
        return answer.status_code, answer.json()

    def complete(self, **more: Any) -> httpx.Response:
        request = {"prompt": [97, 98, 99], "temperature": 0, "seed": 1, "max_tokens": 5, "ignore_eos": True, **more}
        return self.client.post("/v1/completions", json=request)

    def later(self, **more: Any) -> Callable[[], httpx.Response]:
        future = self.pool.submit(self.complete, **more)
        return lambda: future.result(LIMIT)

    def until(self, **wanted: object) -> None:
        until(lambda: wanted.items() <= self.health()[1].items(), str(wanted))


@contextlib.contextmanager
def toy(n_slots: int = 1, **options: Any) -> Iterator[tuple[Misbehaving, Asker]]:
    model = Misbehaving(n_slots)
    server = Server(lambda: byte_engine(model), ServeOptions(port=0, drain_seconds=0.1, **options))
    asker = Asker(server.start(), *options.get("api_keys", ()))
    assert asker.complete().status_code == 200  # what never changes of an engine is asked for once
    try:
        yield model, asker
    finally:
        model.gate.set()
        asker.pool.shutdown()
        asker.client.close()
        server.stop()
        assert server._thread is not None and not server._thread.is_alive()


def error_of(response: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


class Fatal(BaseException):
    """What no request can be blamed for."""


def test_a_crash_is_told_to_everybody_and_on_health() -> None:
    with toy() as (model, ask):
        model.gate.clear()
        running, waiting = ask.later(), ask.later(n=2)
        ask.until(active=1, waiting=2)
        model.error = Fatal("the device is lost")
        model.gate.set()
        for answer in (running(), waiting(), ask.complete()):
            assert answer.status_code == 503 and "crashed" in error_of(answer)["message"]
        status, health = ask.health()
        assert status == 503 and health["status"] == "crashed" and "the device is lost" in health["reason"]


def test_a_crash_ends_a_stream_with_an_error() -> None:
    with toy() as (model, ask), ask.client.stream("POST", "/v1/completions", json={**LONG, "max_tokens": 4000}) as r:
        seen = events(r)
        next(seen)
        model.error = Fatal("lost")
        assert "crashed" in [e for e in seen if e != "[DONE]"][-1]["error"]["message"]


def test_the_exit_code_tells_of_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr(Server, "_run_in_thread", lambda self: codes.append(self.run()))
    with toy() as (model, ask):
        model.error = Fatal("lost")
        assert ask.complete().status_code == 503
    with toy() as (_, ask):
        assert ask.complete().status_code == 200
    assert codes == [1, 0]


def test_a_step_that_hangs_is_noticed_and_may_come_back() -> None:
    with toy(stall_seconds=0.2) as (model, ask):
        model.gate.clear()
        running, waiting = ask.later(), ask.later()
        for answer in (running(), waiting(), ask.complete()):
            assert answer.status_code == 503 and "hangs" in error_of(answer)["message"]
        status, health = ask.health()
        assert status == 503 and health["status"] == "stuck" and health["reason"]
        model.gate.set()
        ask.until(status="ok", active=0, waiting=0)
        assert ask.complete().status_code == 200


def test_a_failing_step_fails_those_it_ran_for_and_nobody_after_them() -> None:
    with toy(n_slots=2) as (model, ask):
        good = ask.complete().json()["choices"][0]["text"]
        model.gate.clear()
        running = [ask.later(max_tokens=400)]
        ask.until(active=1)
        running.append(ask.later(max_tokens=400))
        ask.until(active=1, waiting=1)
        model.error, model.after = RuntimeError("secret detail"), 1  # the step that begins the second one
        model.gate.set()
        for answer in running:
            assert answer().status_code == 500
            assert error_of(answer())["type"] == "server_error" and "secret" not in answer().text
        assert ask.complete().json()["choices"][0]["text"] == good
        ask.until(status="ok", active=0, waiting=0)


def test_a_full_queue_says_when_to_come_back() -> None:
    with toy(max_waiting=2) as (model, ask):
        model.gate.clear()
        running = [ask.later() for _ in range(3)]
        ask.until(active=1, waiting=2)
        answer = ask.complete()
        assert answer.status_code == 429 and error_of(answer)["message"]
        assert int(answer.headers["retry-after"]) >= 1
        model.gate.set()
        assert [r().status_code for r in running] == [200] * 3
        assert ask.complete().status_code == 200


def test_a_request_over_its_time_is_ended() -> None:
    with toy(request_seconds=0.3) as (model, ask):
        stream = {**LONG, "max_tokens": 4000}
        with ask.client.stream("POST", "/v1/completions", json=stream) as r:
            seen = events(r)
            next(seen)
            model.gate.clear()
            time.sleep(0.35)
            model.gate.set()
            assert "ended after" in [e for e in seen if e != "[DONE]"][-1]["error"]["message"]
        model.gate.clear()
        late = ask.later()
        ask.until(active=1)
        time.sleep(0.35)
        model.gate.set()
        assert late().status_code == 504 and error_of(late())["message"]
        ask.until(active=0)


def test_a_hang_up_frees_the_slot() -> None:
    with toy() as (_, ask):
        with ask.client.stream("POST", "/v1/completions", json={**LONG, "max_tokens": 4000}) as r:
            seen = events(r)
            next(seen)
            ask.until(active=1)
        ask.until(active=0)
        assert ask.complete().status_code == 200


def test_a_body_that_is_too_large_is_413() -> None:
    with toy(max_body=1000) as (_, ask):
        answer = ask.complete(prompt="x" * 2000)
        assert answer.status_code == 413 and error_of(answer)["code"] == "body_too_large"


def test_other_origins_are_let_in_only_when_asked() -> None:
    page = {"Origin": "http://page.example"}
    asks = {**page, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    with toy() as (_, ask):
        assert "access-control-allow-origin" not in ask.client.get("/v1/models", headers=page).headers
        assert "access-control-allow-origin" not in ask.client.options("/v1/models", headers=asks).headers
    with toy(cors_origins=("http://page.example",), api_keys=("k",)) as (_, ask):
        assert ask.client.options("/v1/models", headers=asks).status_code == 200
        for headers, status in ((page, 200), ({**page, "Authorization": "Bearer wrong"}, 401)):
            answer = ask.client.get("/v1/models", headers=headers)
            assert answer.status_code == status  # a page may read why it was refused
            assert answer.headers["access-control-allow-origin"] == "http://page.example"
        other = ask.client.get("/v1/models", headers={"Origin": "http://other.example"})
        assert "access-control-allow-origin" not in other.headers


def test_a_server_that_cannot_start_says_why_where_it_was_started() -> None:
    def fail() -> Engine:
        raise InputError("no such model", "name another")

    with pytest.raises(InputError, match="no such model"):
        Server(fail, ServeOptions(port=0)).start()
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(InputError, match="in use"):
        Server(byte_engine, ServeOptions(port=taken.getsockname()[1])).start()
