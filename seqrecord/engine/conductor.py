"""Walks a plan in a thread of its own, whatever the way: clips through the arena, or straight.

Loads of what comes next run while batches are filled, and those wait for the consumer::

    loading threads     load round 1    | load round 2    | load round 3
    conductor, copies                   | gather round 1  | gather round 2
    consumer                                 batch 0  batch 1  batch 2
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from seqrecord.clips import ClipSpec
from seqrecord.device.arena import DeviceArena
from seqrecord.engine.arena_walk import ArenaWalk
from seqrecord.engine.channel import Channel, ClosedError
from seqrecord.engine.crew import Crew
from seqrecord.engine.device_loading import DeviceLoader
from seqrecord.engine.filling import Batch
from seqrecord.engine.loading import ChunkLoader
from seqrecord.engine.stats import EngineStats
from seqrecord.engine.straight_walk import StraightWalk
from seqrecord.engine.workspace import Workspace
from seqrecord.frames import FrameTransform
from seqrecord.plan import EpochPlan
from seqrecord.reader import Dataset

__all__ = ["Conductor"]


class Conductor:
    """Puts a plan's batches into a channel. See the module's docstring."""

    def __init__(
        self,
        *,
        plan: EpochPlan,
        spec: ClipSpec,
        dataset: Dataset,
        workspace: Workspace,
        frame_transform: FrameTransform | None,
        num_threads: int,
        max_loads: int,
        max_ahead: int,
        channel: Channel[Batch],
        stats: EngineStats,
    ) -> None:
        self._plan = plan
        self._spec = spec
        self._workspace: Workspace | None = workspace
        self._channel = channel
        chunks = ChunkLoader(
            dataset,
            workspace.scratch,
            workspace.needs.specs,
            plan.frame_step,
            frame_transform,
            num_threads,
            stats,
        )
        loader: ChunkLoader | DeviceLoader = chunks
        if isinstance(workspace.arena, DeviceArena):
            loader = DeviceLoader(chunks, workspace.arena, stats)
        # Reading from a disk is work for a core. Elsewhere it is mostly waiting, and goes on while
        # there is no room for frames: in memory that is left, or else in half of that of the loads.
        is_local = dataset.chunk_reader().is_local
        spared = 0 if is_local else max(0, max_loads // 2 - max_ahead)
        self._make_crew = partial(
            Crew,
            loader,
            num_loaders=min(num_threads, max_loads) if is_local else max_loads - spared,
            num_ahead=0 if is_local else spared + max_ahead,
            num_copiers=num_threads,
            channel=channel,
            stats=stats,
        )

    def run(self, batch: int) -> Callable[[], None]:
        """Deliver the batches from `batch` on, or the error that prevents it.

        When it returns no thread works in the workspace any more; what it returns tells the
        consumer that this is the end.
        """
        failed: BaseException | None = None
        try:
            self._bind_thread()
            if batch < self._plan.num_batches:
                self._walk(batch)
        except ClosedError:
            pass
        except BaseException as error:  # raised again where the consumer waits
            failed = error
        # An error's traceback refers to this frame, and the user may keep it.
        self._workspace = None
        del self._make_crew
        end, failed = partial(self._channel.end, failed), None
        return end

    def _bind_thread(self) -> None:
        if self._workspace is not None and isinstance(self._workspace.arena, DeviceArena):
            self._workspace.arena.stream.bind_thread()

    def _walk(self, batch: int) -> None:
        assert self._workspace is not None, "a conductor runs once"
        kind = ArenaWalk if self._workspace.arena.num_rows else StraightWalk
        with self._make_crew() as crew:
            kind(self._plan, self._spec, self._workspace, crew).run(batch)
