"""Tasks drawn from a folder of source files: completing a file, filling a gap in it, and editing it.

The same folder gives the same tasks. Nothing is run, and nothing outside the folder is read.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from slipstream.advise import kinds
from slipstream.advise.measure import Work
from slipstream.drafters.corpus_files import text_files

LANGUAGES = {
    ".py": "python", ".js": "javascript", ".ts": "typescript", ".tsx": "tsx", ".jsx": "jsx", ".java": "java",
    ".go": "go", ".rs": "rust", ".c": "c", ".h": "c", ".cpp": "cpp", ".hpp": "cpp", ".cc": "cpp", ".cs": "csharp",
    ".rb": "ruby", ".php": "php", ".swift": "swift", ".kt": "kotlin", ".scala": "scala", ".sh": "bash", ".lua": "lua",
    ".sql": "sql",
}  # fmt: skip
MOST = 24
_SHORT, _EDITED, _SHOWN = 400, 6000, 4000  # characters: shortest file, longest that is rewritten, most of it shown
_NAMED = re.compile(r"\b(?:def|function|func|fn|class|struct|interface|void|int)\s+([A-Za-z_]\w{3,})")


def tasks(folder: Path, most: int = MOST) -> tuple[list[Work], list[tuple[str, str]]]:
    """Up to `most` tasks, completions, gaps and edits in turn; and what was left out, by reason."""
    skipped: Counter[str] = Counter()
    found = [(f, text) for f, text in text_files(folder, skipped) if f.suffix in LANGUAGES and len(text) >= _SHORT]
    found.sort(key=lambda pair: hashlib.sha256(f"{pair[0].name}\n{pair[1]}".encode()).digest())
    made = [work for file, text in found for work in _of(file, text)]
    by_kind = {kind: [w for w in made if w.why == kind] for kind in dict.fromkeys(w.why for w in made)}
    turns = [
        queue[i]
        for i in range(max(map(len, by_kind.values()), default=0))
        for queue in by_kind.values()
        if i < len(queue)
    ]
    return turns[:most], [(f"{n} files", reason) for reason, n in skipped.items() if n]


def _of(file: Path, text: str) -> Iterator[Work]:
    cut = _line_start(text, min(len(text), _SHOWN) * 3 // 5)
    if not cut:  # one long line, as programs write them
        return
    yield Work(kinds.COMPLETION, text[:cut], raw=True, why="completes a file of the folder")
    end = _line_start(text, min(cut + 400, len(text)))
    if end > cut:
        yield Work(
            kinds.COMPLETION, middle=(text[:cut], text[end : end + _SHOWN]), why="fills a gap in a file of the folder"
        )
    if len(text) <= _EDITED and (name := _renamed(text)):
        new = f"new_{name}" if "_" in name or name.islower() else f"new{name[0].upper()}{name[1:]}"
        prompt = (
            f"Here is the file `{file.name}`:\n\n```{LANGUAGES[file.suffix]}\n{text.rstrip()}\n```\n\n"
            f"Rename `{name}` to `{new}` everywhere. Reply with the whole file and nothing else."
        )
        yield Work(kinds.CODE_EDIT, prompt, why="renames something in a file of the folder")


def _line_start(text: str, near: int) -> int:
    """The beginning of the line that holds this position."""
    return text.rfind("\n", 0, near) + 1


def _renamed(text: str) -> str:
    """The defined name that is used most often, at least twice; the first of equals."""
    uses = Counter(re.findall(r"\w+", text))
    names = [name for name in dict.fromkeys(_NAMED.findall(text)) if uses[name] > 1]
    return max(names, key=lambda name: uses[name], default="")
