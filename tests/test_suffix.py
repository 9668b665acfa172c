"""The suffix drafter: the automaton against a brute-force search, its work, and what it proposes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream import drafters
from slipstream.core.ports import Want
from slipstream.core.types import Draft, SamplingParams
from slipstream.drafters.suffix import Automaton, SuffixDrafter
from slipstream.errors import UnknownName

TOKENS = st.one_of(*(st.lists(st.integers(0, n), min_size=1, max_size=60) for n in (0, 1, 2, 4)))
GREEDY = SamplingParams()


def build(tokens: Sequence[int]) -> Automaton:
    a = Automaton()
    for token in tokens:
        a.extend(token)
    return a


def longest_earlier_match(tokens: Sequence[int]) -> int:
    """Length of the longest suffix that also ends somewhere before the end."""
    n = len(tokens)
    for length in range(n - 1, 0, -1):
        suffix = list(tokens[n - length :])
        if any(list(tokens[e - length : e]) == suffix for e in range(length, n)):
            return length
    return 0


def occurs(tokens: Sequence[int], part: Sequence[int]) -> bool:
    return any(list(tokens[i : i + len(part)]) == list(part) for i in range(len(tokens) - len(part) + 1))


@given(TOKENS)
def test_the_link_is_the_longest_earlier_match(tokens: list[int]) -> None:
    a = Automaton()
    for i, token in enumerate(tokens):
        a.extend(token)
        assert a.length[a.last] == i + 1
        assert a.length[a.link[a.last]] == longest_earlier_match(tokens[: i + 1])


@given(TOKENS, st.lists(st.integers(0, 4), min_size=1, max_size=6))
def test_the_automaton_reads_exactly_the_substrings(tokens: list[int], part: list[int]) -> None:
    a, state = build(tokens), 0
    for token in part:
        state = a.next[state].get(token, -1)
        if state < 0:
            break
    assert (state >= 0) == occurs(tokens, part)


@given(TOKENS, st.lists(st.integers(0, 4), min_size=1, max_size=12))
def test_behind_a_path_stands_its_longest_ending_in_the_text(tokens: list[int], path: list[int]) -> None:
    a, whole = build(tokens), [*tokens, *path]
    state, match = a.behind(path)
    assert match == next(n for n in range(len(whole), -1, -1) if occurs(tokens, whole[len(whole) - n :]) or not n)
    assert a.length[a.link[state]] < match <= a.length[state] or state == match == 0


@given(TOKENS, st.lists(st.integers(0, 4), min_size=1, max_size=6), st.integers(1, 5))
def test_a_peek_continues_the_text_and_leaves_no_trace(tokens: list[int], path: list[int], depth: int) -> None:
    drafter, other = SuffixDrafter(1), SuffixDrafter(1)
    for d in (drafter, other):
        d.begin(0, tokens, GREEDY)
    seen = drafter.peek(0, tokens, path, Want(depth, depth))
    state, match = drafter._slots[0][0].behind(path)
    said = [*tokens, *path][len(tokens) + len(path) - match :]
    assert not seen.tokens or seen.tokens[0] in tokens
    if seen.tokens and drafter._slots[0][0].next[state]:
        assert occurs(tokens, [*said, seen.tokens[0]])
    assert drafter.propose(0, tokens, Want(9, 9)) == other.propose(0, tokens, Want(9, 9))


def tree_paths(d: Draft) -> list[list[int]]:
    paths: list[list[int]] = []
    for token, parent in zip(d.tokens, d.parents, strict=True):
        paths.append([*(paths[parent] if parent >= 0 else []), token])
    return paths


@given(TOKENS, st.integers(1, 3), st.integers(1, 10), st.integers(1, 6), st.integers(1, 3))
def test_proposals_continue_an_earlier_occurrence(
    tokens: list[int], min_match: int, nodes: int, depth: int, width: int
) -> None:
    drafter = SuffixDrafter(min_match)
    drafter.begin(0, tokens[: len(tokens) // 2], GREEDY)
    draft = drafter.propose(0, tokens, Want(nodes, depth, width))
    match = longest_earlier_match(tokens)
    assert (len(draft) > 0) == (match >= min_match) or match < len(tokens)
    if match < min_match:
        assert len(draft) == 0
        return
    assert len(draft) >= 1, "the context has been seen, so something followed it"
    assert len(draft) <= nodes and max(draft.depths()) <= depth
    assert all(len(k) <= width for k in draft.children())
    assert width > 1 or draft.is_chain
    for path in tree_paths(draft):
        # Each node stands after at least `min_match` tokens of context, as it did somewhere before.
        context = [*tokens, *path[:-1]]
        assert occurs(tokens, [*context[len(context) - min_match :], path[-1]])
    for kids in draft.children():
        assert len({draft.tokens[i] for i in kids}) == len(kids)
        assert [draft.prob[i] for i in kids] == sorted((draft.prob[i] for i in kids), reverse=True)
    assert all(0 < p < 1 for p in draft.prob)
    first = draft.spine()
    assert draft.tokens[: len(first)] == first.tokens, "the likeliest path comes first, in consecutive places"


@given(TOKENS, st.integers(1, 12))
def test_a_chain_follows_the_longest_match(tokens: list[int], depth: int) -> None:
    drafter = SuffixDrafter(1)
    drafter.begin(0, [], GREEDY)
    draft = drafter.propose(0, tokens, Want(depth, depth, 1))
    match = longest_earlier_match(tokens)
    if match:
        assert occurs(tokens, [*tokens[len(tokens) - match :], draft.tokens[0]])


def test_a_loop_is_drafted_to_the_end_of_the_want() -> None:
    drafter = SuffixDrafter()
    drafter.begin(0, [1, 2, 3, 4, 1, 2, 3, 4, 1, 2], GREEDY)
    draft = drafter.propose(0, [1, 2, 3, 4, 1, 2, 3, 4, 1, 2], Want(16, 16, 1))
    assert draft.tokens == tuple(([3, 4, 1, 2] * 4)[:16])
    assert drafter.propose(0, [1, 2, 3, 4, 1, 2, 3, 4, 1, 2], Want(3, 16, 1)).tokens == (3, 4, 1)


def test_what_followed_most_often_comes_first_and_the_later_of_equals() -> None:
    def first(tokens: list[int], width: int = 3) -> list[int]:
        drafter = SuffixDrafter(1)
        drafter.begin(0, tokens, GREEDY)
        draft = drafter.propose(0, tokens, Want(9, 1, width))
        return list(draft.tokens)

    assert first([7, 1, 7, 2, 7, 2, 7, 3, 7])[0] == 2
    assert set(first([7, 1, 7, 2, 7, 2, 7, 3, 7])) == {1, 2, 3}
    assert first([7, 1, 8, 7, 2, 6, 7]) == [2, 1] and first([7, 2, 8, 7, 1, 6, 7]) == [1, 2]
    # The longer context, 9 7, was followed by 2 alone; 1 followed the shorter one.
    assert first([7, 1, 9, 7, 2, 7, 2, 9, 7]) == [2, 1] and first([7, 1, 7, 1, 7, 1, 9, 7, 2, 9, 7], 1) == [2]


def test_shorter_contexts_offer_what_the_longest_match_does_not_know() -> None:
    text = [*[5, 6, 1] * 4, 9, 5, 6, 2, 8, 9, 5, 6]  # 9 5 6 was followed by 2 once, 5 6 four times by 1
    drafter = SuffixDrafter()
    drafter.begin(0, text, GREEDY)
    draft = drafter.propose(0, text, Want(4, 1, 3))
    assert set(draft.tokens) == {1, 2} and sum(draft.prob) <= 1
    assert draft.evidence[draft.tokens.index(2)] == (2, "once")
    assert draft.evidence[draft.tokens.index(1)] == (1, "major")


@given(st.lists(st.integers(0, 3), min_size=1, max_size=50), st.integers(1, 3))
def test_evidence_is_a_length_and_an_agreement(tokens: list[int], min_match: int) -> None:
    drafter = SuffixDrafter(min_match)
    drafter.begin(0, tokens, GREEDY)
    draft = drafter.propose(0, tokens, Want(8, 4, 2))
    for label in draft.evidence:
        length, agreement = label  # type: ignore[misc]
        assert min_match - 1 <= length <= 6 and agreement in ("once", "often", "major", "minor")
    for kids in draft.children():
        assert sum(draft.prob[i] for i in kids) <= 1 + 1e-9


@given(TOKENS, st.integers(1, 10), st.integers(1, 6))
def test_a_wider_draft_holds_the_chain(tokens: list[int], nodes: int, depth: int) -> None:
    drafter = SuffixDrafter(1)
    drafter.begin(0, tokens, GREEDY)
    chain, tree = (drafter.propose(0, tokens, Want(nodes, depth, width)) for width in (1, 2))
    if len(chain):
        assert chain.tokens[0] in {tree.tokens[i] for i in tree.children()[0]} and len(tree) >= len(chain.tokens[:1])


@given(TOKENS)
def test_counts_of_short_contexts_are_how_often_each_token_followed(tokens: list[int]) -> None:
    """Brute force over every context that is the longest of its state and not longer than 12."""
    a = build(tokens)
    n = len(tokens)
    contexts = {tuple(tokens[i:j]) for i in range(n) for j in range(i + 1, min(i + 12, n) + 1)}
    for context in contexts:
        state = 0
        for token in context:
            state = a.next[state][token]
        if a.length[state] != len(context):
            continue
        followed: dict[int, int] = {}
        for i in range(n - len(context)):
            if tuple(tokens[i : i + len(context)]) == context:
                token = tokens[i + len(context)]
                followed[token] = followed.get(token, 0) + 1
        assert a.follow[state] == followed, context


class CountingDict(dict[int, int]):
    """Counts every look-up and write of a state's transitions."""

    work = 0

    def __getitem__(self, key: int) -> int:
        CountingDict.work += 1
        return super().__getitem__(key)

    def __setitem__(self, key: int, value: int) -> None:
        CountingDict.work += 1
        super().__setitem__(key, value)

    def __contains__(self, key: object) -> bool:
        CountingDict.work += 1
        return super().__contains__(key)

    def get(self, key: int, default: int = -1) -> int:  # type: ignore[override]
        CountingDict.work += 1
        return super().get(key, default)


