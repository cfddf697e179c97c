"""ClipLoader: plans epochs from the options and makes the engines that execute them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch.utils.data import get_worker_info

from seqrecord.clip_frames import ClipFrames
from seqrecord.clips import IntArray
from seqrecord.engine.batches import Batch
from seqrecord.engine.buffers import KeptBuffers
from seqrecord.engine.device.streams import check_device, find_device
from seqrecord.engine.draws import DrawClips
from seqrecord.engine.engine import Engine, Job, Resources, run_plan
from seqrecord.engine.ragged import for_users
from seqrecord.engine.stats import EngineStats
from seqrecord.engine.stores import first_rows
from seqrecord.engine.trace import Trace, trace_path
from seqrecord.errors import ClipError
from seqrecord.forks import cached_property
from seqrecord.pipes.clip_sets import is_small
from seqrecord.pipes.distributed import Ranks, worker_threads
from seqrecord.pipes.draws import ClipDraws
from seqrecord.pipes.options import LoaderOptions
from seqrecord.pipes.planner import Planner
from seqrecord.pipes.selection import ClipSelection
from seqrecord.pipes.state_checks import check_state
from seqrecord.pipes.states import Stages, State
from seqrecord.reading.frames import clip_nbytes
from seqrecord.sampling import (
    Plan,
    frames_left_out,
)
from seqrecord.sampling.memory import Memory
from seqrecord.sampling.sequences import COLUMNS
from seqrecord.storage import local_path
from seqrecord.text import counted

__all__ = ["Clip", "ClipLoader", "open_trace"]

_MOST_TOGETHER = 32  # single clips
_MOST_BYTES_TOGETHER = 1 << 20

_logger = logging.getLogger("seqrecord")

Clip: TypeAlias = dict[str, Any]
"""Feature name to tensor [frames, …], or list of tensors; `episode` a key, `start` an int.

