"""What every plan has: what an engine asks of it, and how rounds are made of cursors' blocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from seqrecord.clips import ClipSpec, ClipTable, EpisodeTable, IntArray
from seqrecord.forks import cached_property
from seqrecord.sampling.needs import Blocks
from seqrecord.sampling.parts import Part
from seqrecord.sampling.rounds import Clips, Frees, GroupRound, Loads, Round, frees_of, loads_of
from seqrecord.sampling.settings import PlanSettings
from seqrecord.sampling.walks import Walk
from seqrecord.sampling.windows import Window

__all__ = ["GroupPlan", "Plan"]

_WHOLE = Part()
_CLIPS_AT_ONCE = 1 << 15  # rounds are computed in groups of about so many clips
_CLIPS_AT_FIRST = 1 << 11  # … an epoch's first ones in smaller groups: batches wait for these


@dataclass(frozen=True)
class GroupPlan:
    """What holds for a group of features in all rounds.

    `group` is its number in the schema. In no round are more than `max_resident_frames` held.
    Where chunks are loaded `in_pieces`, loads of a cursor go on where the one before ended.
    """

    group: int
    window: Window  # what a clip uses
    max_resident_frames: int  # the arena's rows
    in_pieces: bool = False


class Plan(ABC):
    """The plan of one part of one epoch: rounds of cursors, whose clips are one stream of batches.

    `windows` are what clips use of each group of `episodes`; by default whole clips of all. In an
    epoch whose parts have changed `stage` times, `table` has what was left of it (see `rest`). A
    subclass lays out the clips, and says in which order a round's clips come.
    """

    settings: PlanSettings
    epoch: int
    part: Part
    num_clips: int  # that this part emits
    num_dropped: int  # that it would emit without `drop_last`
    num_repeated: int  # of `num_clips`, that another part emits too
    num_batches: int
    num_rounds: int
    num_cursors: int
    leading: int  # of the groups

    _spec: ClipSpec
    _episodes: EpisodeTable
    _windows: tuple[Window, ...]  # of each group
    _batch_size: int
    _cursors: Walk
    _before: IntArray  # clips before each round, and before the end
    _resident: list[int]  # the most frames held, of each group

    def __init__(
        self,
        table: ClipTable,
        episodes: EpisodeTable,
        settings: PlanSettings,
        *,
        epoch: int = 0,
        part: Part = _WHOLE,
        stage: int = 0,
        windows: Sequence[Window] | None = None,
    ) -> None:
        self.settings, self.epoch, self.part = settings, epoch, part
        self._spec, self._episodes = table.spec, episodes
        self._windows = tuple(windows or [Window.of(table.spec)] * len(episodes.groups))
        self.leading = episodes.leading
        self._batch_size = settings.batch_size or 1
        self._lay_out(table, stage)

    @abstractmethod
    def _lay_out(self, table: ClipTable, stage: int) -> None:
        """Set what follows from the clips: all attributes above that are not arguments."""

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(epoch {self.epoch}, part {self.part.index} of "
            f"{self.part.count}: {self.num_clips} clips in {self.num_batches} batches, "
            f"{self.num_rounds} rounds of {self.num_cursors} cursors, at most {self._resident} "
            "frames resident)"
        )

    @property
    def counts(self) -> dict[str, int]:
        """What this part's statistics say of its clips."""
        return {
            "clips_dropped": self.num_dropped,
            "clips_repeated": self.num_repeated,
            "mixed_from": self.num_cursors,
        }

    @cached_property
    def groups(self) -> tuple[GroupPlan, ...]:
        """The groups, in the order of those of the episode table."""
        return tuple(
            GroupPlan(grid.group, window, resident, grid.whole is not None)
            for grid, window, resident in zip(
                self._episodes.groups, self._windows, self._resident, strict=True
            )
        )

    def first_clip(self, batch: int) -> int:
        """How many clips the batches before this one hold; `num_clips` for `num_batches`.

        Raises `IndexError` outside `[0, num_batches]`.
        """
        if not 0 <= batch <= self.num_batches:
            raise IndexError(f"a batch's number is not in [0, {self.num_batches}]: {batch}")
        return self._first_clip(batch)

    def locate(self, batch: int) -> tuple[int, int]:
        """Where a batch begins: its round, and how many of that round's clips come before it.

        To resume there, load `resident(round)`, go on with `rounds(round)` and skip so many clips.
        """
        return self.locate_clip(self.first_clip(batch))

    def locate_clip(self, clip: int) -> tuple[int, int]:
        """Where a clip of the part is, in the order in which they are emitted; see `locate`."""
        index = int(np.searchsorted(self._before, clip, side="right")) - 1
        index = min(index, self.num_rounds)
        return index, clip - int(self._before[index])

    def columns(self, batch: int) -> Mapping[str, npt.NDArray[np.bool_]]:  # noqa: ARG002
        """What this plan says of the clips of a batch beside their names, bool[clips] each."""
        return {}

    def resident(self, round_index: int) -> tuple[Loads, ...]:
        """Loads that bring exactly the frames held when a round begins, before its own loads.

        One of each group.
        """
        held = self._cursors.held(round_index)
        return tuple(self._loads(i, b, b.held, b.loaded_before)[1] for i, b in enumerate(held))

    def rounds(self, first_round: int = 0) -> Iterator[Round]:
        """The rounds from `first_round` on, computed as they are taken."""
        for start, stop in self.spans(first_round):
            yield from self._rounds(start, stop)

    def spans(self, first_round: int = 0) -> Iterator[tuple[int, int]]:
        """Rounds `[start, stop)` that are computed together, from `first_round` on."""
        start, clips = first_round, _CLIPS_AT_FIRST
        while start < self.num_rounds:
            group = max(1, clips * self.num_rounds // max(1, self.num_clips))
            yield start, min(start + group, self.num_rounds)
            start, clips = start + group, min(4 * clips, _CLIPS_AT_ONCE)

    def joined(self, start: int, stop: int, *, loads: bool = True) -> Round:
        """The rounds `[start, stop)` as one; without `loads`, its clips alone."""
        clips, groups = self._columns(start, stop)
        done = (GroupRound(loaded, freed) for (_, loaded), (_, freed) in groups if loads)
        return Round(start, clips, tuple(done))

    def _first_clip(self, batch: int) -> int:
        return min(batch * self._batch_size, self.num_clips)

    def _loads(
        self, group: int, blocks: Blocks, start: IntArray, stop: IntArray
    ) -> tuple[IntArray, Loads]:
        """See `loads_of`."""
        grid, window = self._episodes.groups[group], self._windows[group]
        phase = self._spec.phase + window.offset
        return loads_of(blocks, start, stop, grid, window.frame_step, phase)

    def _rounds(self, start: int, stop: int) -> Iterator[Round]:
        marks = np.arange(start, stop + 1)
        clips, groups = self._columns(start, stop)
        by_group = []
        for (loads_round, loads), (frees_round, frees) in groups:
            loads_at = pairwise(np.searchsorted(loads_round, marks).tolist())
            frees_at = pairwise(np.searchsorted(frees_round, marks).tolist())
            by_group.append(
                [
                    GroupRound(loads.rows(*rows), frees.rows(*freed))
                    for rows, freed in zip(loads_at, frees_at, strict=True)
                ]
            )
        clips_at = (self._before[start : stop + 1] - self._before[start]).tolist()
        for i, rows in enumerate(pairwise(clips_at)):
            groups_of_round = tuple(rounds[i] for rounds in by_group)
            yield Round(start + i, clips.rows(*rows), groups_of_round)

    def _columns(
        self, start: int, stop: int
    ) -> tuple[Clips, Iterator[tuple[tuple[IntArray, Loads], tuple[IntArray, Frees]]]]:
        """The clips of some rounds; and of each group its loads and frees, with their rounds."""
        found = [self._in_order(blocks) for blocks in self._cursors.blocks(start, stop)]
        return self._clips(*found[self.leading]), (
            (
                self._loads(i, blocks, blocks.loaded_before, blocks.loaded),
                frees_of(blocks, self._windows[i].frame_step),
            )
            for i, (blocks, _) in enumerate(found)
        )

    @abstractmethod
    def _in_order(self, blocks: Blocks) -> tuple[Blocks, IntArray]:
        """The blocks of whole rounds, and each row's position in its round, int64[n].

        Rows come by round and position: what is needed first is loaded first.
        """

    @abstractmethod
    def _clips(self, blocks: Blocks, position: IntArray) -> Clips:
        """The clips of whole rounds in the order in which they are emitted."""
