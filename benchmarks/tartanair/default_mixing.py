"""How well default settings mix batches: `python -m benchmarks.tartanair.default_mixing [--write]`.

For small frames and TartanAir's features, by batch size, in one shard and in eight: episodes per
batch and clips of its batch that a clip overlaps, compared with a full shuffle of the shard's
clips; frames loaded over distinct frames; memory. `--write` writes the table into ORDER.md, which a
test compares. Computes with integers only; reads no data.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from benchmarks.prose import write as write_block
from benchmarks.tartanair.shuffle_quality import ABANDONEDFACTORY, PAGE, batch_quality
from seqrecord.loader.clips.tables import EpisodeLayout, enumerate_clips
from seqrecord.loader.sampling.bounds import ClipStats, PlanSettings
from seqrecord.loader.sampling.epoch import EpochPlan
from seqrecord.loader.sampling.memory import FrameSizes, MemoryRequest, usual_limit
from seqrecord.loader.sampling.runs import Shard
from seqrecord.store.clip_spec import ClipSpec
from seqrecord.store.clips.grids import ChunkGrid

__all__ = ["CASES", "Case", "Mixing", "measured", "table"]

SPAN = 16
PIXELS = 480 * 640
FIVE = (3 + 4 + 8 + 1) * PIXELS  # bytes of a frame: image, depth, flow, mask
POSE = 28


@dataclass(frozen=True)
class Case:
    """Episode lengths, and for each group the frames per chunk and bytes per frame."""

    name: str
    lengths: tuple[int, ...]
    chunks: tuple[int, ...]
    frames: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    are_raw: bool = False
    pieces: int | None = None  # maximum frames per piece of video that is decoded in pieces
    stays: bool = False  # in memory, as small frames do
    unit: int = 0  # frames that are decoded together; 0: a chunk


RGB = 3 * PIXELS
CASES = (
    Case("32x32", ABANDONEDFACTORY, (256,), (32 * 32 * 3,), (1, 2, 4, 8, 16, 32, 64, 128), True),
    Case("32x32, encoded", ABANDONEDFACTORY, (256,), (32 * 32 * 3,), (1, 2, 4, 8, 16, 32, 64, 128)),
    Case("8x8", ABANDONEDFACTORY, (1024,), (8 * 8 * 3,), (1, 2, 4, 8, 16, 32, 64, 128), True),
    Case("image, depth, flow", (1000,) * 20, (8,), (15 * PIXELS,), (1, 2, 4, 6, 8, 12, 16)),
    Case("five features", (1000,) * 20, (8, 1024), (FIVE, POSE), (1, 2, 4, 6, 8, 12, 16)),
    Case("five, uneven", ABANDONEDFACTORY * 2, (8, 1024), (FIVE, POSE), (1, 2, 4, 6, 8, 12, 16)),
    Case("video, GOP 50", (100,) * 60, (50,), (RGB,), (4, 8, 16), pieces=32),
    Case("video, GOP 250", (600,) * 30, (250,), (RGB,), (4, 8, 16, 32), pieces=32),
    Case("video, GOP 50, stays", (100,) * 60, (50,), (RGB,), (4, 8, 16), pieces=32, stays=True),
    Case("video, GOP 2, stays", (400,) * 50, (32,), (RGB // 6,), (8, 32), pieces=32, stays=True),
)


@dataclass(frozen=True)
class Mixing:
    """Figures over all shards of an epoch, and over a full shuffle of each shard."""

    settings: PlanSettings
    episodes: float
    full_episodes: float
    all_episodes: float  # of a full shuffle of the dataset
    neighbours: float
    full_neighbours: float
    reading: float
    nbytes: int  # maximum of a shard

    def is_good(self, num_shards: int) -> bool:
        """Whether batches are as well mixed as docs/order.md promises."""
        most, reading = (0.5, 1.05) if num_shards == 1 else (0.8, 1.10)
        return (
            self.episodes >= 0.85 * self.full_episodes
            and self.neighbours <= max(most, self.full_neighbours)
            and self.reading <= reading
        )


def measured(
    case: Case,
    batch_size: int,
    num_shards: int,
    *,
    memory_limit: int | None = None,
    epochs: int = 1,
    seed: int = 1,
) -> Mixing:
    """Figures of `epochs` epochs with default settings."""
    lengths = np.array(case.lengths, np.int64)
    episodes = EpisodeLayout(lengths, tuple(_grids(case)))
    table = enumerate_clips(ClipSpec(SPAN, 1), episodes, np.arange(len(lengths)))
    sizes_of_chunks = [min(n, case.pieces or n) for n in case.chunks]
    stored = max(n * size for n, size in zip(sizes_of_chunks, case.frames, strict=True))
    chunk = stored if case.are_raw else stored // 2
    sizes = FrameSizes(case.frames, chunk, batch_size * SPAN * sum(case.frames))
    stats, asked = ClipStats.of(table, episodes), PlanSettings(seed=seed, batch_size=batch_size)
    stays = case.stays or max(case.frames) < 1 << 16
    frames_in_memory = (-(-int(lengths.sum()) // num_shards) * stays,) * len(case.frames)
    request = MemoryRequest(stats, asked, sizes, num_shards, frames_in_memory=frames_in_memory)
    wanted = max(
        MemoryRequest(stats, asked, sizes, number).wanted_limit for number in (1, num_shards)
    )
    fitted = request.plan_memory(memory_limit or usual_limit(wanted))
    figures, nbytes, read = [], 0, 0
    rng = np.random.default_rng(0)
    for epoch, index in product(range(epochs), range(num_shards)):
        shard = Shard(index, num_shards)
        plan = EpochPlan(table, episodes, fitted.settings, epoch=epoch, shard=shard)
        rounds = list(plan.rounds())
        episode = np.concatenate([work.clips.episode for work in rounds])
        start = np.concatenate([work.clips.start for work in rounds])
        if fitted.in_memory is None:
            read += sum(int(work.groups[0].loads.count.sum()) for work in rounds)
        else:  # each frame once, whichever cursors need it
            used = np.zeros((len(lengths), int(lengths.max())), np.bool_)
            for row, begin, stop in zip(*plan.used(0)[:3], strict=True):
                used[row, begin:stop] = True
            read += int(used.sum())
        order = rng.permutation(len(episode))
        batches = np.bincount(np.arange(len(episode)) // batch_size)
        found = [
            batch_quality(*clips, batches, SPAN)
            for clips in ((episode, start), (episode[order], start[order]))
        ]
        figures.append([n for one in found for n in (one.episodes, one.neighbours)])
        resident = [group.max_resident_frames for group in plan.groups]
        nbytes = max(nbytes, fitted.nbytes(fitted.memory(resident)))
    mean = np.mean(figures, axis=0).tolist()
    reading = read / epochs / int(lengths.sum())
    every = sum(1 - (1 - part) ** batch_size for part in (lengths / lengths.sum()).tolist())
    return Mixing(fitted.settings, mean[0], mean[2], every, mean[1], mean[3], reading, nbytes)


def _grids(case: Case) -> Iterator[ChunkGrid]:
    lengths = np.array(case.lengths, np.int64)
    for group, size in enumerate(case.chunks):
        count = -(-lengths // size)
        sizes = np.full(len(lengths), size, np.int64)
        by_frame = case.are_raw or group > 0
        places = np.cumsum(count) - count
        grid = ChunkGrid(sizes, places, group, by_frame=by_frame, unit_frames=case.unit)
        yield grid if case.pieces is None else grid.in_pieces(lengths, case.pieces)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--write", action="store_true", help="write ORDER.md")
    options = parser.parse_args(arguments)
    block = "\n".join(table()) + "\n"
    print(block)
    if options.write:
        write_block(PAGE, "defaults", block)


def table() -> Iterator[str]:
    """Every case, number of shards and batch size."""
    yield (
        "| frames | shards | batch | chosen | episodes per batch | … of a full shuffle "
        "| … of the whole dataset's shuffle | overlapping neighbours | … of a full shuffle "
        "| read / distinct | GiB | good |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|---|"
    )
    for case, num_shards, batch_size in _all():
        mixing = measured(case, batch_size, num_shards, epochs=3)
        chosen = mixing.settings
        yield (
            f"| {case.name} | {num_shards} | {batch_size} | {chosen.num_cursors} cursors, "
            f"blocks of {chosen.block_frames} | {mixing.episodes:.2f} | {mixing.full_episodes:.2f} "
            f"| {mixing.all_episodes:.2f} "
            f"| {mixing.neighbours:.2f} | {mixing.full_neighbours:.2f} | {mixing.reading:.3f} "
            f"| {mixing.nbytes / 2**30:.2f} | {'yes' if mixing.is_good(num_shards) else 'no'} |"
        )


def _all() -> Iterator[tuple[Case, int, int]]:
    for case in CASES:
        for num_shards in (1, 8):
            for batch_size in case.batch_sizes:
                yield case, num_shards, batch_size


if __name__ == "__main__":
    main()
