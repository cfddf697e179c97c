"""The samples of each epoch, and its clips."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import lcm
from typing import Any, NamedTuple

import numpy as np

from seqrecord.errors import ClipError
from seqrecord.loader.clips.frames import ClipKeys
from seqrecord.loader.clips.samples import OF_CLIPS, Samples
from seqrecord.loader.clips.tables import ClipTable, IntArray
from seqrecord.loader.engine.batches import do_nothing
from seqrecord.loader.sampling.random_order import EpochSizes, times_in_epoch
from seqrecord.loader.sampling.sample_functions import BuiltIn, SampleFunctions, called
from seqrecord.store.processes.forks import PerProcess, cached_property
from seqrecord.store.units import raise_if

_MAKERS = {"dilation": "dilate", "reverse": "reverse"}  # built-in functions, by column
_MOST_COUNTED = 1 << 20  # epochs of a source for which functions are called


@dataclass(frozen=True, eq=False)
class SampledClips:
    """The table of an epoch, and its clips: each sample as often as it comes.

    `changed` is whether users' functions changed the rows.
    """

    samples: Samples
    clips: ClipTable
    changed: bool

    @cached_property
    def as_listed(self) -> IntArray:
        """Number of each sample in the order of the user's table, int64[n]."""
        return np.argsort(self.samples.rows_listed, kind="stable")

    @cached_property
    def _runs_as_listed(self) -> tuple[IntArray, IntArray]:
        """The runs of clips in the order of a user's table of episodes, and their first numbers."""
        assert self.samples.episode_order is not None
        order = np.argsort(self.samples.episode_order[self.clips.episode], kind="stable")
        count = self.clips.count[order]
        return order, np.cumsum(count) - count

    def locate(self, numbers: IntArray) -> ClipKeys:
        """Clips by their numbers, int64[n], as listed or in canonical order."""
        if self.samples.listed is not None:
            numbers = self.as_listed[numbers]
        elif self.samples.episode_order is not None:
            order, first = self._runs_as_listed
            place = np.searchsorted(first, numbers, side="right") - 1
            numbers = self.clips.offsets[order[place]] + numbers - first[place]
        return self.clips.locate(numbers)


class CommonSamples(NamedTuple):
    """What all epochs have in common.

    Attributes:
        clips: the clips of all epochs: as often as each sample can come. Of epoch 0, if functions
            choose other rows in each epoch.
        stride: frames between the starts of clips, in all epochs, or a multiple of it.
        rows_change: whether users' functions change the rows.
        rows_differ: whether functions choose other rows in each epoch.
        differ: whether epochs have different clips.
        are_random: whether samples depend on the epoch and the seed.
        repeats: whether an epoch may contain a clip twice.
    """

    clips: ClipTable
    stride: int
    rows_change: bool
    rows_differ: bool
    differ: bool
    are_random: bool
    repeats: bool


