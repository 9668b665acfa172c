"""Chat templates from the model file, rendered in a sandbox; ChatML where the file has none.

Messages are in OpenAI's format. A template that knows no tools is given calls and their results as text.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from slipstream.errors import InputError

if TYPE_CHECKING:
    from jinja2 import Template
    from jinja2.sandbox import ImmutableSandboxedEnvironment

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
USE = 'use {"role": "user", "content": "…"}'
USE_CALL = 'use {"type": "function", "function": {"name": "…", "arguments": "{…}"}}'


def render(
    messages: Sequence[Mapping[str, Any]],
    template: str | None,
    bos: str = "",
    eos: str = "",
    add_generation_prompt: bool = True,
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> str:
    """The prompt for these messages. `tools` go to the template as they are; one that knows none ignores them.

    Raises InputError for messages that cannot be read or that the template refuses, or a broken template.
    """
    from jinja2 import TemplateError

    read = [_message(m, i + 1) for i, m in enumerate(messages)]
    if not read:
        raise InputError("there are no messages", 'give at least {"role": "user", "content": "…"}')
    try:
        if not knows_tools(template):
            read = _told_as_text(read)
        return str(
            _compiled(template or CHATML).render(
                messages=read,
                add_generation_prompt=add_generation_prompt,
                bos_token=bos,
                eos_token=eos,
                tools=list(tools) if tools else None,
            )
        )
    except TemplateError as e:
        raise InputError(f"the model's chat template refuses these messages: {e}", "check the roles and their order")
    except (TypeError, ValueError, KeyError, OverflowError, RecursionError) as e:
        raise InputError(f"the model's chat template fails: {e}", "give the prompt as raw text with --raw")


@lru_cache(maxsize=16)
def knows_tools(template: str | None) -> bool:
    """Whether the template reads `tools`. A broken template knows none."""
    from jinja2 import TemplateError, nodes

    try:
        tree = _environment().parse(template or CHATML)
    except TemplateError:
        return False
    return any(name.name == "tools" and name.ctx == "load" for name in tree.find_all(nodes.Name))


def call_text(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as the models of the catalog write it."""
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def _message(message: Mapping[str, Any], number: int) -> dict[str, Any]:
    """The message as templates expect it: content is a text, and the arguments of calls are objects."""
    role, out = message.get("role"), dict(message)
    if not isinstance(role, str):
        raise InputError(f"message {number} lacks a role or a content", USE)
    if role == "developer":
        out["role"] = "system"
    calls = out.pop("tool_calls", None)
    if calls:
        if role != "assistant":
            raise InputError(f"message {number} has tool_calls, but its role is {role}", "only an assistant calls")
        if not isinstance(calls, Sequence) or isinstance(calls, str):
            raise InputError(f"message {number}: tool_calls is not a list", USE_CALL)
        out["tool_calls"] = [_call(c, f"message {number}: call {i + 1}") for i, c in enumerate(calls)]
    for key in ("name", "tool_call_id"):
        if out.get(key) is None:
            out.pop(key, None)
        elif not isinstance(out[key], str):
            raise InputError(f"message {number}: {key} is not a text", "give it as a text, or leave it out")
    out["content"] = _content(message.get("content"), number, optional=bool(calls))
    return out


def _content(content: Any, number: int, optional: bool) -> str:
    if isinstance(content, str):
        return content
    if content is None and optional:
        return ""
    if not isinstance(content, Sequence):
        raise InputError(f"message {number} lacks a role or a content", USE)
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get(kind) if kind in ("text", "refusal") else None
        if not isinstance(text, str):
            what = f"of type {kind}" if isinstance(kind, str) and kind != "text" else "that cannot be read"
            raise InputError(f"message {number} has a part {what}", 'only {"type": "text", "text": "…"} is understood')
        texts.append(text)
    return "\n".join(texts)


def _call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InputError(f"{where} lacks a function with a name", USE_CALL)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError):
            raise InputError(f"{where}: its arguments are not JSON", 'give a text such as "{}"') from None
    elif arguments is None:
        arguments = {}
    if not isinstance(arguments, Mapping):
        raise InputError(f"{where}: its arguments are not an object", 'give a text such as "{}"')
    out = {**call, "type": "function", "function": {**function, "arguments": arguments}}
    return out


def _told_as_text(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Calls become the assistant's text; results become the user's, one turn for what stands together."""
    out: list[dict[str, Any]] = []
    results = False  # the last turn holds results
    for m in messages:
        if m["role"] == "tool":
            m = {"role": "user", "content": f"<tool_response>\n{m['content']}\n</tool_response>"}
            told = True
        else:
            told = False
        if m.get("tool_calls"):
            calls = [call_text(c["function"]["name"], c["function"]["arguments"]) for c in m["tool_calls"]]
            m = {k: v for k, v in m.items() if k != "tool_calls"}
            m["content"] = "\n".join(filter(None, [m["content"], *calls]))
        if results and m["role"] == "user":
            out[-1]["content"] += "\n" + m["content"]
        else:
            out.append(m)
        results = told
    return out


@lru_cache(maxsize=1)
def _environment() -> ImmutableSandboxedEnvironment:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    env.globals["raise_exception"] = _refuse
    env.globals["strftime_now"] = lambda fmt: datetime.datetime.now().strftime(fmt)
    env.filters["tojson"] = lambda x, indent=None: json.dumps(x, ensure_ascii=False, indent=indent)
    return env


@lru_cache(maxsize=16)
def _compiled(template: str) -> Template:
    return _environment().from_string(template)


def _refuse(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)
