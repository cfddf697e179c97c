"""The executor, with plans of several groups and a loader that says whose each frame is."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seqrecord import ClipSpec
from seqrecord.clips.frames import ClipFrames, ClipUse, MissingFrames, OffsetWindow
from seqrecord.clips.grids import ChunkGrid, IntArray
from seqrecord.clips.tables import ClipTable, EpisodeTable, enumerate_clips
from seqrecord.engine.batches import Batch, Channel, OpenBatch
from seqrecord.engine.buffers import Buffers, GroupNeeds, HostBuffers, Needs
from seqrecord.engine.device.buffers import DeviceBuffers
from seqrecord.engine.device.streams import streams_of
from seqrecord.engine.executor import Executor
from seqrecord.engine.stats import EngineStats
from seqrecord.engine.stores import AllFrames, FrameStore, Load, Rings, first_rows
from seqrecord.engine.workers import WorkerPool
from seqrecord.reading.frames import ArraySpec
from seqrecord.sampling import Clips, EpochPlan, Part, PlanSettings, Window
from seqrecord.sampling.memory import Memory
from tests.side_streams import make_stream

NAMES = [["image", "depth"], ["pose"], ["label"]]  # by group
STAYING = ("in_memory", "chunks")  # with loads of some frames, or of all that is used of a chunk

SPECS: Mapping[str, ArraySpec] = {
    "image": ArraySpec(np.dtype("<i4"), (3,)),
    "pose": ArraySpec(np.dtype("<i8"), (3,)),
    "depth": ArraySpec(np.dtype("<i2"), (3,)),
    "label": ArraySpec(np.dtype("<i4"), (3,)),
}


class NumberedLoader:
    """Writes the group, the episode and the number of each frame, as a `ChunkLoader` would."""

    in_pieces = ()

    def __init__(self, plan: EpochPlan, grids: Sequence[ChunkGrid], buffers: Buffers[Any]) -> None:
        self.loaded: list[tuple[int, int, int]] = []  # group, episode and frame
        self.chunks: list[tuple[int, int]] = []  # group, and chunk
        # Then loads are joined, and none is fetched.
        self.is_local = plan.settings.seed % 2 == 0
        self._steps = {group.group: group.window.frame_step for group in plan.groups}
        self._grids = {grid.group: grid for grid in grids}
        self._buffers = buffers

    def joins(self, load: Load) -> bool:
        return self.is_local

    def begins_chunk(self, load: Load) -> bool:
        return True

    def fetch(self, load: Load) -> str:
        return f"chunk {load.chunk} of group {load.group}"

    def __call__(
        self, loads: Sequence[Load], target: Any, rows: IntArray, fetched: str | None = None
    ) -> None:
        assert fetched is None or [fetched] == list(map(self.fetch, loads)), "of another load"
        with self._buffers.storing(target, rows) as (out, places):
            for load in loads:
                self.chunks.append((load.group, load.chunk))
                frames = load.first + np.arange(load.count) * self._steps[load.group]
                grid, episode = self._grids[load.group], np.full(len(frames), load.episode)
                assert (grid.row(episode, grid.place(episode, frames)) == load.chunk).all()
                self.loaded += [(load.group, load.episode, frame) for frame in frames.tolist()]
                mine, places = places[: len(frames)].tolist(), places[len(frames) :]
                for name in NAMES[load.group]:
                    for frame, row in zip(frames, mine, strict=True):
                        out[name][row] = (load.group, load.episode, frame)


@st.composite
def tables(draw: st.DrawFn) -> EpisodeTable:
    """A few episodes, with one to three groups of features; chunks are even, or of any lengths."""
    num_frames = draw(st.lists(st.integers(1, 40), min_size=1, max_size=4))
    grids = []
    for group in range(draw(st.integers(1, 3))):
        size = draw(st.integers(1, 50))
        starts = [
            sorted({0, *draw(st.lists(st.integers(0, count - 1), max_size=4))})
            if draw(st.booleans())
            else list(range(0, count, size))
            for count in num_frames
        ]
        counts = np.array([len(item) for item in starts])
        grids.append(
            ChunkGrid.of(
                np.array(num_frames),
                np.cumsum(counts) - counts,
                np.concatenate(starts),
                group=group,
            )
        )
    leading = draw(st.integers(0, len(grids) - 1))
    return EpisodeTable(np.array(num_frames), tuple(grids)).led_by(
        leading, np.arange(len(num_frames))
    )


def chunks_of(grid: ChunkGrid, num_frames: IntArray) -> tuple[int, Any]:
    """The number of a group, and of each of its chunks the first frame and how many there are."""
    first, count = [], []
    for episode, length in enumerate(num_frames.tolist()):
        frame = 0
        while frame < length:
            stop = min(length, int(grid.stop(np.array([episode]), np.array([frame]))[0]))
            first.append(frame)
            count.append(stop - frame)
            frame = stop
    return grid.group, SimpleNamespace(first_frame=np.array(first), num_frames=np.array(count))


def make_buffers(kind: str, plan: EpochPlan, frames: ClipFrames, memory: Memory) -> Any:
    names = [name for name in SPECS if any(name in NAMES[g.group] for g in plan.groups)]
    needs = Needs(
        tuple(
            GroupNeeds(
                {name: SPECS[name] for name in NAMES[group.group]}, rows, in_memory=kind in STAYING
            )
            for group, rows in zip(plan.groups, memory.num_rows, strict=True)
        ),
        {name: SPECS[name] for name in names},
        frames.lengths,
        plan.first_clip(1) * memory.together if plan.num_batches else 1,
        memory.prefetch + 2,
        torch.device("cpu") if kind == "device" else None,
    )
    with streams_of("cpu", lambda _: make_stream("late")):
        return DeviceBuffers(needs) if kind == "device" else HostBuffers(needs)


@contextmanager
def running(
    kind: str,
    plan: EpochPlan,
    table: EpisodeTable,
    frames: ClipFrames,
    memory: Memory,
    first: int,
    buffers: Any,
) -> Iterator[tuple[Iterator[Batch], NumberedLoader]]:
    """The batches of a plan from one on, while threads make them; and what loads."""
    stats = EngineStats()
    loader: Any = NumberedLoader(plan, table.groups, buffers)
    together, lock = memory.together, threading.Lock()

    def begin(number: int) -> OpenBatch:
        stop = min(plan.num_batches, first + (number + 1) * together)
        size = plan.first_clip(stop) - plan.first_clip(first + number * together)
        return OpenBatch(size, lambda: buffers.begin_batch(size), lock)

    def slots(clips: Clips, number: int) -> tuple[IntArray, IntArray]:
        assert plan.locate_clip(number)[0] < plan.num_rounds
        if together == 1:
            return clips.batch - first, clips.slot
        return np.divmod(clips.batch - first, together)

    channel = Channel(memory.prefetch, stats, begin)
    threads: Any = {"num_threads": 2, "memory": memory, "channel": channel, "stats": stats}
    workers = WorkerPool(loader, **threads)
    store: FrameStore = Rings(plan, frames, buffers.arenas)
    if kind in STAYING:
        rows = first_rows(table.num_frames, np.arange(len(table)))
        chunks: Any = (
            {}
            if kind == "in_memory"
            else dict(chunks_of(grid, table.num_frames) for grid in table.groups)
        )
        store = AllFrames(plan, frames, buffers.arenas, rows, chunks)

    def run() -> None:
        error = None
        try:
            buffers.begin(stats)
            with workers:
                clips = plan.first_clip(first), plan.num_clips
                if clips[0] < clips[1]:
                    to: Any = {"slots": slots, "filled": channel.fill}
                    executor = Executor(plan, store, workers, channel, frames.num_frames, **to)
                    executor.execute(*clips)
        except BaseException as raised:
            error = raised
        channel.end(error)

    def batches() -> Iterator[Batch]:
        while True:
            try:
                batch = channel.take(os.getpid())
            except StopIteration:
                return
            batch.arrive()
            yield batch

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield batches(), loader
    finally:
        channel.close()
        thread.join(60)
        assert not thread.is_alive()


def check(batch: Batch, plan: EpochPlan, frames: ClipFrames) -> list[tuple[int, int]]:
    """The clips of a batch, whose frames are those of the clips in every group."""
    clips = list(zip(batch.episode.tolist(), batch.start.tolist(), strict=True))
    for group in plan.groups:
        for name in NAMES[group.group]:
            feature: Any = batch.features[name]
            expected = [
                [
                    [group.group, e, min(max(start + offset, 0), int(frames.num_frames[e]) - 1)]
                    for offset in frames.windows[name].held.tolist()
                ]
                for e, start in clips
            ]
            assert feature.tolist() == expected
    return clips


def make_plan(
    data: st.DataObject,
    table: EpisodeTable,
    clips: ClipTable,
    windows: Sequence[Window] | None = None,
) -> EpochPlan:
    chosen = PlanSettings(
        shuffle=data.draw(st.booleans()),
        seed=data.draw(st.integers(0, 9)),
        batch_size=data.draw(st.just(1) | st.integers(1, 7)),
        num_cursors=data.draw(st.integers(1, 4)),
        block_frames=data.draw(st.integers(1, 40)),
        run_frames=data.draw(st.none() | st.integers(1, 50)),
        first_block_frames=data.draw(st.integers(1, 40)),
        num_shares=data.draw(st.none() | st.integers(1, 3)),
    )
    epoch, count = data.draw(st.integers(0, 2)), data.draw(st.integers(1, 3))
    part = Part(data.draw(st.integers(0, count - 1)), count)
    return EpochPlan(clips, table, chosen, epoch=epoch, part=part, windows=windows)


@pytest.mark.parametrize("kind", ["host", "device", *STAYING])
@settings(deadline=None)
@given(data=st.data())
def test_clips_have_their_frames_of_every_group(kind: str, data: st.DataObject) -> None:
    """From any batch on, with as little memory as there may be or with more."""
    table = data.draw(tables())
    length, dilation = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 3))
    stride = data.draw(st.integers(1, 9) | st.just((length - 1) * dilation + 1))
    spec = ClipSpec(length, stride, dilation)
    clips = enumerate_clips(spec, table, np.arange(len(table)))
    whole = dict.fromkeys(SPECS, OffsetWindow.of(np.arange(length) * dilation))
    run(kind, data, table, clips, ClipFrames(whole, table.num_frames))


@pytest.mark.parametrize("kind", ["host", "device", *STAYING])
@settings(deadline=None)
@given(data=st.data())
def test_every_feature_has_a_window_of_its_own(kind: str, data: st.DataObject) -> None:
    """Beyond an episode's ends too; features of one group may have others."""
    table = data.draw(tables())
    pads, stride = data.draw(st.tuples(st.booleans(), st.booleans())), data.draw(st.integers(1, 9))
    some = st.lists(st.integers(-9, 9), min_size=1, max_size=4) | st.builds(
        lambda first, count, step: [*range(first, first + count * step, step)],
        st.integers(-3, 3), st.integers(1, 5), st.integers(1, 3),
    )  # fmt: skip
    drawn = data.draw(st.lists(some, min_size=1, max_size=len(SPECS)))
    offsets = {name: np.array(drawn[i % len(drawn)]) for i, name in enumerate(SPECS)}
    used = [[offsets[name] for name in NAMES[grid.group]] for grid in table.groups]
    windows = [Window.around(of_group, stride, pad=any(pads)) for of_group in used]
    uses = [ClipUse(one, MissingFrames.none()) for of_group in used for one in of_group]
    spec = ClipSpec(1, stride)
    clips = enumerate_clips(spec, table, np.arange(len(table)), uses=uses, pads=pads)
    of_features = {name: OffsetWindow.of(one) for name, one in offsets.items()}
    run(kind, data, table, clips, ClipFrames(of_features, table.num_frames), windows)


