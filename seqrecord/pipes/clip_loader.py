"""ClipLoader: plans epochs from the options and makes the engines that execute them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import get_worker_info

from seqrecord.clips import IntArray
from seqrecord.engine.arena import for_users
from seqrecord.engine.batches import Batch
from seqrecord.engine.buffers import KeptBuffers
from seqrecord.engine.calls import DrawClips
from seqrecord.engine.device.streams import SideStream, find_device
from seqrecord.engine.engine import Engine, Execution, Job, Resources, run_plan
from seqrecord.engine.stats import EngineStats
from seqrecord.engine.stores import first_rows
from seqrecord.engine.trace import Trace, trace_path
from seqrecord.errors import ClipError, StateError
from seqrecord.pipes.distributed import Ranks, worker_threads
from seqrecord.pipes.memory import check_machine, settle
from seqrecord.pipes.options import LoaderOptions
from seqrecord.pipes.planner import Planner
from seqrecord.pipes.selection import ClipSelection
from seqrecord.pipes.states import Clip, Rest, SourceRest, Stages, State
from seqrecord.sampling import Part, Plan, PlanSettings, frames_left_out
from seqrecord.sampling.rest import Stage
from seqrecord.sampling.sequences import COLUMNS
from seqrecord.storage import local_path
from seqrecord.text import counted

__all__ = ["ClipLoader", "open_trace"]

_MAX_CURSORS = 1 << 24  # of a part, in a saved state


class ClipLoader(Planner):
    """Plans epochs over a selection of clips and runs them: a `BatchSource`. Picklable.

    Raises `ClipError` for clips that cannot come so, and `MemoryLimitError` for a memory limit that
    is too small, with the least that would do.
    """

    goes_on = False

    def __init__(
        self, selection: ClipSelection, options: LoaderOptions, *, of_mix: bool = False
    ) -> None:
        _check(selection, options)
        self._trace = None
        if options.trace is not None:
            self._trace = local_path(options.trace, "trace").absolute()
        self._buffers = KeptBuffers()
        super().__init__(selection, options, of_mix=of_mix)

    @property
    def sources(self) -> Sequence[Planner]:
        """This one; see `BatchSource`."""
        return (self,)

    def asked(self) -> dict[str, Any]:
        """See `BatchSource`."""
        return {}

    def plan(self, epoch: int, part: Part, rest: Rest | None = None) -> Plan:
        """See `plan_epoch`."""
        return self.plan_epoch(epoch, part, _stages(epoch, rest))

    def rest_after(self, state: State) -> Rest | None:
        """See `BatchSource`: one more stage of the epoch is over."""
        if not any(state.batches):
            return state.rest
        state = state.of_rank()
        stages = _stages(state.epoch, state.rest)
        stage = Stage(state.sharing.ranks, state.batches, _settings(state))
        own = SourceRest(((state.epoch, (*stages, stage)),), state.epoch + 1)
        return Rest(state.epoch, None, len(stages) + 1, (own,))

    def check_place(self, state: State) -> None:
        """See `BatchSource`."""
        url, settings = self.selection.dataset.url, _settings(state)
        stages, count = _stages(state.epoch, state.rest), state.sharing.num_parts
        if bool(stages) != (state.rest is not None) or len(state.sources[0].left) > 1:
            raise StateError(
                "the stages of the saved state are of other epochs",
                file=url,
                expected=f"epoch {state.epoch}",
                got=", ".join(str(epoch) for epoch, _ in state.rests[0].pending),
            )
        rows = settings.batch_size or 1 if settings.order == "sequences" else 1
        if (cursors := max(rows, settings.num_cursors)) > _MAX_CURSORS:
            raise StateError(
                "a saved state has more cursors than can be planned",
                file=url,
                expected=f"at most {_MAX_CURSORS}",
                got=cursors,
            )
        try:  # no part has more batches than the last one
            plan = self._planned(state.epoch, Part(count - 1, count), stages, settings)
        except ClipError as error:
            raise StateError(f"the saved state is of no epoch: {error}") from error
        state.check_batches([plan.num_batches] * len(state.batches))

    def start(
        self, plan: Plan, rest: Rest | None = None, *, batch: int = 0, stats: EngineStats
    ) -> Engine:
        """An engine that runs a plan, of an epoch with this `rest`, from `batch` on."""
        self.selection.times_without_frame = 0
        execution = self.execution(plan, stages=_stages(plan.epoch, rest), stats=stats)
        return run_plan(execution, stats, batch=batch)

    def execution(
        self, plan: Plan, *, stages: Stages, stats: EngineStats, stream: SideStream | None = None
    ) -> Execution:
        """What executes a plan, of an epoch of which these stages are over; for batches of a mix on
        the `stream` of these."""
        selection, device = self.selection, self._find_device()
        fitted, first_row = self._fit(plan.part.count, plan.epoch, stages), None
        if fitted.staying is not None:
            first_row = first_rows(selection.episodes.num_frames, selection.selected)
        on_device = device is not None
        memory = settle(fitted, plan, selection, on_device=on_device, of_mix=self._of_mix)
        if not on_device and not self._of_mix:
            check_machine(fitted.nbytes(memory), selection.dataset.url)
        job = Job(
            selection.dataset,
            plan,
            selection.drawn_frames(self._settings.seed, plan.epoch),
            selection.arrays,
            selection.made,
            selection.lengths,
            selection.frame_transform,
            self._draw_of(plan.epoch) if selection.draws.is_any else None,
        )
        resources = Resources(
            memory,
            self.options.num_threads or worker_threads(),
            self._buffers,
            device,
            stream,
            shared=get_worker_info() is not None,
            decode_there=self.options.video_decoder == "torchcodec",
            first_row=first_row,
        )
        return Execution(job, resources, stats)

    def trace(self) -> Trace:
        """The trace of an iteration in this process."""
        return open_trace(self._trace, self.ranks)

    def present(self, batch: Batch, plan: Plan, number: int) -> list[Clip]:
        """See `BatchSource`.

        Single clips that an engine has delivered as one batch have memory of their own: to keep
        one, or to pickle it, is not to keep all. In a worker process they are rows of shared
        memory, which is sent without a copy, and of which each piece takes file descriptors.
        """
        columns = self.columns(batch.episode, batch.start, plan.epoch)
        nested = self.selection.nested
        features: dict[str, Any] = for_users(batch.features, nested)
        if self.batch_size is not None:
            for name, column in plan.columns(number).items():
                columns[name] = torch.from_numpy(column)
            return [{**features, **columns}]
        are_copied = len(batch) > 1 and get_worker_info() is None  # only tensors come together
        for name, item in features.items():
            if name in nested:
                features[name] = [item]
            elif are_copied:
                features[name] = [torch.from_numpy(row.copy()) for row in item.numpy()]
        return self.selection.singles(features, columns)[::-1]

    def stats(self, done: dict[str, Any], epoch: int) -> dict[str, Any]:
        """See `BatchSource`."""
        clips = self.clips(epoch)
        return {
            "clips_dropped": 0,
            "clips_repeated": 0,
            "mixed_from": 0,
            **done,
            "clips_incomplete": clips.num_incomplete,
            "clips_outside": clips.num_outside,
            "times_without_frame": self.selection.times_without_frame,
            "episodes_too_short": clips.num_short_episodes,
            **self.left_out(epoch),
        }

    def columns(self, episode: IntArray, start: IntArray, epoch: int) -> dict[str, Any]:
        """What is said of clips beside their features, each a list or tensor of clips. They are of
        these rows of the index, and begin at these frames; int64[clips] each."""
        drawn = self._draw_of(epoch)(episode, start)
        frames = self.selection.drawn_frames(self._settings.seed, epoch)
        return self.selection.columns(episode, start, frames, drawn)

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
        elif self._settings.shuffle:
            settings, whole = self._fit(1).settings, self._facts().whole_block()
            if settings.first_block_frames < whole:
                places = counted(settings.num_cursors, "place")
                first += f"; mixed from {places} of an epoch"
        return "\n".join((first, *features))

    def _draw_of(self, epoch: int) -> DrawClips:
        """What draws for clips of an epoch; the same for all clips of a sequence."""
        sequences = self.clips(epoch) if self._follows else None
        return partial(self.selection.draws.draw, self._settings.seed, epoch, sequences=sequences)

    def _find_device(self) -> torch.device | None:
        if self.options.device is None:
            return None
        device = torch.device(self.options.device)
        if device.type != "cpu" and get_worker_info() is not None:
            raise ClipError(
                "a DataLoader's worker process cannot deliver what is on a device",
                expected="num_workers=0, for this loader has threads of its own, or "
                "seqrecord.prefetch_to_device around the DataLoader",
                got=device,
            )
        return find_device(device)


def _stages(epoch: int, rest: Rest | None) -> Stages:
    """Those of an epoch that are over, of the only source."""
    return () if rest is None else rest.sources[0].stages(epoch)


def _settings(state: State) -> PlanSettings:
    """Those of the state's epoch."""
    source = state.sources[0]
    return source.left[0] if source.left else source.settings


def _check(selection: ClipSelection, options: LoaderOptions) -> None:
    """Raise `ClipError` for what does not go together."""
    draws = selection.draws
    if options.device is not None and draws.functions is not None:
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
