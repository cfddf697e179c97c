"""How settings change an order: `python -m benchmarks.tartanair.shuffle_quality [--write]`.

Prints three Markdown tables with figures of `benchmarks.mixing`. The first covers
abandonedfactory's ten episodes: plans over a grid of cursors, blocks and run lengths, plans with
default settings, and for comparison sequential reading, a 100-clip buffer over sequential reading,
and a full permutation. The second has default settings by number of shards, the third those of a
million episodes in thousands of shards. `--write` writes them into ORDER.md. Computes with integers
only; reads no data.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from seqrecord.loader.sampling.bounds import ClipStats, PlanSettings
from seqrecord.loader.sampling.epoch import EpochPlan
from seqrecord.loader.sampling.memory import AHEAD, FrameSizes, MemoryRequest

from benchmarks.mixing import EpochRows, Mixing, mean, shuffled_episodes
from benchmarks.mixing import measure as measure_rows
from benchmarks.prose import write as write_block
from benchmarks.timing import commit_of_code
from seqrecord.loader.clips.tables import ClipTable, EpisodeLayout, enumerate_clips
from seqrecord.loader.sampling.runs import Shard
from seqrecord.store.clip_spec import ClipSpec
from seqrecord.store.tables.grids import ChunkGrid

__all__ = [
    "ABANDONEDFACTORY",
    "PAGE",
    "TABLES",
    "Measured",
    "buffered",
    "commit_line",
    "default_settings",
    "episode_table",
    "measure",
    "memory_request",
    "orders",
    "shards",
]

PAGE = "benchmarks/tartanair/ORDER.md"

IntArray = npt.NDArray[np.int64]

ABANDONEDFACTORY = (2176, 434, 927, 1357, 1077, 731, 1656, 339, 3717, 3084)
SPAN, BATCH, CHUNK = 16, 32, 8  # frames of a clip, clips of a batch, frames of a chunk
SPEC = ClipSpec(SPAN)
FRAMES = 1000  # that fit into memory
EPOCHS, SAMPLED = 5, 32  # epochs and shards that figures are means of, at most
COPIES = 20  # of abandonedfactory in the larger dataset: 309,960 frames
MANY = 1_000_000  # episodes of 20 to 180 frames
ROOM = 600_000  # frames of 32x32 pixels that fit into the default memory_limit
_HEADER = """\
| order | resident frames | read / distinct | step | last steps | phase | neighbours | composition |
|---|---|---|---|---|---|---|---|"""
_SPLITS_HEADER = """\
| frames | shards | room for frames | chosen | resident frames | read / distinct | rank |
|---|---|---|---|---|---|---|"""


def commit_line() -> str:
    """The line of a page that names the measured code."""
    return f"Commit: {commit_of_code()}. No figure here depends on time."


def episode_table(num_frames: Sequence[int] | IntArray, chunk_frames: int) -> EpisodeLayout:
    """Episodes of these lengths, one after the other, all in chunks of one size."""
    lengths = np.array(num_frames, np.int64)
    chunks = -(-lengths // chunk_frames)
    sizes = np.full(len(lengths), chunk_frames, np.int64)
    return EpisodeLayout(lengths, (ChunkGrid(sizes, np.cumsum(chunks) - chunks),))


def memory_request(
    stats: ClipStats,
    settings: PlanSettings,
    *,
    shuffle_buffer: int | None = None,
    num_cursors: int | None = None,
    num_shards: int = 1,
) -> MemoryRequest:
    """Memory request with frames of one byte, so that limits are numbers of frames."""
    sizes = FrameSizes((1,) * len(stats.groups), 0, 0)
    return MemoryRequest(stats, settings, sizes, num_shards, num_cursors, shuffle_buffer)


def default_settings(
    stats: ClipStats,
    settings: PlanSettings,
    *,
    shuffle_buffer: int | None,
    max_held: int,
    num_cursors: int | None = None,
    num_shards: int = 1,
) -> PlanSettings:
    """Settings chosen by default if at most `max_held` frames stay in memory."""
    asked = memory_request(
        stats,
        settings,
        shuffle_buffer=shuffle_buffer,
        num_cursors=num_cursors,
        num_shards=num_shards,
    )
    return asked.default_settings(max_held, int(AHEAD * max_held))


def buffered(num_clips: int, buffer: int, seed: int) -> IntArray:
    """Positions as `.shuffle(buffer_size)` emits them from sequential reading; int64[num_clips]."""
    rng = np.random.default_rng(seed)
    waiting: list[int] = []
    order: list[int] = []
    for clip in range(num_clips):
        if len(waiting) < buffer:
            waiting.append(clip)
        else:
            place = int(rng.integers(buffer))
            order.append(waiting[place])
            waiting[place] = clip
    order += rng.permutation(np.array(waiting, np.int64)).tolist()
    return np.array(order, np.int64)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--write", action="store_true", help="write ORDER.md")
    options = parser.parse_args(arguments)
    measured_code = commit_line()
    for name, table in TABLES.items():
        block = "\n".join((measured_code, "", *table())) + "\n"
        print(block)
        if options.write:
            write_block(PAGE, name, block)


def orders(epochs: int = EPOCHS) -> Iterator[str]:
    """Orders and settings of abandonedfactory's episodes, in one shard: a step is a batch."""
    episodes = episode_table(ABANDONEDFACTORY, CHUNK)
    table = enumerate_clips(SPEC, episodes, np.arange(len(episodes)))
    yield _HEADER
    rng = np.random.default_rng(0)
    for name, positions in (
        ("sequential", np.arange(table.num_clips)),
        ("100-clip buffer over sequential", buffered(table.num_clips, 100, 0)),
        ("full permutation", rng.permutation(table.num_clips)),
    ):
        clips = table.locate(positions)
        step = np.arange(table.num_clips) // BATCH
        rows = EpochRows(step, np.zeros_like(step), clips.episode, clips.start)
        yield _row(name, measure_rows(rows, ABANDONEDFACTORY, SPAN))
    for name, settings in _grid(table, episodes):
        measured = measure(table, episodes, settings, epochs=epochs)
        yield _row(name, measured.mixing, measured.resident, measured.reread)


