"""Masking what looks like a secret, so that none is copied from a log into a report that is passed on.

It errs on the side of masking. What is secret without looking so it cannot know: `--redact` leaves texts out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

MASK = "█████"
_NAMES = (
    r"[\w.-]*(?:pass(?:word|wd|phrase)?|pwd|secret|token|(?:api|access|private)[_-]?key|credential"
    r"|密码|口令|密钥)[\w-]*"
)
_VALUE = r"(?:\"[^\"\n]+\"|'[^'\n]+'|`[^`\n]+`|[^\s\"',;)]{3,})"
_PATTERNS = (
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    r"\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?",  # JSON web tokens
    r"\b(?:sk|pk|rk|ghp|gho|ghu|ghs|github_pat|glpat|xox[abprs]|hf|AKIA|ASIA|AIza)[-_]?[A-Za-z0-9_-]{12,}",
    r"(?i:\b(?:bearer|basic)\s+[\w.~+/=-]{8,})",
    # A name that says so, perhaps with a type behind it, and its value: quoted, or up to the next space.
    rf"(?i:{_NAMES}[\"']?(?:\s*:\s*\w+(?=\s*=))?\s*(?:=>|[:：=]|is\b)\s*{_VALUE})",
    rf"(?i:<{_NAMES}>[^<\n]+)",
    r"://[^\s/:]+:[^\s/]+@",  # credentials in an address
    r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+",  # mail
    r"\b\d(?:[ -]?\d){12,18}\b",  # cards and accounts
    r"\b(?=[A-Za-z0-9+/_-]*\d)(?=[A-Za-z0-9+/_-]*[A-Za-z])[A-Za-z0-9+/_-]{32,}={0,2}",  # long random-looking words
)
_SECRET = re.compile("|".join(f"(?:{pattern})" for pattern in _PATTERNS))


def mask(text: str) -> str:
    """The text with every secret replaced by MASK."""
    return _SECRET.sub(MASK, text)


def masked(segments: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """(text, origin) parts of one text: a secret may go over several of them. What is left of a part keeps its origin;
    the mask has that of the part in which the secret begins."""
    text = "".join(part for part, _ in segments)
    spans = [match.span() for match in _SECRET.finditer(text)]
    out, at = [], 0
    for part, origin in segments:
        kept, end = "", at + len(part)
        while at < end:
            inside = next((s for s in spans if s[0] <= at < s[1]), None)
            if inside is not None:
                kept += MASK if at == inside[0] else ""
                at = min(inside[1], end)
            else:
                stop = min((s[0] for s in spans if s[0] > at), default=end)
                kept += text[at : min(stop, end)]
                at = min(stop, end)
        out.append((kept, origin))
    return [(part, origin) for part, origin in out if part]
