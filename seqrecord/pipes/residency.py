"""Residency: which frames stay in memory, and how parts then share the clips."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from seqrecord.engine.stores import FrameRows
from seqrecord.errors import MemoryLimitError
from seqrecord.pipes.memory import frames_in_memory
from seqrecord.pipes.selection import Selection
from seqrecord.pipes.states import Sessions
from seqrecord.sampling import Intervals, Part, PlanSettings, Window, shard_frames
from seqrecord.sampling.memory import Demand, Fit
from seqrecord.units import format_size

_MAX_SHARES = 1 << 24  # arrays of 128 MiB; only a damaged state has more


@dataclass(frozen=True, eq=False)
class Residency:
    """Which frames of a selection stay in memory.

    Parts of an epoch with `fixed_shards` keep their clips while frames stay. Unless `keeps_decoded`
    only small frames stay.
    """

    selection: Selection
    settings: PlanSettings
    windows: Sequence[Window]
    fixed_shards: bool
    keeps_decoded: bool

    def frames(self, num_parts: int, sessions: Sessions) -> int:
        """How many frames may stay in a part; about as many, where there are several shards."""
        return self._frames(num_parts, self._may_shard(num_parts, sessions))

    def fit(self, demand: Demand, limit: int, sessions: Sessions) -> Fit:
        """The best settings within a limit, of an epoch in the parts of the demand."""
        fitted, num_parts = demand.fit(limit), demand.num_parts
        if fitted.in_memory is None or not self._may_shard(num_parts, sessions):
            return fitted
        settings = replace(fitted.settings, resident=self.settings.shuffle)
        if num_parts > 1:  # the number of frames was a guess
            most = self._most_frames(num_parts, settings)
            fitted = replace(fitted, sizes=demand.sizes, in_memory=None).with_all(most)
        if fitted.in_memory is None:
            return replace(demand, frames_in_memory=0).fit(limit)
        return replace(fitted, settings=settings)

    def fit_given(
        self, demand: Demand, limit: int, settings: PlanSettings, sessions: Sessions
    ) -> Fit:
        """Memory for the settings of a saved state.

        Raises `MemoryLimitError` where it does not hold the frames that must stay.
        """
        num_parts = demand.num_parts
        is_sharded = self._is_sharded(num_parts, sessions, settings)
        frames = self._frames(num_parts, is_sharded)
        if is_sharded and num_parts > 1 and frames:
            frames = self._most_frames(num_parts, settings)
        fitted = replace(demand, frames_in_memory=frames).fit_given(settings, limit)
        if settings.resident and fitted.in_memory is None:
            sizes = demand.sizes.of_staying
            least = sizes.held((frames,) * len(sizes.frames)) + sizes.beside_arena(1, 1)
            raise MemoryLimitError(
                "memory_limit is too small for the order of the saved state, in which all frames "
                "stay in memory",
                file=demand.url,
                expected=f"about {format_size(least)} or more",
                got=format_size(limit),
            )
        return fitted

    def rows(self, part: Part, sessions: Sessions, settings: PlanSettings) -> tuple[FrameRows, ...]:
        """The rows of each group's frames that stay in a part."""
        selection = self.selection
        if part.count > 1 and self._is_sharded(part.count, sessions, settings):
            return tuple(map(FrameRows, self._shards(part.count, settings, part)[0]))
        rows = FrameRows.of_episodes(selection.episodes.num_frames, selection.clip_set.selected)
        return (rows,) * len(selection.episodes.groups)

    def features(self, stays: bool) -> dict[str, list[str]]:
        """Features whose frames stay in memory, if they do, and those decoded in every epoch."""
        features, transform = self.selection.dataset.features, self.selection.frames.transform
        decoded = [n for n, spec in features.items() if transform is not None or not spec.is_raw]
        return {
            "features_resident": list(features) if stays else [],
            "features_redecoded": [] if stays else decoded,
        }

    def _may_shard(self, num_parts: int, sessions: Sessions) -> bool:
        """Whether parts may have the same clips in every epoch."""
        if self.settings.order == "sequences" or sessions:
            return False
        if num_parts > 1 and self.selection.clip_set.differs_by_epoch:
            return False
        return self.fixed_shards or not self.settings.shuffle

    def _is_sharded(self, num_parts: int, sessions: Sessions, settings: PlanSettings) -> bool:
        """Whether parts of these settings have the same clips in every epoch."""
        return self._may_shard(num_parts, sessions) and settings.resident == settings.shuffle

    def _frames(self, num_parts: int, is_sharded: bool) -> int:
        """Several parts whose clips change from epoch to epoch would decode nearly all frames each:
        only small ones stay."""
        is_sharded |= num_parts == 1
        only_small = not (is_sharded and self.keeps_decoded)
        found = frames_in_memory(self.selection, only_small=only_small)
        return -(-found // num_parts) if is_sharded else found

    def _most_frames(self, num_parts: int, settings: PlanSettings) -> int:
        """The most frames of a group that a part needs; for very many shares, an upper bound."""
        if num_parts * max(settings.num_cursors, settings.num_shares or 1) > _MAX_SHARES:
            return frames_in_memory(self.selection, only_small=False)
        return self._shards(num_parts, settings)[1]

    def _shards(
        self, num_parts: int, settings: PlanSettings, part: Part | None = None
    ) -> tuple[list[Intervals], int]:
        """See `shard_frames`."""
        parts = None if part is None else np.array([part.index])
        table, episodes = self.selection.clip_set.clips, self.selection.episodes
        return shard_frames(table, episodes, self.windows, settings, num_parts, parts)
