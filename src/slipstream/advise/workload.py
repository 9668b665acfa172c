"""Workloads: prompts of the user's own from a file or a folder, or the built-in suite; each with its kind of work.

A file holds JSON Lines: prompts, chats, or requests as an OpenAI-style API logged them (alone, or as `body` or
`request` of a record). A folder of source files is turned into tasks. Kinds come from the line itself or from rules.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slipstream.advise import kinds
from slipstream.advise.advice import ALL
from slipstream.advise.measure import Work
from slipstream.advise.secrets import mask
from slipstream.errors import InputError

BUILTIN = "builtin"
SHAPE = 'a line is {"kind": "chat", "prompt": "…"}, or "messages" instead of "prompt", or an OpenAI-style request'
_NAME = 40  # characters of a kind's name
_OWN = frozenset({"kind", "prompt", "messages", "middle", "raw"})
_REQUEST = frozenset({"model", "input", "instructions", "temperature", "max_tokens", "stream", "tools", "top_p", "n"})


@dataclass(frozen=True)
class Loaded:
    """The usable prompts; for each other line (or file) where it is and what is wrong with it. `cut_from` holds all
    prompts where `works` are only some of them."""

    works: Sequence[Work]
    bad: Sequence[tuple[str, str]]
    cut_from: Sequence[Work] = ()

    @property
    def all(self) -> Sequence[Work]:
        return self.cut_from or self.works

    @property
    def mix(self) -> Counter[str]:
        """How many prompts there are of each kind, before any were cut."""
        return Counter(work.kind for work in self.all)

    def cut(self, per_kind: int) -> Loaded:
        """The first `per_kind` prompts of each kind; the mix stays."""
        seen: Counter[str] = Counter()
        kept = []
        for work in self.works:
            seen[work.kind] += 1
            if seen[work.kind] <= per_kind:
                kept.append(work)
        return replace(self, works=kept, cut_from=self.all)


def load(source: str | Path) -> Loaded:
    """Read "builtin", a JSON Lines file or a folder. Raises InputError when it cannot be read or holds no prompt."""
    if str(source) == BUILTIN:
        from slipstream.data import suite

        return Loaded(list(_works(suite(), [])), [])
    path = Path(source)
    if path.is_dir():
        from slipstream.advise.code_tasks import tasks

        works, bad = tasks(path)
        if not works:
            raise InputError(f"{path} holds no source files to draw tasks from", "give a folder with code, or a file")
        return Loaded(works, bad)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as e:
        hint = f'{SHAPE}; "{BUILTIN}" is the built-in suite'
        raise InputError(f"cannot read {path}: {e.strerror}", hint) from e
    except UnicodeDecodeError as e:
        raise InputError(f"{path} is not a UTF-8 text", SHAPE) from e
    problems: list[tuple[str, str]] = []
    works = list(_works(text, problems))
    if not works:
        first = f"; {problems[0][0]}: {problems[0][1]}" if problems else ""
        raise InputError(f"{path} holds no usable prompt{first}", SHAPE)
    return Loaded(works, problems)


def _works(text: str, bad: list[tuple[str, str]]) -> Iterator[Work]:
    for number, line in enumerate(text.split("\n"), 1):  # JSON strings may hold other line separators
        if not line.strip():
            continue
        try:
            yield _work(json.loads(line))
        except json.JSONDecodeError as e:
            bad.append((f"line {number}", f"not JSON: {e.msg} at column {e.colno}"))
        except ValueError as e:
            bad.append((f"line {number}", str(e)))


def _work(value: Any) -> Work:
    """Raises ValueError that says what is wrong."""
    if not isinstance(value, dict):
        raise ValueError("not an object")
    record = next((value[key] for key in ("body", "request") if isinstance(value.get(key), dict)), value)
    logged = record is not value or bool(_REQUEST & set(record))
    unknown = set() if logged else set(record) - _OWN
    if unknown:
        name = sorted(unknown)[0]
        raise ValueError(f"unknown key {name}" if re.fullmatch(r"\w{1,20}", name) else "unknown key")
    given = value.get("kind")
    if given is not None and (not isinstance(given, str) or not 0 < len(given.strip()) <= _NAME):
        raise ValueError(f"kind is not a name of up to {_NAME} characters")
    if given is not None and (given := mask(given.strip())) == ALL:
        raise ValueError(f'"{ALL}" is no kind: it stands for all of them')
    work = _asked(record, logged)
    rule = kinds.classify(work.text)
    return replace(work, kind=given or rule.kind, why="as given" if given else rule.why)


def _asked(record: dict[str, Any], logged: bool) -> Work:
    prompt, messages = record.get("prompt"), record.get("messages", record.get("input") if logged else None)
    middle = None if logged else record.get("middle")
    if sum(given is not None for given in (prompt, messages, middle)) != 1:
        raise ValueError("give either prompt or messages")
    if middle is not None:
        if not (isinstance(middle, list) and len(middle) == 2 and all(isinstance(part, str) for part in middle)):
            raise ValueError("middle is not a pair of texts")
        return Work("", middle=(middle[0], middle[1]))
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if prompt is not None:
        if not isinstance(prompt, str) or not prompt.strip():
            raise ValueError("prompt is not a text, or empty")
        # The API's completions take a prompt as it is.
        return Work("", prompt, raw=logged or record.get("raw") is True)
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if not isinstance(messages, list):
        raise ValueError("messages is not a list of objects with a role and a content")
    said = [_message(m) for m in messages]
    if isinstance(record.get("instructions"), str):
        said.insert(0, {"role": "system", "content": record["instructions"]})
    while said and said[-1]["role"] == "assistant":  # the answer was logged too
        said.pop()
    if not any(m["role"] == "user" for m in said):
        raise ValueError("messages hold nothing that a user said")
    return Work("", messages=said)


def _message(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        raise ValueError("messages is not a list of objects with a role and a content")
    content = value.get("content")
    if isinstance(content, list):
        parts = [p.get("text") if isinstance(p, dict) else None for p in content]
        if not all(isinstance(p, str) for p in parts):
            raise ValueError("a message holds something else than text")
        content = "\n".join(parts)  # type: ignore[arg-type]
    if not isinstance(content, str):
        raise ValueError("messages is not a list of objects with a role and a content")
    return {"role": value["role"], "content": content}
