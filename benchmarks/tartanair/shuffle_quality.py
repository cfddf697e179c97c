"""How settings change an order: `python -m benchmarks.tartanair.shuffle_quality [--write]`.

Prints three Markdown tables with figures of `benchmarks.mixing`. The first covers
abandonedfactory's ten episodes: plans over a grid of cursors and blocks, plans with default
settings, and for comparison sequential reading, a 100-clip buffer over sequential reading,
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

from benchmarks.mixing import EpochRows, Mixing, mean, shuffled_episodes
from benchmarks.mixing import measure as measure_rows
from benchmarks.prose import write as write_block
from benchmarks.timing import commit_of_code
from seqrecord.loader.clips.tables import ClipTable, EpisodeLayout, enumerate_clips
from seqrecord.loader.sampling.cursor_shares import num_used
from seqrecord.loader.sampling.decoding_units import FrameGroup
from seqrecord.loader.sampling.epoch_plans import EpochPlan
from seqrecord.loader.sampling.epoch_rows import frame_groups
from seqrecord.loader.sampling.frame_life import FrameLife, life_of_frames, peak_bytes
from seqrecord.loader.sampling.frame_sizes import FrameSizes
from seqrecord.loader.sampling.plan_settings import PlanSettings
from seqrecord.loader.sampling.row_tables import RowTable
from seqrecord.loader.sampling.runs import Shard, Window
from seqrecord.loader.sampling.settings_choice import SettingsRequest
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
MOST_COPIES = 20  # of abandonedfactory in the larger dataset: 309,960 frames
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


def default_settings(
    table: ClipTable,
    episodes: EpisodeLayout,
    settings: PlanSettings,
    *,
    max_frames: int,
    shuffle_buffer: int | None = None,
    num_shards: int = 1,
) -> PlanSettings:
    """Settings chosen by default if at most `max_frames` frames fit into memory."""
    request = SettingsRequest(
        RowTable.of(table),
        episodes,
        [Window.of(table.spec)] * len(episodes.groups),
        None,
        settings,
        FrameSizes((1,) * len(episodes.groups), 0, 0),  # so that limits are numbers of frames
        num_shards,
        shuffle_buffer=shuffle_buffer,
    )
    return request.choose(max_frames, ()).settings


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
    [group] = frame_groups(episodes, [Window.of(table.spec)])
    rows = RowTable.of(table)
    if distinct is None:
        distinct = num_used(rows, group)
    chosen = np.unique(np.linspace(0, num_shards - 1, some or num_shards).astype(int)).tolist()
    mixings, read, resident = [], 0, 0
    for epoch in range(epochs):
        columns = []
        for rank, index in enumerate(chosen):
            shard = Shard(index, num_shards)
            plan = EpochPlan(table, episodes, settings, epoch=epoch, shard=shard, rows=rows)
            clips = plan.clips(0, plan.num_rounds)
            batch = plan.batches.find(np.arange(len(clips)))[0]
            columns.append((batch, np.full_like(batch, rank), clips.episode, clips.start))
            life = _life(plan, group)
            read += life.num_decoded
            peak = peak_bytes([(group, life)], plan.num_rounds)
            # A load has all frames of a chunk.
            peak += plan.num_cursors * (group.num_together(rows.episode) - 1)
            resident = max(resident, peak)
        epoch_rows = EpochRows(*map(np.concatenate, zip(*columns, strict=True)))
        mixings.append(measure_rows(epoch_rows, episodes.num_frames, table.spec.span))
    share = epochs * len(chosen) / num_shards
    return Measured(mean(mixings), resident, read / share / distinct)


def _life(plan: EpochPlan, group: FrameGroup) -> FrameLife:
    """When the frames of a plan are decoded and freed."""
    clips = plan.clips(0, plan.num_rounds)
    place = np.arange(len(clips))
    rounds = np.searchsorted(plan.edges(0, plan.num_rounds), place, side="right") - 1
    by_run = clips.run.argsort(kind="stable")
    episode, start = clips.episode[by_run], clips.start[by_run]
    frames = group.frames(episode, start)
    return life_of_frames(group, clips.run[by_run], episode, frames, rounds[by_run])


def shards(epochs: int = EPOCHS, sampled: int = SAMPLED) -> Iterator[str]:
    """Default settings by number of shards."""
    yield _SPLITS_HEADER
    for copies, num_shards, room in (
        (1, 1, FRAMES),
        (1, 1, ROOM),
        (1, 8, FRAMES),
        (MOST_COPIES, 1, FRAMES),
        (MOST_COPIES, 8, FRAMES),
        (MOST_COPIES, 64, FRAMES),
        (MOST_COPIES, 256, FRAMES),
        (MOST_COPIES, 256, ROOM),
    ):
        averaged_epochs = epochs if copies * num_shards < MOST_COPIES else 1
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
        table,
        episodes,
        PlanSettings(seed=1, batch_size=BATCH),
        max_frames=room,
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
    for cursors, block in (
        *((8, 8), (8, 32), (8, 96), (16, 8), (16, 40), (24, 24)),
        *((32, 1), (32, 8), (41, 8), (64, 8), (64, 32)),
    ):
        settings = replace(base, num_cursors=cursors, block_rows=block)
        yield _described(settings), settings
    for buffer in (64, 256, 1000, None):
        chosen = default_settings(table, episodes, base, shuffle_buffer=buffer, max_frames=FRAMES)
        asked = "default" if buffer is None else f"default for shuffle_buffer {buffer}"
        yield f"{asked}: {_described(chosen)}", chosen


def _described(settings: PlanSettings) -> str:
    return f"{settings.num_cursors} cursors, blocks of {settings.block_rows}"


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