@dataclass(frozen=True, eq=False)
class EpochSamples:
    """Each epoch's table of samples, and its clips. Picklable.

    A process calls the functions once per epoch. The table of epoch 0 and the last two are kept.
    If functions choose rows, so are the numbers of clips before each epoch, by number of shards and
    first epoch, as far as a mix came.

    Attributes:
        base: the default table, or the user's, with the samples that lack no feature.
        functions: functions of the table, called in each epoch.
        seed: seed of their random numbers.
    """

    base: Samples
    functions: SampleFunctions = ()
    seed: int = 0
    _known: dict[int, SampledClips] = field(default_factory=dict, init=False, repr=False)
    _first_clips: dict[tuple[int, int], list[int]] = field(
        default_factory=dict, init=False, repr=False
    )
    _digests: dict[int, str] = field(default_factory=dict, init=False, repr=False)
    _calling: PerProcess[Any] = field(
        default_factory=partial(PerProcess, threading.RLock), init=False, repr=False
    )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": {}, "_digests": {}}

    def in_epoch(self, epoch: int) -> SampledClips:
        """The table of an epoch.

        Raises `ClipError` if a function returns no table, and if a user's function changes the rows
        in this epoch only.
        """
        if epoch and not self.functions and not self.common.differ:
            epoch = 0
        if (table := self._known.get(epoch)) is not None:
            return table
        with self._calling.get():
            if (table := self._known.get(epoch)) is None:  # another thread may have made it
                table = self._make(epoch)
                latest = [0, *[*self._known][-1:]]  # epoch 0 determines the settings of all
                for other in self._known.keys() - latest:
                    del self._known[other]
                self._known[epoch] = table
        return table

    def clips_in(self, epoch: int) -> ClipTable:
        """The clips of an epoch: its samples, each as often as it comes.

        Raises `ClipError` if functions leave no sample.
        """
        table = self.in_epoch(epoch)
        if not len(table.samples):
            expected, got = "at least one sample", f"0 of {len(self.base)} in epoch {epoch}"
            raise ClipError("the functions of samples leave no sample", expected=expected, got=got)
        return table.clips

    def _make(self, epoch: int) -> SampledClips:
        samples, changed = self.base, False
        if self.functions:
            samples, changed = called(self.functions, samples, epoch, self.seed)
        if changed and epoch and not self.common.rows_change:
            raise ClipError(
                f"a function of samples changes the rows in epoch {epoch}, and not in epoch 0",
                expected="samples.filter(…) or with_columns(repeat=…) in every epoch, or in none",
                got=f"{len(samples)} of {len(self.base)} rows",
            )
        for name in {*OF_CLIPS} & samples.columns.keys() - self.base.columns.keys():
            built_in = _MAKERS[name]
            if not any(isinstance(f, BuiltIn) and f.name == built_in for f in self.functions):
                problem = f"a function of samples adds {name}, which changes the frames of clips"
                raise ClipError(problem, expected="dilate(…) or reverse(…) in the list of samples")
        clips = samples.clips
        if (repeat := samples.repeat) is not None:
            times = times_in_epoch(repeat, samples.rows_listed, seed=self.seed, epoch=epoch)
            clips = samples.repeated(times)
        return SampledClips(samples, clips, changed)

    @cached_property
    def common(self) -> CommonSamples:
        """What all epochs have in common; kept when a process gets a copy."""
        first, rows_differ, is_random = self.in_epoch(0), False, False
        stride = self.base.clips.spec.stride
        for function in self.functions:
            if isinstance(function, BuiltIn):
                is_drawn = function.is_random or (is_random and function.reads_columns)
                rows_differ |= is_drawn and not function.adds_columns
                is_random |= function.is_random
                if function.name == "every":
                    stride = lcm(stride, function.arguments["n"])
            else:
                rows_differ, is_random = rows_differ or first.changed, True
        clips, repeat = self.clips_in(0), None if rows_differ else first.samples.repeat
        differ = rows_differ or (repeat is not None and bool((repeat % 1 != 0).any()))
        if repeat is not None:
            clips = first.samples.repeated(np.ceil(repeat).astype(np.int64))
        if not rows_differ:
            stride = clips.spec.stride
        elif self.base.listed is not None:
            stride = self.base.clips.spec.stride
        return CommonSamples(
            clips,
            stride,
            rows_change=first.changed,
            rows_differ=rows_differ,
            differ=differ,
            are_random=differ or is_random,
            repeats=rows_differ or clips.repeats,
        )

    @cached_property
    def first_clip(self) -> ClipKeys:
        """The first clip of all epochs, to call functions with."""
        return self.common.clips.locate(np.zeros(1, np.int64))

    def epoch_of(
        self,
        clip: int,
        num_shards: int,
        since: int = 0,
        check: Callable[[], object] = do_nothing,
    ) -> tuple[int, int]:
        """The epoch of a clip, and the number of the epoch's first clip.

        Clips of each shard, of `num_shards` equal ones, are numbered over all epochs from `since`
        on, as in a mix. If functions choose other rows in each epoch, epochs are counted once,
        which may take minutes for a far clip; `check` is called for each, and its error ends the
        count. Raises `ClipError` for a clip behind 1,048,576 such epochs.
        """
        if not self.common.rows_differ:
            before = self._sizes.before(since, num_shards)
            epoch = self._sizes.epoch_of(clip + before, num_shards)
            return epoch, self._sizes.before(epoch, num_shards) - before
        if self._most_clips is not None:
            _check_counted(clip < _MOST_COUNTED * -(-self._most_clips // num_shards), clip)
        with self._calling.get():
            first_clips = self._first_clips.setdefault((num_shards, since), [0])
            while first_clips[-1] <= clip:
                check()
                _check_counted(len(first_clips) <= _MOST_COUNTED, first_clips[-1])
                size = self.size_of(since + len(first_clips) - 1, num_shards)
                first_clips.append(first_clips[-1] + size)
        place = bisect_right(first_clips, clip) - 1
        return since + place, first_clips[place]

    def size_of(self, epoch: int, num_shards: int) -> int:
        """The number of clips in an epoch of each of `num_shards` equal shards."""
        if not self.common.rows_differ:
            before, after = (self._sizes.before(epoch + i, num_shards) for i in (0, 1))
            return after - before
        return -(-self.clips_in(epoch).num_clips // num_shards)

    @cached_property
    def _sizes(self) -> EpochSizes:
        """The sizes of epochs whose rows no function chooses."""
        samples = self.in_epoch(0).samples
        if samples.repeat is None:
            return EpochSizes(self.common.clips.num_clips, 0, self.seed)
        return EpochSizes.of(samples.repeat, self.seed)

    @cached_property
    def _most_clips(self) -> int | None:
        """The most clips of an epoch; `None` if users' functions may repeat samples."""
        if not all(isinstance(function, BuiltIn) for function in self.functions):
            return None
        repeat, num_clips = self.base.repeat, self.base.clips.num_clips
        most = num_clips if repeat is None else max(num_clips, int(np.ceil(repeat).sum()))
        return most + 1  # a sum of fractions is rounded

    def locate(self, numbers: IntArray, epoch: int = 0) -> ClipKeys:
        """Clips of an epoch by their numbers, int64[n], in canonical order, or as listed."""
        return self.in_epoch(epoch).locate(numbers)

    def digest(self, epoch: int) -> Any:
        """The samples of an epoch as JSON: names and arguments of built-in functions; for a table,
        or with users' functions, a hash of all rows and columns. Features have their stored names.
        """
        names = [
            function.describe(self.base.episodes)
            if isinstance(function, BuiltIn) and function.is_implicit
            else "function"
            for function in self.functions
        ]
        is_listed = self.base.listed is not None or bool(self.base.columns)
        epoch = epoch if "function" in names else -1
        if epoch not in self._digests and (epoch >= 0 or is_listed):
            samples = self.base if epoch < 0 else self.in_epoch(epoch).samples
            self._digests[epoch] = samples.episodes.digest(samples)
        parts = [self._digests[epoch], *names] if epoch in self._digests else names
        return parts if names else next(iter(parts), None)


def _check_counted(is_near: bool, clip: int) -> None:
    """Raise `ClipError` for a clip that is too far for counting."""
    raise_if(
        not is_near,
        "the position in a mix is too far, for functions choose rows in each epoch",
        f"one in the first {_MOST_COUNTED:,} epochs of the source",
        f"clip {clip:,}",
    )
