"""Executes a plan in the background, and leaves nothing behind when it ends, however it ends.

The threads belong to a conductor, which knows nothing of the engine but the channel between them.
Finished batches wait there: the conductor never runs further ahead than `prefetch` of them.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter

import torch

from seqrecord.clips import ClipSpec
from seqrecord.engine.channel import Channel, ClosedError
from seqrecord.engine.conductor import Conductor
from seqrecord.engine.crew import THREAD_NAME
from seqrecord.engine.filling import Batch
from seqrecord.engine.stats import EngineStats
from seqrecord.engine.workspace import Needs, Workspace, Workspaces
from seqrecord.errors import ClipError
from seqrecord.frames import ArraySpec, FrameTransform
from seqrecord.plan import EpochPlan
from seqrecord.reader import Dataset

__all__ = ["Engine"]

_PATIENCE = 1.0  # seconds; see `_close`


class Engine:
    """Runs one plan from one batch on: an iterator of batches.

    Closing it, or dropping it, or leaving the interpreter, ends its threads. Memory: the arena
    (`num_rows` frames), `prefetch` batches and those that the consumer still holds, and one chunk
    for each load. With a `device`, arena and batches are there, and the host has, beside chunks,
    the decoded frames of the loads under way and of two more that the device copies.

    An error in a thread is raised by `next`, after the batches before it, with the traceback of
    that thread. In a forked process it is of no use.

    Args:
        dataset: of the plan, with the requested features.
        specs: dtype and shape of each feature in clips, after `frame_transform`.
        plan: what to do.
        spec: the clips of the plan.
        batch: the first batch to deliver.
        num_rows: rows of the arena, at least `plan.max_resident_frames`; more let loads run ahead.
            0 for a plan whose clips do not overlap: frames are then loaded straight into them.
        num_threads: for copying, and at most so many for loading.
        max_loads: chunks to load at a time.
        max_ahead: chunks more to hold as they are stored, from storage that isn't a local disk.
        prefetch: batches that are filled or wait, at least 1; without an arena
            `plan.most_batches`.
        frame_transform: called once for each frame, before the arena.
        device: with its number, where the arena and batches are; the host by default.
        shared: the consumer sends the batches to another process.
        stats: counts what is done.
        workspaces: where memory comes from, and where it goes for the next iteration.
    """

    drop: Callable[[], object]
    """As `close`, for places that must not wait long: those that a finalizer may come from."""

    def __init__(
        self,
        dataset: Dataset,
        specs: Mapping[str, ArraySpec],
        plan: EpochPlan,
        spec: ClipSpec,
        *,
        batch: int = 0,
        num_rows: int,
        num_threads: int,
        max_loads: int,
        max_ahead: int = 0,
        prefetch: int,
        frame_transform: FrameTransform | None = None,
        device: torch.device | None = None,
        shared: bool = False,
        stats: EngineStats,
        workspaces: Workspaces,
    ) -> None:
        self.stats = stats
        self._process = os.getpid()
        self._channel: Channel[Batch] = Channel(prefetch)
        size = plan.first_clip(1) if plan.num_batches else 1
        # Batches that are ever in use: those in the channel and the consumer's last two.
        needs = Needs(specs, num_rows, size, spec.length, prefetch + 2, device, shared)
        workspace = workspaces.take(needs)
        stats.watch(dataset.storage.counters)
        conductor = Conductor(
            plan=plan,
            spec=spec,
            dataset=dataset,
            workspace=workspace,
            frame_transform=frame_transform,
            num_threads=num_threads,
            max_loads=max_loads,
            max_ahead=max_ahead,
            channel=self._channel,
            stats=stats,
        )
        # The thread refers to the conductor only, so that dropping the engine ends it.
        thread = threading.Thread(
            target=_run,
            args=(conductor, batch, workspace, weakref.ref(workspaces)),
            name=f"{THREAD_NAME}-conductor",
            daemon=True,
        )
        thread.start()
        _running[self._channel] = thread
        self._thread = thread
        drop = weakref.finalize(self, _close, self._channel, thread, self._process, _PATIENCE)
        drop.atexit = False
        self.drop = drop

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if os.getpid() != self._process:
            raise ClipError("an iteration does not go on in a forked process: begin another there")
        begin = perf_counter()
        try:
            batch = self._channel.get()
        except ClosedError:
            raise ClipError("this iteration was ended: another one has begun") from None
        finally:
            end = perf_counter()
            self.stats.add(waiting_for_batches_seconds=end - begin)
            self.stats.trace.add("wait for batch", begin, end)
        batch.arrive()
        self.stats.add(batches=1, clips=len(batch))
        return batch

    def close(self) -> None:
        """End all threads; nothing is left when it returns."""
        _close(self._channel, self._thread, self._process, None)


def _run(
    conductor: Conductor,
    batch: int,
    workspace: Workspace,
    workspaces: weakref.ref[Workspaces],
) -> None:
    """What the conductor's thread does; its memory is the next iteration's, if there is one."""
    end = conductor.run(batch)
    if (alive := workspaces()) is not None:
        alive.give_back(workspace)
    del workspace, alive
    end()


_running: weakref.WeakKeyDictionary[Channel[Batch], threading.Thread] = weakref.WeakKeyDictionary()
os.register_at_fork(after_in_child=_running.clear)  # a fork has none of the threads


@atexit.register
def _close_all() -> None:
    for channel, thread in list(_running.items()):
        _close(channel, thread, os.getpid(), None)


def _close(
    channel: Channel[Batch], thread: threading.Thread, process: int, patience: float | None
) -> None:
    """End an engine's threads and wait for that, for `patience` seconds.

    A finalizer calls this wherever the garbage collector happens to run: maybe in a thread that
    holds a lock that the engine's threads wait for, or in one of these. So it must not insist.
    """
    if os.getpid() != process:
        return  # a fork's copy: there are no threads, and the channel's lock may be held for ever
    channel.close()
    if not threading.current_thread().name.startswith(THREAD_NAME):
        thread.join(patience)
