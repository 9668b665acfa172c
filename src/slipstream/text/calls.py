"""Tool calls out of generated text, piece by piece: what is no call comes through unchanged, and nothing is lost."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FENCES = ("", "```json", "```")
BRACES = ("{", "{{")  # Qwen2.5's template shows calls with two, and some answers have one too many
LONE = re.compile("[\ud800-\udfff]")  # halves of characters, which UTF-8 cannot say


@dataclass(frozen=True)
class ToolCall:
    """A call of a known function. `arguments`: a JSON object as text."""

    name: str
    arguments: str


class CallReader:
    """Push text, get text and calls in their order; `finish` gives what was held back.

    A call is `<tool_call>`, a JSON object with "name" and "arguments", `</tool_call>`. White space behind a call, and
    before one at the beginning, belongs to it. An answer that consists of such objects alone, bare or in a code fence,
    is read as calls too: small models often forget the tags. What looks like a call but is broken, or calls no known
    function, is text.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._heads = tuple(f'{fence}{brace}"name":"{n}"' for fence in FENCES for brace in BRACES for n in names)
        self._held = ""
        self._lead = ""  # white space at the beginning, whose call is not complete
        self._bare: bool | None = None if names else False  # whether the answer begins like bare calls; None: unclear
        self._inside = False  # OPEN stands at the beginning of what is held
        self._from = 0  # where to look for CLOSE
        self._blank, self._called = True, False  # nothing was given yet; the last thing given is a call

    def push(self, text: str) -> list[str | ToolCall]:
        if not self._names:
            return [text] if text else []
        self._held += text
        if self._bare is None:
            squeezed = "".join(self._held.split())
            if any(squeezed.startswith(head) for head in self._heads):
                self._bare = True
            elif not any(head.startswith(squeezed) for head in self._heads):
                self._bare = False
        out: list[str | ToolCall] = []
        while self._bare is False and self._step(out):
            pass
        return out

    def finish(self) -> list[str | ToolCall]:
        """What was held back; nothing may be pushed afterwards."""
        if self._bare and (calls := self._bare_calls(self._held)):
            return list(calls)
        out: list[str | ToolCall] = []
        self._bare = False
        while self._step(out):
            pass
        rest, self._lead, self._held = self._lead + self._held, "", ""
        return [*out, rest] if rest else out

    def _step(self, out: list[str | ToolCall]) -> bool:
        """Give what is clear at the beginning of what is held; whether there may be more."""
        if self._inside:
            return self._close(out)
        if self._called:
            self._held = self._held.lstrip()
        at = self._held.find(OPEN)
        if at >= 0:
            self._inside, self._from = True, len(OPEN)
            if self._blank and not self._held[:at].strip():
                self._lead, self._held = self._held[:at], self._held[at:]
            else:
                self._give(at, out)
            return True
        clear = len(self._held) - _overlap(self._held, OPEN)
        if not self._blank or self._held[:clear].strip():
            self._give(clear, out)
        return False

    def _close(self, out: list[str | ToolCall]) -> bool:
        at = self._held.find(CLOSE, self._from)
        if at < 0:
            self._from = max(len(OPEN), len(self._held) - len(CLOSE) + 1)
            return False
        try:
            call = self._known(json.loads(self._held[len(OPEN) : at], strict=False))
        except (ValueError, RecursionError) as e:
            if isinstance(e, json.JSONDecodeError) and e.msg.startswith("Unterminated string"):
                self._from = at + len(CLOSE)  # this CLOSE is within a string
                return True
            self._inside = False
            self._give(self._held.rfind(OPEN, 0, at) or at + len(CLOSE), out)
            return True
        self._inside = False
        if call is None:
            self._give(at + len(CLOSE), out)
        else:
            out.append(call)
            self._lead, self._held = "", self._held[at + len(CLOSE) :]
            self._blank, self._called = False, True
        return True

    def _give(self, n: int, out: list[str | ToolCall]) -> None:
        """The first `n` characters of what is held are text."""
        if n:
            out.append(self._lead + self._held[:n])
            self._lead, self._held = "", self._held[n:]
            self._blank = self._called = False

    def _known(self, value: Any) -> ToolCall | None:
        """The call that a JSON value is. Raises ValueError for numbers that JSON cannot say."""
        if not isinstance(value, dict) or not isinstance(value.get("name"), str) or value["name"] not in self._names:
            return None
        arguments = value.get("arguments", {})
        if set(value) - {"name", "arguments"} or not isinstance(arguments, dict):
            return None
        text = _json(arguments, ascii_only=False)
        return ToolCall(value["name"], _json(arguments, ascii_only=True) if LONE.search(text) else text)

    def _bare_calls(self, text: str) -> list[ToolCall]:
        """The calls that make up the whole text; empty when anything else is in it."""
        rest = text.strip()
        if rest.startswith("```"):
            rest = rest.removeprefix("```json").removeprefix("```").removesuffix("```").strip()
        calls, decoder = [], json.JSONDecoder(strict=False)
        while rest:
            doubled = rest.startswith("{{")
            try:
                value, end = decoder.raw_decode(rest, int(doubled))
                call = self._known(value)
            except (ValueError, RecursionError):
                return []
            if call is None:
                return []
            calls.append(call)
            rest = rest[end:].lstrip()
            if doubled:
                rest = rest.removeprefix("}").lstrip()
        return calls


def _json(value: Any, ascii_only: bool) -> str:
    return json.dumps(value, ensure_ascii=ascii_only, separators=(",", ":"), allow_nan=False)


def _overlap(text: str, tag: str) -> int:
    """Length of the longest end of the text that begins the tag."""
    return next((n for n in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:n])), 0)
