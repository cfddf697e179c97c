"""The loaders that training code uses: of streams, and of clips by their number."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset, IterDataPipe, get_worker_info

from seqrecord.clips.tables import ClipTable, IntArray
from seqrecord.errors import ClipError
from seqrecord.pipes.arguments import init_takes_arguments
from seqrecord.pipes.callers import (
    find_buffering_pipe,
    find_filter,
    find_loader,
    is_batched_again,
    is_stateful,
)
from seqrecord.pipes.clip_loader import ClipLoader
from seqrecord.pipes.clip_reader import ClipReader
from seqrecord.pipes.distributed import items_with_filter
from seqrecord.pipes.epochs import Epochs
from seqrecord.pipes.options import DatasetOptions, LoaderOptions
from seqrecord.pipes.selecting import select
from seqrecord.pipes.states import Clip
from seqrecord.reading.dataset import Dataset, DatasetLike
from seqrecord.sampling import Shard
from seqrecord.statistics.by_feature import Statistics

if TYPE_CHECKING:
    from typing_extensions import Self


class EpochStream:
    """What streams epochs: their length, which one is next, and the position in them."""

    _epochs: Epochs

    # Not in a class of pipes, whose `__iter__` torch wraps: for each clip that takes longer than
    # all that is done for a small one.
    def __iter__(self) -> Iterator[Clip]:
        size = self._epochs.loader.batch_size
        if size is not None and is_batched_again(self):
            raise ClipError(
                "a DataLoader makes batches of batches: both have a batch_size",
                expected=f"DataLoader({type(self).__name__}(…), batch_size=None)",
                got=f"a DataLoader with a batch_size (default: 1) around batches of {size} clips",
            )
        return self._epochs.iterate(self._shard(), find_buffering_pipe())

    def __len__(self) -> int:
        """Batches of an epoch that this rank delivers; clips without a `batch_size`.

        In a DataLoader's worker, those of the worker. Asked by a DataLoader, those of all of its
        workers.
        """
        loader, instances, batches = find_loader(), find_filter(), self._epochs.loader
        epoch, shards = self._epochs.current, [self._shard()]
        if loader is not None and instances == 1:
            # The filter has not been told of ranks and workers, or only in the workers.
            items = items_with_filter(batches.plan(epoch, Shard()).num_batches)
            if items is not None:
                return items
        in_worker = get_worker_info() is not None
        if loader is not None and loader.num_workers and instances is None and not in_worker:
            shards = batches.ranks.worker_shards(loader.num_workers)
        return sum(batches.plan(epoch, shard).num_batches for shard in shards)

    def __getitem__(self, number: object) -> NoReturn:
        """Raise `TypeError`: clips come in the order of the epoch's plan, not by number."""
        raise TypeError(
            f"{type(self).__name__} streams clips and gives none by number: iterate over it, or "
            "use SeqRecordMapDataset"
        )

    def set_epoch(self, epoch: int, batches: int = 0, batch_size: int | None = None) -> None:
        """Begin this epoch with the next iteration. Without a call, epochs follow each other.

        Setting the epoch of a position that was not yet begun keeps the position: that of
        `load_state_dict`, or of a call with `batches`. ::

            pipe.set_epoch(3, batches=120)  # the training had taken 120 batches of its fourth epoch

        Args:
            epoch: from 0.
            batches: begin after so many batches of this rank, on all DataLoader workers together,
                which take turns (`in_order=True`, the default). Ranks and workers must be as many
                as before; for other numbers see `state_dict`.
            batch_size: that of the DataLoader, if it has one; then `batches` are its batches.

        Raises `ClipError` for what is no such number; the iteration raises `StateError` for more
        batches than the epoch has.
        """
        self._epochs.set_epoch(epoch, batches, batch_size)

    def state_dict(
        self, batches: int | None = None, batch_size: int | None = None
    ) -> dict[str, Any]:
        """Where the iteration is: the epoch, its batches delivered, and what the order depends on.

        It is JSON of about 1 kB, and the same on every rank.

        Args:
            batches: the position after so many batches of the epoch that was begun last, for this
                rank's workers together: where DataLoader workers iterate, this process does not
                have their position. Batches before a `set_epoch(batches=…)` count; those before
                ranks or workers have changed do not.
            batch_size: that of the DataLoader, if it has one; then `batches` are its batches.

        Raises `StateError` where worker processes iterate and no `batches` are given, for more
        batches than the epoch has, and where a pipe behind this one holds items, which is any but
        `.map()`, `.collate()`, `.batch()` and `.filter()`: what this one has given is not what the
        end of the chain has. `set_epoch` ends that.
        """
        return self._epochs.state(self._shard(), batches=batches, batch_size=batch_size)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """The next iteration continues there: it re-reads the frames that were held, and no others.

        Settings that `memory_limit` and defaults had chosen when the state was saved are used from
        here on, in later epochs too, so that the run has the order of the interrupted one.

        Raises `StateError` for a state of another dataset, of other episodes or other settings,
        which it names, and `MemoryLimitError` where the state's order needs more than
        `memory_limit`.

        The number of ranks and workers may differ, also in the middle of an epoch, and so may
        `batch_size`, but for a mix: what the former ones have not given is then planned anew (see
        docs/ranks.md). A torchdata `StatefulDataLoader` loads its own state, with as many workers.
        """
        self._epochs.load(state_dict, self._shard())

    def stats(self) -> dict[str, Any]:
        """What the last iteration of this process has done.

        Work: `bytes_read`, `frames_decoded`, without those that an iteration before has left in
        memory; `clips`, `batches`; `video_frames_decoded`, those that were decoded for others
        included; `device_bytes`, copied to a device; `peak_buffer_bytes`, the most that held frames
        took; seconds of work and of waiting in each stage, for decoding also by feature, and
        `waiting_percent`: how much of `epoch_seconds`, from the epoch's beginning until the
        training last had a batch, it has waited for batches, the first one included; `loads` of
        chunks, and `loads_throttled`, which had to wait for memory; `requests`, `retries` and other
        counts of the storage; and the `bottleneck`, in words. `features_resident` lists the
        features whose frames stay in memory for later epochs, and `features_redecoded` those that
        every epoch decodes anew.

        Clips left out: `episodes_too_short`, `clips_incomplete` (a frame lacks a feature),
        `clips_outside` (a window leaves the episode), `clips_dropped` (by `drop_last`).

        Frames that stand for others: `times_without_frame`, of windows by timestamps.

        Clips given twice: `duplicate_clips`, which another rank or worker gives too (see
        `even_batches`).

        With `order="sequences"` also `sequences`, of this process's shard; `sequences_cut`, of
        which another row has the begin; and, without windows, `frames_left_out`, frames of the
        selected episodes that are in no clip.
        """
        return self._epochs.stats()

    def _shard(self) -> Shard:
        instances, loader = find_filter() or 1, self._epochs.loader
        if instances > 1 and loader.options.order == "sequences":
            raise ClipError(
                "a .sharding_filter() leaves out batches, so that rows would not follow an episode",
                expected='no .sharding_filter() behind order="sequences": ranks and workers get '
                "shards of their own without one",
            )
        return loader.ranks.shard_with_filter(instances)


