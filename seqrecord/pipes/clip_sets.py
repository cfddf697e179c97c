"""The samples of a dataset that a loader selects, and the clips of each epoch."""

from __future__ import annotations

import hashlib
import json
import math
import threading
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import lcm
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seqrecord.clips.frame_lists import FrameLists, with_last_repeated
from seqrecord.clips.frames import ClipKeys, offset_range
from seqrecord.clips.sample_tables import read_frame_lists, read_samples, table_columns
from seqrecord.clips.samples import OF_CLIPS, Samples, Values, empty_clips, taken
from seqrecord.clips.tables import ClipSpec, ClipTable, IntArray
from seqrecord.errors import ClipError
from seqrecord.pipes.clip_windows import SelectedWindows
from seqrecord.pipes.options import ClipOptions
from seqrecord.processes.forks import PerProcess, cached_property
from seqrecord.reading.contents import update_digest
from seqrecord.reading.dataset import Dataset
from seqrecord.sampling.random_order import Phases, clips_before, times_in_epoch, typical_table
from seqrecord.sampling.sample_functions import BuiltIn, SampleFunctions, called, phases_of
from seqrecord.schema import FeatureSpec
from seqrecord.text import counted, repr_of

EPOCHS = range(1 << 62)
"""Of a source of a mix."""

_MOST_COUNTED = 1 << 20  # epochs, one after the other


@dataclass(frozen=True, eq=False)
class DatasetEpisodes:
    """The episodes of a dataset. Implements `SampleEpisodes`. Picklable.

    Values of features are read once for the `selected` episodes.
    """

    windows: SelectedWindows
    selected: IntArray
    excerpts: FrameLists | None = None
    _values: dict[str, npt.NDArray[Any]] = field(default_factory=dict, repr=False)

    @property
    def keys(self) -> pa.StringArray:
        """See `SampleEpisodes`."""
        return self.windows.dataset.contents.index.keys

    @property
    def num_frames(self) -> IntArray:
        """See `SampleEpisodes`."""
        return self.windows.dataset.contents.index.num_frames

    def stored(self, clips: ClipKeys) -> tuple[IntArray, IntArray]:
        """See `SampleEpisodes`."""
        if self.excerpts is None:
            return clips.episode, clips.start
        return self.excerpts.episode[clips.episode], self.excerpts.starts_of(clips.row)

    def from_row(self, row: int) -> DatasetEpisodes:
        """See `SampleEpisodes`."""
        if self.excerpts is None:
            return self
        return replace(self, excerpts=self.excerpts.from_row(row))

    def extent(self, clips: ClipKeys, dilation: IntArray) -> tuple[IntArray, IntArray]:
        """See `SampleEpisodes`."""
        if self.excerpts is not None:
            frames = with_last_repeated(self.excerpts.frames_of(clips.row))
            return frames.min(axis=1), frames.max(axis=1)
        windows, last = self.windows.stored.windows.values(), self.num_frames[clips.episode] - 1
        before, after = offset_range([window.frame_offsets for window in windows])
        reach = (clips.start - before * dilation, clips.start + after * dilation)
        return np.clip(reach[0], 0, last), np.clip(reach[1], 0, last)

    def complete(self, dilation: int) -> ClipTable:
        """See `SampleEpisodes`."""
        return self.windows.enumerate(ClipSpec(1), self.selected, [dilation])

    def metadata(self, name: str, episodes: IntArray) -> list[Any]:
        """See `SampleEpisodes`."""
        index = self.windows.dataset.contents.index
        return [index.episode_metadata(row).get(name) for row in episodes.tolist()]

    def values(
        self, feature: str, episode: IntArray, frame: IntArray, *, segments: bool = False
    ) -> npt.NDArray[Any]:
        """See `SampleEpisodes`."""
        if feature not in self._values:
            self._values[feature] = self._read(feature)
        values = self._values[feature]
        if segments:
            values = np.cumsum(np.append(False, values[1:] != values[:-1]))
        count = self.num_frames[self.selected]
        place = (np.cumsum(count) - count)[np.searchsorted(self.selected, episode)] + frame
        found: npt.NDArray[Any] = values[place]
        return found

    def _read(self, feature: str) -> npt.NDArray[Any]:
        """The values of all frames of the selected episodes."""
        dataset, problem = self.windows.dataset, "samples have no such value of each frame"
        features = ", ".join(n for n, one in dataset.features.items() if _is_scalar(one))
        spec = dataset.features.get(feature)
        if spec is None or not _is_scalar(spec) or len(dataset.contents.missing_frames([feature])):
            expected = f"text or number, in all frames and in features=; such: {features or 'none'}"
            raise ClipError(problem, expected=expected, got=repr_of(feature, 100))
        dataset = dataset.select([feature])
        keys = dataset.contents.index.keys_of(self.selected)
        found = [np.asarray(dataset.episodes[key][:][feature]).reshape(-1) for key in keys]
        return np.concatenate(found)


