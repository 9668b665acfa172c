"""A model's vocabulary as a list of byte strings, and which of its rows are only padding."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from slipstream.errors import ModelFileError

# llama.h, enum llama_token_type: what a row is.
UNDEFINED, UNUSED = 0, 5
_PADDING_NAME = re.compile(rb"\[PAD\d+\]|<unused\d+>|<\|?reserved_special_token_\d+\|?>|")


class Header(Protocol):
    """The part of a GGUF header that a vocabulary needs."""

    @property
    def path(self) -> Path: ...
    @property
    def metadata(self) -> Mapping[str, Any]: ...
    @property
    def eos_ids(self) -> tuple[int, ...]: ...
    @property
    def bos_id(self) -> int | None: ...


class Vocab:
    """Tokens by id. `model` and `pre` name the tokenizer (GGUF: tokenizer.ggml.model and .pre) where known."""

    def __init__(
        self,
        tokens: Sequence[bytes | str],
        types: Sequence[int] | NDArray[np.integer[Any]] | None = None,
        eos_ids: Iterable[int] = (),
        bos_id: int | None = None,
        model: str = "",
        pre: str = "",
    ) -> None:
        self.tokens = [t.encode() if isinstance(t, str) else t for t in tokens]
        self.eos_ids = frozenset(eos_ids)
        self.bos_id = bos_id
        self.model, self.pre = model, pre
        # A list of another length, or one that says nothing about any token, cannot be believed.
        known = types is not None and len(types) == len(self.tokens) and any(kind != UNDEFINED for kind in types)
        self._types = np.asarray(types) if known else None

    def __len__(self) -> int:
        return len(self.tokens)

    def is_padding(self, i: int) -> bool:
        """Whether row `i` exists only to round up the number of rows: no text is ever encoded with it."""
        if self._types is not None and self._types[i] in (UNDEFINED, UNUSED):
            return True
        return _PADDING_NAME.fullmatch(self.tokens[i]) is not None

    @cached_property
    def n_real(self) -> int:
        """One more than the last id that is not padding."""
        last = len(self.tokens) - 1
        while last >= 0 and self.is_padding(last):
            last -= 1
        return last + 1


def from_gguf(header: Header) -> Vocab:
    """The vocabulary in a GGUF header. Raises ModelFileError where it has none."""
    data = header.metadata
    tokens, types = data.get("tokenizer.ggml.tokens"), data.get("tokenizer.ggml.token_type")
    if not isinstance(tokens, list) or not tokens:
        raise ModelFileError(f"{header.path.name}: has no vocabulary", "give a complete model file")
    if not isinstance(types, np.ndarray) or types.dtype.kind not in "iu":
        types = None
    model, pre = (str(data.get(f"tokenizer.ggml.{key}", "")) for key in ("model", "pre"))
    return Vocab(tokens, types, header.eos_ids, header.bos_id, model, pre)
