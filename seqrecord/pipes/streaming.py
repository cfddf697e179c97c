"""What all that stream clips have in common: epochs, and for one dataset its options and clips."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Generic, NoReturn

from torch.utils.data import get_worker_info

from seqrecord.clips import ClipTable
from seqrecord.pipes.arguments import init_takes_arguments
from seqrecord.pipes.batch_source import Clip, PlanT
from seqrecord.pipes.callers import find_loader
from seqrecord.pipes.clip_loader import ClipLoader
from seqrecord.pipes.epochs import Epochs
from seqrecord.pipes.options import LoaderOptions
from seqrecord.pipes.selection import ClipSelection
from seqrecord.reading.reader import DatasetLike, SeqRecordReader
from seqrecord.sampling import Part, Plan

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Streaming", "WithEpochs", "loader_of"]


class WithEpochs(Generic[PlanT]):
    """What streams epochs: their length, which one is next, and the position in them."""

    _epochs: Epochs[PlanT]

    def __len__(self) -> int:
        """Batches of an epoch that this rank delivers; clips without a `batch_size`.

        In a DataLoader's worker, those of the worker. Asked by a DataLoader, those of all of its
        workers.
        """
        loader = find_loader()
        if get_worker_info() is None and loader is not None and loader.num_workers > 1:
            parts = self._parts_of_workers(loader.num_workers)
        else:
            parts = [self._part()]
        epoch = self._epochs.current
        return sum(self._epochs.loader.plan(epoch, part).num_batches for part in parts)

    def __getitem__(self, number: object) -> NoReturn:
        """Raise `TypeError`: clips come in the order of the epoch's plan, not by number."""
        raise TypeError(
            f"{type(self).__name__} streams clips and gives none by number: iterate over it, or "
            "use SeqRecordDataset"
        )

    def set_epoch(self, epoch: int) -> None:
        """Begin this epoch with the next iteration. Without a call, epochs follow each other.

        After `load_state_dict` with a state of the same epoch, the position in it stays.
        """
        self._epochs.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the iteration is: the epoch, its batches delivered, and what the order depends on.

        It is JSON of about 1 kB, and the same on every rank. Raises `StateError` where worker
        processes iterate, because this process does not know their position: a
        `StatefulDataLoader` around a `SeqRecordStream` does.
        """
        return self._epochs.state(self._part())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """The next iteration continues there: it re-reads the frames that were held, and no others.

        Settings that `memory_limit` and defaults had chosen when the state was saved are used from
        here on, in later epochs too, so that the run has the order of the interrupted one.

        Raises `StateError` for a state of another dataset, of other episodes or other settings,
        which it names, and `MemoryLimitError` where the state's order needs more than
        `memory_limit`.

        The number of ranks and workers may differ, also in the middle of an epoch, and so may
        `batch_size`, but for a mix: what the former ones have not given is then planned anew (see
        docs/ranks.md). The state may be that of a torchdata `StatefulDataLoader` around a loader of
        this kind, to go on with other workers. What it has of one worker alone tells too little for
        that, and the next iteration raises a `StateError`; one from before the first snapshot of a
        StatefulDataLoader that makes batches itself does, too.
        """
        self._epochs.load(state_dict, self._part())

    def stats(self) -> dict[str, Any]:
        """What the last iteration of this process has done.

        Work: `bytes_read`, `frames_decoded`, without those that an iteration before has left in
        memory; `clips`, `batches`; `video_frames_decoded`, those that were decoded for others
        included; `device_bytes`, copied to a device; `resident_bytes`, the most that held frames
        took; seconds of work and of waiting in each stage, for decoding also by feature; `loads` of
        chunks, and `loads_held_back`, which had to wait for memory; `requests`, `retries` and other
        counts of the storage; and the `bottleneck`, in words.

        Clips left out: `episodes_too_short`, `clips_incomplete` (a frame lacks a feature),
        `clips_outside` (a window leaves the episode), `clips_dropped` (by `drop_last`).

        Frames that stand for others: `times_without_frame`, of windows by timestamps.

        Clips given twice: `clips_repeated`, which another rank or worker gives too (see `equal`).

        With `order="sequences"` also `sequences`, of this process's part; `sequences_cut`, of which
        another row has the begin; and, without windows, `frames_left_out`, frames of the selected
        episodes that are in no clip.
        """
        return self._epochs.stats()

    def _part(self) -> Part:
        return self._epochs.loader.ranks.part()

    def _parts_of_workers(self, num_workers: int) -> list[Part]:
        return self._epochs.loader.ranks.parts_of_workers(num_workers)


class Streaming(WithEpochs[Plan]):
    """What the streaming loaders have in common: arguments, and a dataset's clips in epochs."""

    @init_takes_arguments(LoaderOptions)
    def __init__(self, location: DatasetLike, options: LoaderOptions) -> None:
        super().__init__()
        self._loader = ClipLoader(ClipSelection(location, options), options)
        self._epochs = Epochs[Plan](self._loader)

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
    def dataset(self) -> SeqRecordReader:
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
        return self._loader.num_clips(self._epochs.current)

    def _iterate(self) -> Iterator[Clip]:
        return self._epochs.iterate(self._part())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._loader.describe()})"

    __str__ = __repr__  # IterDataPipe's is the bare name


def loader_of(streaming: Streaming) -> ClipLoader:
    """What plans and runs its epochs."""
    return streaming._loader
