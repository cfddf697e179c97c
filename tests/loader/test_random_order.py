"""Random keys of all purposes, and the samples that an epoch has once more."""

from __future__ import annotations

import ast
from collections import Counter
from itertools import combinations, product

import numpy as np
import pytest

from seqrecord.loader.sampling.random_order import (
    Purpose,
    hash64,
    key_of,
    permutation,
    sorted_places,
    times_in_epoch,
    uniform,
)
from tests.project.source_code import PACKAGE

MOST_ERRORS = 4  # standard errors of a mean


def test_keys_of_all_purposes_differ() -> None:
    """Also from the numbers that they draw, which may be values or keys of another purpose."""
    values = [
        some for length in range(3) for some in product(range(len(Purpose) + 1), repeat=length)
    ]
    values = [some for some in values if len(some) < 2 or max(some) < 4]
    keys = [key_of(purpose, *some) for purpose in Purpose for some in values]
    drawn = [hash64(key, np.arange(-1, 3)) for key in keys]
    assert len(np.unique(np.append(np.array(keys, np.uint64), drawn))) == 5 * len(keys)


def test_each_purpose_is_used_in_one_place() -> None:
    used = Counter(
        node.attr
        for path in PACKAGE.rglob("*.py")
        if "Purpose." in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", None) == "Purpose"
    )
    twice = {"CROPS_OF_BATCH": 2}  # the size of a batch, and its windows
    assert used == Counter([purpose.name for purpose in Purpose]) | Counter(twice)


@pytest.mark.parametrize("arguments", [(), (0,), (7,), (7, 0), (7, 1, 0)])
def test_draws_of_any_two_purposes_are_independent(arguments: tuple[int, ...]) -> None:
    """Numbers of equal counters, and of the next one, do not correlate; nor do permutations."""
    count = 4000
    keys = [key_of(purpose, *arguments) for purpose in Purpose]
    drawn = np.array([uniform(key, np.arange(count + 1)) for key in keys]) - 0.5
    normalised = drawn * np.sqrt(12 / count)
    for later in (0, 1):
        products = normalised[:, : count - later] @ normalised[:, later:count].T
        np.fill_diagonal(products, 0 if later == 0 else products.diagonal())
        assert np.abs(products * np.sqrt(count)).max() < 5.2  # of 1,056 pairs
    orders = {tuple(permutation(key, 8).tolist()) for key in keys}
    assert len(orders) == len(keys)


def counted_times(repeat: list[float], epochs: int, seed: int) -> np.ndarray:
    rows = np.arange(len(repeat))
    every = [times_in_epoch(np.array(repeat), rows, seed=seed, epoch=i) for i in range(epochs)]
    return np.array(every)


def random_tables(count: int) -> list[list[float]]:
    """Sums of at least 1, of a few rows or of many rare ones, with equal fractions among them."""
    rng, tables = np.random.default_rng(3), list[list[float]]()
    while len(tables) < count:
        size = int(rng.integers(2, 12))
        highest = rng.choice([0.2, 1, 3])
        repeat = rng.choice([rng.random(size) * highest, rng.integers(0, 10, size) / 10])
        if repeat.sum() >= 1:
            tables.append(repeat.tolist())
    return tables


TABLES = [[0.9, 0.1], [0.5, 0.3, 0.2], [2.3, 0.1, 1, 0], [0.5, 0.5], [0.99, 0.005, 0.005]]


@pytest.mark.parametrize(
    "repeat",
    [*TABLES, *(pytest.param(table, marks=pytest.mark.slow) for table in random_tables(50))],
)
def test_samples_come_as_often_as_requested(repeat: list[float]) -> None:
    epochs = 600
    times, exact = counted_times(repeat, epochs, seed=11), np.array(repeat)
    share = exact % 1
    error = np.sqrt(share * (1 - share) / epochs)
    # Rounding of one epoch where the share of epochs is fixed.
    assert (np.abs(times.mean(axis=0) - exact) <= MOST_ERRORS * error + 1 / epochs).all()
    sizes, total = times.sum(axis=1), round(sum(repeat), 9)
    assert set(sizes) <= {np.floor(total), np.ceil(total)}


@pytest.mark.parametrize(
    "repeat", [[0.1, 0.1, 0.6, 0.6, 0.6], [0.5] * 4, [0.9, 0.9, 0.1, 0.1], [0.3, 0.3, 0.7, 0.9]]
)
def test_any_two_samples_may_come_together(repeat: list[float]) -> None:
    """Systematic sampling never has the first two of five."""
    times = counted_times(repeat, 600, seed=2)
    together = [
        int((times[:, i] & times[:, j]).sum()) for i, j in combinations(range(len(repeat)), 2)
    ]
    assert min(together) > 0


def test_the_size_of_an_epoch_at_any_number_of_rows() -> None:
    for size in (1, 2, 3, 7, 64, 1001):
        repeat = np.full(size, 1 / 3) + (size < 3)
        times = times_in_epoch(repeat, np.arange(size)[::-1], seed=1, epoch=5)
        assert abs(times.sum() - repeat.sum()) < 1


@pytest.mark.parametrize("most", [1, 3, 1 << 30, 1 << 61])
def test_sorted_places(most: int) -> None:
    """Equal numbers keep their order; large ones need two sorts."""
    rng = np.random.default_rng(0)
    for size in (0, 1, 7, 300):
        major, minor = rng.integers(0, 5, size), rng.integers(0, most, size)
        assert sorted_places(major, minor).tolist() == np.lexsort((minor, major)).tolist()
