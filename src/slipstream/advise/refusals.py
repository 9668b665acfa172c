"""What goes wrong between a client and a server, in words for people: what the server said, and what to do."""

from __future__ import annotations

import email.utils
import json
import re
import time
from collections.abc import Mapping
from typing import Any

import httpx

from slipstream.errors import InputError, ResourceError, SlipstreamError

_LONGEST = 300  # characters of a server's message


class BadRequest(InputError):
    """The server does not take the request as it is (400 or 422)."""


def refused(address: str, response: httpx.Response) -> SlipstreamError:
    """What an answer with another status than 200 means."""
    code, said = response.status_code, words(response.text)
    what = f"{address} answered {code}{f': {said}' if said else ''}"
    if code in (401, 403):
        return InputError(what, "name the environment variable that holds the key with --api-key-env NAME")
    if code == 404:
        hint = "is it an OpenAI-compatible server, and does it have this model? --model NAME names another one"
        return InputError(what, hint)
    if code in (400, 422):
        return BadRequest(what, "the server does not take this request; its own words say why")
    if code in (429, 503):
        return ResourceError(what, "it is busy or still loads its model; try again later")
    if response.is_redirect:
        return InputError(f"{address} sends to {response.headers.get('location')}", "give that address to --endpoint")
    if code >= 500:
        return ResourceError(what, "the server failed; look at its log")
    return InputError(what, "is this the address of an OpenAI-compatible server?")


def unreachable(address: str, e: Exception) -> SlipstreamError:
    why = str(e).strip() or type(e).__name__
    return ResourceError(f"cannot reach {address}: {why}", "is the server running, and is the port the right one?")


def silent(address: str, seconds: float) -> SlipstreamError:
    hint = "give it fewer --max-tokens or shorter prompts, or look whether it still runs"
    return ResourceError(f"{address} said nothing for {seconds:g} seconds", hint)


def cut(address: str, text: str) -> SlipstreamError:
    what = f"{address} stopped in the middle of an answer, after {len(text)} characters"
    return ResourceError(what, "the server or a proxy closed the connection; look at its log")


def not_a_stream(address: str, kind: str) -> SlipstreamError:
    what = f"{address} answered with {kind.partition(';')[0] or 'no type'} where a stream of events was asked for"
    return InputError(what, "without a stream there are no times; is this the address of an OpenAI-compatible server?")


def words(body: str | Mapping[str, Any]) -> str:
    """A server's own message in what it sent: of an error as OpenAI, FastAPI or others write it, or a page's title."""
    value: Any = body
    if isinstance(body, str):
        try:
            value = json.loads(body)
        except ValueError:
            title = re.search(r"<title>(.*?)</title>", body, re.IGNORECASE | re.DOTALL)
            plain = title[1] if title else "a web page" if body.lstrip().startswith("<") else body
            return _short(plain)
    while isinstance(value, (dict, list)) and value:
        keys = ("error", "message", "detail", "msg", "code")
        value = (
            value[0] if isinstance(value, list) else next((value[k] for k in keys if value.get(k)), json.dumps(value))
        )
    return _short(str(value or ""))


def wait(response: httpx.Response, tries: int) -> float | None:
    """Seconds to wait before asking again; None when that would not help. Without the server's word, ever longer."""
    if response.status_code not in (429, 503):
        return None
    said = response.headers.get("retry-after", "").strip()
    if said.isascii() and said.isdigit():
        return float(said)
    try:
        return max(email.utils.parsedate_to_datetime(said).timestamp() - time.time(), 0.0)
    except (TypeError, ValueError):
        return float(2**tries)


def _short(text: str) -> str:
    one = " ".join(text.split())
    return one if len(one) <= _LONGEST else f"{one[:_LONGEST]}…"