def _is_scalar(spec: FeatureSpec) -> bool:
    return spec.value == "text" or (spec.is_fixed and math.prod(spec.shape) == 1)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class _Epoch:
    """The table of an epoch, and its clips: each sample as often as it comes."""

    samples: Samples
    clips: ClipTable

    @cached_property
    def as_listed(self) -> IntArray:
        """Number of each sample in the order of the user's table, int64[n]."""
        return np.argsort(self.samples.rows_listed, kind="stable")


@dataclass(frozen=True, eq=False)
class ClipSet:
    """The samples of a request. Picklable.

    Attributes:
        windows: the frames of each feature.
        selected: rows of the selected episodes, int64[n].
        base: the default table, or the user's, with the samples that lack no feature.
        functions: functions of the table, called in each epoch.
        seed: seed of their random numbers.
        excerpts: the used frames of each episode, if `samples` lists frames. Plans take excerpts
            for episodes, and places in them for frames and starts.
    """

    windows: SelectedWindows
    selected: IntArray
    base: Samples
    functions: SampleFunctions = ()
    seed: int = 0
    excerpts: FrameLists | None = None
    _known: dict[int, _Epoch] = field(default_factory=dict, init=False, repr=False)
    _digests: dict[int, str] = field(default_factory=dict, init=False, repr=False)
    _counts: dict[int, list[int]] = field(default_factory=dict, init=False, repr=False)
    _calling: PerProcess[Any] = field(
        default_factory=lambda: PerProcess(threading.RLock), init=False, repr=False
    )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": {}, "_digests": {}, "_counts": {}}

    @classmethod
    def of(cls, options: ClipOptions, dataset: Dataset, selected: IntArray) -> ClipSet:
        """The samples of selected episodes. Raises `ClipError` if there is none."""
        if options.lists_frames:
            found = cls.of_lists(options, dataset, selected)
        elif options.table is not None:
            found = cls._of_starts(options, dataset, selected)
        else:
            windows = SelectedWindows(options, dataset, selected)
            base = Samples(windows.enumerate(options.spec), DatasetEpisodes(windows, selected))
            found = cls(windows, selected, base, options.functions, options.seed)
        if found.windows.anchored and len(found.base):
            found = found._with_anchors()
        if not len(found.base) or not found.clips.num_clips:
            skipped = f"; skipped: {found.left_out}" if found.left_out else ""
            raise ClipError(
                f"no clip has all of its frames{skipped}",
                expected=f"{found.windows.span} frames with {', '.join(dataset.features)}",
            )
        return found

    @classmethod
    def of_lists(
        cls, options: ClipOptions, dataset: Dataset, selected: IntArray, most: int | None = None
    ) -> ClipSet:
        """The samples of a table of frame lists, in excerpts of at most `most` frames."""
        index, missing = dataset.contents.index, dataset.contents.missing_frames()
        columns, keys = table_columns(options.table), index.keys
        selected, excerpts, row, own, lacking = read_frame_lists(
            columns, keys, index.num_frames, missing, selected, most
        )
        windows = SelectedWindows(options, dataset, selected, excerpts)
        none = empty_clips(options.spec, np.arange(len(excerpts)), num_incomplete=lacking)
        episodes = DatasetEpisodes(windows, selected, excerpts)
        base = Samples.of(none, episodes, excerpts.excerpt, excerpts.start, own, row)
        return cls(windows, selected, base, options.functions, options.seed, excerpts)

    @classmethod
    def _of_starts(cls, options: ClipOptions, dataset: Dataset, selected: IntArray) -> ClipSet:
        """The samples of a table of starts that lack no feature."""
        index, spec = dataset.contents.index, options.spec
        columns, dilations = table_columns(options.table), None
        if "start" not in columns:
            return cls._of_episodes(options, dataset, selected, columns)
        if "dilation" in columns:
            dilations = np.unique(columns["dilation"]).tolist()
        windows = SelectedWindows(options, dataset, selected, dilations=dilations)
        episode, start, own = read_samples(columns, index.keys, index.num_frames, windows.extents)
        mine = np.isin(episode, selected)
        selected = np.unique(episode[mine])
        whole = np.zeros(len(episode), np.bool_)
        for some in [windows.dilations] if dilations is None else [(one,) for one in dilations]:
            rows = mine if dilations is None else mine & (own["dilation"] == some[0])
            complete = windows.enumerate(spec, selected, some)
            whole[rows] = complete.has(episode[rows], start[rows])
        row, lacking = np.flatnonzero(whole), int((mine & ~whole).sum())
        own = {name: taken(column, row) for name, column in own.items()}
        none = empty_clips(spec, selected, num_incomplete=lacking)
        base = Samples.of(
            none, DatasetEpisodes(windows, selected), episode[row], start[row], own, row
        )
        return cls(windows, selected, base, options.functions, options.seed)

    @classmethod
    def _of_episodes(
        cls,
        options: ClipOptions,
        dataset: Dataset,
        selected: IntArray,
        columns: Mapping[str, pa.Array],
    ) -> ClipSet:
        """All clips of the episodes of a table, each with the columns of its episode."""
        index, count = dataset.contents.index, len(columns["episode"])
        first = {"start": pa.array(np.zeros(count, np.int64))}  # a frame that every episode has
        no_reaches = np.zeros((len(index.num_frames), 2), np.int64)
        episode, _, own = read_samples(
            {**columns, **first}, index.keys, index.num_frames, no_reaches
        )
        row = np.full(len(index.num_frames), -1)
        row[episode] = np.arange(count)
        for again in np.flatnonzero(row[episode] != np.arange(count))[:1].tolist():
            problem = f"samples without start has an episode twice, in row {again}"
            key = columns["episode"][again].as_py()
            raise ClipError(problem, episode=key, expected="a column start, or a row per episode")
        selected = np.intersect1d(episode, selected)
        windows = SelectedWindows(options, dataset, selected)
        values = {name: partial(_of_episode, column, row) for name, column in own.items()}
        episodes = DatasetEpisodes(windows, selected)
        base = Samples(windows.enumerate(options.spec), episodes, values)
        return cls(windows, selected, base, options.functions, options.seed)

    def _with_anchors(self) -> ClipSet:
        """Without samples of a table that have an anchor at a frame without the feature.

        Raises `ClipError` for invalid columns. Computed ones are checked in each batch.
        """
        samples = self.samples_in(0)
        keys, is_computed = samples.keys, any(map(callable, samples.columns.values()))
        lacks = self.windows.lacks_anchors(samples, keys.take(slice(1)) if is_computed else keys)
        if is_computed or self.functions or not lacks.any():  # in a batch, they are errors
            return self
        base = self.base.filter(~lacks)
        number = base.clips.num_incomplete + int(lacks.sum())
        return replace(self, base=replace(base, clips=replace(base.clips, num_incomplete=number)))

    def with_seed(self, seed: int) -> ClipSet:
        """The same samples with another seed of their functions."""
        return self if seed == self.seed else replace(self, seed=seed)

    # ---- epochs

    def samples_in(self, epoch: int) -> Samples:
        """The table of an epoch.

        Raises `ClipError` if a function returns no table, and if a user's function changes the rows
        in this epoch only.
        """
        return self._in(epoch).samples

    def in_epoch(self, epoch: int) -> ClipTable:
        """The clips of an epoch: its samples, each as often as it comes.

        Raises `ClipError` if functions leave no sample.
        """
        found = self._in(epoch)
        if not len(found.samples):
            expected, got = "at least one sample", f"0 of {len(self.base)} in epoch {epoch}"
            raise ClipError("the functions of samples leave no sample", expected=expected, got=got)
        return found.clips

    def _in(self, epoch: int) -> _Epoch:
        epoch = epoch if self.functions or self.differs_by_epoch else 0
        with self._calling.get():
            if (found := self._known.get(epoch)) is None:
                found = self._made(epoch)
                for other in [*self._known][:-1]:  # the last two are in use
                    del self._known[other]
                self._known[epoch] = found
        return found

    def _made(self, epoch: int) -> _Epoch:
        samples, changed = called(self.functions, self.base, epoch, self.seed)
        if changed and epoch and not self._changes_rows:
            raise ClipError(
                f"a function of samples changes the rows in epoch {epoch}, and not in epoch 0",
                expected="samples.filter(…) or with_columns(repeat=…) in every epoch, or in none",
                got=f"{len(samples)} of {len(self.base)} rows",
            )
        known = {"dilate": "dilation", "reverse": "reverse"}
        listed = [known.get(one.name) for one in self.functions if isinstance(one, BuiltIn)]
        for name in {*OF_CLIPS} & samples.columns.keys() - {*listed, *self.base.columns}:
            problem = f"a function of samples adds {name}, which changes the frames of clips"
            raise ClipError(problem, expected="dilate(…) or reverse(…) in the list of samples")
        clips, repeat = samples.clips, samples.repeat
        if repeat is not None:
            row = samples.rows_listed
            times = times_in_epoch(repeat, row, seed=self.seed, epoch=epoch)
            clips = samples.repeated(times)
        return _Epoch(samples, clips)

    @cached_property
    def _changes_rows(self) -> bool:
        """Whether users' functions change the rows."""
        own = [one for one in self.functions if not isinstance(one, BuiltIn)]
        return bool(own) and called(self.functions, self.base, 0, self.seed)[1]

    @property
    def rows_differ(self) -> bool:
        """Whether functions choose other rows in each epoch."""
        return bool(self._by_epoch)

    @cached_property
    def _by_epoch(self) -> list[int]:
        """Numbers of the functions that choose other rows in each epoch."""
        found, is_random = list[int](), False
        for number, one in enumerate(self.functions):
            if not isinstance(one, BuiltIn):
                changes = self._changes_rows
            else:
                draws = one.is_random or (is_random and one.reads_columns)
                changes = draws and not one.adds_columns
            found += [number] * changes
            is_random |= not isinstance(one, BuiltIn) or one.is_random
        return found

    @cached_property
    def _phases(self) -> Phases | None:
        """The phases of `every(n, rotate=True)`, if nothing else changes the number of clips."""
        if len(self._by_epoch) != 1:
            return None
        number = self._by_epoch[0]
        turning, later = self.functions[number], self.functions[number + 1 :]
        if not isinstance(turning, BuiltIn) or turning.name != "every":
            return None
        if not all(one.adds_columns for one in later if isinstance(one, BuiltIn)):
            return None
        samples = called(self.functions[:number], self.base, 0, self.seed)[0]
        return phases_of(samples, turning.arguments["n"]) if samples.repeat is None else None

    @cached_property
    def differs_by_epoch(self) -> bool:
        """Whether epochs have different clips."""
        if self.rows_differ:
            return True
        if not self.functions and "repeat" not in self.base.columns:
            return False
        repeat = called(self.functions, self.base, 0, self.seed)[0].repeat
        return repeat is not None and bool((repeat % 1 != 0).any())

    @property
    def is_random(self) -> bool:
        """Whether samples depend on the epoch and the seed."""
        random = (not isinstance(one, BuiltIn) or one.is_random for one in self.functions)
        return self.differs_by_epoch or any(random)

    @cached_property
    def repeats(self) -> bool:
        """Whether an epoch may contain a clip twice."""
        if self.rows_differ:
            return True
        return self.clips.repeats

    @cached_property
    def clips(self) -> ClipTable:
        """The clips of all epochs: as often as each sample can come. Of epoch 0, if functions
        choose other rows in each epoch.
        """
        samples = self.samples_in(0)
        if (repeat := samples.repeat) is None or self.rows_differ:
            return self.in_epoch(0)
        return samples.repeated(np.ceil(repeat).astype(np.int64))

    @property
    def spec(self) -> ClipSpec:
        """Length, stride and dilation of clips."""
        return self.typical.spec

    @cached_property
    def typical(self) -> ClipTable:
        """The clips from which the settings of all epochs are chosen."""
        if not self.rows_differ:
            return self.clips
        every = (one for one in self.functions if isinstance(one, BuiltIn) and one.name == "every")
        clips = self.base.clips
        if self.base.listed is not None:
            return clips
        stride = lcm(clips.spec.stride, *(one.arguments["n"] for one in every))
        return clips if stride == clips.spec.stride else typical_table(clips, stride)

    def first_clip(self, epoch: int, num_shards: int) -> int:
        """The number of clips in each of `num_shards` equal shards of all epochs before one."""
        if not self.differs_by_epoch:
            return epoch * -(-self.clips.num_clips // num_shards)
        if self._phases is not None:
            return self._phases.clips_before(epoch, num_shards, seed=self.seed)
        if self.rows_differ:
            return self._counted(num_shards, epochs=epoch)[epoch]
        repeat = self.samples_in(0).repeat
        assert repeat is not None
        return clips_before(repeat, epoch, num_shards, seed=self.seed)

    def epoch_of(self, clip: int, num_shards: int) -> int:
        """The epoch of a shard's clip, counted over all epochs; 2^62 - 1 if epochs lack clips."""
        if self.rows_differ and self._phases is None:
            return bisect_right(self._counted(num_shards, clips=clip), clip) - 1
        return bisect_right(EPOCHS, clip, key=lambda one: self.first_clip(one, num_shards)) - 1

    def _counted(self, num_shards: int, *, epochs: int = 0, clips: int = -1) -> list[int]:
        """The first clips of epochs, until there are as many, and as many clips."""
        counts = self._counts.setdefault(num_shards, [0])
        while len(counts) <= epochs or counts[-1] <= clips:
            if len(counts) > _MOST_COUNTED:
                problem = "functions of samples choose other rows in each epoch of a mix's source"
                expected = f"a position in its first {_MOST_COUNTED} epochs"
                raise ClipError(problem, expected=expected, got="a later one")
            counts.append(counts[-1] + -(-self.in_epoch(len(counts) - 1).num_clips // num_shards))
        return counts

    def locate(self, numbers: IntArray, epoch: int = 0) -> ClipKeys:
        """Clips of an epoch by their numbers, int64[n], in canonical order, or as listed."""
        found = self._in(epoch)
        if found.samples.listed is not None:
            numbers = found.as_listed[numbers]
        return found.clips.locate(numbers)

    # ---- descriptions

    @property
    def dataset(self) -> Dataset:
        """The dataset, with the requested features only."""
        return self.windows.dataset

    @cached_property
    def left_out(self) -> str:
        """Numbers of the episodes and clips left out, with reasons; empty if there are none."""
        found, clips, windows = [], self.base.clips, self.windows
        if clips.num_short_episodes:
            found.append(
                f"{clips.num_short_episodes:,} of {counted(len(self.selected), 'episode')}, "
                f"too short for a clip of {counted(windows.span, 'frame')}"
            )
        if clips.num_outside:
            found.append(
                f"{counted(clips.num_outside, 'clip')} with frames beyond the ends of their "
                'episodes, which pad="edge" gives'
            )
        if clips.num_incomplete:
            lacking = [
                name
                for name in self.dataset.features
                if np.isin(windows.missing([name]).episode, self.selected).any()
            ]
            every = clips.num_clips + clips.num_incomplete
            found.append(
                f"{clips.num_incomplete:,} of {counted(every, 'clip')}, for frames that lack "
                f"{', '.join(lacking)}"
            )
        return "; ".join(found)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """See `Contents.identity`."""
        return self.dataset.contents.identity(self.selected)

    def samples_digest(self, epoch: int) -> Any:
        """The samples of an epoch as JSON: names and arguments of built-in functions; for a table,
        or with users' functions, a hash of all rows and columns.
        """
        names = [
            repr(one) if isinstance(one, BuiltIn) and one.is_implicit else "function"
            for one in self.functions
        ]
        is_listed = self.base.listed is not None or bool(self.base.columns)
        epoch = epoch if "function" in names else -1
        if epoch not in self._digests and (epoch >= 0 or is_listed):
            self._digests[epoch] = self._digest(self.base if epoch < 0 else self.samples_in(epoch))
        found = [self._digests[epoch], *names] if epoch in self._digests else names
        return found if names else next(iter(found), None)

    def _digest(self, samples: Samples) -> str:
        digest, keys, columns = hashlib.sha256(), samples.keys, samples.columns
        frames, episode = keys.start, keys.episode
        if self.excerpts is not None:  # the same wherever episodes are divided
            frames = self.excerpts.frames_of(keys.row)
            episode = self.excerpts.episode[episode]
        place = np.searchsorted(self.selected, episode)
        update_digest(digest, "<i8", samples.rows_listed, place, frames)
        for name in sorted(columns):
            values = samples.values(name, keys)
            if isinstance(values, np.ndarray):
                digest.update(f"{name} {values.dtype} {values.shape}".encode())
                update_digest(digest, values.dtype.newbyteorder("<").str, values)
            else:
                digest.update(json.dumps([name, values]).encode())
        return digest.hexdigest()


def _of_episode(values: Values, row: IntArray, clips: ClipKeys) -> Values:
    """The values of the episodes of clips; `row` is each episode's row in the table."""
    return taken(values, row[clips.episode])
