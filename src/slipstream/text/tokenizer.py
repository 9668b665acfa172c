"""What the engine asks of a tokenizer."""

from __future__ import annotations

from typing import Protocol


class Tokenizer(Protocol):
    ends: frozenset[int]  # tokens that end a turn or the text
    chat_template: str | None
    bos: str
    eos: str
    fim: (
        tuple[int, int, int] | None
    )  # tokens before a prefix, a suffix and the gap between them, where the model has them

    def encode(self, text: str, special: bool = False) -> list[int]:
        """Tokens of a text. `special`: control tokens written in the text are read as such."""
        ...

    def piece(self, token: int) -> bytes:
        """The token's bytes, which may be a part of a character; nothing for control tokens."""
        ...