class StreamingLoader(EpochStream):
    """What the streaming loaders have in common: arguments, and a dataset's clips in epochs."""

    @init_takes_arguments(LoaderOptions)
    def __init__(self, location: DatasetLike, options: LoaderOptions) -> None:
        """Open the dataset, and choose its clips.

        `clip_len` to `drop_last_frames` say which frames a clip has; `features` to `metadata`, of
        which features and episodes; `resize` to `ragged`, what is made of them; `order` to
        `rotate_phase`, in which order clips come; `batch_size` to `device`, what a batch is, in
        which memory; `rank` and `world_size`, for which rank; `engine`, how that is executed.

        Args:
            location: local path or URL, or a dataset from `seqrecord.open`, as it was opened.
        """
        super().__init__()
        self._loader = ClipLoader(select(location, options), options)
        self._epochs = Epochs(self._loader)

    @classmethod
    def from_options(cls, location: DatasetLike, options: LoaderOptions) -> Self:
        """The loader of these options: those of another one, say, or a changed copy of them."""
        names = (field.name for field in fields(LoaderOptions))
        return cls(location, **{name: getattr(options, name) for name in names})

    @property
    def options(self) -> LoaderOptions:
        """What this loader was given."""
        return self._loader.options

    @property
    def dataset(self) -> Dataset:
        """The dataset that the clips come from, with the requested features."""
        return self._loader.selection.dataset

    @property
    def clips(self) -> ClipTable:
        """The distinct clips of an epoch, and how many were left out.

        With `rotate_phase`, here and in `num_clips` and `len`, of the epoch that runs, or if none
        does of the next one.
        """
        return self._loader.clips(self._epochs.current)

    @property
    def num_clips(self) -> int:
        """Clips of an epoch over all ranks and workers, each counted once."""
        return self.clips.num_clips

    def compute_statistics(self, **options: Any) -> Statistics:
        """Of all frames of this loader's episodes (`split`, `episodes`), after `frame_transform`.

        They are read for it; `dataset.statistics` are those that are stored, of the whole dataset.
        `options` are `max_frames`, `num_threads` and `progress` of `Dataset.compute_statistics`.
        """
        return self._loader.selection.compute_statistics(**options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._loader.describe()})"

    __str__ = __repr__  # IterDataPipe's is the bare name


