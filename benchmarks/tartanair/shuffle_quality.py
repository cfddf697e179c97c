"""Measure how well a plan shuffles: `python -m benchmarks.tartanair.shuffle_quality`.

Prints two Markdown tables. The first covers abandonedfactory's ten episodes: plans over a grid of
cursors, blocks and run lengths, plans with default settings, and for comparison sequential reading,
a 100-clip buffer over sequential reading, and a full permutation. The second shows default settings
by number of shards. `--many` prints a table of a million episodes in thousands of shards instead,
with the seconds to compute settings and a plan. Computes with integers only; reads no data.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from seqrecord.loader.sampling.bounds import ClipStats, PlanSettings
from seqrecord.loader.sampling.epoch import EpochPlan
from seqrecord.loader.sampling.memory import AHEAD, FrameSizes, MemoryRequest
from seqrecord.loader.sampling.runs import Shard
from seqrecord.store.clips.grids import ChunkGrid
from seqrecord.store.clips.tables import ClipSpec, ClipTable, EpisodeLayout, enumerate_clips

__all__ = [
    "ABANDONEDFACTORY",
    "Measured",
    "Quality",
    "batch_quality",
    "buffered",
    "default_settings",
    "episode_table",
    "measure",
    "memory_request",
]

IntArray = npt.NDArray[np.int64]

ABANDONEDFACTORY = (2176, 434, 927, 1357, 1077, 731, 1656, 339, 3717, 3084)
COPIES = 20  # of abandonedfactory in the larger dataset: 309,960 frames
MANY = 1_000_000  # episodes of 20 to 180 frames
ROOM = 600_000  # frames of 32x32 pixels that fit into the default memory_limit
HEADER = """\
| order | resident frames | read / distinct | episodes per batch \
| overlapping neighbours per clip | overlap with the batch before |
|---|---|---|---|---|---|"""
SPLITS_HEADER = """\
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clip-len", type=int, default=16)
    parser.add_argument("--stride", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--chunk-frames", type=int, default=8)
    parser.add_argument("--max-frames", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=5, help="epochs to average over")
    parser.add_argument("--sampled", type=int, default=32, help="maximum shards to average over")
    parser.add_argument("--many", action="store_true", help="a million episodes only")
    args = parser.parse_args()
    if args.many:
        _print_many(args)
        return

    episodes = episode_table(ABANDONEDFACTORY, args.chunk_frames)
    table = enumerate_clips(
        ClipSpec(args.clip_len, args.stride), episodes, np.arange(len(episodes))
    )
    print(f"{table}; chunks of {args.chunk_frames} frames, {args.epochs} epochs\n\n{HEADER}")
    sizes = np.full(-(-table.num_clips // args.batch_size), args.batch_size)
    sizes[-1] = table.num_clips - sizes[:-1].sum()
    rng = np.random.default_rng(0)
    for name, positions in (
        ("sequential", np.arange(table.num_clips)),
        ("100-clip buffer over sequential", buffered(table.num_clips, 100, 0)),
        ("full permutation", rng.permutation(table.num_clips)),
    ):
        clips = table.locate(positions)
        quality = batch_quality(clips.episode, clips.start, sizes, table.spec.span)
        _print_row(name, [quality])

    for name, settings in _grid(table, episodes, args.batch_size, args.max_frames):
        found = measure(table, episodes, settings, epochs=args.epochs)
        _print_row(name, [found.quality], found.resident, found.reread)
    _print_parts(args)


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


def _print_parts(args: argparse.Namespace) -> None:
    """Print the second table: default settings by number of shards."""
    print(f"\n{SPLITS_HEADER}")
    base = PlanSettings(seed=1, batch_size=args.batch_size)
    for copies, num_shards, max_frames in (
        (1, 1, args.max_frames),
        (1, 1, ROOM),
        (1, 8, args.max_frames),
        (COPIES, 1, args.max_frames),
        (COPIES, 8, args.max_frames),
        (COPIES, 64, args.max_frames),
        (COPIES, 256, args.max_frames),
        (COPIES, 256, ROOM),
    ):
        episodes = episode_table(ABANDONEDFACTORY * copies, args.chunk_frames)
        spec = ClipSpec(args.clip_len, args.stride)
        table = enumerate_clips(spec, episodes, np.arange(len(episodes)))
        chosen = default_settings(
            ClipStats.of(table, episodes),
            base,
            shuffle_buffer=None,
            max_held=max_frames,
            num_shards=num_shards,
        )
        found = measure(
            table,
            episodes,
            chosen,
            num_shards=num_shards,
            some=min(num_shards, args.sampled),
            epochs=args.epochs if copies * num_shards < COPIES else 1,
        )
        _print_shards_row(episodes, num_shards, max_frames, chosen, found)


def _print_shards_row(
    episodes: EpisodeLayout, num_shards: int, room: int, chosen: PlanSettings, found: Measured
) -> None:
    quality = found.quality
    print(
        f"| {int(episodes.num_frames.sum()):,} | {num_shards:,} | {room:,} "
        f"| {_described(chosen)} | {found.resident:,} | {found.reread:.3f} "
        f"| {quality.episodes:.1f} | {quality.neighbours:.2f} | {quality.carried:.2f} |"
    )


def _print_many(args: argparse.Namespace) -> None:
    """Print the table of a million episodes, and the seconds for settings and a plan."""
    lengths = np.random.default_rng(0).integers(20, 181, MANY)
    episodes = episode_table(lengths, args.chunk_frames)
    spec = ClipSpec(args.clip_len, args.stride)
    table = enumerate_clips(spec, episodes, np.arange(MANY))
    seconds = []
    print(SPLITS_HEADER)
    for num_shards in (4096, 10_000):
        begin = time.perf_counter()
        chosen = default_settings(
            ClipStats.of(table, episodes),
            PlanSettings(seed=1, batch_size=args.batch_size),
            shuffle_buffer=None,
            max_held=args.max_frames,
            num_shards=num_shards,
        )
        middle = time.perf_counter()
        EpochPlan(table, episodes, chosen, shard=Shard(num_shards // 2, num_shards))
        seconds.append((num_shards, middle - begin, time.perf_counter() - middle))
        distinct = int(lengths.sum()) if spec.stride == 1 else None
        found = measure(
            table, episodes, chosen, num_shards=num_shards, some=args.sampled, distinct=distinct
        )
        _print_shards_row(episodes, num_shards, args.max_frames, chosen, found)
    for num_shards, settings, plan in seconds:
        print(f"{num_shards:,} shards: settings in {settings:.2f} s, a plan in {plan:.2f} s")


def _mean(figures: list[Quality]) -> Quality:
    names = ("episodes", "neighbours", "carried")
    return Quality(*(float(np.mean([getattr(f, name) for f in figures])) for name in names))


def _grid(
    table: ClipTable, episodes: EpisodeLayout, batch_size: int, max_frames: int
) -> Iterator[tuple[str, PlanSettings]]:
    base = PlanSettings(seed=1, batch_size=batch_size)
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
            ClipStats.of(table, episodes), base, shuffle_buffer=buffer, max_held=max_frames
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


def _print_row(
    name: str, figures: list[Quality], resident: int | None = None, reread: float | None = None
) -> None:
    mean = _mean(figures)
    print(
        f"| {name} | {resident or ''} | {f'{reread:.3f}' if reread else ''} "
        f"| {mean.episodes:.1f} | {mean.neighbours:.2f} | {mean.carried:.2f} |"
    )


if __name__ == "__main__":
    main()
