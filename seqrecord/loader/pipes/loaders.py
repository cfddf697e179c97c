"""The public loaders that stream clips."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.utils.data import IterableDataset, IterDataPipe, get_worker_info

from seqrecord.errors import ClipError
from seqrecord.loader.clips.tables import ClipTable
from seqrecord.loader.pipes.arguments import init_takes_arguments
from seqrecord.loader.pipes.batch_rows import BatchNumber, rows_of_batch
from seqrecord.loader.pipes.callers import (
    check_kept,
    find_buffering_pipe,
    find_loader,
    find_stateless_dataset,
    is_batched_again,
    is_stateful,
)
from seqrecord.loader.pipes.epochs import Epochs
from seqrecord.loader.pipes.options import LoaderOptions, SamplesLike
from seqrecord.loader.pipes.states import Clip
from seqrecord.loader.pipes.view_loader import ViewLoader
from seqrecord.loader.pipes.view_order import plan_clips
from seqrecord.loader.sampling.epoch_plans import EpochPlan
from seqrecord.loader.sampling.runs import Shard
from seqrecord.store.reading.dataset import Dataset, DatasetLike

if TYPE_CHECKING:
    from typing_extensions import Self

    from seqrecord.store.statistics.by_feature import Statistics


class EpochStream:
    """Base class of streaming loaders: length, next epoch, and position."""

    _epochs: Epochs

    # Not in a class of pipes, whose `__iter__` torch wraps: for each clip that takes longer than
    # a small clip takes otherwise.
    def __iter__(self) -> Iterator[Clip]:
        size = self._epochs.loader.batch_size
        if size is not None and is_batched_again(self):
            raise ClipError(
                "a DataLoader makes batches of batches: both have a batch_size",
                expected=f"DataLoader({type(self).__name__}(…), batch_size=None)",
                got=f"a DataLoader with a batch_size (default: 1) around batches of {size} clips",
            )
        if self._epochs.loader.options.output == "numpy":
            check_kept(self)
        stateless = find_stateless_dataset(self)
        return self._epochs.iterate(self._shard(), find_buffering_pipe(), stateless)

    def __len__(self) -> int:
        """Batches in an epoch of this rank; clips without a `batch_size`.

        Inside a DataLoader worker: of this worker. `len` of a DataLoader: the batches of all its
        workers together, of which each has a last batch of its own, so it may be greater.
        """
        loader, epoch = find_loader(), self._epochs.current
        batches = self._epochs.loader_in(epoch)
        shards = [self._shard()]
        if loader is not None and loader.num_workers and get_worker_info() is None:
            shards = batches.orders[0].ranks.current().divided(loader.num_workers)
        lengths = [batches.plan(epoch, shard).num_batches for shard in shards]
        if loader is not None and len(shards) > 1 and (size := loader.batch_size) is not None:
            # The DataLoader divides the sum by its batch size; its workers round by themselves.
            over = 0 if loader.drop_last else size - 1
            lengths = [(length + over) // size * size for length in lengths]
        return sum(lengths)

    def __getitem__(self, number: object) -> NoReturn:
        """Raise `TypeError`: a stream has no clips by number."""
        raise TypeError(
            f"{type(self).__name__} streams clips and gives none by number: iterate over it, or "
            "use SeqRecordMapDataset"
        )

    def set_epoch(self, epoch: int, batches: int = 0, batch_size: int | None = None) -> None:
        """Set the epoch, and optionally the position, of the next iteration.

        Without a call, each iteration is the next epoch. In DataLoader workers, datasets and mixes
        need a call before an iteration that follows an unfinished one, or one with another number
        of workers; a `SeqRecordPipe` does not. A call for an epoch with a pending position keeps
        it: a position of `load_state_dict`, or of a call with `batches`.

        Example:
            pipe = seqrecord.SeqRecordPipe("records/", clip_len=4, batch_size=2)
            pipe.set_epoch(3, batches=1)  # continue in the fourth epoch, after one batch
            batch = next(iter(pipe))

        Args:
            epoch: number of the epoch, from 0.
            batches: number of batches to skip, counted over all DataLoader workers of this rank,
                which take turns (`in_order=True`, the default). The number of ranks and workers
                must be the same as before; for other numbers see `state_dict`.
            batch_size: the DataLoader's batch size, if it has one; `batches` then counts its
                batches.

        Raises `ClipError` for an invalid number. The iteration raises `StateError` if `batches`
        exceeds the epoch, or in workers if it needs a call.
        """
        self._epochs.set_epoch(epoch, batches, batch_size)

    def state_dict(
        self, batches: int | None = None, batch_size: int | None = None
    ) -> dict[str, Any]:
        """Return the position of the iteration: epoch, delivered batches, inputs of the order.

        The state is JSON of about 1 kB, and the same on every rank.

        Example:
            pipe = seqrecord.SeqRecordPipe("records/", clip_len=4, batch_size=2)
            batch = next(iter(pipe))
            pipe.load_state_dict(pipe.state_dict())  # the next iteration continues

        Args:
            batches: number of batches in the current epoch that the training has received from all
                workers of this rank. Required with DataLoader workers, whose positions this process
                does not have. Batches skipped by `set_epoch(batches=…)` count; batches before a
                change of ranks or workers do not.
            batch_size: the DataLoader's batch size, if it has one; `batches` then counts its
                batches.

        Raises `StateError` with worker processes if `batches` is `None`, if `batches` exceeds the
        epoch, and if a buffering pipe (any but `.map()`, `.collate()`, `.batch()` and `.filter()`)
        follows: call `set_epoch()` first.
        """
        return self._epochs.state(self._shard(), batches=batches, batch_size=batch_size)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a saved state in the next iteration.

        Only the frames in use at the saved position are read again. Settings that `memory_limit`
        and defaults determined for the saved run are used again, also in later epochs, so the run
        has the order of the interrupted one.

        The number of ranks and workers may differ, also in the middle of an epoch, and so may
        `batch_size`: the remaining clips are then planned anew (see docs/ranks.md). Persistent
        workers that run already cannot get a state: make a new DataLoader. A torchdata
        `StatefulDataLoader` loads its own state, with the same number of workers.

        The last call of this and `set_epoch` counts, except that `set_epoch` of the state's epoch
        keeps its position. A `StatefulDataLoader` or a `Loader` of nodes loads its state when its
        iteration begins: a `set_epoch` of another epoch before it is then an error.

        Raises `StateError` for a state of another dataset, selection or settings, with their names,
        and `MemoryLimitError` if the state's order needs more than `memory_limit`. The iteration
        raises `StateError` for a position beyond its epoch.
        """
        self._epochs.load(state_dict, self._shard(), at_start=is_stateful())

    def stats(self) -> dict[str, Any]:
        """Return statistics of the last iteration of this process.

        - Work: `bytes_read`; `bytes_from_chunk_store`, from memory in place of a remote storage;
          `frames_decoded`, without frames kept from earlier iterations; `frames_from_cache`, frames
          with features read from `frame_cache`; `frames_mapped`, copies from mapped files, for each
          feature; `video_frames_decoded`, including reference frames; `clips`; `batches`;
          `device_bytes`, copied to a device; `loads` of chunks, and `loads_throttled` by memory;
          `requests`, `retries` and other counts of the storage; `num_interleaved`, the places from
          which clips are mixed.
        - Time: seconds of work and waiting in each stage, for decoding also by feature;
          `epoch_seconds`, from the first `next` on; `waiting_percent` of it in which the training
          waited for batches, including the first one; and the `bottleneck`, as text.
        - Memory, in bytes: `memory_limit`, of a process without workers; `planned_bytes`, which the
          plan may need; `private_bytes`, the memory of frames, batches and reads that this process
          has by now, without mapped files and shared memory; the greatest sizes
          `peak_buffer_bytes`, of decoded frames, and `peak_chunk_store_bytes`, of the remote
          storage's bytes.
        - Frames in memory: `features_resident`, features whose frames are kept for later epochs;
          `features_redecoded`, features decoded anew in every epoch.
        - Skipped clips: `episodes_too_short`; `clips_incomplete`, with a frame that lacks a
          feature; `clips_outside`, with a window beyond the episode; `clips_dropped` by
          `last_batch="drop"`; with a `Budget` that clips differ in, `clips_too_large`.
        - Windows by timestamps: `times_without_frame`, times without a frame nearby.
        - Duplicates: `duplicate_clips`, also returned by another rank or worker (see
          `last_batch`).
        - With `order="sequences"`, of this process's shard: `sequences`; `sequences_cut`, which
          begin in another row; and, without windows, `frames_left_out`, frames of the selected
          episodes in no clip.
        """
        return self._epochs.stats()

    def rows(
        self,
        epoch: int,
        batch: int,
        *,
        rank: int | tuple[int, int] | None = None,
        workers: int | None = None,
        segment: int | None = None,
        batch_size: int | None = None,
    ) -> Clip:
        """Return the rows of a batch: the batch without features, which is not read.

        The keys are the batch's other entries: `episode`, `start`, columns of samples
        and draws, `dataset` in a mix. The numbers are integers of the plan, so a batch of any rank
        and epoch can be named, also after the run: make the loader with the same arguments and load
        a state of the run.

        Args:
            epoch: number of the epoch, from 0.
            batch: number of the batch in the epoch, counted over all workers of a rank, from 0. A
                resumed run continues to count; after a change of ranks or workers in the middle of
                an epoch it counts from 0 again, as `state_dict(batches=…)` does.
            rank: the rank, by default this process's; with the number of ranks, `(5, 8)`, if it is
                not that of the run.
            workers: number of DataLoader workers in a rank. Default: of the run, that is of a
                loaded state until an iteration begins, and of the iteration then.
            segment: number of the epoch's segment, if ranks or workers changed within the epoch of
                a loaded state; by default the last one.
            batch_size: the DataLoader's batch size, if it has one; the rows are then a batch of
                single clips.

        Columns that are made of features are missing: `task_index` of a mix, and `crop`, `flipped`
        and cameras if the frames of episodes differ in size. Raises `StateError` for a batch, rank
        or segment that there is not.

        Example:
            pipe = seqrecord.SeqRecordPipe("records/", clip_len=4, batch_size=2)
            pipe.rows(0, 1)["episode"]  # keys of the clips in the second batch
        """
        which = BatchNumber(epoch, batch, rank, workers, segment, batch_size)
        shard, epochs = self._shard(), self._epochs
        run, loader = epochs.run_of(epoch, shard), epochs.loader_in(epoch)
        return rows_of_batch(loader, run, shard, which, partial(self._fill_rows, loader))

    def _fill_rows(self, loader: Any, plan: Any, first: int, last: int) -> Clip:
        """See `FillRows`."""
        raise NotImplementedError

    @property
    def num_ranks(self) -> int:
        """The number of ranks that share an epoch."""
        return self._epochs.loader.orders[0].ranks.current().count

    def shared_position(self) -> dict[str, Any]:
        """Return the position and the inputs of the order that all ranks share, for `check_ranks`.

        With DataLoader workers it is the start of the epoch that they have begun last.
        """
        return self._epochs.shared_position(self._shard())

    def _shard(self) -> Shard:
        return self._epochs.loader.orders[0].ranks.shard()


