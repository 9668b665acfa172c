"""How much of waiting prompts is read beside sequences that decode, so that nobody waits long for the next token."""

from __future__ import annotations

from collections.abc import Sequence

PAUSE = 0.25  # seconds that a forward with a prompt in it may take while others decode, about
LEAST = 16  # prompt tokens that are read beside others in any case
_HEAR = 0.3  # how much one forward moves what is known


class Pace:
    """Seconds of a prompt token, and of a forward that reads none, of late."""

    def __init__(self) -> None:
        self._token_s: float | None = None
        self._plain_s = 0.0

    def learn(self, prompt: int, decoding: int, seconds: float) -> None:
        """A forward read so many prompt tokens beside so many decoding sequences."""
        if not prompt:
            self._plain_s = seconds if not self._plain_s else self._plain_s + _HEAR * (seconds - self._plain_s)
        elif prompt >= LEAST:  # a short one says more of what any forward costs
            each = max(seconds - (self._plain_s if decoding else 0.0), 0.0) / prompt
            known = self._token_s
            # Believed at once when slower: the others are waiting.
            self._token_s = each if known is None or each > known else known + _HEAR * (each - known)

    def most(self) -> int:
        """Prompt tokens that a forward may read while others decode."""
        if not self._token_s:
            return LEAST
        return max(int((PAUSE - self._plain_s) / self._token_s), LEAST)


def share(missing: Sequence[int], budget: int) -> list[int]:
    """How many tokens of each waiting prompt are read; `missing`: what each lacks, the one that came first in front.

    Shortest first: it is soon done with, and a long one hardly notices. But half of it is for the one that came first,
    so that short ones that keep coming cannot keep it waiting for ever.
    """
    given = [0] * len(missing)
    order = sorted(range(len(missing)), key=lambda i: missing[i])
    for i, most in [(0, budget - budget // 2), *((i, budget) for i in order)]:
        more = min(missing[i] - given[i], most, budget - sum(given)) if missing else 0
        if more > 0:
            given[i] += more
    return given