A batch of clips is the same with one axis more: tensors [clips, frames, …] or lists of lists,
`episode` a list of keys, `start` int64 [clips]. Texts are lists too.
"""


class ClipLoader(Planner):
    """Plans epochs over a selection of clips and runs them. Picklable.

    Raises `ClipError` for clips that cannot come so, and `MemoryLimitError` for a memory limit that
    is too small, with the least that would do.
    """

    def __init__(self, selection: ClipSelection, options: LoaderOptions) -> None:
        _check(selection, options)
        self.ranks = Ranks(options.rank, options.world_size)
        self.device = None if options.device is None else check_device(options.device)
        self._trace = None
        if options.trace is not None:
            self._trace = local_path(options.trace, "trace").absolute()
        self._buffers = KeptBuffers()
        super().__init__(selection, options)

    def start(
        self, plan: Plan, stages: Stages = (), *, batch: int = 0, stats: EngineStats
    ) -> Engine:
        """An engine that runs a plan from `batch` on."""
        self.selection.times_without_frame = 0
        fit = self._fit(plan.part.count, plan.epoch, stages)
        is_fixed = all(spec.is_fixed for spec in self.selection.arrays.values())
        memory = fit.memory(plan, fixed=is_fixed and self._find_device() is None)
        first_row = None
        if self._may_stay and (staying := fit.staying(self._num_frames)) is not None:
            memory = staying
            first_row = first_rows(self.selection.episodes.num_frames, self.selection.selected)
        if get_worker_info() is not None and self.selection.dataset.chunk_reader().is_local:
            # The DataLoader asks for batches ahead by itself; memory for more is slow to find.
            memory = replace(memory, prefetch=1)
        if (most := self._most_together) > 1:
            memory = replace(memory, together=fit.together(memory, most))
        resources = self._resources(memory, first_row=first_row)
        return run_plan(self._job(plan), resources, stats, batch=batch)

    @property
    def _most_together(self) -> int:
        """How many single clips may be made at once: a few small ones."""
        if self.batch_size is not None or not self._are_alike:
            return 1
        return max(1, min(_MOST_TOGETHER, _MOST_BYTES_TOGETHER // max(1, self._clip_bytes)))

    @property
    def _are_alike(self) -> bool:
        """Whether the features of all clips are arrays of the same shapes, on the host."""
        made = self.selection.made
        is_fixed = all(spec.is_fixed and spec.value == "array" for spec in made.values())
        return is_fixed and self._find_device() is None

    @property
    def _clip_bytes(self) -> int:
        """Of a clip's features."""
        return clip_nbytes(self.selection.made, self.selection.lengths)

    def _job(self, plan: Plan) -> Job:
        """What to do for a plan."""
        selection, draws = self.selection, self.selection.draws
        return Job(
            selection.dataset,
            plan,
            self._frames(plan.epoch),
            selection.arrays,
            selection.made,
            selection.lengths,
            selection.frame_transform,
            None if draws is None else self._draw_of(draws, plan.epoch),
        )

    def _resources(self, memory: Memory, **more: Any) -> Resources:
        return Resources(
            memory,
            self.options.num_threads or worker_threads(),
            self._buffers,
            self._find_device(),
            shared=get_worker_info() is not None,
            decode_there=self.options.video_decoder == "torchcodec",
            **more,
        )

    @property
    def _may_stay(self) -> bool:
        """Whether frames stay in memory for the epochs to come, if all fit: those of small raw
        features, on a local disk. Worker processes mostly end with an epoch."""
        selection = self.selection
        if selection.frame_transform is not None or self._find_device() is not None:
            return False
        if get_worker_info() is not None:
            return False
        return all(is_small(selection.dataset, name) for name in selection.dataset.features)

    @property
    def _num_frames(self) -> int:
        """Of the selected episodes."""
        return int(self.selection.episodes.num_frames[self.selection.selected].sum())

    def _frames(self, epoch: int) -> ClipFrames:
        return self.selection.drawn_frames(self._settings.seed, epoch)

    def trace(self) -> Trace:
        """The trace of an iteration in this process."""
        return open_trace(self._trace, self.ranks)

    def clip(self, batch: Batch, plan: Plan, number: int) -> Clip:
        """Batch `number` of a plan, or without `batch_size` its one clip, as users get it."""
        nested = self.selection.nested
        features = for_users(batch.features, nested)
        columns = self.columns(batch.episode, batch.start, plan.epoch)
        for name, column in plan.columns(number).items():
            columns[name] = torch.from_numpy(column)
        if self.batch_size is not None:
            return {**features, **columns}
        alone = {name: item if name in nested else item[0] for name, item in features.items()}
        return self.selection.columns.single(alone, columns)

    def singles(self, batch: Batch, plan: Plan) -> list[Clip]:
        """Several single clips, which an engine has delivered as one batch, as users get them.

        Each has memory of its own: to keep one, or to pickle it, is not to keep all. In a worker
        process they are rows of shared memory, which is sent without a copy, and of which each
        piece takes file descriptors.
        """
        divide = _rows if get_worker_info() is not None else _copies
        given = {name: divide(feature) for name, feature in _tensors(batch).items()}
        return self.selection.columns.singles(
            given, self.columns(batch.episode, batch.start, plan.epoch)
        )

    def columns(self, episode: IntArray, start: IntArray, epoch: int) -> dict[str, Any]:
        """What is said of clips beside their features, each a list or tensor of clips. They are of
        these rows of the index, and begin at these frames; int64[clips] each."""
        said: dict[str, torch.Tensor] = {}
        if (draws := self.selection.draws) is not None:
            drawn = self._draw_of(draws, epoch)(episode, start)
            said = draws.said(drawn, episode)
        frames = self._frames(epoch)
        said |= self.selection.said_of_frames(frames, episode, start)
        return self.selection.columns.of(episode, start, said)

    def left_out(self, epoch: int) -> dict[str, int]:
        """Frames of the selected episodes that are in no clip, where clips follow each other."""
        if not self._follows or self.options.has_windows:
            return {}
        frames = frames_left_out(self.clips(epoch), self.selection.episodes.num_frames)
        return {"frames_left_out": frames}

    def describe(self) -> str:
        """A line for people, and one for each feature with its dtype and shape in a clip."""
        first, *features = self.selection.describe().split("\n")
        if self._follows:
            first += f"; {counted(len(self.clips(0).count), 'sequence')}"
            for frames in self.left_out(0).values():
                first += f", {counted(frames, 'frame')} in no clip"
        return "\n".join((first, *features))

    def request(self) -> dict[str, Any]:
        """What was asked for beside the settings that plans have, as JSON."""
        dilations = self.options.dilations
        return {
            "clip_len": self.options.clip_len,
            "stride": self.selection.spec.stride,
            "dilation": dilations[0] if len(dilations) == 1 else list(dilations),
            "reverse": self.options.reverse,
            "windows": self.selection.windows.said(),
            "pad": self.options.pad,
            "last_known": self.selection.windows.said_of_known(),
            "features": sorted(self.selection.dataset.features),
            "frame_transform": dict(self._array_texts),
            "shuffle_buffer": self.options.shuffle_buffer,
            "clips": self.selection.chosen_digest,
        }

    @cached_property
    def _array_texts(self) -> dict[str, str]:
        selection = self.selection  # how features are padded may change, and with the dataset does
        is_made = selection.frame_transform is not None
        arrays = selection.arrays if is_made else selection.stored
        return {name: str(spec) for name, spec in sorted(arrays.items())}

    def check_state(self, state: State) -> None:
        """Raise `StateError` for a state of other clips or another order, and say what differs.

        What memory and defaults have chosen may differ, and where the dataset lies, how fast, with
        how many threads or in how much memory it is read; what was asked for may not. A state of
        all workers of a rank may be of another `batch_size`.
        """
        settings = asdict(self._settings)
        check_state(
            state,
            {name: settings[name] for name in self._asked},
            self.request(),
            num_cursors=self.options.num_cursors,
            selection=self.selection,
        )

    def _draw_of(self, draws: ClipDraws, epoch: int) -> DrawClips:
        """What draws for clips of an epoch; the same for all clips of a sequence."""
        sequences = self.clips(epoch) if self._follows else None
        return partial(draws.draw, self._settings.seed, epoch, sequences=sequences)

    def _find_device(self) -> torch.device | None:
        if self.device is None:
            return None
        if self.device.type != "cpu" and get_worker_info() is not None:
            raise ClipError(
                "a DataLoader's worker process cannot deliver what is on a device",
                expected="num_workers=0, for this loader has threads of its own, or "
                "seqrecord.prefetch_to_device around the DataLoader",
                got=self.device,
            )
        return find_device(self.device)


