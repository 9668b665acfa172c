"""Text to tokens and back, as the model file defines it."""

from __future__ import annotations

import ctypes
from typing import Any

from slipstream.models.llamacpp import library


class LlamaTokenizer:
    """`encode` with `special` reads control tokens in the text (a chat template wrote them) and adds no start token."""

    def __init__(self, model: Any) -> None:
        self._low = low = library.lib()
        self._vocab = vocab = low.llama_model_get_vocab(model)
        self.n_vocab = int(low.llama_vocab_n_tokens(vocab))
        self.ends = frozenset(i for i in range(self.n_vocab) if low.llama_vocab_is_eog(vocab, i))
        self._adds_bos = bool(low.llama_vocab_get_add_bos(vocab))
        self._bos_id = low.llama_vocab_bos(vocab)
        self.bos, self.eos = self._text(self._bos_id), self._text(low.llama_vocab_eos(vocab))
        fim = tuple(int(f(vocab)) for f in (low.llama_vocab_fim_pre, low.llama_vocab_fim_suf, low.llama_vocab_fim_mid))
        self.fim: tuple[int, int, int] | None = (fim[0], fim[1], fim[2]) if min(fim) >= 0 else None
        template = low.llama_model_chat_template(model, None)
        self.chat_template: str | None = template.decode("utf-8", "replace") if template else None
        self._pieces: dict[int, bytes] = {}
        self._buffer = ctypes.create_string_buffer(1024)

    def _text(self, token: int) -> str:
        return self._low.llama_vocab_get_text(self._vocab, token).decode("utf-8", "replace") if token >= 0 else ""

    def encode(self, text: str, special: bool = False) -> list[int]:
        data = text.encode("utf-8", "surrogatepass")
        room = len(data) + 8
        out = (ctypes.c_int32 * room)()
        n = self._low.llama_tokenize(self._vocab, data, len(data), out, room, not special, special)
        if n < 0:
            out = (ctypes.c_int32 * -n)()
            n = self._low.llama_tokenize(self._vocab, data, len(data), out, -n, not special, special)
        ids = list(out[:n])
        if special and self._adds_bos and (not ids or ids[0] != self._bos_id):
            ids.insert(0, self._bos_id)
        return ids

    def piece(self, token: int) -> bytes:
        """The token's bytes; nothing for control tokens."""
        known = self._pieces.get(token)
        if known is None:
            n = self._low.llama_token_to_piece(self._vocab, token, self._buffer, len(self._buffer), 0, False)
            if n < 0:
                self._buffer = ctypes.create_string_buffer(-n)
                n = self._low.llama_token_to_piece(self._vocab, token, self._buffer, -n, 0, False)
            known = self._pieces[token] = self._buffer.raw[:n]
        return known
