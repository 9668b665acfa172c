"""Noise that is a pure function of its key: no generator state, so any order of calls gives the same numbers.

A key is (seed, stream, position, root, index). The target's own choice at a position uses the stream TARGET and no
root: it must not depend on where a step began. Everything that belongs to one verification is keyed by the step's first
position too (`root`): block verification looks at noise beyond the token it stops at, which must not be used again.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

TARGET, ACCEPT, RESIDUAL, DRAFT = range(4)

_MASK, _GOLDEN, _M1, _M2 = 2**64 - 1, 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_U64 = np.uint64


def _mix(x: int) -> int:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014)."""
    x = ((x ^ (x >> 30)) * _M1) & _MASK
    x = ((x ^ (x >> 27)) * _M2) & _MASK
    return x ^ (x >> 31)


def _key(seed: int, stream: int, position: int, root: int) -> int:
    key = seed & _MASK
    for part in (stream, position, root):
        key = _mix((key + _GOLDEN) & _MASK) ^ part
    return _mix((key + _GOLDEN) & _MASK)


def uniform(seed: int, stream: int, position: int, index: int, root: int = 0) -> float:
    """A uniform number in the open interval (0, 1)."""
    x = _mix(((index + 1) * _GOLDEN + _key(seed, stream, position, root)) & _MASK)
    return ((x >> 12) + 0.5) * 2.0**-52


def uniforms(
    seed: int, stream: int, position: int, index: npt.NDArray[np.integer], root: int = 0
) -> npt.NDArray[np.float64]:
    """`uniform` for each entry of `index`."""
    x = index.astype(_U64)
    x += _U64(1)
    x *= _U64(_GOLDEN)
    x += _U64(_key(seed, stream, position, root))
    x ^= x >> _U64(30)
    x *= _U64(_M1)
    x ^= x >> _U64(27)
    x *= _U64(_M2)
    x ^= x >> _U64(31)
    return ((x >> _U64(12)).astype(np.float64) + 0.5) * 2.0**-52


def gumbel(
    seed: int, stream: int, position: int, index: npt.NDArray[np.integer], root: int = 0
) -> npt.NDArray[np.float64]:
    """Standard Gumbel noise: adding it to logits and taking the largest draws from their softmax."""
    u = uniforms(seed, stream, position, index, root)
    return np.asarray(-np.log(-np.log(u)))