def _tensors(batch: Batch) -> dict[str, torch.Tensor]:
    """The features of a batch that stands for several: all are tensors, for only such are made
    together."""
    return {name: one for name, one in batch.features.items() if isinstance(one, torch.Tensor)}


def _rows(batch: torch.Tensor) -> Sequence[torch.Tensor]:
    return batch.unbind()


def _copies(batch: torch.Tensor) -> Sequence[torch.Tensor]:
    return [torch.from_numpy(row.copy()) for row in batch.numpy()]


def _check(selection: ClipSelection, options: LoaderOptions) -> None:
    """Raise `ClipError` for what does not go together."""
    draws = selection.draws
    if options.device is not None and draws is not None and draws.functions is not None:
        raise ClipError(
            "the functions of clip_transform are called on the host",
            expected="no device, and seqrecord.prefetch_to_device around the loader; or crops "
            "and flips alone",
            got=f"device={options.device}",
        )
    taken = [name for name in COLUMNS if name in selection.made]
    if taken and options.order == "sequences":
        raise ClipError(
            "a feature has the name of what batches of sequences tell of themselves",
            file=selection.dataset.url,
            expected="other features, or a frame_transform that gives it another name",
            got=", ".join(taken),
        )


def open_trace(path: Path | None, ranks: Ranks) -> Trace:
    """The trace of an iteration in this process: none without a path."""
    if path is None:
        return Trace()
    rank, worker = ranks.current(), get_worker_info()
    number = None if worker is None else worker.id
    return Trace(trace_path(path, rank=(rank.number, rank.count), worker=number))
