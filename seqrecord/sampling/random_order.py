"""Random order by integer hashing: the same numbers on every platform and NumPy version.

NumPy's generators may change their streams between versions and draw in sequence. Here every
number is a pure function of a key and a counter (SplitMix64: Steele, Lea and Flood, "Fast
splittable pseudorandom number generators", OOPSLA 2014), so any part of an order can be computed
alone, in any place.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from seqrecord.clips import IntArray

__all__ = ["hash64", "key_of", "permutation"]

_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_MASK = (1 << 64) - 1


def key_of(*values: int) -> int:
    """One 64-bit key of several integers; their order matters."""
    key = 0
    for value in values:
        z = (key + (value & _MASK) + _GAMMA) & _MASK
        z = ((z ^ (z >> 30)) * _MIX_1) & _MASK
        z = ((z ^ (z >> 27)) * _MIX_2) & _MASK
        key = z ^ (z >> 31)
    return key


def hash64(key: int, values: IntArray) -> npt.NDArray[np.uint64]:
    """A 64-bit hash of each value under `key`: SplitMix64's output at counter `value`."""
    z = values.astype(np.uint64)  # a copy; a negative value wraps
    z *= np.uint64(_GAMMA)
    z += np.uint64((key + _GAMMA) & _MASK)
    z ^= z >> np.uint64(30)
    z *= np.uint64(_MIX_1)
    z ^= z >> np.uint64(27)
    z *= np.uint64(_MIX_2)
    z ^= z >> np.uint64(31)
    return z


def permutation(key: int, length: int) -> IntArray:
    """The numbers 0 to `length` - 1 in an order drawn from `key`."""
    return np.argsort(hash64(key, np.arange(length)), kind="stable")
