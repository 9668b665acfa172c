"""What a request must pass before the application sees it: its key, its headers, and the size and speed of its body."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Iterable
from contextlib import suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slipstream.serve import failures
from slipstream.serve.options import MIB, ServeOptions

_OPEN = frozenset({"/", "/health"})  # no key is asked for these, nor for what the page is made of
_STATIC = "/static/"
_LINGER = 1.0  # seconds for what a refused client still sends, so that it gets to read why
Refusal = tuple[int, str, str]  # status, message, code


class Guard:
    """Refuses in OpenAI's shape: 400, 401, 408, 413 and 415. Answers pass untouched, a chunk at a time.

    An ASGI middleware. After a refusal that leaves a body unread, the connection is closed.
    """

    def __init__(self, app: ASGIApp, options: ServeOptions) -> None:
        self._app, self._options = app, options
        self._keys = [key.encode() for key in options.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._check(scope["path"], scope["headers"])
        if refusal is not None:
            await _refuse(refusal, receive, send)
            return
        body = _Body(self._options, receive, send)
        await self._app(scope, body.receive, body.send)

    def _check(self, path: str, headers: Iterable[tuple[bytes, bytes]]) -> Refusal | None:
        """What is wrong with a request whose body has not been read; None: nothing."""
        found = dict(headers)
        if self._keys and path not in _OPEN and not path.startswith(_STATIC) and not self._knows(found):
            return 401, "a valid API key is missing. hint: send it as `Authorization: Bearer KEY`", "invalid_api_key"
        encoding = found.get(b"content-encoding", b"identity").strip().lower()
        if encoding not in (b"", b"identity"):
            return 415, "the body is compressed. hint: send it without a Content-Encoding", "unsupported_encoding"
        length = found.get(b"content-length", b"0")
        if not length.isdigit():
            return 400, "the Content-Length is not a number", "invalid_content_length"
        if len(length) > 18 or int(length) > self._options.max_body:
            return _too_large(self._options)
        return None

    def _knows(self, headers: dict[bytes, bytes]) -> bool:
        """Takes the same time for every wrong key."""
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        same = [hmac.compare_digest(key.strip(), known) for known in self._keys]
        return scheme.lower() == b"bearer" and any(same)


class _Body:
    """One request's body, counted and timed as it comes. Once refused, the application is told that the client left,
    and what it still says is dropped."""

    def __init__(self, options: ServeOptions, receive: Receive, send: Send) -> None:
        self._options, self._receive, self._send = options, receive, send
        self._size, self._whole, self._refused, self._answering = 0, False, False, False
        self._deadline: float | None = None

    async def receive(self) -> Message:
        if self._refused:
            return {"type": "http.disconnect"}
        if self._whole:  # what comes now can only be a hang-up
            return await self._receive()
        now = asyncio.get_running_loop().time()
        if self._deadline is None:
            self._deadline = now + self._options.body_seconds
        try:
            message = await asyncio.wait_for(self._receive(), max(self._deadline - now, 0))
        except asyncio.TimeoutError:
            seconds = self._options.body_seconds
            return await self._refuse((408, f"the body did not arrive within {seconds:g} s", "body_timeout"))
        if message["type"] != "http.request":
            return message
        self._size += len(message.get("body", b""))
        self._whole = not message.get("more_body", False)
        if self._size > self._options.max_body:
            return await self._refuse(_too_large(self._options))
        return message

    async def send(self, message: Message) -> None:
        if not self._refused:
            self._answering = True
            await self._send(message)

    async def _refuse(self, refusal: Refusal) -> Message:
        self._refused = True
        if not self._answering:
            await _refuse(refusal, self._receive, self._send, linger=refusal[0] == 413 and not self._whole)
        return {"type": "http.disconnect"}


def _too_large(options: ServeOptions) -> Refusal:
    return 413, f"the body is larger than {options.max_body / MIB:g} MiB. hint: see --max-body", "body_too_large"


async def _refuse(refusal: Refusal, receive: Receive, send: Send, linger: bool = True) -> None:
    """Answer, read away what still comes for a moment (else the client may see a reset instead), and close."""
    status, message, code = refusal
    body = failures.encoded(failures.body(status, message, None, code))
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    if linger:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(_read_away(receive), _LINGER)
    await send({"type": "http.response.body", "body": b""})


async def _read_away(receive: Receive) -> None:
    message = await receive()
    while message["type"] == "http.request" and message.get("more_body", False):
        message = await receive()
