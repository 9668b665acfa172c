"""A conversation as clients send it: turns, functions that may be called, calls and their results."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from slipstream.serve.fields import Name, Strict, TextPart


class CalledFunction(Strict):
    name: str
    arguments: str


class Call(Strict):
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class RefusalPart(Strict):
    type: Literal["refusal"]
    refusal: str


class Message(Strict):
    """One turn. What an answer's message holds may be sent back as it came."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart | RefusalPart], Field(min_length=1, max_length=4096)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[Call], Field(max_length=128)] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    audio: None = None
    function_call: None = None

    @model_validator(mode="after")
    def _whole(self) -> Message:
        if self.tool_calls and self.role != "assistant":
            raise _wrong("tool_calls", "only an assistant calls functions", "give tool_calls the role assistant")
        if self.role == "tool" and not self.tool_call_id:
            raise _wrong("tool_call_id", "a tool's message lacks its tool_call_id", "name the call that it answers")
        if self.content is None and not self.tool_calls and self.refusal is None:
            raise _wrong("content", "the message has no content", "give a text")
        return self

    def as_dict(self) -> dict[str, Any]:
        """For a chat template."""
        out = self.model_dump(include={"role", "content", "name", "tool_calls", "tool_call_id"}, exclude_none=True)
        if self.content is None and not self.tool_calls:
            out["content"] = self.refusal or ""
        return out


def _wrong(field: str, message: str, hint: str) -> PydanticCustomError:
    return PydanticCustomError("message", "{what}", {"what": message, "hint": hint, "field": field})


class Function(Strict):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    type: Literal["function"]
    function: Function


class NamedFunction(Strict):
    name: Name


class NamedTool(Strict):
    type: Literal["function"]
    function: NamedFunction


ToolChoice = Literal["none", "auto", "required"] | NamedTool
