"""A client of OpenAI-compatible servers that measures: one streamed answer at a time, greedy, with its times.

Times are seconds of this side's clock, so that two servers are measured alike. Tokens are the ones that the server
counts, never chunks: a chunk may hold several tokens, or none.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx

from slipstream.advise import refusals
from slipstream.advise.counters import Reading, count, read
from slipstream.advise.measure import Work
from slipstream.errors import InputError, ResourceError, SlipstreamError

RETRIES = 3  # for a server that is busy, or still loads its model
LONGEST_WAIT = 30.0  # seconds before a retry
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True)
class Ask:
    """A request: where it goes below /v1, and what it says besides the model and the streaming."""

    path: str
    body: Mapping[str, Any]

    @classmethod
    def of(cls, work: Work, max_tokens: int, raw: bool = False) -> Ask:
        """Messages, and prompts for the chat template, are chats; raw prompts and gaps to fill are completions."""
        common = {"temperature": 0, "max_tokens": max_tokens}
        if work.middle is not None:
            return cls("completions", {"prompt": work.middle[0], "suffix": work.middle[1], **common})
        if work.messages is None and (raw or work.raw):
            return cls("completions", {"prompt": work.prompt, **common})
        said = work.messages if work.messages is not None else [{"role": "user", "content": work.prompt}]
        return cls("chat/completions", {"messages": list(said), **common})


@dataclass
class Answer:
    """What came back. `decode_s` runs from the first token to the end; None when it all came at once.

    `tokens` is the server's own count (`usage`, else `timings`); None when it gives neither. So are `prompt_tokens` and
    the `cached` ones of them, which it had not to read again.
    """

    text: str = ""
    finish_reason: str | None = None
    tokens: int | None = None
    prompt_tokens: int | None = None
    cached: int | None = None
    first_token_s: float | None = None
    decode_s: float | None = None
    timings: dict[str, Any] = field(default_factory=dict)
    unreadable: int = 0  # lines of the stream


class Endpoint:
    """A server. `sleep` waits before retries. Raises InputError for an address or a key that cannot be one."""

    def __init__(
        self,
        url: str,
        model: str = "",
        api_key: str = "",
        timeout_s: float = 300.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.root, self.model, self.server, self.notes = _root(url), model, "", list[str]()
        self._silence, self._sleep = timeout_s, sleep
        self._usage: bool | None = None  # whether it knows stream_options; None: not seen yet
        if not api_key.isascii() or not api_key.isprintable():
            raise InputError(
                "the API key holds characters that no key has", "check the variable that --api-key-env names"
            )
        self._http = httpx.Client(
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(timeout_s, connect=min(10.0, timeout_s)),
            trust_env=urlsplit(self.root).hostname not in _LOCAL,  # no proxy stands before this machine
        )

    @property
    def address(self) -> str:
        """Without a password that may be in it."""
        parts = urlsplit(self.root)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()

    def connect(self) -> None:
        """Find out what answers there, and the model's name when none was given. Raises as `ask` does."""
        response = self._patiently(lambda: self._http.get(f"{self.root}/v1/models"))
        self.server = response.headers.get("server", "")
        if response.status_code in (401, 403):
            raise self._refused(response)
        if response.status_code != 200:  # some have no list of models
            return
        try:
            data = response.json()["data"]
            self.model = self.model or str(data[0]["id"])
        except (ValueError, KeyError, IndexError, TypeError):
            if not self.model:
                self.note("it lists no models, so none was named in the requests")

    def ask(self, ask: Ask, stopped: Callable[[], bool] = lambda: False) -> Answer | None:
        """One answer to its end; None when `stopped` said so before.

        Raises InputError for what the server will not take (with its own words) and ResourceError when it cannot be
        reached, is busy for too long, fails, says nothing for `timeout_s`, or stops in the middle.
        """
        if self._usage is not None:
            return self._stream(ask, self._usage, stopped)
        try:
            answer = self._stream(ask, True, stopped)
            self._usage = True
        except InputError as e:
            if not isinstance(e, refusals.BadRequest):
                raise
            answer = self._stream(ask, False, stopped)  # perhaps it was stream_options
            self._usage = False
        return answer

    def metrics(self) -> Reading | None:
        """The server's counters now; None when it shows none, or cannot be reached."""
        try:
            response = self._patiently(lambda: self._http.get(f"{self.root}/metrics"))
        except SlipstreamError:
            return None
        return read(response.text) if response.status_code == 200 else None

    def pause(self, seconds: float) -> None:
        if seconds:
            self._sleep(seconds)

    def note(self, text: str) -> None:
        """Something to tell the user, once."""
        if text not in self.notes:
            self.notes.append(text)

    def close(self) -> None:
        self._http.close()

    # -- one request ---------------------------------------------------------------------------------------------------

    def _stream(self, ask: Ask, usage: bool, stopped: Callable[[], bool]) -> Answer | None:
        extra: dict[str, Any] = {"stream_options": {"include_usage": True}} if usage else {}
        body = {"model": self.model, **ask.body, "stream": True, **extra}
        request = self._http.build_request("POST", f"{self.root}/v1/{ask.path}", json=body)
        started = time.perf_counter()

        def send() -> httpx.Response:
            nonlocal started
            started = time.perf_counter()  # of the try that gets an answer
            return self._http.send(request, stream=True)

        response = self._patiently(send)
        answer = Answer()
        try:
            if response.status_code != 200:
                response.read()
                raise self._refused(response)
            if not (kind := response.headers.get("content-type", "")).startswith("text/event-stream"):
                raise refusals.not_a_stream(self.address, kind)
            whole = _Listener(answer, started).hear(self._events(response, answer, stopped))
        except httpx.HTTPError as e:
            raise self._lost(e, answer) from e
        finally:
            response.close()
        if stopped() and not whole:
            return None
        if not whole:
            raise refusals.cut(self.address, answer.text)
        return answer

    def _events(
        self, response: httpx.Response, answer: Answer, stopped: Callable[[], bool]
    ) -> Iterator[dict[str, Any]]:
        """The JSON objects of a stream; an empty one for its end mark. Lines that cannot be read are counted."""
        heard = time.perf_counter()
        for line in lines(response.iter_bytes()):
            if stopped():
                return
            name, _, value = line.partition(":")
            if name not in ("data", "error"):  # comments keep a connection open, but are no answer
                if time.perf_counter() - heard > self._silence:
                    raise refusals.silent(self.address, self._silence)
                continue
            heard = time.perf_counter()
            if value.strip() == "[DONE]":
                yield {}
                continue
            try:
                event = json.loads(value)
            except ValueError:
                event = None
            if not isinstance(event, dict):
                answer.unreadable += 1
            elif name == "error" or event.get("error"):
                raise ResourceError(f"{self.address} failed in the middle: {refusals.words(event)}", "look at its log")
            elif event:
                yield event

    def _patiently(self, send: Callable[[], httpx.Response]) -> httpx.Response:
        """The response, after as many tries as a busy server asks for."""
        for left in reversed(range(RETRIES + 1)):
            try:
                response = send()
            except httpx.RemoteProtocolError as e:  # it had closed a connection that was kept open
                if not left:
                    raise self._lost(e, None) from e
                continue
            except (httpx.HTTPError, httpx.InvalidURL) as e:
                raise self._lost(e, None) from e
            wait = refusals.wait(response, RETRIES - left)
            if wait is None or wait > LONGEST_WAIT or not left:
                return response
            response.close()
            self._sleep(wait)
        raise AssertionError("the last try returns or raises")

    def _refused(self, response: httpx.Response) -> SlipstreamError:
        return refusals.refused(self.address, response)

    def _lost(self, e: Exception, answer: Answer | None) -> SlipstreamError:
        if isinstance(e, httpx.ReadTimeout):
            return refusals.silent(self.address, self._silence)
        if answer is not None:
            return refusals.cut(self.address, answer.text)
        return refusals.unreachable(self.address, e)