@dataclass(frozen=True)
class Measured:
    """Figures of whole epochs: mixing of the measured shards, as if there were no others; maximum
    resident frames of a shard, and frames read over distinct frames of the clips."""

    mixing: Mixing
    resident: int
    reread: float


def measure(
    table: ClipTable,
    episodes: EpisodeLayout,
    settings: PlanSettings,
    *,
    num_shards: int = 1,
    some: int | None = None,
    epochs: int = 1,
    distinct: int | None = None,
) -> Measured:
    """Figures of `epochs` epochs.

    `some` is the number of evenly spaced shards to measure per epoch, by default all. `distinct`
    is the number of distinct frames of the clips; counted by default.
    """
    if distinct is None:
        in_order = EpochPlan(table, episodes, PlanSettings(shuffle=False))  # loads each frame once
        distinct = sum(int(work.groups[0].loads.count.sum()) for work in in_order.rounds())
    chosen = np.unique(np.linspace(0, num_shards - 1, some or num_shards).astype(int)).tolist()
    mixings, read, resident = [], 0, 0
    for epoch in range(epochs):
        columns = []
        for rank, index in enumerate(chosen):
            shard = Shard(index, num_shards)
            plan = EpochPlan(table, episodes, settings, epoch=epoch, shard=shard)
            for work in plan.rounds():
                clips = work.clips
                ranks = np.full_like(clips.batch, rank)
                columns.append((clips.batch, ranks, clips.episode, clips.start))
                read += int(work.groups[0].loads.count.sum())
            resident = max(resident, plan.groups[0].max_resident_frames)
        rows = EpochRows(*map(np.concatenate, zip(*columns, strict=True)))
        mixings.append(measure_rows(rows, episodes.num_frames, table.spec.span))
    share = epochs * len(chosen) / num_shards
    return Measured(mean(mixings), resident, read / share / distinct)


