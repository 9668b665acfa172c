"""One choice of an answer, whole or piece by piece, as each of the two endpoints shows it.

`first`, `more` and `last` give the choice objects of a stream's chunks, `whole` that of a full answer; both read the
same text with the same reader.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Protocol

from slipstream.core.sequence import Token
from slipstream.generation import Result
from slipstream.serve import logprobs
from slipstream.serve.prepare import Plan
from slipstream.serve.service import Pieces
from slipstream.text.tools import ToolCall

Json = dict[str, Any]


class Choice(Protocol):
    def first(self) -> list[Json]: ...

    def more(self, text: str, tokens: Sequence[Token]) -> list[Json]:
        """`tokens`: those that have come with it; their pieces are known where the plan asks for log-probabilities."""
        ...

    def last(self, finish: str) -> list[Json]: ...

    def whole(self, result: Result) -> Json: ...

    def blank(self) -> Json:
        """A choice that adds nothing."""
        ...


class ChatChoice:
    def __init__(self, index: int, plan: Plan, pieces: Pieces) -> None:
        self._index, self._pieces, self._wanted = index, pieces, plan.logprobs
        self._reader = plan.toolbox.reader() if plan.toolbox is not None else None
        self._calls = 0

    def first(self) -> list[Json]:
        return [self._chunk({"role": "assistant", "content": ""})]

    def more(self, text: str, tokens: Sequence[Token]) -> list[Json]:
        return self._with_logprobs([self._chunk(d) for d in self._read(text)], tokens)

    def last(self, finish: str) -> list[Json]:
        rest = [self._chunk(d) for d in self._rest()]
        return [*rest, self._chunk({}, self._finish(finish))]

    def blank(self) -> Json:
        return self._chunk({})

    def whole(self, result: Result) -> Json:
        deltas = [*self._read(result.text), *self._rest()]
        text = "".join(d.get("content", "") for d in deltas)
        calls = [{k: v for k, v in call.items() if k != "index"} for d in deltas for call in d.get("tool_calls", ())]
        message: Json = {"role": "assistant", "content": text if text or not calls else None, "refusal": None}
        if calls:
            message["tool_calls"] = calls
        entries = logprobs.for_chat(result.tokens, self._pieces) if self._wanted else None
        finish = self._finish(result.finish_reason)
        return {"index": self._index, "message": message, "logprobs": entries, "finish_reason": finish}

    def _read(self, text: str) -> list[Json]:
        if self._reader is None:
            return [{"content": text}] if text else []
        return [self._delta(item) for item in self._reader.push(text)]

    def _rest(self) -> list[Json]:
        return [self._delta(item) for item in self._reader.finish()] if self._reader is not None else []

    def _delta(self, item: str | ToolCall) -> Json:
        if isinstance(item, str):
            return {"content": item}
        function = {"name": item.name, "arguments": item.arguments}
        call = {"index": self._calls, "id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}
        self._calls += 1
        return {"tool_calls": [call]}

    def _finish(self, reason: str) -> str:
        return "tool_calls" if self._calls and reason == "stop" else reason

    def _chunk(self, delta: Json, finish: str | None = None) -> Json:
        return {"index": self._index, "delta": delta, "logprobs": None, "finish_reason": finish}

    def _with_logprobs(self, chunks: list[Json], tokens: Sequence[Token]) -> list[Json]:
        if not self._wanted or not tokens:
            return chunks
        chunks = chunks or [self._chunk({"content": ""})]
        chunks[0]["logprobs"] = logprobs.for_chat(tokens, self._pieces)
        return chunks


class TextChoice:
    def __init__(self, index: int, plan: Plan, pieces: Pieces) -> None:
        self._index, self._pieces = index, pieces
        self._echo = plan.echo[index // plan.n] if plan.echo else ""
        self._logprobs = logprobs.ForText() if plan.logprobs else None

    def first(self) -> list[Json]:
        return [self._chunk(self._echo)] if self._echo else []

    def more(self, text: str, tokens: Sequence[Token]) -> list[Json]:
        if self._logprobs is None or not tokens:
            return [self._chunk(text)] if text else []
        return [{**self._chunk(text), "logprobs": self._logprobs.add(tokens, self._pieces)}]

    def last(self, finish: str) -> list[Json]:
        return [self._chunk("", finish)]

    def blank(self) -> Json:
        return self._chunk("")

    def whole(self, result: Result) -> Json:
        entries = self._logprobs.add(result.tokens, self._pieces) if self._logprobs is not None else None
        return {**self._chunk(self._echo + result.text, result.finish_reason), "logprobs": entries}

    def _chunk(self, text: str, finish: str | None = None) -> Json:
        return {"index": self._index, "text": text, "logprobs": None, "finish_reason": finish}