def run(
    kind: str,
    data: st.DataObject,
    table: EpisodeTable,
    clips: ClipTable,
    frames: ClipFrames,
    windows: Sequence[Window] | None = None,
) -> None:
    """Check every batch of a plan.

    Where frames stay, after an epoch before, of which some batches were taken.
    """
    plan = make_plan(data, table, clips, windows)
    prefetch = data.draw(st.integers(1, 3))
    more = data.draw(st.sampled_from([1, 1.3, 2, 5, 30]))  # from 2 on rounds may be joined
    rows = tuple(int(group.max_resident_frames * more) for group in plan.groups)
    if kind in STAYING:
        rows = (int(table.num_frames.sum()),) * len(rows)
    memory = Memory(rows, prefetch, data.draw(st.integers(1, 4)), data.draw(st.integers(0, 3)))
    if plan.num_batches and plan.first_clip(1) == 1:  # single clips
        memory = replace(memory, together=data.draw(st.integers(1, 9)))
    first = data.draw(st.integers(0, plan.num_batches))
    buffers = make_buffers(kind, plan, frames, memory)
    before: list[tuple[int, int, int]] = []
    is_whole = True
    if kind in STAYING:
        other = EpochPlan(
            clips, table, plan.settings, epoch=plan.epoch + 1, part=plan.part, windows=windows
        )
        begin = data.draw(st.integers(0, other.num_batches))
        taken = data.draw(st.none() | st.integers(0, other.num_batches))
        with running(kind, other, table, frames, memory, begin, buffers) as (batches, loader):
            for batch in islice(batches, taken):
                check(batch, other, frames)
            is_whole = taken is None
        before = loader.loaded
    with running(kind, plan, table, frames, memory, first, buffers) as (batches, loader):
        found = [check(batch, plan, frames) for batch in batches]
    loaded = loader.loaded
    if kind in STAYING and is_whole:  # no frame twice
        assert len(set(before + loaded)) == len(before) + len(loaded)
    is_first = not before and all(group.window.frame_step == 1 for group in plan.groups)
    if kind == "chunks" and is_first:  # however many cursors need it
        assert len(set(loader.chunks)) == len(loader.chunks)
    begins = [*range(first, plan.num_batches, memory.together), plan.num_batches]
    positions = [plan.first_clip(number) for number in begins]
    ends = np.cumsum([positions[0], *map(len, found)]).tolist()
    assert ends == positions
    every = [clip for batch in found for clip in batch]
    if not first:
        assert len(every) == plan.num_clips
    if not first and plan.part.count == 1:
        episode, start = clips.locate(np.arange(clips.num_clips))
        assert sorted(every) == list(zip(episode.tolist(), start.tolist(), strict=True))
