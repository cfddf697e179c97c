from __future__ import annotations

import numpy as np

from seqrecord.sampling.random_order import hash64, key_of, permutation


def test_hashes_are_the_published_splitmix64_stream() -> None:
    # The first outputs for seed 1234567, as in https://rosettacode.org/wiki/Pseudo-random_numbers
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert hash64(1234567, np.arange(5)).tolist() == expected
    assert key_of(1234567) == expected[0]


def test_keys_tell_apart_order_number_and_sign() -> None:
    keys = [key_of(), key_of(0), key_of(0, 0), key_of(1, 2), key_of(2, 1), key_of(-1)]
    assert len(set(keys)) == len(keys)
    assert key_of(2**64 + 5) == key_of(5)


def test_hashing_leaves_its_argument_alone() -> None:
    values = np.arange(3)
    hash64(1, values)
    assert values.tolist() == [0, 1, 2]


def test_permutation_holds_every_number_once() -> None:
    assert sorted(permutation(7, 100).tolist()) == list(range(100))
    assert permutation(7, 0).tolist() == []
    assert permutation(7, 100).tolist() != permutation(8, 100).tolist()
    assert permutation(3, 6).tolist() == [3, 0, 4, 2, 5, 1]  # on every platform and version