class Counting(Automaton):
    def __init__(self) -> None:
        super().__init__()
        self.next = [CountingDict()]
        self.bumps = 0

    def _add(self, length: int, following: dict[int, int], link: int, counts: dict[int, int]) -> int:
        return super()._add(length, CountingDict(following), link, counts)

    def _bump(self, state: int, token: int) -> None:
        self.bumps += 1
        super()._bump(state, token)


def texts(n: int) -> dict[str, list[int]]:
    rng = np.random.default_rng(0)
    return {
        "one token": [1] * n,
        "a long loop": [int(t) for t in np.tile(rng.integers(0, 50, 97), n // 97 + 1)[:n]],
        "random": [int(t) for t in rng.integers(0, 1000, n)],
        "small alphabet": [int(t) for t in rng.integers(0, 2, n)],
        "ever longer runs": [t for i in range(n) for t in [*[1] * (i % 60), 2]][:n],
    }


@pytest.mark.parametrize("kind", texts(10))
def test_work_for_a_token_does_not_grow_with_the_text(kind: str) -> None:
    """No rescan: transitions touched and counts raised, per token, over 1,000 and over 8,000 tokens."""
    per_token = {}
    for n in (1000, 8000):
        CountingDict.work = 0
        a = Counting()
        for token in texts(n)[kind]:
            a.extend(token)
        per_token[n] = (CountingDict.work + a.bumps) / n
        assert len(a.next) <= 2 * n and a.bumps <= (12 + 4) * n
    assert per_token[8000] <= 1.3 * per_token[1000] + 1 and per_token[8000] < 40


def test_proposing_reads_only_what_is_new() -> None:
    class Watched(list[int]):
        longest = 0

        def __getitem__(self, i):  # type: ignore[no-untyped-def]
            got = super().__getitem__(i)
            if isinstance(i, slice):
                Watched.longest = max(Watched.longest, len(got))
            return got

    tokens = Watched([1, 2, 3] * 500)
    drafter = SuffixDrafter()
    drafter.begin(0, tokens, GREEDY)
    Watched.longest = 0
    for i in range(50):
        tokens.append(i % 3)
        assert len(drafter.propose(0, tokens, Want(8, 8))) <= 8
    assert Watched.longest == 1


def test_slots_are_apart_and_begin_forgets() -> None:
    drafter = SuffixDrafter()
    text = [1, 2, 3, 1, 2]
    drafter.begin(0, text, GREEDY)
    drafter.begin(1, [4, 5, 6, 1, 2], GREEDY)
    assert drafter.propose(0, text, Want(4, 4)).tokens[0] == 3
    assert len(drafter.propose(1, [4, 5, 6, 1, 2], Want(4, 4))) == 0
    drafter.begin(0, [1, 2], GREEDY)
    assert len(drafter.propose(0, [1, 2], Want(4, 4))) == 0
    drafter.end(0)
    drafter.end(0)  # harmless


def test_the_table_of_names() -> None:
    assert set(drafters.names()) >= {"suffix", "recycle", "predicted"}
    assert not {"model", "corpus"} & set(drafters.names())
    for name in ("suffix", "recycle", "predicted"):
        assert drafters.create(name).name == name
    assert isinstance(drafters.create("suffix"), SuffixDrafter)
    with pytest.raises(UnknownName) as caught:
        drafters.create("sufix")
    assert "suffix" in caught.value.hint
