"""Chat templates from the model file, rendered in a sandbox; ChatML where the file has none."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from slipstream.errors import InputError

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def render(
    messages: Sequence[Mapping[str, Any]],
    template: str | None,
    bos: str = "",
    eos: str = "",
    add_generation_prompt: bool = True,
) -> str:
    """The prompt for these messages. Raises InputError for messages that the template refuses, or a broken template."""
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    for i, m in enumerate(messages):
        if not isinstance(m.get("role"), str) or not isinstance(m.get("content"), str):
            raise InputError(f"message {i + 1} lacks a role or a content", 'use {"role": "user", "content": "…"}')
    if not messages:
        raise InputError("there are no messages", 'give at least {"role": "user", "content": "…"}')
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    env.globals["raise_exception"] = _refuse
    env.globals["strftime_now"] = lambda fmt: datetime.datetime.now().strftime(fmt)
    env.filters["tojson"] = lambda x, indent=None: json.dumps(x, ensure_ascii=False, indent=indent)
    try:
        return str(
            env.from_string(template or CHATML).render(
                messages=list(messages), add_generation_prompt=add_generation_prompt, bos_token=bos, eos_token=eos
            )
        )
    except TemplateError as e:
        raise InputError(f"the model's chat template refuses these messages: {e}", "check the roles and their order")
    except (TypeError, ValueError, KeyError, OverflowError, RecursionError) as e:
        raise InputError(f"the model's chat template fails: {e}", "give the prompt as raw text with --raw")


def _refuse(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)