def shards(epochs: int = EPOCHS, sampled: int = SAMPLED) -> Iterator[str]:
    """Default settings by number of shards."""
    yield _SPLITS_HEADER
    for copies, num_shards, room in (
        (1, 1, FRAMES),
        (1, 1, ROOM),
        (1, 8, FRAMES),
        (COPIES, 1, FRAMES),
        (COPIES, 8, FRAMES),
        (COPIES, 64, FRAMES),
        (COPIES, 256, FRAMES),
        (COPIES, 256, ROOM),
    ):
        averaged_epochs = epochs if copies * num_shards < COPIES else 1
        lengths = np.array(ABANDONEDFACTORY * copies)
        yield _shards_row(lengths, num_shards, room, sampled, averaged_epochs)


def many_shards() -> Iterator[str]:
    """Default settings of a million episodes in thousands of shards."""
    yield _SPLITS_HEADER
    lengths = np.random.default_rng(0).integers(20, 181, MANY)
    for num_shards in (4096, 10_000):
        yield _shards_row(lengths, num_shards, FRAMES, SAMPLED, 1, distinct=int(lengths.sum()))


TABLES = {"orders": orders, "shards": shards, "many shards": many_shards}
"""Blocks of ORDER.md."""


def _shards_row(
    lengths: IntArray,
    num_shards: int,
    room: int,
    sampled: int,
    epochs: int,
    distinct: int | None = None,
) -> str:
    episodes = episode_table(lengths, CHUNK)
    table = enumerate_clips(SPEC, episodes, np.arange(len(episodes)))
    chosen = default_settings(
        ClipStats.of(table, episodes),
        PlanSettings(seed=1, batch_size=BATCH),
        shuffle_buffer=None,
        max_held=room,
        num_shards=num_shards,
    )
    measured = measure(
        table,
        episodes,
        chosen,
        num_shards=num_shards,
        some=min(num_shards, sampled),
        epochs=epochs,
        distinct=distinct,
    )
    clips = np.bincount(table.episode, table.count, len(episodes)).astype(np.int64)
    found = measured.mixing.rank_episodes.value / shuffled_episodes(clips, BATCH)
    return (
        f"| {int(episodes.num_frames.sum()):,} | {num_shards:,} | {room:,} "
        f"| {_described(chosen)} | {measured.resident:,} | {measured.reread:.3f} | {found:.2f} |"
    )


def _grid(table: ClipTable, episodes: EpisodeLayout) -> Iterator[tuple[str, PlanSettings]]:
    base = PlanSettings(seed=1, batch_size=BATCH)
    for cursors, block, run in (
        (8, 8, 512),
        (8, 32, None),
        (8, 96, None),
        (16, 8, None),
        (16, 40, None),
        (24, 24, None),
        (32, 8, 512),
        (32, 8, 1024),
        (32, 8, None),
        (32, 1, None),
        (41, 8, None),
        (41, 8, 512),
        (64, 8, None),
        (64, 32, None),
    ):
        settings = replace(base, num_cursors=cursors, block_frames=block, run_frames=run)
        yield _described(settings), settings
    for buffer in (64, 256, 1000, None):
        chosen = default_settings(
            ClipStats.of(table, episodes), base, shuffle_buffer=buffer, max_held=FRAMES
        )
        asked = "default" if buffer is None else f"default for shuffle_buffer {buffer}"
        name = f"{asked}: {_described(chosen)}"
        yield name, chosen


def _described(settings: PlanSettings) -> str:
    return (
        f"{settings.num_cursors} cursors, blocks of {settings.block_frames}, "
        f"runs of {settings.run_frames or 'any length'}"
    )


def _row(
    name: str, mixing: Mixing, resident: int | None = None, reread: float | None = None
) -> str:
    figures = (mixing.step_episodes, mixing.tail_episodes, mixing.phase, mixing.neighbours)
    assert mixing.composition is not None
    ratios = " | ".join(f"{figure.ratio:.2f}" for figure in (*figures, mixing.composition))
    read = "" if reread is None else f"{reread:.3f}"
    return f"| {name} | {'' if resident is None else resident} | {read} | {ratios} |"


if __name__ == "__main__":
    main()
