"""A constraint that a test writes down: states, and the tokens that lead from one to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt


class Rules:
    """`moves[state][token]` is the next state; it begins in state 0 and may end in the `ending` ones.

    A state of `failing` is one in which it breaks down: nothing but an end token is allowed there.
    """

    def __init__(
        self,
        moves: Sequence[Mapping[int, int]],
        ending: frozenset[int],
        n_vocab: int,
        ends: frozenset[int] = frozenset(),
        failing: frozenset[int] = frozenset(),
    ) -> None:
        self.moves, self.ending, self.n_vocab, self.ends, self.failing = moves, ending, n_vocab, ends, failing
        self.states = [0]
        self.said: list[int] = []

    def _after(self, path: Sequence[int]) -> int | None:
        state: int | None = self.states[-1]
        for token in path:
            if token in self.ends:
                continue
            if state is None or state in self.failing:
                return None
            state = self.moves[state].get(token)
        return state

    @property
    def done(self) -> bool:
        return self.states[-1] in self.failing or not self.moves[self.states[-1]]

    @property
    def failure(self) -> str:
        return "it broke down" if self.states[-1] in self.failing else ""

    def allowed(self, path: Sequence[int] = ()) -> npt.NDArray[np.bool_]:
        mask = np.zeros(self.n_vocab, np.bool_)
        state = self._after(path)
        broken = state is None or state in self.failing
        if not broken:
            mask[list(self.moves[state])] = True  # type: ignore[index]
        if broken or state in self.ending or not mask.any():
            mask[list(self.ends)] = True
        return mask if mask.any() else ~mask

    def valid(self, path: Sequence[int]) -> int:
        for i, token in enumerate(path):
            state = self._after(path[:i])
            if token in self.ends:
                return i + (state in self.ending or state in self.failing)
            if state is None or state in self.failing or token not in self.moves[state]:
                return i
        return len(path)

    def forced(self, path: Sequence[int] = ()) -> Sequence[int]:
        found: list[int] = []
        while (state := self._after([*path, *found])) is not None and len(found) < 30:
            if state in self.failing or state in self.ending or len(self.moves[state]) != 1:
                break
            found += self.moves[state]
        return found

    def append(self, token: int) -> None:
        self.said.append(token)
        if token in self.ends:
            self.states.append(self.states[-1])
            return
        assert not self.done and token in self.moves[self.states[-1]], f"{self.said} is not allowed"
        self.states.append(self.moves[self.states[-1]][token])

    def take_back(self, n: int) -> None:
        for _ in range(n):
            self.said.pop()
            self.states.pop()

    def fork(self) -> Rules:
        other = Rules(self.moves, self.ending, self.n_vocab, self.ends, self.failing)
        other.states, other.said = list(self.states), list(self.said)
        return other


def line(*tokens: int, n_vocab: int, ends: Sequence[int] = ()) -> Rules:
    """These tokens and nothing else."""
    moves = [{token: i + 1} for i, token in enumerate(tokens)]
    return Rules([*moves, {}], frozenset([len(tokens)]), n_vocab, frozenset(ends))


def random_rules(seed: int, n_vocab: int, ends: Sequence[int] = (), states: int = 7, failing: bool = False) -> Rules:
    """Some states with one way on, some with several; in few of them it may end, and in the last it must."""
    rng = np.random.default_rng([seed, 9])
    words = [t for t in range(n_vocab) if t not in ends]
    moves: list[dict[int, int]] = []
    for _ in range(states - 1):
        tokens = rng.choice(words, int(rng.choice([1, 1, 2, 3, 5])), replace=False)
        moves.append(
            {int(t): int(rng.integers(states) if rng.random() < 0.3 else rng.integers(states - 1)) for t in tokens}
        )
    ending = {states - 1, *(int(s) for s in np.flatnonzero(rng.random(states - 1) < 0.15))}
    fails = frozenset([int(rng.integers(1, states - 1))]) if failing else frozenset[int]()
    return Rules([*moves, {}], frozenset(ending), n_vocab, frozenset(ends), fails)
