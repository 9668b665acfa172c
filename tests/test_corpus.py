"""A corpus: its index against a plain search, which files are read, its file, and what is learned."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import PROMPT, outcome, toy_engine
from slipstream.core.ports import Want
from slipstream.core.types import EMPTY_DRAFT, SamplingParams, Verdict
from slipstream.drafters.corpus import CorpusDrafter, Index
from slipstream.drafters.corpus_files import Corpus
from slipstream.errors import InputError, PairError
from test_lossless import KS, STOPS, TABLES, N, params, plain

GREEDY = SamplingParams()
TEXTS = st.lists(st.lists(st.integers(0, 3), max_size=40), max_size=4)
RECENT = st.lists(st.integers(0, 3), max_size=24)


def encode(text: str) -> list[int]:
    return list(text.encode())


def other(text: str) -> list[int]:
    return [b + 1 for b in text.encode()]


def flat(texts: Sequence[Sequence[int]]) -> np.ndarray:
    return np.array([t for text in texts for t in (*text, -1)], np.int32)


def search(text: Sequence[int], recent: Sequence[int]) -> tuple[list[int], int]:
    """Every position after the longest match (up to 16 tokens), by trying all."""
    for match in range(min(len(recent), 16), 0, -1):
        part = list(recent[-match:])
        hits = [i for i in range(match, len(text) + 1) if list(text[i - match : i]) == part]
        if hits:
            return hits, match
    return [], 0


@pytest.mark.parametrize("few", [0, 3, 256])
def test_the_index_finds_the_longest_match_and_only_its_places(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.drafters.corpus._FEW", few)

    @given(TEXTS, RECENT)
    def check(texts: list[list[int]], recent: list[int]) -> None:
        tokens = flat(texts)
        hits, match = search(tokens.tolist(), recent)
        index = Index(tokens)
        places, length = index.places(recent, 1)
        assert length == match
        assert {p - 16 for p in places} <= set(hits) and bool(places) == bool(hits)
        if len(hits) <= 24:
            assert sorted(p - 16 for p in places) == hits
        assert index.places(recent, match + 1) == ([], 0)

    check()


@given(TEXTS, RECENT, st.integers(1, 9), st.integers(1, 5), st.integers(1, 3))
def test_proposals_stand_in_one_document(
    texts: list[list[int]], recent: list[int], nodes: int, depth: int, width: int
) -> None:
    drafter = CorpusDrafter(Corpus(flat(texts), "x"))
    drafter.begin(0, recent, GREEDY)
    draft = drafter.propose(0, recent, Want(nodes, depth, width))
    assert len(draft) <= nodes and max(draft.depths(), default=0) <= depth
    paths: list[list[int]] = []
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        paths.append([*(paths[parent] if parent >= 0 else recent[-2:]), token])
        assert any(text[i : i + len(paths[-1])] == paths[-1] for text in texts for i in range(len(text)))
    for kids in draft.children():
        assert len(kids) <= width and len({draft.tokens[i] for i in kids}) == len(kids)
    assert all(0 < p < 1 for p in draft.prob) and None not in draft.evidence


def test_a_longer_match_wins_then_the_more_frequent_continuation() -> None:
    texts = [[1, 2, 3, 4], [9, 2, 3, 5], [8, 2, 3, 5], [7, 2, 3, 6, 6]]
    drafter = CorpusDrafter(Corpus(flat(texts), "x"))
    assert drafter.propose(0, [1, 2, 3], Want(4, 4)).tokens == (4,)
    assert drafter.propose(0, [0, 2, 3], Want(4, 4)).tokens == (5,)
    assert set(drafter.propose(0, [0, 2, 3], Want(3, 1, 3)).tokens) == {4, 5, 6}
    assert len(drafter.propose(0, [0, 0, 3], Want(4, 4))) == 0


@given(TEXTS, RECENT, st.lists(st.integers(0, 3), max_size=20))
def test_a_peek_is_what_would_be_proposed(texts: list[list[int]], recent: list[int], path: list[int]) -> None:
    drafter = CorpusDrafter(Corpus(flat(texts), "x"))
    drafter.begin(0, recent, GREEDY)
    assert drafter.peek(0, recent, path, Want(5, 5)) == drafter.propose(0, [*recent, *path], Want(5, 5))


def folder(tmp_path: Path) -> Path:
    for name, data in {
        "a.py": b"alpha",
        "b/c.txt": b"beta",
        "b/bin.dat": b"x\0y",
        "b/latin.txt": b"\xe9t\xe9",
        ".git/config": b"secret",
        "large.txt": b"z" * ((1 << 20) + 1),
    }.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    os.symlink(tmp_path / "nowhere", tmp_path / "project" / "dangling")
    os.symlink(tmp_path / "project", tmp_path / "project" / "b" / "loop")
    return tmp_path / "project"


def test_text_files_are_read_and_the_rest_is_skipped_and_counted(tmp_path: Path) -> None:
    project = folder(tmp_path)
    corpus = Corpus.build([project], encode)
    assert corpus.tokens.tolist() == [*encode("alpha"), -1, *encode("beta"), -1]
    assert corpus.files == 2
    assert corpus.skipped == {"binary": 2, "folder": 1, "large": 1, "unreadable": 1}
    assert corpus.tokens.dtype == np.int32
    short = Corpus.build([project], encode, limit=7)
    assert short.tokens.tolist() == [*encode("alpha"), -1] and short.skipped["limit"] == 1
    with pytest.raises(InputError, match="no such file"):
        Corpus.build([tmp_path / "none"], encode)


def test_nothing_is_stored_unless_asked_and_a_saved_corpus_is_the_same(tmp_path: Path) -> None:
    project = folder(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    corpus = Corpus.build([project], encode)
    drafter = CorpusDrafter(corpus, learn=True)
    drafter.begin(0, [1, 2], GREEDY)
    drafter.end(0)
    assert sorted(tmp_path.rglob("*")) == before
    corpus.save(tmp_path / "mine.corpus")
    again = Corpus.load(tmp_path / "mine.corpus", encode)
    assert (again.tokens == corpus.tokens).all() and again.files == 2
    assert not list(tmp_path.glob("*.part"))
    with pytest.raises(PairError) as caught:
        Corpus.load(tmp_path / "mine.corpus", other)
    assert "build it again" in caught.value.hint


@pytest.mark.parametrize("data", [b"", b"text", b"PK\x03\x04 cut short", b"\x93NUMPY\x01\x00v\x00"])
def test_a_file_that_is_no_corpus_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(InputError):
        Corpus.load(tmp_path / "x", encode)
    with pytest.raises(InputError):
        Corpus.load(tmp_path / "missing", encode)
    with pytest.raises(InputError, match="cannot write"):
        Corpus.of([[1, 2]], encode).save(tmp_path / "no" / "folder")


def test_finished_sequences_are_learned_only_if_asked() -> None:
    for learn in (False, True):
        drafter = CorpusDrafter(Corpus.of([], encode), learn=learn)
        drafter.begin(0, [1, 2], GREEDY)
        drafter.begin(1, [5, 6], GREEDY)
        drafter.observe(0, EMPTY_DRAFT, Verdict((), 3), None)
        drafter.propose(0, [1, 2, 3], Want(4, 4))
        drafter.observe(0, EMPTY_DRAFT, Verdict((), 4), None)
        assert len(drafter.propose(1, [1, 2], Want(4, 4))) == 0, "it has not ended yet"
        drafter.end(0)
        drafter.end(0)
        assert drafter.propose(1, [1, 2], Want(4, 4)).tokens == ((3, 4) if learn else ())


def test_what_is_learned_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.drafters.corpus._LEARNED", 10)
    drafter = CorpusDrafter(Corpus.of([], encode), learn=True)
    for first in (0, 20, 40):
        drafter.begin(0, range(first, first + 6), GREEDY)
        drafter.end(0)
    assert list(drafter.learned) == [list(range(40, 46))]
    drafter.begin(0, [], GREEDY)
    assert len(drafter.propose(0, [0, 1], Want(4, 4))) == 0
    assert drafter.propose(0, [40, 41], Want(4, 4)).tokens == (42, 43, 44, 45)


def test_the_text_is_the_target_s_own() -> None:
    for table in TABLES:
        for temperature in (0.0, 0.8):
            corpus = Corpus.of([plain(table, "cap", temperature).ids[5:]], encode)
            for stop, (opened, asked) in STOPS.items():
                for k in KS[1:]:
                    for width in (1, 3):
                        engine = toy_engine(TABLES[table], N, CorpusDrafter(corpus), k, width, **opened)
                        result = engine.generate(PROMPT, sampling=params(temperature), **asked)
                        assert outcome(result) == outcome(plain(table, stop, temperature))
                        assert result.stats.accepted > 0 or len(result.ids) < 12