class SeqRecordPipe(StreamingLoader, IterDataPipe[Clip]):
    """Streams clips of a dataset, shuffled, each frame read and decoded once per epoch.

    A clip is a dict: feature name to tensor [T, …] (or a list of tensors for a feature with a
    variable shape), with `clip_len` frames or those of the feature's window; `episode` its key;
    `start` its first frame, or that from which windows count. With `batch_size` the engine
    assembles batches itself: tensors [batch, T, …], `episode` a list of keys, `start` int64
    [batch]. That is the fast path. The memory of a batch is used again when nothing refers to the
    batch any more: a batch that is kept stays as it is.

    The order is a function of the dataset, the arguments, the epoch and the shard alone. Epochs
    advance with each iteration, and one iteration runs at a time. A `DataLoader` takes the pipe
    with `batch_size=None`, with worker processes or without; ranks and workers get shards of
    equally many batches (see `even_batches`), unless a `.sharding_filter()` follows, which then
    picks from the whole epoch: every worker then reads and decodes all of it. A worker's batches
    are shared memory, on Linux: the process that receives them reads them in place, and the worker
    fills them again when they are dropped. Speed needs no workers: each has an arena of its
    own.

    Raises `ClipError` where there is no clip, and when an iteration begins of which `drop_last`
    leaves no batch; `MemoryLimitError` for a limit that is too small.
    Episodes too short for a clip and clips that lack a feature are left out: a warning of the
    logger `seqrecord` says how many, once, and `repr` and `stats` do.
    """

    def set_seed(self, seed: int) -> SeqRecordPipe:  # noqa: ARG002
        """Called by a `DataLoader` when an epoch begins. The order is that of the pipe's seed."""
        self._loader.ranks.current()  # an error is better here than in a worker
        if is_stateful():
            warnings.warn(
                "StatefulDataLoader saves neither position nor epoch of a DataPipe: it resumes by "
                "skipping items, maybe of another epoch. It resumes "
                "SeqRecordIterableDataset exactly.",
                stacklevel=2,
            )
        return self

    def set_shuffle(self, shuffle: bool = True) -> SeqRecordPipe:
        """Called by a `DataLoader` that was given `shuffle`."""
        self._loader.set_shuffle(shuffle)
        return self