class StreamingLoader(EpochStream):
    """Base class of loaders that stream the clips of one dataset."""

    @init_takes_arguments(LoaderOptions)
    def __init__(self, location: DatasetLike, options: LoaderOptions) -> None:
        """Open the dataset, and select its clips.

        Groups of arguments: `clip_len` to `pad`, frames of a clip; `features` to
        `metadata`, features and episodes; `resize` to `output`, transforms and form; `seed`
        to `shuffle`, order; `batch_size` to `device`, batches and memory; `rank`,
        distribution; `normalization`, after a state; `engine`, tuning.

        Args:
            location: local path or URL, or a dataset from `seqrecord.open`.
        """
        super().__init__()
        self._epochs = Epochs(ViewLoader(plan_clips(location, options)))

    @classmethod
    def from_options(cls, location: DatasetLike, options: LoaderOptions) -> Self:
        """Create a loader from options, such as a changed copy of another loader's `options`."""
        names = (field.name for field in fields(LoaderOptions))
        return cls(location, **{name: getattr(options, name) for name in names})

    @property
    def options(self) -> LoaderOptions:
        """The arguments of this loader."""
        return self._loader.options

    @property
    def dataset(self) -> Dataset:
        """The dataset of the clips, with the requested features."""
        return self._loader.view.dataset

    def set_samples(self, samples: SamplesLike | None) -> None:
        """Replace `samples` from the next epoch on, for example by rows that the training chooses.

        All ranks call it with the same samples. A saved state has their hash, and needs them.

        Example:
            pipe = seqrecord.SeqRecordPipe("records/", clip_len=4, batch_size=2)
            losses = {"start": [0, 3], "repeat": [1.0, 2.5]}
            pipe.set_samples({"episode": ["demo/000", "demo/001"], **losses})

        Raises the errors of a new loader, and `StateError` inside an epoch. Persistent DataLoader
        workers, which keep the samples of their start, raise `StateError` in the next iteration.
        """
        self._epochs.set_loader(lambda: self._loader.with_samples(samples))

    @property
    def clips(self) -> ClipTable:
        """The distinct clips of an epoch, and the numbers of skipped ones.

        If functions of `samples` choose other rows in each epoch, here and in `num_clips` and
        `len`: of the current epoch, or of the next one between iterations.
        """
        epoch = self._epochs.current
        loader = self._epochs.loader_in(epoch)
        assert isinstance(loader, ViewLoader)
        return loader.order.clips(epoch)

    @property
    def num_clips(self) -> int:
        """Distinct clips of an epoch over all ranks and workers."""
        return self.clips.num_clips

    def compute_statistics(self, **options: Any) -> Statistics:
        """Compute statistics after `frame_transform`; reads all frames of this loader's episodes.

        `options` are `max_frames`, `num_threads` and `progress` of `Dataset.compute_statistics`.
        Stored statistics of the whole dataset are in `Dataset.statistics`.
        """
        return self._loader.view.compute_statistics(**options)

    def _fill_rows(self, loader: ViewLoader, plan: EpochPlan, first: int, last: int) -> Clip:
        begin, end = map(plan.first_clip, (first, last))
        clips = plan.clips_between(begin, end).keys
        rows, _ = loader.columns(clips, plan.epoch, plan.draws, planned=True)
        return rows | {n: torch.from_numpy(values) for n, values in plan.columns(first).items()}

    @property
    def _loader(self) -> ViewLoader:
        loader = self._epochs.loader
        assert isinstance(loader, ViewLoader)
        return loader

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._loader.describe()})"

    __str__ = __repr__  # IterDataPipe's is the bare name