class _Listener:
    """Fills an answer from the events of its stream. `started`: when the request was sent, on time.perf_counter."""

    def __init__(self, answer: Answer, started: float) -> None:
        self.answer, self.started = answer, started
        self.texts: list[str] = []
        self.first = self.last = 0.0

    def hear(self, events: Iterable[dict[str, Any]]) -> bool:
        """Whether the answer came to its end: with a finish reason or the stream's end mark."""
        ended = False
        try:
            for event in events:
                ended |= not event or self._take(event, time.perf_counter())
        finally:
            self._finish()
        return ended

    def _take(self, event: Mapping[str, Any], now: float) -> bool:
        choices = event.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        if text := _text(choice):
            self.first = self.first or now
            self.last = now
            self.texts.append(text)
        answer = self.answer
        if isinstance(reason := choice.get("finish_reason"), str) and reason:
            answer.finish_reason = reason
            self.last = now  # an end token is a token too
        if isinstance(timings := event.get("timings"), dict):
            answer.timings = timings
        if isinstance(usage := event.get("usage"), dict):
            self._read(usage)
        return bool(choice.get("finish_reason"))

    def _read(self, usage: Mapping[str, Any]) -> None:
        details, answer = usage.get("prompt_tokens_details"), self.answer
        cached = count(details.get("cached_tokens")) if isinstance(details, dict) else None
        found = count(usage.get("completion_tokens")), count(usage.get("prompt_tokens")), cached
        old = answer.tokens, answer.prompt_tokens, answer.cached
        # Some send usage more than once, and not always all of it.
        answer.tokens, answer.prompt_tokens, answer.cached = (
            b if a is None else a for a, b in zip(found, old, strict=True)
        )

    def _finish(self) -> None:
        answer = self.answer
        answer.text = "".join(self.texts)
        if answer.tokens is None:
            answer.tokens = count(answer.timings.get("predicted_n"))
        if self.first:
            answer.first_token_s = self.first - self.started
        if len(self.texts) > 1:
            answer.decode_s = self.last - self.first


def _text(choice: Mapping[str, Any]) -> str:
    """What a chunk adds: of a completion, of a chat, or of its thinking, which are tokens as well."""
    delta = choice.get("delta")
    delta = delta if isinstance(delta, dict) else {}
    found = (choice.get("text"), delta.get("reasoning_content") or delta.get("reasoning"), delta.get("content"))
    return "".join(text for text in found if isinstance(text, str))


def lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Lines of a stream, which end in LF or CR LF and in nothing else: texts may hold all the other line ends."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r").decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")


def _root(url: str) -> str:
    """The address without the /v1 at its end."""
    full = (url if "://" in url else f"http://{url}").rstrip("/").removesuffix("/v1").rstrip("/")
    hint = "give the server's address, such as http://localhost:8080"
    try:
        if any(c.isspace() for c in full):
            raise ValueError
        parts = urlsplit(full)
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or parts.port == 0
            or parts.query
            or parts.fragment
        ):
            raise ValueError
        httpx.URL(full)
    except (ValueError, httpx.InvalidURL):
        raise InputError(f"not a server's address: {url}", hint) from None
    return full
