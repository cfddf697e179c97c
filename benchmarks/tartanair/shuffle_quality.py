"""How well a plan shuffles: `python -m benchmarks.tartanair.shuffle_quality [--write]`.

Prints three Markdown tables. The first covers abandonedfactory's ten episodes: plans over a grid of
cursors, blocks and run lengths, plans with default settings, and for comparison sequential reading,
a 100-clip buffer over sequential reading, and a full permutation. The second has default settings
by number of shards, the third those of a million episodes in thousands of shards. `--write` writes
them into ORDER.md, which a test compares. Computes with integers only; reads no data.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from benchmarks.prose import write as write_block
from seqrecord.loader.clips.tables import ClipTable, EpisodeLayout, enumerate_clips
from seqrecord.loader.sampling.bounds import ClipStats, PlanSettings
from seqrecord.loader.sampling.epoch import EpochPlan
from seqrecord.loader.sampling.memory import AHEAD, FrameSizes, MemoryRequest
from seqrecord.loader.sampling.runs import Shard
from seqrecord.store.clip_spec import ClipSpec
from seqrecord.store.clips.grids import ChunkGrid

__all__ = [
    "ABANDONEDFACTORY",
    "PAGE",
    "TABLES",
    "Measured",
    "Quality",
    "batch_quality",
    "buffered",
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
| order | resident frames | read / distinct | episodes per batch \
| overlapping neighbours per clip | overlap with the batch before |
|---|---|---|---|---|---|"""
_SPLITS_HEADER = """\
| frames | shards | room for frames | chosen | resident frames | read / distinct \
| episodes per batch | overlapping neighbours per clip | overlap with the batch before |
|---|---|---|---|---|---|---|---|---|"""


@dataclass(frozen=True)
class Quality:
    """Two clips overlap when they share a frame's time: one episode, starts less than a span apart.

    `episodes`: distinct episodes in a batch, averaged over batches. `neighbours`: other clips of
    its batch that a clip overlaps, averaged over clips. `carried`: share of the clips, the first
    batch's aside, that overlap a clip of the batch before theirs.
    """

    episodes: float
    neighbours: float
    carried: float


def batch_quality(episode: IntArray, start: IntArray, batch_sizes: IntArray, span: int) -> Quality:
    """Quality of clips, int64[n] in the order of their epoch, in consecutive batches.

    `batch_sizes`, int64[batches], sums up to `n`; no batch is empty.
    """
    batch = np.repeat(np.arange(len(batch_sizes)), batch_sizes)
    width = int(start.max()) + 2 * span + 1  # of an episode's key range: ranges are disjoint
    num_episodes = int(episode.max()) + 1
    key = (batch * num_episodes + episode) * width + start + span
    ordered = np.sort(key)

    def overlapping(keys: IntArray) -> IntArray:
        stop = np.searchsorted(ordered, keys + span - 1, side="right")
        return stop - np.searchsorted(ordered, keys - span + 1, side="left")

    pairs = np.unique(batch * num_episodes + episode)
    later = key[batch > 0] - num_episodes * width
    return Quality(
        episodes=len(pairs) / len(batch_sizes),
        neighbours=float((overlapping(key) - 1).mean()),
        carried=float((overlapping(later) > 0).mean()) if len(later) else 0.0,
    )


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
    for name, table in TABLES.items():
        block = "\n".join(table()) + "\n"
        print(block)
        if options.write:
            write_block(PAGE, name, block)


def orders(epochs: int = EPOCHS) -> Iterator[str]:
    """Orders and settings of abandonedfactory's episodes."""
    episodes = episode_table(ABANDONEDFACTORY, CHUNK)
    table = enumerate_clips(SPEC, episodes, np.arange(len(episodes)))
    yield _HEADER
    sizes = np.full(-(-table.num_clips // BATCH), BATCH)
    sizes[-1] = table.num_clips - sizes[:-1].sum()
    rng = np.random.default_rng(0)
    for name, positions in (
        ("sequential", np.arange(table.num_clips)),
        ("100-clip buffer over sequential", buffered(table.num_clips, 100, 0)),
        ("full permutation", rng.permutation(table.num_clips)),
    ):
        clips = table.locate(positions)
        quality = batch_quality(clips.episode, clips.start, sizes, SPAN)
        yield _row(name, quality)
    for name, settings in _grid(table, episodes):
        measured = measure(table, episodes, settings, epochs=epochs)
        yield _row(name, measured.quality, measured.resident, measured.reread)


@dataclass(frozen=True)
class Measured:
    """Figures of whole epochs: mean quality of all shards' batches, maximum resident frames of a
    shard, and frames read over distinct frames of the clips."""

    quality: Quality
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
    skip_batches: int = 0,
    distinct: int | None = None,
) -> Measured:
    """Figures of `epochs` epochs, without the first `skip_batches` of each shard.

    `some` is the number of evenly spaced shards to measure per epoch, by default all. `distinct`
    is the number of distinct frames of the clips; counted by default.
    """
    if distinct is None:
        in_order = EpochPlan(table, episodes, PlanSettings(shuffle=False))  # loads each frame once
        distinct = sum(int(work.groups[0].loads.count.sum()) for work in in_order.rounds())
    chosen = np.unique(np.linspace(0, num_shards - 1, some or num_shards).astype(int)).tolist()
    figures, read, resident = [], 0, 0
    for epoch in range(epochs):
        for index in chosen:
            shard = Shard(index, num_shards)
            plan = EpochPlan(table, episodes, settings, epoch=epoch, shard=shard)
            starts = [plan.first_clip(batch) for batch in range(plan.num_batches + 1)]
            figure, loaded = _measure(plan, table, np.diff(starts), skip_batches)
            figures.append(figure)
            read += loaded
            resident = max(resident, plan.groups[0].max_resident_frames)
    share = epochs * len(chosen) / num_shards
    return Measured(_mean(figures), resident, read / share / distinct)


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
    quality = measured.quality
    return (
        f"| {int(episodes.num_frames.sum()):,} | {num_shards:,} | {room:,} "
        f"| {_described(chosen)} | {measured.resident:,} | {measured.reread:.3f} "
        f"| {quality.episodes:.1f} | {quality.neighbours:.2f} | {quality.carried:.2f} |"
    )


def _mean(figures: list[Quality]) -> Quality:
    names = ("episodes", "neighbours", "carried")
    return Quality(*(float(np.mean([getattr(f, name) for f in figures])) for name in names))


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


def _measure(
    plan: EpochPlan, table: ClipTable, sizes: IntArray, skip_batches: int
) -> tuple[Quality, int]:
    """Quality of one shard of an epoch, and the number of frames it loads."""
    rounds = list(plan.rounds())
    skipped = int(sizes[:skip_batches].sum())
    episode = np.concatenate([r.clips.episode for r in rounds])[skipped:]
    start = np.concatenate([r.clips.start for r in rounds])[skipped:]
    read = sum(int(r.groups[0].loads.count.sum()) for r in rounds)
    return batch_quality(episode, start, sizes[skip_batches:], table.spec.span), read


def _row(
    name: str, quality: Quality, resident: int | None = None, reread: float | None = None
) -> str:
    return (
        f"| {name} | {resident or ''} | {f'{reread:.3f}' if reread else ''} "
        f"| {quality.episodes:.1f} | {quality.neighbours:.2f} | {quality.carried:.2f} |"
    )


if __name__ == "__main__":
    main()
