"""Log-probabilities of delivered tokens, as each of the two endpoints shows them."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from slipstream.core.sequence import Token
from slipstream.serve.service import Pieces

_LEAST = -9999.0  # what JSON can say of a token that cannot be


def for_chat(tokens: Sequence[Token], pieces: Pieces) -> dict[str, Any]:
    """One entry for each token, its id beside what OpenAI has."""
    content = [
        {**_entry(t.id, t.logprob or 0.0, pieces), "top_logprobs": [_entry(i, lp, pieces) for i, lp in t.top_logprobs]}
        for t in tokens
    ]
    return {"content": content, "refusal": None}


class ForText:
    """Parallel lists, with the place of each token in the text: characters before its first whole one."""

    def __init__(self, offset: int = 0) -> None:
        self._offset = offset
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, tokens: Sequence[Token], pieces: Pieces) -> dict[str, Any]:
        offsets = []
        for t in tokens:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(pieces[t.id]))
        return {
            "tokens": [named(t.id, pieces[t.id]) for t in tokens],
            "token_logprobs": [_finite(t.logprob or 0.0) for t in tokens],
            "top_logprobs": [{named(i, pieces[i]): _finite(lp) for i, lp in t.top_logprobs} for t in tokens],
            "text_offset": offsets,
            "token_ids": [t.id for t in tokens],
        }


def _entry(token: int, logprob: float, pieces: Pieces) -> dict[str, Any]:
    piece = pieces[token]
    return {"id": token, "token": named(token, piece), "logprob": _finite(logprob), "bytes": list(piece)}


def named(token: int, piece: bytes) -> str:
    """A token's text; its bytes where they are no whole characters, its id where it has no text."""
    if not piece:
        return f"token_id:{token}"
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def _finite(logprob: float) -> float:
    return max(logprob, _LEAST)
