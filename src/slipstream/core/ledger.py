"""The rate that says what a token is worth, and the account that keeps bets from costing more than they earn."""

from __future__ import annotations

from collections.abc import Iterable

_MEMORY = 0.95  # of the rate, a step
_STAKE = 2.5  # plain steps that may be lost before anything has been won
_MOST = 24.0  # plain steps: winnings beyond this are not for betting
_CAUTION = 0.15  # margin for each plain step that the account is overdrawn by
_ALLOWANCE = 0.003  # of the time, that bets may lose for good
WRITE_OFF = 64  # tokens over which an investment is paid for
PROBE_SHARE = 0.01  # of the time, for finding out whether a paused costly drafter is any good


class Ledger:
    """Seconds won and lost against plain decoding, and tokens per second of late."""

    def __init__(self) -> None:
        self._tokens = self._seconds = self._invested = 0.0
        self._without: dict[str, tuple[float, float]] = {}
        self._bank: float | None = None
        self.probe_s = 0.0  # credit for probes

    def begin(self) -> None:
        """Another text: how fast the last one went says nothing of what a token is worth now. The account stays."""
        self._tokens = self._seconds = 0.0
        self._without.clear()

    def rate(self, without: str = "") -> float:
        """Tokens per second of late; `without` a drafter: of the steps in which it was not asked."""
        tokens, seconds = self._without.get(without, (0.0, 0.0)) if without else (self._tokens, self._seconds)
        return tokens / seconds if seconds else 0.0

    def affords(self, seconds: float) -> bool:
        """Whether so much has been won."""
        return self._bank is not None and self._bank >= seconds

    def margin(self, plain_s: float) -> float:
        """By how much more than its price a bet must promise: nothing while the account is not overdrawn."""
        return 0.0 if self._bank is None or self._bank >= 0 else min(_CAUTION * -self._bank / plain_s, 3.0)

    def book(
        self,
        tokens: int,
        seconds: float,
        plain_s: float,
        bet: bool,
        probe_s: float = 0.0,
        invested_s: float = 0.0,
        idle: Iterable[str] = (),
    ) -> None:
        """A step gave `tokens` in `seconds`, where plain decoding takes `plain_s` a token. `probe_s` of them were spent
        on a probe, which has a budget of its own, and `invested_s` on what serves the next WRITE_OFF tokens too;
        `idle` are the costly drafters that were not asked."""
        self._invested += invested_s
        due = self._invested * min(tokens / WRITE_OFF, 1.0)
        self._invested -= due
        seconds += due - invested_s
        for name in idle:
            before = self._without.get(name, (0.0, 0.0))
            self._without[name] = _MEMORY * before[0] + tokens, _MEMORY * before[1] + seconds - probe_s
        self._tokens = _MEMORY * self._tokens + tokens
        self._seconds = _MEMORY * self._seconds + seconds
        self.probe_s = min(self.probe_s + PROBE_SHARE * seconds, 10 * plain_s) - probe_s
        bank = _STAKE * plain_s if self._bank is None else self._bank
        if bet:
            bank += tokens * plain_s - (seconds - probe_s)
        self._bank = min(bank + _ALLOWANCE * seconds, _MOST * plain_s)
