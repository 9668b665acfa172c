"""Vocabularies are compared by content (case T07 of the fifteen)."""

from __future__ import annotations

import time

import numpy as np
import pytest

from gguf_writer import tiny_llama, write_gguf
from slipstream.errors import ModelFileError, PairError
from slipstream.models.gguf import read_header
from slipstream.text.pairing import pair
from slipstream.text.vocab import Vocab, from_gguf


def padded(n_real: int, n_rows: int, change: dict[int, str] | None = None, **more: object) -> Vocab:
    tokens = [f"t{i}" for i in range(n_real)] + [f"[PAD{i}]" for i in range(n_real, n_rows)]
    for i, text in (change or {}).items():
        tokens[i] = text
    return Vocab(tokens, **more)  # type: ignore[arg-type]


def test_t07_padding_of_different_length_pairs_and_is_noted() -> None:
    target, draft = padded(151_646, 152_064), padded(151_646, 151_936)
    start = time.perf_counter()
    pairing = pair(target, draft)
    assert time.perf_counter() - start < 0.3
    assert (pairing.n_shared, pairing.padding_target, pairing.padding_draft) == (151_646, 418, 290)
    assert "padding" in pairing.note and "no id from 151646 on" in pairing.note


def test_equal_vocabularies_pair_without_a_word() -> None:
    assert pair(padded(50, 64), padded(50, 64)).note == ""


def test_a_real_difference_names_the_first_id_and_both_strings() -> None:
    with pytest.raises(PairError) as caught:
        pair(
            padded(100, 100, model="gpt2", pre="qwen2"), padded(100, 100, {7: "x\n", 9: "y"}, model="gpt2", pre="llama")
        )
    message = str(caught.value)
    assert "token 7" in message and "'t7'" in message and r"'x\n'" in message and "2 of 100" in message
    assert "gpt2/qwen2" in message and "gpt2/llama" in message and caught.value.hint


def test_wholly_different_vocabularies_are_refused_quickly() -> None:
    target, draft = padded(150_000, 150_000), Vocab([f"u{i}" for i in range(150_000)])
    start = time.perf_counter()
    with pytest.raises(PairError, match="150,000 of 150,000"):
        pair(target, draft)
    assert time.perf_counter() - start < 0.3


def test_bytes_that_are_no_text_are_shown() -> None:
    with pytest.raises(PairError, match="xff"):
        pair(Vocab([b"a", b"\xff"]), Vocab([b"a", b"b"]))


def test_ends_of_turn_that_differ_are_noted_not_refused() -> None:
    note = pair(padded(9, 9, eos_ids=[8]), padded(9, 9, eos_ids=[7, 8])).note
    assert "end a turn" in note and "7, 8" in note


def test_tokens_that_the_draft_model_has_no_row_for_are_refused() -> None:
    with pytest.raises(PairError, match="knows only 90"):
        pair(padded(100, 128), padded(90, 90))


def test_tokens_that_fall_into_the_drafts_padding_are_never_drafted() -> None:
    pairing = pair(padded(100, 128), padded(90, 128))
    assert pairing.n_shared == 90 and pairing.padding_target == 38


def test_padding_inside_is_no_difference() -> None:
    pairing = pair(padded(20, 20, {4: "<tool>"}), padded(20, 20, {4: "<unused4>"}))
    assert pairing.n_shared == 20 and "first 4" in pairing.note


@pytest.mark.parametrize(("name", "kind", "expected"), [
    ("[PAD151933]", 1, True), ("<unused12>", 3, True), ("", 1, True), ("anything", 5, True), ("undefined", 0, True),
    ("[PAD]", 3, False), ("<unused>", 3, False), ("word", 1, False), ("<0x00>", 6, False),
])  # fmt: skip
def test_what_padding_is(name: str, kind: int, expected: bool) -> None:
    assert Vocab(["a", name], [1, kind]).is_padding(1) is expected


def test_types_that_say_nothing_are_not_believed() -> None:
    assert Vocab(["a", "b"], [0, 0]).n_real == 2
    assert Vocab(["a", "b"], np.array([5])).n_real == 2


def test_an_empty_vocabulary_is_refused() -> None:
    with pytest.raises(PairError):
        pair(Vocab([]), Vocab(["a"]))


def test_from_gguf(tmp_path) -> None:  # type: ignore[no-untyped-def]
    metadata, tensors = tiny_llama(tokenizer__ggml__eot_token_id=61)
    vocab = from_gguf(read_header(write_gguf(tmp_path / "a.gguf", metadata, tensors)))
    assert len(vocab) == vocab.n_real == 64 and vocab.tokens[3] == b"t3"
    assert vocab.eos_ids == {63, 61} and vocab.bos_id == 62 and (vocab.model, vocab.pre) == ("gpt2", "tiny")
    del metadata["tokenizer.ggml.tokens"]
    with pytest.raises(ModelFileError, match="no vocabulary"):
        from_gguf(read_header(write_gguf(tmp_path / "b.gguf", metadata, tensors)))
