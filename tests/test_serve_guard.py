"""The guard and the connections: what an application behind them never gets to see. Raw sockets, no models."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from slipstream.serve.connection import protocol
from slipstream.serve.guard import Guard
from slipstream.serve.options import ServeOptions

LIMIT = 20.0


class Echo:
    """Answers with the size of the body; /stream sends pieces until its client has left."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.left = threading.Event()
        self.times = 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.seen.append("disconnect")
                return
            size, more = size + len(message["body"]), message["more_body"]
        self.seen.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-size", str(size).encode())]})
        if scope["path"] == "/stream":
            leaving = asyncio.ensure_future(receive())
            while not leaving.done():
                await send({"type": "http.response.body", "body": b"piece" * self.times, "more_body": True})
                await asyncio.sleep(0.01)
            self.left.set()
        await send({"type": "http.response.body", "body": b"end"})


@contextmanager
def served(seconds: float = 20.0, **options: object) -> Iterator[tuple[Echo, Callable[[], socket.socket]]]:
    """An Echo behind the guard, on a real socket; and how to reach it."""
    o, echo = ServeOptions(**options), Echo()  # type: ignore[arg-type]
    config = uvicorn.Config(
        Guard(echo, o), http=protocol(seconds), ws="none", lifespan="off", log_config=None, log_level="error"
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
        thread.start()
        try:
            yield echo, lambda: socket.create_connection(address, timeout=LIMIT)
        finally:
            server.should_exit = True
            thread.join(LIMIT)
            assert not thread.is_alive()


def head(*lines: str, path: str = "/v1/x", method: str = "POST") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: here", *lines, "", ""]).encode()


def answer(sock: socket.socket) -> tuple[int, bytes]:
    """Status and everything until the server closes the connection."""
    data = b""
    while piece := sock.recv(65536):
        data += piece
    return (int(data.split()[1]) if data else 0), data


def ask(connect: Callable[[], socket.socket], data: bytes) -> tuple[int, bytes]:
    with connect() as sock:
        sock.sendall(data)
        return answer(sock)


def code(data: bytes) -> str:
    error = json.loads(data.partition(b"\r\n\r\n")[2])["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] in ("invalid_request_error", "authentication_error")
    return str(error["code"])


def test_a_body_that_says_it_is_too_large_is_refused_before_it_comes() -> None:
    with served(max_body=100) as (echo, connect):
        status, data = ask(connect, head("Content-Length: 101"))
        assert (status, code(data), echo.seen) == (413, "body_too_large", [])
        assert b"connection: close" in data
        assert ask(connect, head("Content-Length: " + "9" * 18))[0] == 413
        assert ask(connect, head("Content-Length: 100", "Connection: close") + b"x" * 100)[0] == 200


def test_a_body_without_a_length_is_counted() -> None:
    with served(max_body=100) as (echo, connect):
        piece = b"32\r\n" + b"x" * 50 + b"\r\n"
        status, data = ask(connect, head("Transfer-Encoding: chunked") + piece * 3 + b"0\r\n\r\n")
        assert (status, code(data), echo.seen) == (413, "body_too_large", ["disconnect"])
        fits = head("Transfer-Encoding: chunked", "Connection: close") + piece * 2 + b"0\r\n\r\n"
        assert ask(connect, fits)[0] == 200


def test_a_large_upload_can_be_sent_to_its_end_and_the_refusal_be_read() -> None:
    with served(max_body=100) as (_, connect):
        size = 8 * 2**20
        status, data = ask(connect, head(f"Content-Length: {size}") + b"x" * size)
        assert (status, code(data)) == (413, "body_too_large")


def test_a_body_that_does_not_come_is_given_up() -> None:
    with served(body_seconds=0.2) as (echo, connect):
        status, data = ask(connect, head("Content-Length: 10") + b"12345")
        assert (status, code(data), echo.seen) == (408, "body_timeout", ["disconnect"])


def test_a_head_that_does_not_come_costs_no_more_than_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.serve.connection._MARGIN", 0.0)
    with served(seconds=0.2) as (_, connect):
        for sent in (b"", b"POST /v1/x HT", head("Connection: keep-alive")[:-2]):
            with connect() as sock:
                sock.sendall(sent)
                with suppress(ConnectionResetError):  # as good as closed
                    assert answer(sock) == (0, b"")


def drip(sock: socket.socket, complaint: str) -> None:
    """Send a byte at a time until the server hangs up."""
    for _ in range(400):
        try:
            sock.sendall(b"x")
        except OSError:
            return
        time.sleep(0.01)
    pytest.fail(complaint)


def test_bytes_that_drip_do_not_win_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.serve.connection._MARGIN", 0.0)
    with served(seconds=0.3) as (_, connect), connect() as sock:
        drip(sock, "a head that never ends was read for ever")


def test_a_body_that_nobody_reads_has_its_time_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.serve.connection._MARGIN", 0.0)
    with served(seconds=0.3, api_keys=("k",)) as (_, connect), connect() as sock:
        sock.sendall(head("Content-Length: 1000"))
        drip(sock, "a refused body was read for ever")


def test_a_hang_up_reaches_the_application() -> None:
    with served() as (echo, connect), connect() as sock:
        sock.sendall(head("Content-Length: 0", path="/stream"))
        assert sock.recv(10)
        sock.close()
        assert echo.left.wait(LIMIT)


def test_a_client_that_stops_reading_is_cut_off() -> None:
    with served(seconds=0.3) as (echo, connect), connect() as sock:
        echo.times = 100_000
        sock.sendall(head("Content-Length: 0", path="/stream"))
        assert sock.recv(10)
        assert echo.left.wait(LIMIT)


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (["Authorization: Bearer one"], 200),
        (["Authorization: bearer  two"], 200),
        ([], 401),
        (["Authorization: Bearer"], 401),
        (["Authorization: Bearer onetwo"], 401),
        (["Authorization: Basic one"], 401),
        (["Authorization: Bearer \xff"], 401),
    ],
)
def test_keys(lines: list[str], status: int) -> None:
    with served(api_keys=("one", "two")) as (_, connect):
        got, data = ask(connect, head(*lines, "Content-Length: 0", "Connection: close"))
        assert got == status
        if status == 401:
            assert code(data) == "invalid_api_key" and b"www-authenticate: Bearer" in data


