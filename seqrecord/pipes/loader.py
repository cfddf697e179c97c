"""ClipLoader: settings in, epochs of clips out. Every pipe is a thin shell around one."""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cached_property
from os import PathLike
from typing import Any, TypeAlias

import torch
from torch.utils.data import get_worker_info

from seqrecord.clips import ClipTable
from seqrecord.cores import usable_cores
from seqrecord.device.streams import check_device, find_device
from seqrecord.engine import Engine
from seqrecord.engine.filling import Batch
from seqrecord.engine.stats import EngineStats
from seqrecord.engine.trace import Trace, trace_path
from seqrecord.engine.workspace import Workspaces
from seqrecord.errors import ClipError, StateError
from seqrecord.frames import FrameTransform
from seqrecord.pipes.distributed import Ranks
from seqrecord.pipes.memory import Fit, FrameSizes, fit, fit_given
from seqrecord.pipes.selection import ClipSelection
from seqrecord.pipes.states import State, shown
from seqrecord.plan import EpochPlan, PlanSettings, Split, check_drop_last
from seqrecord.reader import Dataset, EpisodeFilter
from seqrecord.storage import StorageLike, local_path
from seqrecord.units import parse_size

__all__ = ["Clip", "ClipLoader"]

_logger = logging.getLogger("seqrecord")

Clip: TypeAlias = dict[str, Any]
"""Feature name to tensor [frames, …], or list of tensors; `episode` a key, `start` an int.

A batch of clips is the same with one axis more: tensors [clips, frames, …] or lists of lists,
`episode` a list of keys, `start` int64 [clips].
"""


