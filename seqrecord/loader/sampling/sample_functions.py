"""Functions of samples: how they are called, and random numbers for them.

A function gets the table of an epoch, the epoch's number and random numbers, and returns a table
made from it. Every process calls it once per epoch, so it must be a pure function of these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ClipError
from seqrecord.loader.clips.samples import SampleEpisodes, Samples
from seqrecord.loader.clips.tables import IntArray
from seqrecord.loader.sampling.random_order import Purpose, key_of, permutation, uniform
from seqrecord.store.text import repr_of
from seqrecord.store.units import check_integer, format_size

MOST_ROWS = 20_000_000
"""That a user's function receives at once."""


@dataclass
class SampleRandom:
    """Random numbers of a function in an epoch, equal on all ranks, platforms and versions.

    Each call draws new numbers, from `seed`, `epoch` and the function's place in the list.
    """

    seed: int
    epoch: int
    function: int = 0
    _calls: int = field(default=0, repr=False)

    def key(self) -> int:
        """A 64-bit integer, for example the seed of another generator."""
        self._calls += 1
        return key_of(Purpose.SAMPLE_FUNCTIONS, self.seed, self.epoch, self.function, self._calls)

    def random(self, size: int) -> npt.NDArray[np.float64]:
        """Numbers in [0, 1), float64 [size]."""
        return uniform(self.key(), np.arange(check_integer("size", size, least=0)))

    def integers(self, low: Any, high: Any = None, size: int | None = None) -> IntArray:
        """Integers in [low, high), or in [0, low) without `high`; int64, of the arrays' shape, or
        [size].

        Raises `ClipError` for an empty range, and for shapes that do not fit.
        """
        low, high = (0, low) if high is None else (low, high)
        sizes = () if size is None else (check_integer("size", size, least=0),)
        try:
            low, high = np.broadcast_arrays(_whole_numbers(low), _whole_numbers(high))
            shape = np.broadcast_shapes(low.shape, sizes)
            if sizes and shape != sizes:
                raise ValueError(f"arrays of shape {[*low.shape]}, and size {size}")
        except (TypeError, ValueError, OverflowError) as error:
            expected = "integers, or integer arrays that have one shape, which fits size"
            raise ClipError("integers has no range", expected=expected, got=str(error)) from error
        if (low >= high).any():
            row = int(np.argmax(low >= high))
            got = f"{low.ravel()[row]} and {high.ravel()[row]} in row {row}"
            raise ClipError("integers has an empty range", expected="low < high", got=got)
        share = uniform(self.key(), np.arange(int(np.prod(shape)))).reshape(shape)
        return between(share, low, high)

    def permutation(self, length: int) -> IntArray:
        """The numbers from 0 to `length - 1` in random order, int64 [length]."""
        length = check_integer("length", length, least=0)
        return permutation(self.key(), length)


def _whole_numbers(values: Any) -> IntArray:
    """The values as int64. Raises `ValueError` for numbers with a fraction."""
    array = np.asarray(values)
    with np.errstate(invalid="ignore"):
        integers = array.astype(np.int64)
    if (integers != array).any():
        raise ValueError(f"{array[integers != array].ravel()[0]}")
    return integers


def between(share: npt.NDArray[np.float64], low: IntArray, high: IntArray) -> IntArray:
    """Integers in [low, high), from numbers in [0, 1)."""
    # Unsigned, which wraps around: a range may have more than 2 ** 63 integers.
    with np.errstate(over="ignore"):
        first = low.astype(np.uint64)
        count = high.astype(np.uint64) - first
        offset = np.minimum((share * count).astype(np.uint64), count - np.uint64(1))
        numbers: IntArray = (first + offset).astype(np.int64)
    return numbers


class SampleFunction(Protocol):
    """A function that changes an epoch's table."""

    def __call__(self, samples: Samples, epoch: int, rng: SampleRandom, /) -> Samples: ...


SampleFunctions: TypeAlias = Sequence[SampleFunction]


@dataclass(frozen=True)
class BuiltIn:
    """A built-in function with its arguments. Picklable.

    Attributes:
        adds_columns: it leaves the rows unchanged.
        reads_columns: its choice of rows depends on columns.
        is_random: epochs may differ.
        feature: argument that names a feature, if there is one.
        has_metadata: the argument prefers an entry of the episodes' metadata.
    """

    name: str
    arguments: Mapping[str, Any]
    function: Callable[..., Samples]
    adds_columns: bool = False
    reads_columns: bool = False
    is_random: bool = False
    feature: str | None = None
    has_metadata: bool = False

    def __call__(self, samples: Samples, epoch: int, rng: SampleRandom) -> Samples:
        return self.function(samples, epoch, rng, **self.arguments)

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{self.name}({arguments})"

    def describe(self, episodes: SampleEpisodes) -> str:
        """Its name and arguments, with the stored name of a feature: `rename` changes no order."""
        arguments = dict(self.arguments)
        if self.feature is not None:
            name = arguments[self.feature]
            arguments[self.feature] = episodes.stored_name(name, has_metadata=self.has_metadata)
        return repr(replace(self, arguments=arguments))

    @property
    def is_implicit(self) -> bool:
        """Whether its arguments determine the table: none of them is a function."""
        return not any(map(callable, self.arguments.values()))

    @property
    def needs_all_rows(self) -> bool:
        """Whether a user's function receives all rows."""
        return not self.is_implicit


def checked(result: Any, samples: Samples) -> Samples:
    """The result of a function in `samples`. Raises `ClipError`."""
    if isinstance(result, Samples) and result.episodes is samples.episodes:
        return result
    raise ClipError(
        "a function of samples returns no table made from its argument",
        expected="samples.filter(…), samples.take(…) or samples.with_columns(…)",
        got=repr_of(result, 200),
    )


def called(
    functions: SampleFunctions, samples: Samples, epoch: int, seed: int
) -> tuple[Samples, bool]:
    """The table that functions return in an epoch, and whether users' ones changed its rows.

    Raises `ClipError` for another result.
    """
    changed = False
    for number, function in enumerate(functions):
        is_own = not isinstance(function, BuiltIn)
        if getattr(function, "needs_all_rows", True) and len(samples) > MOST_ROWS:
            raise ClipError(
                "a function of samples receives too many rows",
                expected=f"at most {MOST_ROWS:,}; or seqrecord.samples.per_episode(function)",
                got=f"{len(samples):,} rows, of {format_size(8 * len(samples))} a column",
            )
        rng = SampleRandom(seed, epoch, number)
        found = checked(function(samples, epoch, rng), samples)
        changed |= is_own and changes_rows(samples, found)
        samples = found
    return samples, changed


def changes_rows(samples: Samples, result: Samples) -> bool:
    """Whether a function has changed the rows of a table, or their number."""
    is_same = result.columns.get("repeat") is samples.columns.get("repeat")
    return result.clips is not samples.clips or not is_same
