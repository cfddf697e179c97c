"""ClipLoader: plans epochs of a selection's clips, and makes the engines that execute them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils.data import get_worker_info

from seqrecord.clips.tables import ClipTable, IntArray
from seqrecord.engine.arena import for_users
from seqrecord.engine.batches import Batch
from seqrecord.engine.buffers import BufferCache
from seqrecord.engine.calls import DrawClips
from seqrecord.engine.device.streams import SideStream, find_device
from seqrecord.engine.engine import Engine, Execution, Job, Resources, run_plan
from seqrecord.engine.stats import EngineStats
from seqrecord.engine.stores import FrameRows
from seqrecord.engine.trace import Trace, trace_path
from seqrecord.errors import ClipError, MemoryLimitError, StateError
from seqrecord.pipes.distributed import Ranks, worker_threads
from seqrecord.pipes.memory import check_machine, frame_sizes, frames_in_memory, settle
from seqrecord.pipes.options import LoaderOptions
from seqrecord.pipes.residency import Residency
from seqrecord.pipes.selection import ClipSelection
from seqrecord.pipes.states import Clip, Remainder, Sessions, SourceRemainder, SourceState, State
from seqrecord.processes.forks import cached_property
from seqrecord.sampling import (
    ClipFacts,
    EpochPlan,
    Part,
    Plan,
    PlanSettings,
    SequencePlan,
    ShuffledPlan,
    Window,
    check_drop_last,
    count_unused_frames,
)
from seqrecord.sampling.bounds import resident_bounds
from seqrecord.sampling.elastic import Session, find_remaining
from seqrecord.sampling.memory import Demand, Fit, FrameSizes, Memory, usual_limit
from seqrecord.sampling.sequences import COLUMNS
from seqrecord.storage import local_path
from seqrecord.text import counted, repr_of, shown_place
from seqrecord.units import format_size, parse_size

_ASKED = ("shuffle", "seed", "batch_size", "drop_last", "equal", "rotate_phase", "order")
"""Settings of plans that are arguments; the others are chosen."""

_MAX_CURSORS = 1 << 24  # of a part, in a saved state

_logger = logging.getLogger("seqrecord")

_Fits: TypeAlias = dict[tuple[int, int, Sessions], Fit]
"""Of epochs in so many parts; of the rest of one by its number and sessions, else by 0 and none."""


class ClipLoader:
    """Plans epochs over a selection of clips and runs them: a `BatchSource`. Picklable.

    An epoch that goes on with other ranks or workers has sessions: see `sampling.elastic`.

    Raises `ClipError` for clips that cannot come so, and `MemoryLimitError` for a memory limit that
    is too small, with the least that would do.
    """

    goes_on = False
    of_mix = False
    """Whether the batches are those of a mix, which has their memory."""

    def __init__(self, selection: ClipSelection, options: LoaderOptions) -> None:
        _check(selection, options)
        trace = options.tuning.trace
        self._trace = None if trace is None else local_path(trace, "trace").absolute()
        self._buffers = BufferCache()
        self.selection, self.options = selection, options
        self.batch_size = options.batch_size
        self._settings = PlanSettings(**{name: getattr(options, name) for name in _ASKED})
        self.ranks = Ranks(options.rank, options.world_size)
        self._fits: _Fits = {}
        self._rest: tuple[int, Sessions, ClipTable] | None = None  # that was asked for last
        self._stays: bool | None = None  # whether frames of the last iteration do
        self._told: set[int] = set()  # numbers of parts whose limit was logged
        if not self.of_mix:
            self._check_limit()

    def _check_limit(self) -> None:
        """Raise `MemoryLimitError` here and now for a limit that is too small.

        Lists of frames need least in the smallest excerpts, whatever the limit suggests.
        """
        try:
            self._fit(1)
            return
        except MemoryLimitError:
            if self.selection.excerpts is None or self.selection.is_smallest:
                raise
        again = replace(self.options, rename=None)
        self.selection = ClipSelection(self.selection.dataset, again, is_smallest=True)
        for name in ("_sizes", "_facts_of_all"):  # of the selection before
            self.__dict__.pop(name, None)
        self._fit(1)

    def __getstate__(self) -> dict[str, Any]:
        options = self.selection.portable(self.options)
        return {**self.__dict__, "options": options, "_rest": None}

    @property
    def sources(self) -> Sequence[ClipLoader]:
        """This one; see `BatchSource`."""
        return (self,)

    def asked(self) -> dict[str, Any]:
        """See `BatchSource`."""
        return {}

    def plan(self, epoch: int, part: Part, rest: Remainder | None = None) -> Plan:
        """See `plan_epoch`."""
        return self.plan_epoch(epoch, part, _sessions(epoch, rest))

    def set_shuffle(self, shuffle: bool) -> None:
        """Turn shuffling on or off for the epochs to come."""
        self._settings = replace(self._settings, shuffle=bool(shuffle))
        self._fits.clear()
        self._fit(1)

    def clips(self, epoch: int) -> ClipTable:
        """The clips of an epoch."""
        settings = self._settings
        return self.selection.clips_in(epoch, seed=settings.seed, shuffle=settings.shuffle)

    def remaining_clips(self, epoch: int, sessions: Sessions) -> ClipTable:
        """The clips of an epoch that are left when some sessions of it are over.

        Raises `StateError` for sessions that cannot have been.
        """
        if not sessions:
            return self.clips(epoch)
        if self._rest is None or self._rest[:2] != (epoch, sessions):
            table, episodes = self.clips(epoch), self.selection.episodes
            rest = find_remaining(table, episodes, sessions, epoch=epoch, windows=self._windows)
            self._rest = epoch, sessions, rest
        return self._rest[2]

    def plan_epoch(self, epoch: int, part: Part, sessions: Sessions = ()) -> Plan:
        """The plan of one part of one epoch, or of what some sessions have left of it.

        Raises `ClipError` when `drop_last` leaves no batch in this epoch, or in one of another
        phase, and `StateError` for sessions that cannot have been.
        """
        if (phases := self.selection.phases) is not None:  # now, not at the epoch of that phase
            check_drop_last(phases.fewest_clips, self._settings, part.count)
        if part.index == 0 and part.count not in self._told:
            self._told.add(part.count)
            self._tell(part.count)
        return self._planned(epoch, part, sessions, self.settings(part.count, epoch, sessions))

    def settings(self, num_parts: int, epoch: int = 0, sessions: Sessions = ()) -> PlanSettings:
        """The settings of an epoch in so many parts, all of them chosen.

        Or those of what some sessions have left of the epoch.
        """
        return self._fit(num_parts, epoch, sessions).settings

    # ---- what runs

    def start(
        self, plan: Plan, rest: Remainder | None = None, *, batch: int = 0, stats: EngineStats
    ) -> Engine:
        """An engine that runs a plan, of an epoch with this `rest`, from `batch` on."""
        self.selection.times_without_frame = 0
        execution = self.execution(plan, sessions=_sessions(plan.epoch, rest), stats=stats)
        return run_plan(execution, stats, batch=batch)

    def execution(
        self,
        plan: Plan,
        sessions: Sessions,
        stats: EngineStats,
        stream: SideStream | None = None,
    ) -> Execution:
        """What executes a plan, of an epoch of which these sessions are over; for batches of a mix
        on the `stream` of these."""
        # Of a mix it is that of its stream: this is another thread, with a GPU of its own.
        device = self.find_device() if stream is None else stream.device
        on_device, in_worker = device is not None, get_worker_info() is not None
        memory, nbytes, rows = self.settled(
            plan, sessions, on_device=on_device, in_worker=in_worker
        )
        self._stays = bool(rows)
        if not on_device and not self.of_mix:
            check_machine(nbytes, self.selection.dataset.url)
        resources = Resources(
            memory,
            self.options.tuning.num_threads or worker_threads(),
            self._buffers,
            device,
            stream,
            shared=in_worker,
            niceness=self.options.tuning.thread_niceness,
            decode_there=self.options.tuning.video_decoder == "torchcodec",
            rows=rows,
        )
        return Execution(self.job(plan), resources, stats)

    def settled(
        self, plan: Plan, sessions: Sessions = (), *, on_device: bool, in_worker: bool
    ) -> tuple[Memory, int, tuple[FrameRows, ...]]:
        """The memory that executing a plan takes, the most bytes of it, and the rows of frames that
        stay; see `execution`."""
        fitted, rows = self._fit(plan.part.count, plan.epoch, sessions), tuple[FrameRows, ...]()
        if fitted.in_memory is not None:
            rows = self._residency.rows(plan.part, sessions, fitted.settings)
        memory = settle(
            fitted,
            plan,
            self.selection,
            on_device=on_device,
            of_mix=self.of_mix,
            in_worker=in_worker,
        )
        return memory, fitted.nbytes(memory), rows

    def job(self, plan: Plan) -> Job:
        """What is made of a plan."""
        selection = self.selection
        return Job(
            selection.dataset,
            plan,
            selection.drawn_frames(self._settings.seed, plan.epoch),
            selection.arrays,
            selection.made,
            selection.lengths,
            selection.frame_transform,
            self._draw_of(plan.epoch) if selection.draws.is_any else None,
        )

    def trace(self) -> Trace:
        """The trace of an iteration in this process."""
        return open_trace(self._trace, self.ranks)

    def present(self, batch: Batch, plan: Plan, number: int) -> list[Clip]:
        """See `BatchSource`.

        Single clips that an engine has delivered as one batch have memory of their own: to keep
        one, or to pickle it, is not to keep all. In a worker process they are rows of shared
        memory, which is sent without a copy, and of which each piece takes file descriptors.
        """
        columns = self.columns(batch.episode, batch.start, plan.epoch, batch.place)
        nested, squeezed = self.selection.nested, self.selection.squeezed
        features: dict[str, Any] = for_users(batch.features, nested, squeezed)
        if self.batch_size is not None:
            for name, column in plan.columns(number).items():
                columns[name] = torch.from_numpy(column)
            return [{**features, **columns}]
        are_copied = len(batch) > 1 and get_worker_info() is None  # only tensors come together
        for name, item in features.items():
            if name in nested:
                features[name] = [item]
            elif are_copied:
                features[name] = [torch.from_numpy(np.array(row)) for row in item.numpy()]
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
            **self.unused(epoch),
            **self.residency(),
        }

    def residency(self, num_parts: int | None = None) -> dict[str, list[str]]:
        """Features whose frames stay in memory, and those decoded anew in every epoch, in so many
        parts; by default in those of the last iteration, or in one."""
        stays = self._stays
        if stays is None or num_parts is not None:
            stays = self._fit(num_parts or 1).in_memory is not None
        return self._residency.features(stays)

    def columns(
        self, episode: IntArray, start: IntArray, epoch: int, place: IntArray
    ) -> dict[str, Any]:
        """What is said of clips beside their features, each a list or tensor of clips. They are of
        these rows of the index, begin at these frames, and have these places; int64[clips] each."""
        drawn = self._draw_of(epoch)(episode, start, (), place)
        frames = self.selection.drawn_frames(self._settings.seed, epoch).at(place)
        return self.selection.columns(episode, start, frames, drawn)

    def unused(self, epoch: int) -> dict[str, int]:
        """Frames of the selected episodes that are in no clip, where clips follow each other."""
        if not self._follows or self.options.has_windows:
            return {}
        frames = count_unused_frames(self.clips(epoch), self.selection.episodes.num_frames)
        return {"frames_left_out": frames}

    def describe(self) -> str:
        """A line for people, and one for each feature with its dtype and shape in a clip."""
        first, *features = self.selection.describe().split("\n")
        if self._follows:
            first += f"; {counted(len(self.clips(0).count), 'sequence')}"
            for frames in self.unused(0).values():
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

    def find_device(self) -> torch.device | None:
        """The device with its number, or `None`; for the thread that begins an iteration."""
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

    # ---- states

    def state(self, num_parts: int, rest: SourceRemainder | None) -> SourceState:
        """What the order of epochs in so many parts depends on, and of what `rest` has of them."""
        pending = () if rest is None else rest.pending
        left = tuple(self.settings(num_parts, *epoch) for epoch in pending)
        identity = self.selection.identity
        return SourceState(self.settings(num_parts), self._request, identity, left)

    def fits_of(self, state: SourceState, num_parts: int, rest: SourceRemainder) -> _Fits:
        """The settings of a state, for epochs in so many parts, and for what `rest` has of some.

        Raises `MemoryLimitError`, which says the least that would do, where they do not fit.
        """
        left = zip(rest.pending, state.left, strict=True)
        return {
            (num_parts, *epoch): self._residency.fit_given(
                self.demand(num_parts, *epoch), self._limit(num_parts), settings, epoch[1]
            )
            for epoch, settings in (((0, ()), state.settings), *left)
        }

    def keep(self, fits: _Fits) -> None:
        """Use these settings from here on, instead of those that memory suggests."""
        self._fits |= fits

    def check_state(
        self, state: SourceState, rest: SourceRemainder, *, any_batch_size: bool = False
    ) -> None:
        """Raise `StateError` for a state of other clips or another order, and say what differs.

        What memory and defaults have chosen may differ, and where the dataset lies, how fast, with
        how many threads or in how much memory it is read; what was asked for may not.
        """
        url, identity = self.selection.dataset.url, self.selection.identity
        saved, is_shuffled = state.settings, self._settings.shuffle or state.settings.shuffle
        free = {"batch_size"} if saved.shuffle else {"batch_size", "seed"}
        sessions = (session.settings for _, sessions in rest.pending for session in sessions)
        for other in (*state.left, *sessions):
            problem = "sessions of the saved state are of several settings"
            _check_same(problem, url, vars(other), vars(saved), set(_ASKED) - free)
        now = {**self._request, **{name: getattr(self._settings, name) for name in _ASKED}}
        now["num_cursors"] = self.options.tuning.num_cursors
        chosen = ("num_cursors", "shuffle_buffer")
        free = {name for name in chosen if now[name] is None or not is_shuffled}
        if any_batch_size:
            free.add("batch_size")
        if not is_shuffled and not self.selection.differs_by_epoch:
            free.add("seed")
        found, problem = {**state.request, **vars(saved)}, "the saved state is of other settings"
        _check_same(problem, url, now, found, now.keys() - free)
        if state.episodes["digest"] != identity["digest"]:
            same = state.episodes["dataset"] == identity["dataset"]
            raise StateError(
                "the saved state is of other episodes of this dataset"
                if same
                else "the saved state is of another dataset, or this one has changed: select the "
                "state's episodes, if they are still the same",
                file=url,
                expected=_described(state.episodes),
                got=_described(identity),
            )

    @cached_property
    def _request(self) -> dict[str, Any]:
        """What was asked for beside the settings that plans have, as JSON; features by the names
        that are stored, for others change no order."""
        selection, dilations = self.selection, self.options.dilations
        is_made = selection.frame_transform is not None
        # How features are padded may change, and with the dataset does.
        arrays = selection.arrays if is_made else selection.stored
        windows, stored = selection.windows.describe(), selection.dataset.contents.stored_name
        return {
            "clip_len": self.options.clip_len,
            "stride": selection.spec.stride,
            "dilation": dilations[0] if len(dilations) == 1 else list(dilations),
            "reverse": self.options.reverse,
            "windows": {stored(name): window for name, window in windows.items()},
            "pad": self.options.pad,
            "drop_last_frames": self.options.drop_last_frames,
            "features": sorted(map(stored, selection.dataset.features)),
            "shapes": {stored(name): str(spec) for name, spec in sorted(arrays.items())},
            "shuffle_buffer": self.options.tuning.shuffle_buffer,
            "clips": selection.chosen_digest,
            "fixed_shards": self.options.fixed_shards,
        }

    def remainder_after(self, state: State) -> Remainder | None:
        """See `BatchSource`: one more session of the epoch is over."""
        if not any(state.batches):
            return state.rest
        state = state.of_rank()
        sessions = _sessions(state.epoch, state.rest)
        session = Session(state.sharing.ranks, state.batches, _settings(state))
        own = SourceRemainder(((state.epoch, (*sessions, session)),), state.epoch + 1)
        return Remainder(state.epoch, None, len(sessions) + 1, (own,))

    def check_place(self, state: State) -> None:
        """See `BatchSource`."""
        url, settings = self.selection.dataset.url, _settings(state)
        sessions, count = _sessions(state.epoch, state.rest), state.sharing.num_parts
        if bool(sessions) != (state.rest is not None) or len(state.sources[0].left) > 1:
            raise StateError(
                "the sessions of the saved state are of other epochs",
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
            plan = self._planned(state.epoch, Part(count - 1, count), sessions, settings)
        except ClipError as error:
            raise StateError(f"the saved state is of no epoch: {error}") from error
        state.check_batches([plan.num_batches] * len(state.batches))

    # ---- memory

    def demand(self, num_parts: int = 1, epoch: int = 0, sessions: Sessions = ()) -> Demand:
        """What memory has to hold for epochs in so many parts, or for what some sessions have left
        of one."""
        what, workers = "these clips", self.workers(num_parts)
        if workers > 1 and self.options.memory_limit is None:
            what += f" in each of {workers} workers, which by default share what a rank has"
        return Demand(
            self._facts(epoch, sessions),
            self._settings,
            self._sizes,
            num_parts,
            self.options.tuning.num_cursors,
            self.options.tuning.shuffle_buffer,
            self._residency.frames(num_parts, sessions),
            self.selection.dataset.url,
            what,
        )

    def most_bytes(self, num_parts: int) -> int:
        """The most that an epoch in so many parts takes, in bytes, whichever it is."""
        fitted = self._fit(num_parts)
        held = resident_bounds(self._facts(), fitted.settings)
        return fitted.nbytes(fitted.memory(held, fixed=True))

    def _limit(self, num_parts: int) -> int:
        """Bytes of each of so many parts."""
        if self.options.memory_limit is not None:
            return parse_size(self.options.memory_limit)
        wanted = max(self.demand(number).wanted_limit for number in (1, num_parts))
        return usual_limit(wanted, self.workers(num_parts))

    def decodes_once(self, num_workers: int) -> bool:
        """Whether so many workers decode each frame once, if they live for several epochs."""
        num_parts = self.ranks.current().count * num_workers
        is_cheap = frames_in_memory(self.selection, only_small=True) > 0
        return not is_cheap and self._fit(num_parts).in_memory is not None

    def workers(self, num_parts: int) -> int:
        """How many workers a rank has, where there are so many parts."""
        ranks = 1 if num_parts == 1 else self.ranks.current().count
        return num_parts // ranks if num_parts % ranks == 0 else 1

    def _tell(self, num_parts: int) -> None:
        """Log what keeps batches of so many parts from being mixed well, if anything does."""
        fitted, url = self._fit(num_parts), shown_place(self.selection.dataset.url)
        if fitted.limited and not fitted.of_memory:
            _logger.info("%s: %s", url, fitted.limited)
        elif fitted.limited:
            enough = self.demand(num_parts).limit_to_mix
            whose = " of each worker" if self.workers(num_parts) > 1 else ""
            whose += " for this source" if self.of_mix else ""
            _logger.warning(
                "%s: %s; a memory_limit%s of %d (%s) would do",
                *(url, fitted.limited, whose, enough, format_size(enough)),
            )

    @property
    def _follows(self) -> bool:
        """Whether clips of an episode follow each other."""
        return self._settings.order == "sequences"

    @property
    def _windows(self) -> Sequence[Window]:
        """What clips use of each group of features."""
        return self.selection.windows.of_groups(self.selection.spec.stride)

    @cached_property
    def _sizes(self) -> FrameSizes:
        return frame_sizes(self.selection, 0 if self.of_mix else self.batch_size or 1)

    def _planned(self, epoch: int, part: Part, sessions: Sessions, settings: PlanSettings) -> Plan:
        table, episodes = self.remaining_clips(epoch, sessions), self.selection.episodes
        kind = SequencePlan if self._follows else EpochPlan
        if settings.resident and epoch and not sessions:
            kind = ShuffledPlan
        make = partial(kind, windows=self._windows)
        return make(table, episodes, settings, epoch=epoch, part=part, session=len(sessions))

    def _fit(self, num_parts: int, epoch: int = 0, sessions: Sessions = ()) -> Fit:
        if (key := (num_parts, epoch if sessions else 0, sessions)) not in self._fits:
            demand, limit = self.demand(num_parts, epoch, sessions), self._limit(num_parts)
            self._fits[key] = self._residency.fit(demand, limit, sessions)
        return self._fits[key]

    @property
    def _residency(self) -> Residency:
        """Which frames stay in memory."""
        options = self.options
        is_asked = options.device is None or options.memory_limit is not None
        settings, windows = self._settings, self._windows
        return Residency(self.selection, settings, windows, options.fixed_shards, is_asked)

    def _facts(self, epoch: int = 0, sessions: Sessions = ()) -> ClipFacts:
        """What settings are chosen for: all epochs, or what some sessions have left of one."""
        if not sessions:
            return self._facts_of_all
        table = self.remaining_clips(epoch, sessions)
        return ClipFacts.of(table, self.selection.episodes, self._windows)

    @cached_property
    def _facts_of_all(self) -> ClipFacts:
        table, episodes = self.selection.typical_clips, self.selection.episodes
        any_clips = self.selection.differs_by_epoch
        return ClipFacts.of(table, episodes, self._windows, any_clips=any_clips)


def _sessions(epoch: int, rest: Remainder | None) -> Sessions:
    """Those of an epoch that are over, of the only source."""
    return () if rest is None else rest.sources[0].sessions(epoch)


def _settings(state: State) -> PlanSettings:
    """Those of the state's epoch."""
    source = state.sources[0]
    return source.left[0] if source.left else source.settings


def _check_same(
    problem: str,
    url: str,
    now: Mapping[str, Any],
    found: Mapping[str, Any],
    names: Collection[str],
) -> None:
    """Raise `StateError` where a state has found something of these names other than it is now."""
    differ = [n for n in now if n in names and (n not in found or found[n] != now[n])]
    if "features" in differ and "shapes" in differ:
        differ.remove("shapes")  # of the features
    if differ:
        raise StateError(
            f"{problem}: {', '.join(differ)}",
            file=url,
            expected=_named(differ, found),
            got=_named(differ, now),
        )


def _named(names: Sequence[str], values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={repr_of(values.get(name))}" for name in names)


def _described(episodes: Mapping[str, Any]) -> str:
    count, frames, digest = (repr_of(episodes[name]) for name in ("count", "frames", "digest"))
    return f"{count} episodes of {frames} frames, digest {digest}"


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
            "a feature has the name of a sequence batch's extra column; give it another name: "
            "rename=",
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
    return Trace(trace_path(path, rank=(rank.index, rank.count), worker=number))
