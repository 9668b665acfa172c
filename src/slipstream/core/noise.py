"""Noise that is a pure function of its key: no generator state, so any order of calls gives the same numbers.

A key is (seed, stream, position, root, index). The target's own choice at a position uses the stream TARGET and no
root: it must not depend on where a step began. Everything that belongs to one verification is keyed by the step's first
position too (`root`): block verification looks at noise beyond the token it stops at, which must not be used again.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

TARGET, ACCEPT, RESIDUAL, DRAFT = range(4)

_U64 = np.uint64
_GOLDEN, _M1, _M2 = _U64(0x9E3779B97F4A7C15), _U64(0xBF58476D1CE4E5B9), _U64(0x94D049BB133111EB)


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014); `x` is overwritten."""
    x ^= x >> _U64(30)
    x *= _M1
    x ^= x >> _U64(27)
    x *= _M2
    x ^= x >> _U64(31)
    return x


def uniform(
    seed: int, stream: int, position: int, index: npt.NDArray[np.integer] | int, root: int = 0
) -> npt.NDArray[np.float64]:
    """Uniform numbers in the open interval (0, 1), one for each entry of `index`."""
    key = np.array([seed], dtype=_U64)
    for part in (stream, position, root):
        key = _mix(key + _GOLDEN) ^ _U64(part)
    with np.errstate(over="ignore"):
        x = _mix((np.atleast_1d(np.asarray(index)).astype(_U64) + _U64(1)) * _GOLDEN + _mix(key + _GOLDEN))
    return ((x >> _U64(12)).astype(np.float64) + 0.5) * 2.0**-52


def gumbel(
    seed: int, stream: int, position: int, index: npt.NDArray[np.integer], root: int = 0
) -> npt.NDArray[np.float64]:
    """Standard Gumbel noise: adding it to logits and taking the largest draws from their softmax."""
    u = uniform(seed, stream, position, index, root)
    return np.asarray(-np.log(-np.log(u)))
