"""The loaders that training code uses, each a thin shell around one `ClipLoader`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from typing import Any

import torch
from torch.utils.data import IterableDataset, IterDataPipe, get_worker_info
from torchdata.nodes import BaseNode

from seqrecord.clips import ClipTable
from seqrecord.errors import StateError
from seqrecord.frames import FrameTransform
from seqrecord.pipes.callers import find_filter, find_holder, find_loader, is_running
from seqrecord.pipes.clip_dataset import SeqRecordDataset
from seqrecord.pipes.distributed import items_beside, worker_threads
from seqrecord.pipes.epochs import Epochs
from seqrecord.pipes.loader import Clip, ClipLoader
from seqrecord.plan import Split
from seqrecord.reader import Dataset, EpisodeFilter
from seqrecord.storage import StorageLike

__all__ = ["SeqRecordDataset", "SeqRecordNode", "SeqRecordPipe", "SeqRecordStream"]


class _Streaming:
    """What the streaming loaders have in common: arguments, length, epochs, state, stats."""

    _epochs: Epochs

    def __init__(
        self,
        location: StorageLike | Dataset,
        *,
        clip_len: int,
        stride: int = 1,
        rotate_phase: bool = False,
        dilation: int = 1,
        features: Sequence[str] | None = None,
        episodes: EpisodeFilter = None,
        shuffle: bool = True,
        shuffle_buffer: int | None = None,
        open_episodes: int | None = None,
        seed: int = 0,
        batch_size: int | None = None,
        drop_last: bool = False,
        equal: bool = True,
        memory_limit: int | str = "2GiB",
        frame_transform: FrameTransform | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        device: str | torch.device | None = None,
        num_threads: int | None = None,
        verify: bool = True,
        storage_options: Mapping[str, Any] | None = None,
        cache_dir: str | PathLike[str] | None = None,
        cache_limit: int | str | None = None,
        trace: str | PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        loader = ClipLoader(
            location,
            clip_len=clip_len,
            stride=stride,
            rotate_phase=rotate_phase,
            dilation=dilation,
            features=features,
            episodes=episodes,
            shuffle=shuffle,
            shuffle_buffer=shuffle_buffer,
            open_episodes=open_episodes,
            seed=seed,
            batch_size=batch_size,
            drop_last=drop_last,
            equal=equal,
            memory_limit=memory_limit,
            frame_transform=frame_transform,
            rank=rank,
            world_size=world_size,
            device=device,
            num_threads=num_threads,
            verify=verify,
            storage_options=storage_options,
            cache_dir=cache_dir,
            cache_limit=cache_limit,
            trace=trace,
        )
        self._epochs = Epochs(loader)

    @property
    def dataset(self) -> Dataset:
        """The dataset that the clips come from, with the requested features."""
        return self._epochs.loader.selection.dataset

    @property
    def clips(self) -> ClipTable:
        """The distinct clips of an epoch, and how many were left out.

        With `rotate_phase`, here and in `num_clips` and `len`, of the epoch that runs, or if none
        does of the next one.
        """
        return self._epochs.loader.clips(self._epochs.current)

    @property
    def num_clips(self) -> int:
        """Clips of an epoch over all ranks and workers, each counted once."""
        return self._epochs.loader.num_clips(self._epochs.current)

    def __len__(self) -> int:
        """Batches of an epoch that this rank delivers; clips without a `batch_size`.

        In a DataLoader's worker, those of the worker. Asked by a DataLoader, those of all of its
        workers.
        """
        loader = find_loader()
        if get_worker_info() is None and loader is not None and loader.num_workers > 1:
            splits = self._splits_of_workers(loader.num_workers)
        else:
            splits = [self._split()]
        epoch = self._epochs.current
        return sum(self._epochs.loader.plan(epoch, split).num_batches for split in splits)

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is of this epoch, from its start. Epochs advance by themselves too.

        After `load_state_dict` with a state of the same epoch the place in it stays.
        """
        self._epochs.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the iteration is: the epoch, its batches delivered, and what the order depends on.

        JSON of about 1 kB, and the same on every rank. Raises `StateError` where worker processes
        iterate, whose place this process cannot see: a `StatefulDataLoader` around a
        `SeqRecordStream` asks them.
        """
        return self._epochs.state(self._split())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on there with the next iteration: re-reads what was resident, replays nothing.

        The settings that `memory_limit` and defaults have chosen when the state was saved hold from
        here on, in the epochs after this one too, so that the run is the one that was interrupted.

        Raises `StateError` for a state of another dataset, of other episodes or other settings,
        which it names, and `MemoryLimitError` where the state's order needs more than
        `memory_limit`. In the middle of an epoch the number of ranks and workers counts as a
        setting, and the next iteration raises the error.
        """
        self._epochs.load(state_dict, self._split())

    def stats(self) -> dict[str, Any]:
        """What the last iteration of this process has done.

        `bytes_read`, `frames_decoded`, `clips`, `batches`; `device_bytes`, which went to a device;
        `resident_bytes`, the most that frames held have taken; seconds spent in and waiting for
        each stage, those of decoding by feature too; `loads` of chunks, and `loads_held_back` from
        running ahead for want of memory; `requests`, `retries` and the like of a storage that
        counts them; the `bottleneck` in words; and what was left out: `episodes_too_short`,
        `clips_incomplete` for want of a feature, `clips_dropped` by `drop_last`; and
        `clips_repeated`, which another rank or worker gives too (see `equal`).
        """
        return self._epochs.stats()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._epochs.loader.selection.describe()})"

    __str__ = __repr__  # IterDataPipe's is the bare name

    def _split(self) -> Split:
        return self._epochs.loader.ranks.split()

    def _splits_of_workers(self, num_workers: int) -> list[Split]:
        return self._epochs.loader.ranks.splits_of_workers(num_workers)

    def _iterate(self) -> Iterator[Clip]:
        return self._epochs.iterate(self._split(), worker_threads())


