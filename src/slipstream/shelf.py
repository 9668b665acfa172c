"""States of sequences that have lost their slot, kept in RAM within a budget: a conversation that comes back is not
read again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.core.ports import Saved


@dataclass(frozen=True, eq=False)
class Shelved:
    """What a slot held: its tokens, and the states of the target and of drafters by name."""

    tokens: tuple[int, ...]
    target: Saved
    drafters: dict[str, Saved]

    @property
    def n_bytes(self) -> int:
        return self.target.n_bytes + sum(s.n_bytes for s in self.drafters.values())


class Shelf:
    """`budget` is in bytes; the states that were not used for longest go first."""

    def __init__(self, budget: int = 0) -> None:
        self.budget = budget
        self._states: list[Shelved] = []  # the one used last comes last

    @property
    def n_bytes(self) -> int:
        return sum(s.n_bytes for s in self._states)

    def put(self, state: Shelved) -> None:
        """A state that is too large for the shelf is not kept; one that continues another replaces it."""
        if state.n_bytes > self.budget:
            return
        self._states = [s for s in self._states if state.tokens[: len(s.tokens)] != s.tokens]
        self._states.append(state)
        while self.n_bytes > self.budget:
            del self._states[0]

    def best(self, prompt: Sequence[int]) -> tuple[Shelved | None, int]:
        """The state that shares the longest beginning with the prompt, and how many tokens that is."""
        found = max(((common(s.tokens, prompt), i) for i, s in enumerate(self._states)), default=(0, -1))
        return (self._states[found[1]], found[0]) if found[0] else (None, 0)

    def take(self, state: Shelved) -> None:
        """It has got a slot again."""
        self._states.remove(state)

    def clear(self) -> None:
        self._states.clear()


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens both begin with."""
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n