class ClipLoader:
    """Plans epochs over a selection of clips and runs them. Picklable.

    See `SeqRecordPipe` for the arguments. Raises `ClipError` where there is no clip at all, and
    `MemoryLimitError` for a memory limit that is too small, with the least that would do.
    """

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
        self.batch_size = None if batch_size is None else _positive("batch_size", batch_size)
        asked: dict[str, Any] = {
            "shuffle": bool(shuffle),
            "seed": _integer("seed", seed),
            "batch_size": self.batch_size,
            "drop_last": bool(drop_last),
            "equal": bool(equal),
            "rotate_phase": bool(rotate_phase) and stride != 1,
        }
        self._asked = tuple(asked)  # the other settings are chosen
        self._settings = PlanSettings(**asked)
        self._shuffle_buffer = (
            None if shuffle_buffer is None else _positive("shuffle_buffer", shuffle_buffer)
        )
        self._open_episodes = (
            None if open_episodes is None else _positive("open_episodes", open_episodes)
        )
        self._num_threads = None if num_threads is None else _positive("num_threads", num_threads)
        self.ranks = Ranks(rank, world_size)
        self.device = None if device is None else check_device(device)
        self._trace = None if trace is None else local_path(trace, "trace").absolute()
        try:
            self._memory_limit = parse_size(memory_limit)
        except ValueError as error:
            raise ClipError(f"memory_limit: {error}") from None
        self.selection = ClipSelection(
            location,
            clip_len=clip_len,
            stride=stride,
            rotate_phase=self._settings.rotate_phase,
            dilation=dilation,
            features=features,
            episodes=episodes,
            frame_transform=frame_transform,
            verify=verify,
            storage_options=storage_options,
            cache_dir=cache_dir,
            cache_limit=cache_limit,
        )
        self._workspaces = Workspaces()
        self._fits: dict[int, Fit] = {}
        self._told: set[int] = set()  # numbers of splits whose limit was logged
        self._fit(1)  # so that a limit that is too small is an error here and now

    def set_shuffle(self, shuffle: bool) -> None:
        """Turn shuffling on or off for the epochs to come."""
        self._settings = replace(self._settings, shuffle=bool(shuffle))
        self._fits.clear()
        self._fit(1)

    def clips(self, epoch: int) -> ClipTable:
        """The clips of an epoch."""
        phases, settings = self.selection.phases, self._settings
        if phases is None:
            return self.selection.clips
        return self.selection.clips_of(
            phases.of_epoch(epoch, seed=settings.seed, shuffle=settings.shuffle)
        )

    def num_clips(self, epoch: int) -> int:
        """How many clips an epoch has, over all splits."""
        return self.clips(epoch).num_clips

    def plan(self, epoch: int, split: Split) -> EpochPlan:
        """The plan of one split of one epoch.

        Raises `ClipError` when `drop_last` leaves no batch in this epoch, or in one of another
        phase.
        """
        if (phases := self.selection.phases) is not None:  # now, not at the epoch of that phase
            check_drop_last(phases.fewest_clips, self._settings, split.count)
        limited = self._fit(split.count).limited
        if limited and split.index == 0 and split.count not in self._told:
            self._told.add(split.count)
            _logger.info("%s: %s", self.selection.dataset.url, limited)
        return EpochPlan(
            self.clips(epoch),
            self.selection.dataset.episode_table,
            self._fit(split.count).settings,
            epoch=epoch,
            split=split,
        )

    def start(
        self, plan: EpochPlan, *, batch: int = 0, threads: int | None = None, stats: EngineStats
    ) -> Engine:
        """An engine that runs a plan from `batch` on.

        It works with `num_threads`, else with `threads`, else with as many as there are cores.
        """
        device = self._find_device()
        fitted = self._fit(plan.split.count)
        rows = fitted.rows(fitted.resident or plan.max_resident_frames)
        prefetch, max_ahead = fitted.prefetch, fitted.chunks_ahead(rows)
        # Where clips do not overlap the arena's memory is better spent on batches.
        ahead = prefetch + rows // ((self.batch_size or 1) * self.selection.spec.length)
        all_fixed = all(spec.is_fixed for spec in self.selection.arrays.values())
        one_phase = fitted.resident is None  # with others, epochs would not share their memory
        if (
            device is None
            and all_fixed
            and one_phase
            and plan.is_disjoint
            and ahead >= plan.most_batches
        ):
            rows, prefetch = 0, ahead
        return Engine(
            self.selection.dataset,
            self.selection.arrays,
            plan,
            self.selection.spec,
            batch=batch,
            num_rows=rows,
            num_threads=self._num_threads or threads or usable_cores(),
            max_loads=fitted.max_loads,
            max_ahead=max_ahead,
            prefetch=prefetch,
            frame_transform=self.selection.frame_transform,
            device=device,
            shared=get_worker_info() is not None,
            stats=stats,
            workspaces=self._workspaces,
        )

    def trace(self) -> Trace:
        """The trace of an iteration in this process."""
        if self._trace is None:
            return Trace()
        rank, worker = self.ranks.current(), get_worker_info()
        return Trace(
            trace_path(
                self._trace,
                rank=(rank.number, rank.count),
                worker=None if worker is None else worker.id,
            )
        )

    def clip(self, batch: Batch) -> Clip:
        """A batch, or without `batch_size` its one clip, as users get it."""
        keys = [self.selection.key(episode) for episode in batch.episode.tolist()]
        features: Clip = dict(batch.features)
        if self.batch_size is not None:
            return {**features, "episode": keys, "start": torch.from_numpy(batch.start)}
        first = {name: item[0] for name, item in features.items()}
        return {**first, "episode": keys[0], "start": int(batch.start[0])}

    def settings(self, num_splits: int) -> PlanSettings:
        """The settings of an epoch in so many splits, all of them chosen."""
        return self._fit(num_splits).settings

    def adopt(self, settings: PlanSettings, num_splits: int) -> None:
        """Keep these settings for epochs in so many splits, instead of those that memory suggests.

        Raises `MemoryLimitError`, which says the least that would do, where they do not fit.
        """
        self._fits[num_splits] = fit_given(
            self.selection, settings, self._sizes, memory_limit=self._memory_limit
        )

    @contextmanager
    def adopting(self, settings: PlanSettings, num_splits: int) -> Iterator[None]:
        """`adopt`, unless the block raises."""
        before = dict(self._fits)
        self.adopt(settings, num_splits)
        try:
            yield
        except BaseException:
            self._fits = before
            raise

    def request(self) -> dict[str, Any]:
        """What was asked for beside the settings that plans have, as JSON."""
        spec = self.selection.spec
        return {
            "clip_len": spec.length,
            "stride": spec.stride,
            "dilation": spec.dilation,
            "features": sorted(self.selection.dataset.features),
            "frame_transform": dict(self._array_texts),
            "shuffle_buffer": self._shuffle_buffer,
        }

    @cached_property
    def _array_texts(self) -> dict[str, str]:
        return {name: str(spec) for name, spec in sorted(self.selection.arrays.items())}

    def check_state(self, state: State) -> None:
        """Raise `StateError` for a state of other clips or another order, and say what differs.

        What memory and defaults have chosen may differ, and where the dataset lies, how fast, with
        how many threads or in how much memory it is read; what was asked for may not.
        """
        saved, asked = asdict(state.settings), asdict(self._settings)
        now = {name: asked[name] for name in self._asked}
        if self._open_episodes is not None:
            now["open_episodes"] = self._open_episodes
        request = self.request()
        if request["shuffle_buffer"] is None:
            del request["shuffle_buffer"]
        saved, now = {**state.request, **saved}, {**request, **now}
        if not self._settings.shuffle and saved["shuffle"] is False:
            for name in ("seed", "open_episodes", "shuffle_buffer"):
                now.pop(name, None)
        differ = [name for name in now if name not in saved or saved[name] != now[name]]
        if "features" in differ and "frame_transform" in differ:
            differ.remove("frame_transform")  # its arrays are the features
        url, identity = self.selection.dataset.url, self.selection.identity
        if differ:
            raise StateError(
                f"the saved state is of other settings: {', '.join(differ)}",
                file=url,
                expected=", ".join(f"{name}={now[name]!r}" for name in differ),
                got=", ".join(f"{name}={shown(saved.get(name))}" for name in differ),
            )
        if state.episodes["digest"] != identity["digest"]:
            same = state.episodes["dataset"] == identity["dataset"]
            raise StateError(
                "the saved state is of other episodes of this dataset"
                if same
                else "the saved state is of another dataset, or this one has changed: select the "
                "state's episodes, if they are still the same",
                file=url,
                expected=_describe(identity),
                got=_describe(state.episodes),
            )

    def _find_device(self) -> torch.device | None:
        if self.device is None:
            return None
        if self.device.type != "cpu" and get_worker_info() is not None:
            raise ClipError(
                "a DataLoader's worker process cannot hand over what is on a device",
                expected="num_workers=0, for this loader has threads of its own, or "
                "seqrecord.prefetch_to_device around the DataLoader",
                got=self.device,
            )
        return find_device(self.device)

    def _fit(self, num_splits: int) -> Fit:
        if num_splits not in self._fits:
            self._fits[num_splits] = fit(
                self.selection,
                self._settings,
                self._sizes,
                memory_limit=self._memory_limit,
                shuffle_buffer=self._shuffle_buffer,
                open_episodes=self._open_episodes,
                num_splits=num_splits,
            )
        return self._fits[num_splits]

    @cached_property
    def _sizes(self) -> FrameSizes:
        return FrameSizes.of(self.selection, self.batch_size)


def _describe(episodes: Mapping[str, Any]) -> str:
    count, frames, digest = (shown(episodes[name]) for name in ("count", "frames", "digest"))
    return f"{count} episodes of {frames} frames, digest {digest}"


def _integer(name: str, value: Any) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise ClipError(f"{name} is not an integer", got=repr(value)[:100]) from None


def _positive(name: str, value: Any) -> int:
    if (number := _integer(name, value)) < 1:
        raise ClipError(f"{name} is too small", expected="at least 1", got=number)
    return number