def test_what_needs_no_key() -> None:
    with served(api_keys=("one",)) as (_, connect):
        for path, status in {"/": 200, "/health": 200, "/static/a.js": 200, "/v1/models": 401, "/static": 401}.items():
            assert ask(connect, head("Connection: close", path=path, method="GET"))[0] == status


def test_headers_that_cannot_be_honoured() -> None:
    with served() as (echo, connect):
        status, data = ask(connect, head("Content-Encoding: gzip", "Content-Length: 0"))
        assert (status, code(data)) == (415, "unsupported_encoding")
        status, data = ask(connect, head("Content-Length: -1"))
        assert (status, code(data)) == (400, "invalid_http")
        status, data = ask(connect, b"GARBAGE\r\n\r\n")
        assert (status, code(data)) == (400, "invalid_http")
        assert echo.seen == []
        assert ask(connect, head("Content-Encoding: identity", "Connection: close"))[0] == 200


def test_a_body_that_turns_into_garbage_is_a_hang_up_for_the_application(caplog: pytest.LogCaptureFixture) -> None:
    with served() as (echo, connect):
        status, data = ask(connect, head("Transfer-Encoding: chunked") + b"5\r\nhello\r\nZZ\r\n")
        assert (status, code(data)) == (400, "invalid_http")
        garbage = head("Content-Length: 0", path="/stream") + b"\0\0garbage\r\n\r\n"
        with connect() as sock:
            sock.sendall(garbage)
            assert sock.recv(10)
            sock.close()
        assert echo.left.wait(LIMIT)
    assert not caplog.records


def test_a_stream_is_not_held_back() -> None:
    with served() as (_, connect), connect() as sock:
        sock.sendall(head("Content-Length: 0", path="/stream"))
        got = b""
        while b"piece" not in got:  # the answer has no end yet
            got += sock.recv(100)


def test_a_client_that_waits_for_leave_to_send_is_answered_either_way() -> None:
    with served(max_body=10) as (_, connect), connect() as sock:
        sock.sendall(head("Content-Length: 5", "Expect: 100-continue", "Connection: close"))
        assert b"100" in sock.recv(100)
        sock.sendall(b"hello")
        assert answer(sock)[0] == 200
    with served(max_body=10) as (_, connect):
        assert ask(connect, head("Content-Length: 50", "Expect: 100-continue"))[0] == 413
