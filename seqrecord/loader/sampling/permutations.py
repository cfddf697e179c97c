"""A random permutation of [0, n) whose items are computed one by one, without an array.

A Feistel network on pairs of digits (J. Black and P. Rogaway, "Ciphers with Arbitrary Finite
Domains", CT-RSA 2002): a number below a b is a pair of digits, the high one below a, which is the
square root of n rounded up, and the low one below b, which is n / a rounded up. Six steps add a
hash of one digit to the other, modulo its base: first the low one's to the high one, then in turn.
The hash is the product of the base and the upper half of `hash64` (purpose `ROW_ORDER`, with the
key and the step's number), shifted right by 32 bits. Numbers of at least n are permuted again.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

import numpy as np

from seqrecord.loader.sampling.random_order import Purpose, hash64, key_of
from seqrecord.store.tables.grids import IntArray

_STEPS = 6


@dataclass(frozen=True)
class Permutation:
    """The permutation of `[0, length)` that `key` draws."""

    length: int
    key: int

    def at(self, places: IntArray) -> IntArray:
        """The numbers at places, int64[n]."""
        if self.length < 2:
            return places
        numbers = self._step(places)
        while (outside := np.flatnonzero(numbers >= self.length)).size:
            numbers[outside] = self._step(numbers[outside])
        return numbers

    def _step(self, numbers: IntArray) -> IntArray:
        """Permute [0, a * b)."""
        a = isqrt(self.length - 1) + 1
        b = -(-self.length // a)
        high, low = np.divmod(numbers, b)
        for step in range(0, _STEPS, 2):
            high = (high + self._hash(step, low, a)) % a
            low = (low + self._hash(step + 1, high, b)) % b
        permuted: IntArray = high * b + low
        return permuted

    def _hash(self, step: int, digit: IntArray, base: int) -> IntArray:
        drawn = hash64(key_of(Purpose.ROW_ORDER, self.key, step), digit) >> np.uint64(32)
        added: IntArray = (drawn * np.uint64(base) >> np.uint64(32)).astype(np.int64)
        return added