class SeqRecordPipe(_Streaming, IterDataPipe[Clip]):
    """Streams clips of a dataset, shuffled, each frame read and decoded once per epoch.

    A clip is a dict: feature name to tensor [clip_len, …] (or a list of tensors for a feature with
    a variable shape), `episode` its key, `start` its first frame. With `batch_size` the engine
    assembles batches itself, in memory that is reused: tensors [batch, clip_len, …], `episode` a
    list of keys, `start` int64 [batch]. That is the fast path.

    The order is a function of the dataset, the arguments, the epoch and the split alone. Epochs
    advance with each iteration, and one iteration runs at a time. A `DataLoader` takes the pipe
    with `batch_size=None`, with worker processes or without; ranks and workers get parts of equally
    many batches (see `equal`), unless a `.sharding_filter()` follows, which then picks from the
    whole epoch: every worker then reads and decodes all of it. A worker's batches are shared
    memory, on Linux: the process that receives them reads them in place, and the worker fills them
    again when they are dropped. Workers are not needed for speed: each has an arena of its own.

    Args:
        location: local path or URL, or a dataset from `seqrecord.open`, as it was opened.
        clip_len: frames of a clip, N.
        stride: frames from one clip's start to the next; 1 for all clips.
        rotate_phase: begin an epoch's first clips not at frame 0 but at a `phase` below `stride`,
            another one each epoch: so many epochs cover every clip of stride 1 once. Phases without
            any clip are left out. Epochs then differ in length by a few clips.
        dilation: frames from one frame of a clip to the next.
        features: names of features to read; all by default. Clips in which a frame lacks one of
            them are left out.
        episodes: keys, a glob on keys, or a predicate on an episode's metadata.
        shuffle: well-shuffled order; else episode by episode, front to back.
        shuffle_buffer: clips to choose from at a time, at most; it refers to frames and copies
            none. By default as many as `memory_limit` allows, so that an epoch that fits is as good
            as fully shuffled. An epoch begins with 256 clips, and their number at most doubles from
            one round to the next, so that its first batch need not wait.
        open_episodes: cursors, the places from which clips are mixed; chosen by default.
        seed: of the order.
        batch_size: clips of a batch, or `None` for single clips.
        drop_last: leave out what does not fill a batch on every rank.
        equal: all ranks and workers get equally many clips and batches: where they do not come out
            even, some give one clip that another gives too, or with `drop_last` leave one out. Off,
            every clip is given exactly once, and ranks may get one batch more than others, or
            none: for evaluation.
        memory_limit: bytes, or text such as "2GiB", for the frames held, for batches being filled
            and the two that the consumer has at a time, and for chunks being read. Per process.
            With a `device`, frames and batches are there, and the host needs pinned memory
            besides, for the decoded frames of the chunks being read and of two more. In a
            DataLoader's workers, the batches that it fetches ahead (`prefetch_factor` for each
            worker, two by default) come on top.
        frame_transform: called once for each frame, with a dict of arrays, before the arena;
            returns the arrays that clips are made of, of the same dtypes and shapes every time.
            Called from several threads, and once for the first frame when the pipe is made.
        rank: which part of the epoch this process gets, of `world_size`. By default both are found
            each time an epoch begins: from `torch.distributed` where it is initialized, else from
            `RANK` and `WORLD_SIZE` in the environment (torchrun), or `LOCAL_RANK`, `NODE_RANK` and
            `WORLD_SIZE` (Lightning); workers take them from the process that started them. Workers
            share what their process gets, in any case.
        world_size: how many parts there are. 1 turns that off: every process gets the whole epoch.
        device: where tensors go, such as "cuda". Frames then cross the bus once, and are held and
            gathered on the device by a stream of its own. What the stream does that is current in
            `next` waits for that: nothing needs to be synchronized. Not in a DataLoader's worker
            processes. By default tensors stay on the host; "cpu" gives the same tensors by the
            steps that a device takes.
        num_threads: for reading, decoding and copying; by default this process's share of the
            cores: those that it may run on, by its affinity and the container's CPU quota, divided
            by the ranks on this machine (torchrun's `LOCAL_WORLD_SIZE`, or what MPI or Slurm say)
            and by the workers.
        verify: check what is read against its checksums.
        storage_options: for the filesystem that serves `location`.
        cache_dir: a folder of a local disk in which what is read of a remote dataset is kept, so
            that later epochs read it from there; processes may share it. Off by default.
        cache_limit: bytes, or text such as "200GiB", that the folder may take; what was not used
            for longest makes room. Needed with `cache_dir`.
        trace: where to write a timeline of each iteration, in the Chrome trace format, when it
            ends; the last one stays. Ranks and workers write beside it: `epoch.worker0.json`.

    Raises `ClipError` where there is no clip, and when an iteration begins of which `drop_last`
    leaves no batch; `MemoryLimitError` for a limit that is too small.
    Episodes too short for a clip and clips that lack a feature are left out: a warning of the
    logger `seqrecord` says how many, once, and `repr` and `stats` do.
    """

    _warned = False
    _holder: str | None = None  # of items of this iteration, behind this pipe

    def __iter__(self) -> Iterator[Clip]:
        self._holder = find_holder()
        return self._iterate()

    def __len__(self) -> int:
        """As `SeqRecordStream`'s, also where a `.sharding_filter()` follows."""
        sharding, loader = find_filter(), find_loader()
        if sharding is not None and sharding.num_of_instances == 1 and loader is not None:
            # It has not been told of ranks and workers, or only in the workers.
            whole = self._epochs.loader.plan(self._epochs.current, Split()).num_batches
            dealt = items_beside(whole, loader.num_workers)
            if dealt is not None:
                return dealt
        return super().__len__()

    def state_dict(self) -> dict[str, Any]:
        """As of `SeqRecordStream`; `StateError` too where a pipe behind this one holds items.

        That is any but `.map()`, `.collate()`, `.batch()` and `.filter()`: what this pipe has given
        is not what the end of the chain has. `set_epoch` ends that.
        """
        if self._holder is not None and self._epochs.is_begun:
            raise StateError(
                f"the {self._holder} behind this pipe holds items, or skips some, so that the "
                "place of this pipe is not the chain's",
                expected="a state of a pipe with nothing but .map(), .collate(), .batch() and "
                ".filter() behind it: the pipe shuffles by itself, and shares an epoch among ranks "
                "and workers by itself; or one between two epochs, after set_epoch()",
            )
        return super().state_dict()

    def set_seed(self, seed: int) -> SeqRecordPipe:  # noqa: ARG002
        """Called by a `DataLoader` when an epoch begins. The order is that of the pipe's seed."""
        self._epochs.loader.ranks.current()  # an error is better here than in a worker
        if not self._warned and is_running("torchdata.stateful_dataloader"):
            self._warned = True
            warnings.warn(
                "StatefulDataLoader saves neither place nor epoch of a DataPipe: it resumes by "
                "skipping items, maybe of another epoch. It resumes SeqRecordStream exactly.",
                stacklevel=2,
            )
        return self

    def set_shuffle(self, shuffle: bool = True) -> SeqRecordPipe:
        """Called by a `DataLoader` that was given `shuffle`."""
        self._epochs.loader.set_shuffle(shuffle)
        return self

    def _split(self) -> Split:
        sharding, ranks = find_filter(), self._epochs.loader.ranks
        return ranks.split() if sharding is None else ranks.split_beside(sharding.num_of_instances)

    def _splits_of_workers(self, num_workers: int) -> list[Split]:
        # A filter gives to the workers together what it gives to a process that has none.
        if find_filter() is not None:
            return [self._split()]
        return super()._splits_of_workers(num_workers)