# Not the class of pipes, although both could be one: a StatefulDataLoader looks for a state in its
# dataset, and wraps a DataPipe in a class of its own that has none, so it would resume by skipping.
class SeqRecordIterableDataset(StreamingLoader, IterableDataset[Clip]):
    """`SeqRecordPipe` as a plain `IterableDataset`, which a `StatefulDataLoader` resumes exactly.

    Each epoch has another order, with worker processes or without, and whether they persist or not.
    All workers of an iterator over a DataLoader have the same epoch, also where several DataLoaders
    iterate at once; see docs/ranks.md.
    """


class SeqRecordMapDataset(TorchDataset[dict[str, Any]]):
    """Clips by their number, for map-style training: `dataset[i]` is a clip as `SeqRecordPipe`'s.

    Clips are numbered episode by episode, front to back, or as in the table `clips`. Random order
    reads and decodes a frame for every clip that it is in: streaming is much faster.

    A `DataLoader` with `collate_fn=seqrecord.collate` asks for the clips of a batch at once: a
    frame that several of them have is read and decoded once, and they lie in the memory of one
    batch, which is used again when nothing refers to it any more. A clip that is kept stays as it
    is, and keeps the memory of those that came with it. See `memory_limit` for what is read once.
    """

    @init_takes_arguments(DatasetOptions)
    def __init__(self, location: DatasetLike, options: DatasetOptions) -> None:
        """Open the dataset, and choose its clips.

        Args:
            location: local path or URL, or a dataset from `seqrecord.open`, as it was opened.
        """
        self._options = options
        self._selection = select(location, options)
        chosen = self._selection.clip_set.chosen
        if chosen is not None and (chosen.weight != 1).any():
            raise ClipError(
                "SeqRecordMapDataset gives each clip once",
                file=self.dataset.url,
                expected="clips without weights; a sampler can weigh them",
            )
        self._reader = ClipReader(self._selection, options.memory_limit)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_options": self._selection.portable(self._options)}

    @property
    def options(self) -> DatasetOptions:
        """What this dataset was given."""
        return self._options

    @property
    def dataset(self) -> Dataset:
        """The dataset that the clips come from, with the requested features."""
        return self._selection.dataset

    @property
    def clips(self) -> ClipTable:
        """All clips, and how many were left out."""
        return self._selection.clip_set.clips

    def __len__(self) -> int:
        return self.clips.num_clips

    def __getitem__(self, number: int) -> dict[str, Any]:
        [clip] = self._reader.read(self._checked([number]))
        return clip

    def __getitems__(self, numbers: Sequence[int]) -> Sequence[dict[str, Any]]:
        """The clips of these numbers; a `DataLoader` asks for those of a batch.

        They are a batch that was read in one call. `seqrecord.collate` gives it as it is. Where a
        subclass overrides `__getitem__` alone, that gives each of them.
        """
        cls, own = type(self), SeqRecordMapDataset
        if cls.__getitem__ is not own.__getitem__ and cls.__getitems__ is own.__getitems__:
            return [self[number] for number in numbers]
        return self._reader.read(self._checked(numbers)) if len(numbers) else []

    def stats(self) -> dict[str, Any]:
        """What this process has read so far: `bytes_read`, `frames_decoded` and
        `video_frames_decoded`, those that were decoded for others included. `features_resident`
        lists the features whose frames stay in memory once they were read."""
        report, names = self._reader.stats.get().report(), ("bytes_read", "frames_decoded")
        found = {name: report[name] for name in (*names, "video_frames_decoded")}
        return {**found, "features_resident": self._reader.resident}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._selection.describe()})"

    def _checked(self, numbers: Sequence[int]) -> IntArray:
        """Clips' numbers, counted from the first: int64[n]."""
        asked, count = list(map(operator.index, numbers)), self.clips.num_clips
        if not -count <= min(asked) <= max(asked) < count:
            wrong = next(number for number in asked if not -count <= number < count)
            raise IndexError(f"clip {wrong} of {count}")
        return np.array(asked, np.int64) % count


def loader_of(streaming: StreamingLoader) -> ClipLoader:
    """What plans and runs its epochs."""
    return streaming._loader
