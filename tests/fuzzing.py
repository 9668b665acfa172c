"""Requests that nobody should send, each a pure function of its number."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

PATHS = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize", "/chat/completions", "/completions")
ENDS = ("close", "reset", "half-close", "hang up while reading")
_ODD = (
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**70), 10**400, 1e308, 0.5, "", "x", "\x00", "é" * 9, "😀",
    [], {}, [[]], [None], [1, "a"], {"type": "text"}, {"": ""}, [[[[[[]]]]]], "9" * 400,
)  # fmt: skip
_FIELDS = (
    "model", "messages", "prompt", "max_tokens", "temperature", "top_p", "n", "stop", "seed", "stream", "logprobs",
    "stream_options", "presence_penalty", "logit_bias", "response_format", "prediction", "top_k", "min_p", "tools",
    "tool_choice", "speculative", "suffix", "echo", "best_of", "content", "tokens", "unknown", "user", "metadata",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """Bytes in the pieces they are sent in, and how the client ends: it reads on, or one of ENDS."""

    pieces: tuple[bytes, ...]
    end: str


def case(seed: int, number: int) -> Case:
    rng = random.Random(f"{seed}:{number}")
    data = rng.choice(_KINDS)(rng)
    if rng.random() < 0.25:
        return Case(_split(rng, data[: rng.randrange(len(data) + 1)]), rng.choice(ENDS[:3]))
    return Case(_split(rng, data), "read" if rng.random() < 0.7 else rng.choice(ENDS))


def _split(rng: random.Random, data: bytes) -> tuple[bytes, ...]:
    at = rng.randrange(len(data)) if data and rng.random() < 0.2 else len(data)
    return data[:at], data[at:]


def valid(rng: random.Random, path: str) -> dict[str, Any]:
    """A request that can be answered."""
    if "tokenize" in path:
        return {"content": "abc"} if path == "/tokenize" else {"tokens": [97, 98]}
    more = {"max_tokens": rng.randrange(1, 9), "seed": rng.randrange(99), "stream": rng.random() < 0.5}
    if "chat" in path:
        return {"messages": [{"role": "user", "content": "hello"}], **more}
    return {"prompt": rng.choice(["hello", [1, 2, 3], ["a", "b"]]), **more}


def _post(rng: random.Random, body: bytes, path: str = "", *headers: str) -> bytes:
    return _head(path or rng.choice(PATHS), f"Content-Length: {len(body)}", *headers) + body


def _head(path: str, *headers: str, method: str = "POST", version: str = "HTTP/1.1") -> bytes:
    common = ("Host: here", "Content-Type: application/json", "Connection: close")
    return "\r\n".join([f"{method} {path} {version}", *common, *headers, "", ""]).encode("utf-8", "surrogateescape")


def _plain(rng: random.Random) -> bytes:
    path = rng.choice(PATHS)
    return _post(rng, json.dumps(valid(rng, path)).encode(), path)


def _wrong_types(rng: random.Random) -> bytes:
    path = rng.choice(PATHS)
    body = valid(rng, path)
    for _ in range(rng.randrange(1, 4)):
        body[rng.choice(_FIELDS)] = rng.choice(_ODD)
    if rng.random() < 0.2:
        body = {k: v for k, v in body.items() if rng.random() < 0.7}
    return _post(rng, json.dumps(rng.choice([body, body, body, [body], rng.choice(_ODD)])).encode(), path)


def _broken_json(rng: random.Random) -> bytes:
    path = rng.choice(PATHS)
    body = bytearray(json.dumps(valid(rng, path)).encode())
    how = rng.randrange(3)
    if how == 0:
        body = body[: rng.randrange(len(body))]
    elif how == 1:
        for _ in range(rng.randrange(1, 6)):
            body[rng.randrange(len(body))] = rng.randrange(256)
    else:
        at = rng.randrange(len(body))
        body[at:at] = rng.randbytes(rng.randrange(1, 40))
    return _post(rng, bytes(body), path)


def _strange_json(rng: random.Random) -> bytes:
    n = rng.choice([10, 1000, 9000])
    texts = (
        "[" * n, '{"a":' * n, "[" * n + "]" * n, '{"prompt": ' + "[" * n + "]" * n + "}",
        '{"prompt": "a", "temperature": NaN}', '{"prompt": "a", "top_p": Infinity, "min_p": -Infinity}',
        '{"prompt": "\\ud800", "max_tokens": 2}', '{"prompt": "a", "user": "\\udfff\\ud800"}',
        '{"model": "\\ud800", "prompt": "a"}', '{"\\ud800": 1, "prompt": "a"}', '{"prompt": "\\u0000"}',
        '{"messages": [{"role": "user", "content": "\\udc00"}], "max_tokens": 2}', '{"content": "\\ud83d"}',
        f'{{"prompt": "a", "max_tokens": {"9" * n}}}', f'{{"prompt": "a", "temperature": 1e{"9" * 20}}}',
        f'{{"prompt": "a", "stop": "{"x" * n}"}}', f'{{"prompt": "a", "prompt": "b", "n": {n}}}',
        '{"prompt": "a", "logit_bias": {"' + "9" * n + '": 1}}', '{"prompt": "a", "logit_bias": {"x": 1}}',
        json.dumps({"messages": [{"role": "user", "content": "a"}] * n}), json.dumps({"tokens": [2**40] * n}),
        json.dumps({"prompt": ["a"] * n}), json.dumps({"prompt": "a", "speculative": {"drafters": ["x"] * n}}),
        "", " ", "null", "true", "1", '"text"', "[]", "{}", "\ufeff{}", "{'prompt': 'a'}", '{"prompt": "a"} {}',
    )  # fmt: skip
    body = rng.choice(texts).encode()
    encoded = rng.choice([body, body, body, b"\xff" + body, body + b"\xc3\x28", body.decode().encode("utf-16")])
    return _post(rng, encoded)


def _schemas(rng: random.Random) -> bytes:
    """Schemas, tools and grammars that cannot be compiled, or barely."""
    schemas: tuple[Any, ...] = (
        {"type": "nothing"}, {"$ref": "#/a"}, {"$ref": "#"}, {"type": "string", "pattern": "(" * 50},
        {"type": "string", "pattern": "(a+)+$"}, {"enum": []}, {"type": "integer", "minimum": 5, "maximum": 1},
        {"type": "array", "minItems": 10**6}, {"allOf": [{"type": "string"}, {"type": "number"}]}, True, False, 7,
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    )  # fmt: skip
    schema = rng.choice(schemas)
    tool = {"type": "function", "function": {"name": rng.choice(["f", "", "x y", "a" * 99]), "parameters": schema}}
    body = valid(rng, PATHS[0])
    if rng.random() < 0.5:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    else:
        body |= {"tools": [tool], "tool_choice": rng.choice(["auto", "required", "none", {"type": "function"}])}
    return _post(rng, json.dumps(body).encode(), PATHS[0])


def _bad_heads(rng: random.Random) -> bytes:
    body = json.dumps(valid(rng, "/v1/completions")).encode()
    size = len(body)
    lines = (
        ["Content-Length: -5"], ["Content-Length: five"], [f"Content-Length: {'9' * 30}"], ["Content-Length: 1e3"],
        [f"Content-Length: {size}", f"Content-Length: {size + 1}"], [f"Content-Length: {size}"] * 2,
        [f"Content-Length: {size}", "Transfer-Encoding: chunked"], ["Transfer-Encoding: gzip"],
        [f"Content-Length: {max(size - 5, 0)}"], ["Transfer-Encoding: chunked, chunked"], ["Content-Encoding: gzip"],
        ["X-Long: " + "x" * rng.choice([1000, 70_000, 200_000])], [f"X-{i}: y" for i in range(3000)],
        ["Broken header"], [": empty"], ["X-Bytes: \udcff\udc80"], ["X-Nul: a\x00b"], ["X-A: b", " folded: x"],
        ["Host: other"], ["Authorization: Bearer \udcff"], ["Content-Type: text/plain", f"Content-Length: {size}"],
        ["Content-Type: application/json; charset=utf-16", f"Content-Length: {size}"], ["Expect: 100-continue"],
        ["Upgrade: websocket", "Connection: upgrade"], ["Upgrade: h2c", "Connection: upgrade, HTTP2-Settings"],
        ["Accept: \x7f"], ["Origin: http://evil.example"], ["Range: bytes=0-"], ["Content-Length: 0"],
    )  # fmt: skip
    return _head("/v1/completions", *rng.choice(lines)) + body


def _bad_lines(rng: random.Random) -> bytes:
    methods = ("GET", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "CONNECT", "PATCH", "BREW", "", "GE T", "\x01")
    paths = (
        "/", "/v1/models", "/v1/models/%00", "/v1/models/..%2f..%2fetc", "/static/../app.py", "/static/%2e%2e/app.py",
        "/health", "/props", "/metrics", "/openapi.json", "/docs", "*", "//", "/%ff", "/v1/chat/completions/",
        "http://x/y", "x:80", "/" + "a" * 5000, "/?" + "b" * 70_000, "/health?x=%ff&x", "/v1/models/" + "n" * 900,
    )  # fmt: skip
    version = rng.choice(["HTTP/1.1"] * 6 + ["HTTP/1.0", "HTTP/2.0", "HTTP/0.9", "HTTP/9", "http/1.1", ""])
    return _head(rng.choice(paths), method=rng.choice(methods), version=version)


def _chunked(rng: random.Random) -> bytes:
    body = json.dumps(valid(rng, "/v1/completions")).encode()
    honest = b"%x\r\n%s\r\n" % (len(body), body)
    endings = (
        honest + b"0\r\n\r\n", honest, honest + b"0\r\nTrailer: x\r\n\r\n", honest + b"5\r\nab",
        b"ffffffff\r\n" + body, b"-1\r\n" + body, b"zz\r\n" + body, b"%x\r\n%s" % (len(body) + 9, body),
        b"1;ext=" + b"e" * 300 + b"\r\na\r\n", b"0" * 400 + b"\r\n\r\n",
        (b"4000\r\n" + b"[" * 0x4000 + b"\r\n") * 8 + b"0\r\n\r\n",
    )  # fmt: skip
    return _head("/v1/completions", "Transfer-Encoding: chunked") + rng.choice(endings)


def _pipelined(rng: random.Random) -> bytes:
    one = _plain(rng).replace(b"Connection: close\r\n", b"")
    behind = (one, one * 4, b"\x00\xff garbage\r\n\r\n", b"\r\n" * 50, rng.randbytes(300), _bad_heads(rng))
    return one + rng.choice(behind) + _plain(rng)  # which has the connection closed


def _noise(rng: random.Random) -> bytes:
    tls = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(200)
    noise = rng.choice([rng.randbytes(rng.randrange(1, 3000)), tls, b"", b"PRI * HTTP/2.0\r\n\r\nSM"])
    return noise + b"\r\n\r\n"


_KINDS: tuple[Callable[[random.Random], bytes], ...] = (
    _plain, _wrong_types, _wrong_types, _broken_json, _strange_json, _schemas, _bad_heads, _bad_lines, _chunked,
    _pipelined, _noise,
)  # fmt: skip