class SeqRecordStream(_Streaming, IterableDataset[Clip]):
    """`SeqRecordPipe` as a plain `IterableDataset`, which a `StatefulDataLoader` resumes exactly.

    Takes the same arguments. Each epoch has another order, with worker processes or without, and
    whether they persist or not.
    """

    def __iter__(self) -> Iterator[Clip]:
        return self._iterate()


class SeqRecordNode(_Streaming, BaseNode[Clip]):  # type: ignore[misc]
    """`SeqRecordPipe` as a node of `torchdata.nodes`. Takes the same arguments."""

    _iterator: Iterator[Clip] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_iterator": None}

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Begin the next epoch, or go on where `initial_state` was taken."""
        super().reset(initial_state)
        self._iterator = None  # ends the threads of an iteration that was left early
        if initial_state is not None:
            self._epochs.load(initial_state, self._split())
        self._iterator = self._iterate()

    def next(self) -> Clip:
        """The next batch or clip."""
        if self._iterator is None:  # in another process than `reset`
            self._iterator = self._iterate()
        return next(self._iterator)

    def state_dict(self) -> dict[str, Any]:
        """Where the iteration is; at an epoch's end the end: `reset` with it gives nothing."""
        state: dict[str, Any] = BaseNode.state_dict(self)
        return state

    def get_state(self) -> dict[str, Any]:
        """As `state_dict`."""
        return self._epochs.state(self._split(), at_end=True)