class SeqRecordPipe(StreamingLoader, IterDataPipe[Clip]):
    """Stream shuffled clips of a dataset as a DataPipe, decoding each frame once per epoch.

    A clip is a dict: feature name to tensor [T, …], or a list of tensors for a feature of variable
    shape, with `clip_len` frames or the frames of the feature's window; `episode`, its key;
    `start`, its first frame or the origin of its windows.

    With `batch_size`, the fast path, the loader assembles batches: tensors [batch, T, …], `episode`
    a list of keys, `start` int64 [batch]. The memory of a batch is reused after its last reference
    is gone; a batch that you keep is never overwritten.

    The order is a function of the dataset, the arguments, the epoch and the shard alone. Each
    iteration is the next epoch, and one iteration runs at a time. Use a `DataLoader` with
    `batch_size=None`, with or without workers. Ranks and workers get shards with the same number of
    batches (see `last_batch`). A `.sharding_filter()` behind the pipe is not
    needed and has no effect. Batches of workers are shared memory on Linux, read in place by the
    receiving process. Speed needs no workers: each has an arena of its own.

    Skipped clips (incomplete, or in episodes that are too short) are counted in `repr` and
    `stats()`, and in one warning of the logger `seqrecord`.

    Raises `ClipError` if there is no clip, or at the start of an iteration if `last_batch="drop"`
    leaves no batch; `MemoryLimitError` if the limit is too small.

    Example:
        pipe = seqrecord.SeqRecordPipe("records/", clip_len=4, batch_size=2)
        for batch in pipe:
            image = batch["image"]  # uint8 [2, 4, height, width, 3]
    """

    def set_seed(self, seed: int) -> SeqRecordPipe:  # noqa: ARG002
        """Called by a `DataLoader` at the start of an epoch; the pipe's own `seed` is used.

        Raises `ClipError` if it is a `StatefulDataLoader`.
        """
        if is_stateful():
            raise ClipError(
                "a StatefulDataLoader saves neither position nor epoch of a DataPipe, and would "
                "resume in another epoch",
                expected="StatefulDataLoader(SeqRecordIterableDataset(…)), with the same arguments",
                got=f"StatefulDataLoader({type(self).__name__}(…))",
            )
        self._loader.order.ranks.current()  # an error is better here than in a worker
        self._epochs.announce()
        return self

    def set_shuffle(self, shuffle: bool = True) -> SeqRecordPipe:
        """Called by a `DataLoader` with its argument `shuffle`."""
        self._loader.set_shuffle(shuffle)
        return self


# Not the class of pipes, although both could be one: a StatefulDataLoader looks for a state in its
# dataset, and wraps a DataPipe in a class of its own that has none.
class SeqRecordIterableDataset(StreamingLoader, IterableDataset[Clip]):
    """Stream clips as an `IterableDataset`, which a `StatefulDataLoader` resumes exactly.

    Arguments, clips and batches are the same as in `SeqRecordPipe`. With workers, call `set_epoch`
    after an iteration that was left early; see docs/ranks.md.

    Example:
        dataset = seqrecord.SeqRecordIterableDataset("records/", clip_len=4, batch_size=2)
        loader = torch.utils.data.DataLoader(dataset, batch_size=None)
        batch = next(iter(loader))
    """


def loader_of(streaming: StreamingLoader) -> ViewLoader:
    """The loader that plans and runs a stream's epochs."""
    return streaming._loader
