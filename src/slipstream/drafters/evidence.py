"""What a match is worth: labels for it, and claims that hold on average (measured; see docs/drafters.md).

A label is (bin of the match's length, agreement). Agreement says what had followed the context before: one token only,
"once" or "often", or several, of which this one was the "major" or a "minor" one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from operator import itemgetter

_EDGES = (2, 3, 4, 6, 9, 16)  # each bin's first length but the first bin's
_BINS = tuple(bisect_right(_EDGES, n) for n in range(_EDGES[-1] + 1))
Label = tuple[int, str]

# Chance that a token comes which alone has followed the context, by bin of its length: seen once, seen more often.
ONCE = (0.30, 0.43, 0.51, 0.69, 0.75, 0.90, 0.97)
OFTEN = (0.60, 0.70, 0.75, 0.80, 0.85, 0.95, 0.98)
SEVERAL = (0.40, 0.44, 0.50, 0.60, 0.65, 0.70, 0.80)  # chance that one of several comes


def length_bin(length: int) -> int:
    return _BINS[length] if length < len(_BINS) else len(_EDGES)


def claims(counts: Mapping[int, int], length: int, width: int) -> list[tuple[int, float, Label]]:
    """Up to `width` tokens with their chances and labels, likeliest first.

    `counts`: what followed a context of `length` tokens how often, in the order last seen.
    """
    b = length_bin(length)
    if len(counts) == 1:
        ((token, n),) = counts.items()
        return [(token, ONCE[b], (b, "once"))] if n == 1 else [(token, OFTEN[b], (b, "often"))]
    ranked = sorted(counts.items(), key=itemgetter(1))[: -width - 1 : -1]
    share = SEVERAL[b] / sum(counts.values())
    return [(t, share * n, (b, "minor" if i else "major")) for i, (t, n) in enumerate(ranked)]
