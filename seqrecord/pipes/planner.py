"""Planner: the plans of a loader's epochs, and the settings that they have."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeAlias

from seqrecord.clips import ClipTable
from seqrecord.errors import StateError
from seqrecord.forks import cached_property
from seqrecord.pipes.distributed import Ranks
from seqrecord.pipes.memory import frame_sizes, frames_to_stay
from seqrecord.pipes.options import LoaderOptions
from seqrecord.pipes.selection import ClipSelection
from seqrecord.pipes.states import SourceRest, SourceState, Stages
from seqrecord.sampling import (
    ClipFacts,
    EpochPlan,
    Part,
    Plan,
    PlanSettings,
    SequencePlan,
    Window,
    check_drop_last,
)
from seqrecord.sampling.bounds import resident_bounds
from seqrecord.sampling.memory import Demand, Fit, FrameSizes, usual_limit
from seqrecord.sampling.rest import rest_of
from seqrecord.text import repr_of
from seqrecord.units import format_size, parse_size

__all__ = ["Fits", "Planner"]

_logger = logging.getLogger("seqrecord")


Fits: TypeAlias = dict[tuple[int, int, Stages], Fit]
"""Of epochs in so many parts; of the rest of one by its number and stages, else by 0 and none."""


class Planner:
    """Plans epochs over a selection of clips. Picklable.

    An epoch that goes on with other ranks or workers has stages: see `sampling.rest`.

    Raises `MemoryLimitError` for a memory limit that is too small, with the least that would do.
    """

    of_mix = False
    """Whether the batches are those of a mix, which has their memory."""

    def __init__(self, selection: ClipSelection, options: LoaderOptions) -> None:
        self.selection, self.options = selection, options
        self.batch_size = options.batch_size
        asked: dict[str, Any] = {
            "shuffle": options.shuffle,
            "seed": options.seed,
            "batch_size": options.batch_size,
            "drop_last": options.drop_last,
            "equal": options.equal,
            "rotate_phase": options.rotate_phase,
            "order": options.order,
        }
        self._asked = tuple(asked)  # the other settings are chosen
        self._settings = PlanSettings(**asked)
        self.ranks = Ranks(options.rank, options.world_size)
        self._fits: Fits = {}
        self._rest: tuple[int, Stages, ClipTable] | None = None  # that was asked for last
        self._told: set[int] = set()  # numbers of parts whose limit was logged
        if not self.of_mix:
            self._fit(1)  # a limit that is too small is an error here and now

    def __getstate__(self) -> dict[str, Any]:
        options = self.selection.portable(self.options)
        return {**self.__dict__, "options": options, "_rest": None}

    def set_shuffle(self, shuffle: bool) -> None:
        """Turn shuffling on or off for the epochs to come."""
        self._settings = replace(self._settings, shuffle=bool(shuffle))
        self._fits.clear()
        self._fit(1)

    def clips(self, epoch: int) -> ClipTable:
        """The clips of an epoch."""
        settings = self._settings
        return self.selection.clips_in(epoch, seed=settings.seed, shuffle=settings.shuffle)

    def num_clips(self, epoch: int) -> int:
        """How many clips an epoch has, over all parts."""
        return self.clips(epoch).num_clips

    def clips_left(self, epoch: int, stages: Stages) -> ClipTable:
        """The clips of an epoch that are left when some stages of it are over.

        Raises `StateError` for stages that cannot have been.
        """
        if not stages:
            return self.clips(epoch)
        if self._rest is None or self._rest[:2] != (epoch, stages):
            rest = rest_of(
                self.clips(epoch),
                self.selection.episodes,
                stages,
                epoch=epoch,
                windows=self._windows,
            )
            self._rest = epoch, stages, rest
        return self._rest[2]

    def plan_epoch(self, epoch: int, part: Part, stages: Stages = ()) -> Plan:
        """The plan of one part of one epoch, or of what some stages have left of it.

        Raises `ClipError` when `drop_last` leaves no batch in this epoch, or in one of another
        phase, and `StateError` for stages that cannot have been.
        """
        if (phases := self.selection.phases) is not None:  # now, not at the epoch of that phase
            check_drop_last(phases.fewest_clips, self._settings, part.count)
        if part.index == 0 and part.count not in self._told:
            self._told.add(part.count)
            self._tell(part.count)
        return self._planned(epoch, part, stages, self.settings(part.count, epoch, stages))

    def settings(self, num_parts: int, epoch: int = 0, stages: Stages = ()) -> PlanSettings:
        """The settings of an epoch in so many parts, all of them chosen.

        Or those of what some stages have left of the epoch.
        """
        return self._fit(num_parts, epoch, stages).settings

    # ---- states

    def state(self, num_parts: int, rest: SourceRest | None) -> SourceState:
        """What the order of epochs in so many parts depends on, and of what `rest` has of them."""
        pending = () if rest is None else rest.pending
        left = tuple(self.settings(num_parts, *epoch) for epoch in pending)
        request, identity = self.request(), self.selection.identity
        return SourceState(self.settings(num_parts), request, identity, left)

    def fits_of(self, state: SourceState, num_parts: int, rest: SourceRest) -> Fits:
        """The settings of a state, for epochs in so many parts, and for what `rest` has of some.

        Raises `MemoryLimitError`, which says the least that would do, where they do not fit.
        """
        left = zip(rest.pending, state.left, strict=True)
        return {
            _key(num_parts, *epoch): self.demand(num_parts, *epoch).fit_given(
                settings, self._limit(num_parts)
            )
            for epoch, settings in (((0, ()), state.settings), *left)
        }

    def keep(self, fits: Fits) -> None:
        """Use these settings from here on, instead of those that memory suggests."""
        self._fits |= fits

    def check_state(
        self, state: SourceState, rest: SourceRest, *, any_batch_size: bool = False
    ) -> None:
        """Raise `StateError` for a state of other clips or another order, and say what differs.

        What memory and defaults have chosen may differ, and where the dataset lies, how fast, with
        how many threads or in how much memory it is read; what was asked for may not.
        """
        url, identity = self.selection.dataset.url, self.selection.identity
        now, saved = {name: getattr(self._settings, name) for name in self._asked}, state.settings
        stages = (stage.settings for _, stages in rest.pending for stage in stages)
        free = {"batch_size"} if saved.shuffle else {"batch_size", "seed"}
        for other in (*state.left, *stages):
            differ = [n for n in now if n not in free and getattr(other, n) != getattr(saved, n)]
            if differ:
                raise StateError(
                    f"stages of the saved state are of several settings: {', '.join(differ)}",
                    file=url,
                    expected=_named(differ, asdict(saved)),
                    got=_named(differ, asdict(other)),
                )
        if any_batch_size:
            del now["batch_size"]
        now = {**self.request(), **now}
        now["num_cursors"] = self.options.num_cursors
        for name in ("num_cursors", "shuffle_buffer"):
            if now[name] is None:
                del now[name]
        if not self._settings.shuffle and not saved.shuffle:
            for name in ("num_cursors", "shuffle_buffer"):
                now.pop(name, None)
            if not self.selection.differs_by_epoch:
                del now["seed"]
        found = {**state.request, **asdict(saved)}
        differ = [name for name in now if name not in found or found[name] != now[name]]
        if "features" in differ and "frame_transform" in differ:
            differ.remove("frame_transform")  # its arrays are the features
        if differ:
            raise StateError(
                f"the saved state is of other settings: {', '.join(differ)}",
                file=url,
                expected=_named(differ, now),
                got=_named(differ, found),
            )
        if state.episodes["digest"] != identity["digest"]:
            same = state.episodes["dataset"] == identity["dataset"]
            raise StateError(
                "the saved state is of other episodes of this dataset"
                if same
                else "the saved state is of another dataset, or this one has changed: select the "
                "state's episodes, if they are still the same",
                file=url,
                expected=_described(identity),
                got=_described(state.episodes),
            )

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

    # ---- memory

    def demand(self, num_parts: int = 1, epoch: int = 0, stages: Stages = ()) -> Demand:
        """What memory has to hold for epochs in so many parts, or for what some stages have left of
        one."""
        what, workers = "these clips", self.workers(num_parts)
        if workers > 1 and self.options.memory_limit is None:
            what += f" in each of {workers} workers, which by default share what a rank has"
        return Demand(
            self._facts(epoch, stages),
            self._settings,
            self._sizes,
            num_parts,
            self.options.num_cursors,
            self.options.shuffle_buffer,
            frames_to_stay(self.selection),
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
        return usual_limit(self.demand().wanted_limit, self.workers(num_parts))

    def workers(self, num_parts: int) -> int:
        """How many workers a rank has, where there are so many parts."""
        ranks = 1 if num_parts == 1 else self.ranks.current().count
        return num_parts // ranks if num_parts % ranks == 0 else 1

    def _tell(self, num_parts: int) -> None:
        """Log what keeps batches of so many parts from being mixed well, if anything does."""
        fitted, url = self._fit(num_parts), self.selection.dataset.url
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

    def _planned(self, epoch: int, part: Part, stages: Stages, settings: PlanSettings) -> Plan:
        table, episodes = self.clips_left(epoch, stages), self.selection.episodes
        make = SequencePlan if self._follows else EpochPlan
        return make(
            table,
            episodes,
            settings,
            epoch=epoch,
            part=part,
            stage=len(stages),
            windows=self._windows,
        )

    def _fit(self, num_parts: int, epoch: int = 0, stages: Stages = ()) -> Fit:
        if (key := _key(num_parts, epoch, stages)) not in self._fits:
            demand = self.demand(num_parts, epoch, stages)
            self._fits[key] = demand.fit(self._limit(num_parts))
        return self._fits[key]

    def _facts(self, epoch: int = 0, stages: Stages = ()) -> ClipFacts:
        """What settings are chosen for: all epochs, or what some stages have left of one."""
        if not stages:
            return self._facts_of_all
        table, episodes = self.clips_left(epoch, stages), self.selection.episodes
        return ClipFacts.of(table, episodes, self._windows)

    @cached_property
    def _facts_of_all(self) -> ClipFacts:
        selection = self.selection
        return ClipFacts.of(
            selection.typical_clips,
            selection.episodes,
            self._windows,
            any_clips=selection.differs_by_epoch,
        )


def _named(names: Sequence[str], values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={repr_of(values.get(name))}" for name in names)


def _described(episodes: Mapping[str, Any]) -> str:
    count, frames, digest = (repr_of(episodes[name]) for name in ("count", "frames", "digest"))
    return f"{count} episodes of {frames} frames, digest {digest}"


def _key(num_parts: int, epoch: int, stages: Stages) -> tuple[int, int, Stages]:
    return num_parts, epoch if stages else 0, stages
