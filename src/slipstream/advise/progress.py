"""How far a long measurement is, and about how long it still takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class _Stage:
    units: float
    each_s: float  # what a unit is thought to take, until some are done
    done: float = 0.0
    spent_s: float = 0.0

    @property
    def left_s(self) -> float:
        each = self.spent_s / self.done if self.done else self.each_s
        return max(self.units - self.done, 0.0) * each


class Progress:
    """Stages of units of like size. `say` hears a line after each unit; a terminal may show it in place."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self.say, self.clock = say, clock
        self.start = clock()
        self._stages: dict[str, _Stage] = {}
        self._last = self.start

    def expect(self, stage: str, units: float, each_s: float) -> None:
        """A stage to come; said again, its units and what is thought of them are replaced."""
        old = self._stages.get(stage)
        self._stages[stage] = _Stage(units, each_s, *((old.done, old.spent_s) if old else ()))

    def begin(self) -> None:
        """What was done since the last unit belongs to none."""
        self._last = self.clock()

    def done(self, stage: str, what: str, units: float = 1.0) -> None:
        now = self.clock()
        at = self._stages[stage]
        at.done += units
        at.spent_s += now - self._last
        self._last = now
        self.say(f"{what} ({stage} {at.done:.0f}/{at.units:.0f}, {_about(self.left_s)} left)")

    @property
    def spent_s(self) -> float:
        return self.clock() - self.start

    @property
    def left_s(self) -> float:
        return sum(stage.left_s for stage in self._stages.values())


def _about(seconds: float) -> str:
    return f"about {seconds / 60:.0f} min" if seconds >= 90 else f"about {10 * max(round(seconds / 10), 1)} s"
