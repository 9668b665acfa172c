"""Errors in OpenAI's shape: one object, a status that tells whose fault it is, and nothing of the inside."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from slipstream.errors import ContextError, EngineFailure, InputError, Overload, SlipstreamError, TimeLimit
from slipstream.serve.hangup import Gone

log = logging.getLogger("slipstream")
Failure = tuple[int, dict[str, Any], dict[str, str]]  # status, body, headers
_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (Overload, 429),
    (TimeLimit, 504),
    (EngineFailure, 503),
    (InputError, 400),
)
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_WHO_KNOWS = "something went wrong in the server"


class FieldError(InputError):
    """What is wrong with one field of a request. `param` is its name, `status` that of the answer."""

    def __init__(self, param: str, message: str, hint: str = "", code: str | None = None, status: int = 400) -> None:
        super().__init__(message, hint)
        self.param, self.code, self.status = param, code, status


def body(status: int, message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def explain(error: BaseException) -> Failure:
    """Status, body and headers for an error. What nobody foresaw is told without details."""
    if not isinstance(error, SlipstreamError):
        return 500, body(500, _WHO_KNOWS), {}
    status = next((s for kind, s in _STATUS if isinstance(error, kind)), 500)
    param, code, headers = None, None, {}
    if isinstance(error, FieldError):
        status, param, code = error.status, error.param, error.code
    elif isinstance(error, ContextError):
        code = "context_length_exceeded"
    elif isinstance(error, Overload):
        code, headers = "rate_limit_exceeded", {"Retry-After": str(error.retry_after)}
    message = f"{error.message}. hint: {error.hint}" if error.hint else error.message
    return status, body(status, message, param, code), headers


def encoded(content: Any) -> bytes:
    """JSON that is always valid, whatever a client wrote into what is said back to it."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def answer(status: int, content: Any, headers: Mapping[str, str] | None = None) -> Response:
    return Response(encoded(content), status, headers, media_type="application/json")


def install(app: FastAPI) -> None:
    """Every error that leaves the application has OpenAI's shape."""
    app.add_exception_handler(SlipstreamError, _known)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(UnicodeEncodeError, _half_a_character)
    app.add_exception_handler(Gone, _gone)
    app.add_exception_handler(Exception, _unknown)


async def _known(request: Request, error: Exception) -> Response:
    if not isinstance(error, InputError | Overload):
        log.error("%s %s: %s", request.method, request.url.path, error)
    return answer(*explain(error))


async def _unknown(request: Request, error: Exception) -> Response:
    status, content, _ = explain(error)
    return answer(status, content, {"Connection": "close"})  # who runs the application logs it and hangs up


async def _half_a_character(request: Request, error: Exception) -> Response:
    """JSON can hold a lone surrogate; one in a field's name breaks the very message that tells of it."""
    return answer(400, body(400, "the body holds half a character: a lone surrogate such as \\ud800"))


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    words = {404: f"there is no {request.url.path}", 405: f"{request.method} is not allowed here"}
    message = words.get(error.status_code, str(error.detail))
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
    return answer(error.status_code, body(error.status_code, message, None, code), error.headers)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    message, param = _first(error.errors(), error.body)
    return answer(400, body(400, message, param))


def _first(errors: Sequence[Mapping[str, Any]], content: Any) -> tuple[str, str | None]:
    """What to say of several errors, since a union tells of each of its members: the deepest one, of the right type."""
    found = max(errors, key=lambda e: (len(_path(e, content)), not e["type"].endswith("_type")))
    if found["type"] == "json_invalid":
        return f"the body is not JSON: {found['ctx']['error']} at position {found['loc'][-1]}", None
    if isinstance(content, bytes):
        return "the body was not sent as JSON. hint: send the header Content-Type: application/json", None
    path = _path(found, content)
    if not path:
        return "the body is not a JSON object. hint: see /openapi.json", None
    param, message = _written(path), str(found["msg"])
    if "hint" in found.get("ctx", {}):  # one of our own: the message names the field
        return f"{message}. hint: {found['ctx']['hint']}", param
    return f"{param}: {message[:1].lower()}{message[1:]}", param


def _path(error: Mapping[str, Any], content: Any) -> list[str | int]:
    """Where in the body it is, without the names that pydantic gives members of unions."""
    path: list[str | int] = []
    loc = error["loc"][1:]
    for i, step in enumerate(loc):
        inside = isinstance(content, dict) and step in content
        if inside or (isinstance(content, list) and isinstance(step, int) and step < len(content)):
            content = content[step]
            path.append(step)
        elif i == len(loc) - 1 and error["type"] == "missing":
            path.append(step)
    field = error.get("ctx", {}).get("field")
    return [*path, field] if field is not None else path


def _written(path: Sequence[str | int]) -> str:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")
