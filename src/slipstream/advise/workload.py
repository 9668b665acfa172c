"""Workloads: files with one prompt a line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.advise.measure import Work
from slipstream.errors import InputError

SHAPE = 'a line is {"kind": "chat", "prompt": "…"}, or "messages" instead of "prompt"'


@dataclass(frozen=True)
class Loaded:
    """The usable lines, and for each other one its number and what is wrong with it."""

    works: Sequence[Work]
    bad: Sequence[tuple[int, str]]


def load(path: Path) -> Loaded:
    """Read a JSON Lines file. Raises InputError when it cannot be read or holds no usable line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as e:
        raise InputError(f"cannot read {path}: {e.strerror}", SHAPE) from e
    except UnicodeDecodeError as e:
        raise InputError(f"{path} is not a UTF-8 text", SHAPE) from e
    works, bad = [], []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            works.append(_work(json.loads(line)))
        except json.JSONDecodeError as e:
            bad.append((number, f"not JSON: {e.msg} at column {e.colno}"))
        except ValueError as e:
            bad.append((number, str(e)))
    if not works:
        first = f"; line {bad[0][0]}: {bad[0][1]}" if bad else ""
        raise InputError(f"{path} holds no usable prompt{first}", SHAPE)
    return Loaded(works, bad)


def _work(value: Any) -> Work:
    """Raises ValueError that says what is wrong."""
    if not isinstance(value, dict):
        raise ValueError("not an object")
    unknown = set(value) - {"kind", "prompt", "messages"}
    if unknown:
        raise ValueError(f"unknown key {sorted(unknown)[0]}")
    kind, prompt, messages = value.get("kind", "all"), value.get("prompt"), value.get("messages")
    if not isinstance(kind, str) or not kind:
        raise ValueError("kind is not a text")
    if (prompt is None) == (messages is None):
        raise ValueError("give either prompt or messages")
    if prompt is not None and (not isinstance(prompt, str) or not prompt.strip()):
        raise ValueError("prompt is not a text, or empty")
    if messages is not None and not (isinstance(messages, list) and messages and all(map(_is_message, messages))):
        raise ValueError("messages is not a list of objects with a role and a content")
    return Work(kind, prompt, messages)


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(key), str) for key in ("role", "content"))
