"""An OpenAI-compatible server on a real socket that answers as a test says, with every bad habit that servers have."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SSE = "text/event-stream"


@dataclass
class Asked:
    path: str
    body: dict[str, Any]
    headers: dict[str, str]


@dataclass
class Reply:
    """`cut`: the connection breaks after the chunks. `drop`: it breaks before anything is said. `hold`: until then."""

    chunks: Sequence[bytes] = ()
    status: int = 200
    kind: str = SSE
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False
    drop: bool = False
    hold: threading.Event | None = None


def event(value: Any) -> bytes:
    return f"data: {value if isinstance(value, str) else json.dumps(value)}\n\n".encode()


def said(text: str, reason: str | None = None, **more: Any) -> bytes:
    """A chunk of a chat."""
    return event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": reason}], **more})


DONE = event("[DONE]")


def answer(
    *texts: str, usage: dict[str, Any] | None = None, timings: dict[str, Any] | None = None, reason: str = "stop"
) -> Reply:
    """A stream as llama.cpp's, vLLM's and SGLang's: a role, the texts, a finish reason, and usage at the end."""
    chunks = [event({"choices": [{"delta": {"role": "assistant", "content": None}, "finish_reason": None}]})]
    chunks += [said(text) for text in texts]
    chunks.append(event({"choices": [{"delta": {}, "finish_reason": reason}]}))
    if usage is not None or timings is not None:
        last = {"choices": []} | ({"usage": usage} if usage else {}) | ({"timings": timings} if timings else {})
        chunks.append(event(last))
    return Reply([*chunks, DONE])


def good(tokens: int = 3) -> Reply:
    return answer("a", "b", "c", usage={"completion_tokens": tokens, "prompt_tokens": 9})


def problem(status: int, message: str, **headers: str) -> Reply:
    body = json.dumps({"error": {"message": message, "code": status}}).encode()
    return Reply([body], status, "application/json", headers)


class FakeServer:
    """`answers` is asked for each completion; `metrics` for each look at the counters (None: there are none)."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.answers: Callable[[Asked], Reply] = lambda _: good()
        self.metrics: Callable[[], str | None] = lambda: None
        self.models: Reply = Reply([b'{"data": [{"id": "tiny"}]}'], kind="application/json")
        self.ended = threading.Event()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._http.daemon_threads = True
        self._http.block_on_close = False
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def completions(self) -> list[Asked]:
        return [a for a in self.asked if a.path.endswith("/completions")]

    def reply(self, asked: Asked) -> Reply:
        self.asked.append(asked)
        if asked.path == "/metrics":
            text = self.metrics()
            return Reply([text.encode()], kind="text/plain") if text is not None else problem(501, "no metrics here")
        return self.models if asked.path == "/v1/models" else self.answers(asked)

    @contextmanager
    def running(self) -> Iterator[FakeServer]:
        thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield self
        finally:
            self.ended.set()
            self._http.shutdown()
            self._http.server_close()
            thread.join()


def _handler(server: FakeServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer({})

        def do_POST(self) -> None:
            self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _answer(self, body: dict[str, Any]) -> None:
            reply = server.reply(Asked(self.path, body, {k.lower(): v for k, v in self.headers.items()}))
            if reply.drop:
                self.close_connection = True
                return
            self.send_response(reply.status)
            self.send_header("Content-Type", reply.kind)
            self.send_header("Transfer-Encoding", "chunked")
            for name, value in reply.headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            for chunk in reply.chunks:
                self.wfile.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
                self.wfile.flush()
            if reply.hold is not None:
                reply.hold.wait(20)
            if reply.cut or reply.hold is not None:
                self.close_connection = True
                return
            self.wfile.write(b"0\r\n\r\n")

        def log_message(self, *args: Any) -> None: ...

    return Handler
