"""Functions that a model may call: checked, told to the model, and the grammar that its calls keep to."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from slipstream.errors import InputError, UnknownName
from slipstream.text.calls import CLOSE, OPEN, CallReader, ToolCall
from slipstream.text.chat import knows_tools, render

__all__ = ["CallReader", "Tool", "ToolCall", "Toolbox"]

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
USE = 'use {"type": "function", "function": {"name": "…", "parameters": {"type": "object", …}}}'
USE_CHOICE = 'use "none", "auto", "required" or {"type": "function", "function": {"name": "…"}}'
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}
# Where one of these stands, further properties may be meant; without them, a function takes what it names.
OPENING = {"additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames"}
OPENING |= {"$ref", "anyOf", "oneOf", "allOf", "not", "if", "then", "else", "dependentSchemas"}
HOW = """# Tools

These functions can be called, one a line, with their parameters as a JSON schema:
<tools>
{tools}
</tools>

To call a function, write its name and its arguments like this, once for each call:
{open}
{{"name": "<function>", "arguments": {{<arguments>}}}}
{close}"""


@dataclass(frozen=True)
class Tool:
    """A function. `strict`: its whole schema must be kept to; else keywords that the grammar cannot say are ignored."""

    name: str
    description: str | None
    parameters: Mapping[str, Any]
    strict: bool

    def as_dict(self) -> dict[str, Any]:
        """In OpenAI's format, as chat templates expect it."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        return {"type": "function", "function": {**function, "parameters": dict(self.parameters)}}

    def schema(self) -> dict[str, Any]:
        """What the arguments keep to, written with the spaces that models are used to."""
        schema = {**self.parameters, "type": "object"}
        if "properties" in schema and not OPENING & schema.keys():
            schema["additionalProperties"] = False
        layout = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
        return {**schema, "x-guidance": {**layout, "lenient": not self.strict}}


@dataclass(frozen=True)
class Toolbox:
    """The tools of one request. `choice`: none, auto, required, or `named` with the one function in `wanted`."""

    tools: tuple[Tool, ...]
    choice: str
    wanted: tuple[Tool, ...]
    template: str | None

    @classmethod
    def of(cls, tools: Any, tool_choice: Any, template: str | None) -> Toolbox:
        """From a request's `tools` and `tool_choice`, both in OpenAI's format or None.

        Raises InputError for tools or a choice that cannot be read.
        """
        known = _read_tools(tools)
        choice = tool_choice if tool_choice is not None else "auto" if known else "none"
        if isinstance(choice, Mapping):
            wanted = (_named(choice, known),)
            return cls(known, "named", wanted, template)
        if choice not in ("none", "auto", "required"):
            raise InputError(f"tool_choice is {_short(choice)}", USE_CHOICE)
        if choice == "required" and not known:
            raise InputError("tool_choice is required, but there are no tools", "give tools, or leave tool_choice out")
        return cls(known, choice, () if choice == "none" else known, template)

    @property
    def tools_for_template(self) -> list[dict[str, Any]] | None:
        """For the chat template; None when it knows no tools, or none may be called."""
        return [t.as_dict() for t in self.tools] if self.wanted and knows_tools(self.template) else None

    def messages(self, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The messages, and where the template knows no tools, a word on them in the system's turn."""
        out = list(messages)
        if not self.wanted or knows_tools(self.template):
            return out
        lines = "\n".join(json.dumps(t.as_dict(), ensure_ascii=False) for t in self.tools)
        text = HOW.format(tools=lines, open=OPEN, close=CLOSE)
        if self.choice != "auto":
            names = " or ".join(t.name for t in self.wanted)
            text += f"\n\nAnswer with a call of {names}, and with nothing else."
        if not _takes_system(self.template):
            first = next((i for i, m in enumerate(out) if m.get("role") == "user"), None)
            return out if first is None else _put(out, first, text)
        if out and out[0].get("role") in ("system", "developer"):
            return _put(out, 0, text)
        return [{"role": "system", "content": text}, *out]

    def grammar(self, parallel: bool = True) -> str | None:
        """A Lark grammar in llguidance's syntax for the whole answer, or None where nothing may be called.

        With a choice of auto, free text in which each `<tool_call>` begins a well-formed call; else calls alone.
        Without `parallel`, at most one call, and nothing behind it; a named function is called once in any case.
        """
        if not self.wanted:
            return None
        names = [f"call_{i}" for i in range(len(self.wanted))]
        lines = ["%llguidance {}"]
        if self.choice == "auto":
            lines += ["start: call* TEXT" if parallel else "start: call | TEXT", f"call: open body {_text(CLOSE)}"]
            lines += [f"open[lazy]: TEXT {_text(OPEN)}", "TEXT: /(?s:.*)/"]
        else:
            more = f"({_text(chr(10))} call)*" if parallel and self.choice == "required" else ""
            lines += [f"start: call {more}", f"call: {_text(OPEN)} body {_text(CLOSE)}"]
        lines += [f"body: {_text(chr(10))} ({' | '.join(names)}) {_text(chr(10))}"]
        for name, tool in zip(names, self.wanted, strict=True):
            head = f'{{"name": {json.dumps(tool.name)}, "arguments": '
            lines += [f"{name}: {_text(head)} %json {json.dumps(tool.schema())} {_text('}')}"]
        return "\n".join(lines) + "\n"

    def reader(self) -> CallReader:
        """Reads the answer. Where nothing may be called, all of it is text."""
        return CallReader(frozenset(t.name for t in self.wanted))


def _text(text: str) -> str:
    return json.dumps(text)


def _short(value: Any) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else text[:59] + "…"


def _read_tools(tools: Any) -> tuple[Tool, ...]:
    if tools is None:
        return ()
    if not isinstance(tools, Sequence) or isinstance(tools, str | bytes):
        raise InputError("tools is not a list", f"give a list; in it, {USE}")
    known = tuple(_read(tool, f"tools[{i}]") for i, tool in enumerate(tools))
    names = [t.name for t in known]
    twice = next((n for i, n in enumerate(names) if n in names[:i]), None)
    if twice is not None:
        raise InputError(f"two tools have the name {twice}", "give each function a name of its own")
    return known


def _read(tool: Any, where: str) -> Tool:
    if not isinstance(tool, Mapping) or tool.get("type") != "function":
        kind = tool.get("type") if isinstance(tool, Mapping) else None
        raise InputError(f"{where} is not a function" + (f", but {_short(kind)}" if kind is not None else ""), USE)
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise InputError(f"{where} lacks its function", USE)
    name, description = function.get("name"), function.get("description")
    parameters, strict = function.get("parameters"), function.get("strict")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InputError(f"{where}: the name is {_short(name)}", "use 1 to 64 letters, digits, _ and -")
    if description is not None and not isinstance(description, str):
        raise InputError(f"{where}: the description is not a text", "give it as a text, or leave it out")
    if strict is not None and not isinstance(strict, bool):
        raise InputError(f"{where}: strict is {_short(strict)}", "use true or false")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise InputError(f"{where}: the parameters are not a JSON schema", 'use {"type": "object", "properties": {…}}')
    if parameters and parameters.get("type", "object") != "object":
        kind = _short(parameters["type"])
        raise InputError(f"{where}: the parameters have the type {kind}", 'arguments always have the type "object"')
    return Tool(name, description, parameters or NO_PARAMETERS, bool(strict))


def _named(choice: Mapping[str, Any], known: Sequence[Tool]) -> Tool:
    function = choice.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    if choice.get("type") != "function" or not isinstance(name, str):
        raise InputError(f"tool_choice is {_short(choice)}", USE_CHOICE)
    if not known:
        raise InputError(f"tool_choice names {name}, but there are no tools", "give tools, or leave tool_choice out")
    found = next((t for t in known if t.name == name), None)
    if found is None:
        raise UnknownName("function in tool_choice", name, [t.name for t in known])
    return found


@lru_cache(maxsize=16)
def _takes_system(template: str | None) -> bool:
    try:
        return "S?" in render([{"role": "system", "content": "S?"}, {"role": "user", "content": "U"}], template)
    except InputError:
        return False


def _put(messages: list[Mapping[str, Any]], at: int, text: str) -> list[Mapping[str, Any]]:
    """The messages with the text added to one of them: behind a system's own, before a user's."""
    message = messages[at]
    content, parts = message.get("content"), [{"type": "text", "text": text}]
    if not isinstance(content, str | list):
        return messages  # rendering will say what is wrong with it
    own = [{"type": "text", "text": content + "\n"}] if isinstance(content, str) else content
    joined = [*parts, *own] if message.get("role") == "user" else [*own, *parts]
    return [*messages[:at], {**message, "content": joined}, *messages[at + 1 :]]
