"""How well default settings mix: `python -m benchmarks.tartanair.default_mixing [SET …] [--write]`.

For sets of recordings, by ranks, workers and batch size: figures of `benchmarks.mixing`, which
compare steps with a full shuffle of the dataset, and memory. `--write` writes the tables into
ORDER.md and docs/order.md. Plans only, from lengths, and reads no data: all sets take about two
minutes on one core.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple, TypeAlias

import numpy as np

from benchmarks.mixing import EpochRows, Figure, Mixing, measure
from benchmarks.prose import write as write_block
from benchmarks.tartanair.shuffle_quality import ABANDONEDFACTORY, PAGE, commit_line
from benchmarks.timing import markdown
from seqrecord.loader.clips.tables import EpisodeLayout, enumerate_clips
from seqrecord.loader.sampling.epoch_plans import EpochPlan
from seqrecord.loader.sampling.epoch_rows import EpochRows as ShardRows
from seqrecord.loader.sampling.epoch_rows import frame_groups
from seqrecord.loader.sampling.frame_sizes import FrameSizes, usual_limit
from seqrecord.loader.sampling.frame_uses import frames_of_shards
from seqrecord.loader.sampling.plan_settings import PlanSettings
from seqrecord.loader.sampling.row_tables import RowTable
from seqrecord.loader.sampling.runs import Shard, Window
from seqrecord.loader.sampling.settings_choice import EpochMemory, SettingsRequest
from seqrecord.loader.sampling.share_orders import EpochKey
from seqrecord.store.clip_spec import ClipSpec
from seqrecord.store.tables.grids import ChunkGrid, IntArray

__all__ = [
    *("CASES", "Case", "Group", "Job", "PlannedEpoch", "Row"),
    *("measured", "misses", "plan_epoch", "rows_of", "shortfalls", "summary"),
    "table",
]

DOCS = "docs/order.md"
PIXELS = 480 * 640
RGB = 3 * PIXELS
SQUARE = 3 * 224 * 224
POSE = 28
FIVE = (3 + 4 + 8 + 1) * PIXELS  # image, depth, flow, mask
WORKER_BATCH = 64
WORKER_LIMIT = 4 << 30  # the default of 16 workers refuses such batches of long clips
SMALL = 1 << 16  # bytes of a frame that is kept in memory whatever its codec,
LEAST = 1 << 11  # … and of a raw one whose epochs are permuted
PIECE = 32  # frames of video that are decoded at once
DECODER = 9  # frames that a decoder of video holds
MOST = 1 << 62
IMAGE, PACKET = 1 / 2, 1 / 100  # bytes of an encoded image and of a packet in those of a frame


@dataclass(frozen=True)
class Group:
    """Features in chunks of their own.

    Attributes:
        nbytes: bytes of a frame.
        chunk: frames of a chunk, of video a multiple of `gop`.
        gop: frames from a keyframe to the next one; 1: encoded images, 0: raw frames.
    """

    nbytes: int
    chunk: int
    gop: int = 0

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a stored chunk."""
        part = PACKET if self.gop > 1 else (1.0, IMAGE)[self.gop]
        return round(self.chunk * self.nbytes * part)

    @property
    def decoder_bytes(self) -> int:
        """Bytes of a decoder that decodes in order."""
        return DECODER * self.nbytes * (self.gop > 1)

    @property
    def stays_open(self) -> bool:
        """Whether a cursor keeps a chunk and its decoder, and decodes pieces of it."""
        return self.gop > 1 and self.chunk > PIECE

    @property
    def arena_bytes(self) -> int:
        """Bytes of a frame in memory, with those of its cursor's open chunk."""
        opened = -(-(self.chunk_bytes + self.decoder_bytes) // PIECE)
        return self.nbytes + opened * self.stays_open

    def grid(self, number: int, lengths: IntArray) -> ChunkGrid:
        """The group's chunks in episodes of these lengths."""
        counts = -(-lengths // self.chunk)
        sizes = np.full(len(lengths), self.chunk, np.int64)
        places = np.cumsum(counts) - counts
        unit = max(1, self.gop)
        grid = ChunkGrid(sizes, places, number, by_frame=self.gop == 0, unit_frames=unit)
        return grid.in_pieces(lengths, PIECE) if self.gop > 1 else grid


@dataclass(frozen=True)
class Job:
    """Loaders that share an epoch.

    Attributes:
        batch_size: clips of a batch.
        ranks: number of ranks.
        workers: DataLoader workers of each rank; 0 for none.
        memory_limit: bytes of each process; by default those that the loader chooses.
    """

    batch_size: int
    ranks: int = 1
    workers: int = 0
    memory_limit: int | None = None

    @property
    def num_shards(self) -> int:
        """Number of processes that read clips."""
        return self.ranks * max(1, self.workers)

    def __str__(self) -> str:
        return f"{self.workers} workers" if self.workers else f"{self.ranks}"


@dataclass(frozen=True)
class Case:
    """A set of recordings, and the clips of a loader with default settings.

    Attributes:
        name: what it is.
        lengths: frames of each recording.
        groups: its features, largest frames first; decodes are those of the first group.
        clip_len: frames of a clip.
        batch_sizes: clips of a batch, tried on `ranks` ranks without workers.
        ranks: numbers of ranks.
        workers: numbers of DataLoader workers of one rank, with batches of `WORKER_BATCH` clips.
        stays: whether frames stay in memory if they fit; otherwise the recordings are a part of a
            larger dataset, which does not fit.
        in_summary: whether docs/order.md has its rows.
    """

    name: str
    lengths: tuple[int, ...]
    groups: tuple[Group, ...]
    clip_len: int = 16
    batch_sizes: tuple[int, ...] = (16,)
    ranks: tuple[int, ...] = (1, 2, 8, 32)
    workers: tuple[int, ...] = ()
    stays: bool = True
    in_summary: bool = False

    @property
    def jobs(self) -> Iterator[Job]:
        """The jobs of the table."""
        for ranks, batch_size in product(self.ranks, self.batch_sizes):
            yield Job(batch_size, ranks)
        for workers in self.workers:
            yield Job(WORKER_BATCH, 1, workers, WORKER_LIMIT)

    @property
    def layout(self) -> EpisodeLayout:
        """The chunks of all recordings."""
        lengths = np.array(self.lengths, np.int64)
        return EpisodeLayout(lengths, tuple(g.grid(i, lengths) for i, g in enumerate(self.groups)))

    def sizes(self, batch_size: int) -> FrameSizes:
        """Bytes of frames, chunks and batches."""
        chunk = max(group.chunk_bytes for group in self.groups)
        closed = [group.decoder_bytes for group in self.groups if not group.stays_open]
        frames = tuple(group.nbytes for group in self.groups)
        return FrameSizes(
            tuple(group.arena_bytes for group in self.groups),
            chunk + max(closed, default=0),
            batch_size * self.clip_len * sum(frames),
            frames,
            chunk + max(group.decoder_bytes for group in self.groups),
        )

    @property
    def are_small(self) -> bool:
        """Whether to load a frame costs less than to copy it: epochs are permuted."""
        return all(group.nbytes <= LEAST and group.gop == 0 for group in self.groups)

    @property
    def may_stay(self) -> bool:
        """Whether frames may be resident: small ones, and decoded ones."""
        if all(group.nbytes <= SMALL and group.gop <= 1 for group in self.groups):
            return True
        return self.stays and any(group.gop for group in self.groups)


# ---- sets

_SMALL_BATCHES, _LARGE_BATCHES = (16, 64), (4, 16)
_FIVE = (Group(FIVE, 8, 1), Group(POSE, 1024))
_TARTANAIR = (
    Case("ten, 32x32", ABANDONEDFACTORY, (Group(32 * 32 * 3, 256),), 16, _SMALL_BATCHES),
    Case(
        "ten, 32x32, encoded", ABANDONEDFACTORY, (Group(32 * 32 * 3, 256, 1),), 16, _SMALL_BATCHES
    ),
    Case("ten, 8x8", ABANDONEDFACTORY, (Group(8 * 8 * 3, 1024),), 16, _SMALL_BATCHES),
    Case("20, image, depth, flow", (1000,) * 20, (Group(15 * PIXELS, 8, 1),), 16, _LARGE_BATCHES),
    Case("20, five features", (1000,) * 20, _FIVE, 16, _LARGE_BATCHES),
    Case(
        "20 of uneven lengths, five features",
        ABANDONEDFACTORY * 2,
        _FIVE,
        16,
        _LARGE_BATCHES,
    ),
)
_GOP_50, _GOP_250 = (Group(RGB, 50, 50),), (Group(RGB, 250, 250),)
_VIDEO = (
    *(
        Case(f"{name}, streamed", lengths, groups, 16, _LARGE_BATCHES, stays=False)
        for name, lengths, groups in (
            ("60 of 100, GOP 50", (100,) * 60, _GOP_50),
            ("30 of 600, GOP 250", (600,) * 30, _GOP_250),
        )
    ),
    Case("60 of 100, GOP 50", (100,) * 60, _GOP_50, 16, _LARGE_BATCHES),
    Case("50 of 400, GOP 2", (400,) * 50, (Group(RGB // 6, 32, 2),), 16, (8, 32)),
)
_KINDS = {
    "GOP 50": Group(SQUARE, 50, 50),
    "GOP 250": Group(SQUARE, 250, 250),
    "raw, mapped": Group(SQUARE, 32),
    "state": Group(128, 1024),
}
_SHOWN = {
    (24, "GOP 50", 16),
    (24, "GOP 50", 64),
    (48, "state", 16),
    (200, "raw, mapped", 64),
}
_EQUAL = tuple(
    Case(
        f"{number} of 1,000, {kind}" + (f", clips of {clip_len}" if clip_len > 16 else ""),
        (1000,) * number,
        (group,),
        clip_len,
        workers=(4, 8, 16),
        in_summary=(number, kind, clip_len) in _SHOWN,
        stays=group.gop < 2,  # video of a dataset that does not fit into memory
    )
    for number, (kind, group), clip_len in product((24, 48, 200), _KINDS.items(), (16, 64))
)
_MANY = tuple(
    Case(
        f"2,000 of 300, {kind}",
        (300,) * 2000,
        (_KINDS[kind],),
        ranks=(1, 8, 32),
        stays=False,
        in_summary=kind == "GOP 50",
    )
    for kind in ("GOP 50", "raw, mapped")
)
CASES = (*_TARTANAIR, *_VIDEO, *_EQUAL, *_MANY)


# ---- epochs


@dataclass(frozen=True)
class PlannedEpoch:
    """The clips of an epoch.

    Attributes:
        rows: the clips.
        chosen: the settings, in words.
        nbytes: the greatest memory of a shard.
        is_resident: whether frames stay in memory, so that later epochs differ from the first.
        num_cursors: of all shards.
    """

    rows: EpochRows
    chosen: str
    nbytes: int
    is_resident: bool
    num_cursors: int = 0


Planned: TypeAlias = Callable[[Case, Job, int], PlannedEpoch]
"""Returns the clips of an epoch, by its number."""


def plan_epoch(case: Case, job: Job, epoch: int = 0, *, seed: int = 1) -> PlannedEpoch:
    """Plan an epoch with default settings, as a loader does."""
    layout = case.layout
    table = enumerate_clips(ClipSpec(case.clip_len), layout, np.arange(len(layout)))
    rows = RowTable.of(table)
    fitted = _plan_memory(case, job, rows, layout, seed)
    settings, columns = fitted.settings, list[IntArray]()
    for index in range(job.num_shards):
        shard = Shard(index, job.num_shards)
        plan = EpochPlan(table, layout, settings, epoch=epoch, shard=shard, rows=rows)
        columns.append(_rows(plan, index, job, is_resident=fitted.stays))
    step, rank, episode, start, reader = np.concatenate(columns, axis=1)
    is_decoded = not (fitted.stays and epoch)
    is_permuted = settings.is_permuted or not is_decoded
    return PlannedEpoch(
        EpochRows(step, rank, episode, start, reader if is_decoded else None),
        "all clips" if is_permuted else f"{settings.num_cursors} x {settings.block_rows}",
        fitted.division.nbytes(fitted.division.memory),
        fitted.stays,
        MOST if is_permuted else settings.num_cursors * job.num_shards,
    )


def measured(case: Case, planned: PlannedEpoch) -> Mixing:
    """Figures of an epoch."""
    return measure(planned.rows, case.lengths, case.clip_len, max(1, case.groups[0].gop))


def _plan_memory(
    case: Case, job: Job, rows: RowTable, layout: EpisodeLayout, seed: int
) -> EpochMemory:
    """The settings that a `loader.pipes.view_order.ViewOrder` chooses for such a dataset."""
    windows = [Window.of(ClipSpec(case.clip_len))] * len(case.groups)

    def request_of(num_ranks: int, num_workers: int) -> SettingsRequest:
        return SettingsRequest(
            rows,
            layout,
            windows,
            None,
            PlanSettings(seed=seed, batch_size=job.batch_size),
            case.sizes(job.batch_size),
            num_ranks,
            num_workers,
            are_small=case.are_small,
        )

    workers = max(1, job.workers)
    requests = [request_of(1, 1), request_of(job.ranks, workers)]
    wanted = max(request.wanted_limit for request in requests)
    request = requests[-1]
    limit = job.memory_limit or usual_limit(wanted, workers)
    num_frames, num_groups = int(layout.num_frames.sum()), len(case.groups)
    frames = -(-num_frames // job.num_shards) * case.may_stay
    all_frames = num_frames * case.are_small
    chosen = request.choose(limit, (frames,) * num_groups, (all_frames,) * num_groups)
    if job.num_shards == 1 or not chosen.settings.is_resident:
        return chosen
    groups = frame_groups(layout, windows)
    of_shards = ShardRows(rows, groups, chosen.settings, EpochKey(seed, 0))
    _, most = frames_of_shards(*of_shards.runs(job.num_shards), layout.num_frames, windows)
    division = replace(chosen.division, sizes=request.sizes, in_memory=None).with_all(most)
    if division.in_memory is None:
        return request.choose(limit, ())
    return replace(chosen, division=division)


def _rows(plan: EpochPlan, shard: int, job: Job, *, is_resident: bool) -> IntArray:
    """Step, rank, episode, start and reader of a shard's clips, int64[5, n]."""
    clips = plan.clips(0, plan.num_rounds)
    rank, worker = divmod(shard, max(1, job.workers))
    step = plan.batches.find(np.arange(len(clips)))[0] * max(1, job.workers) + worker
    reader = np.full_like(step, shard)
    if not is_resident:  # a cursor reads a run of clips
        reader += clips.run * job.num_shards
    return np.stack((step, np.full_like(step, rank), clips.episode, clips.start, reader))


# ---- tables

_LATER = {False: "all", True: "first"}


class Row(NamedTuple):
    """A row of the table: a job, which of its epochs, and their figures."""

    case: Case
    job: Job
    epoch: str
    planned: PlannedEpoch
    mixing: Mixing


def rows_of(cases: Iterable[Case] = CASES, planned: Planned = plan_epoch) -> Iterator[Row]:
    """Measure the first epoch of each job, and the second if frames are resident."""
    for case in cases:
        for job in case.jobs:
            first = planned(case, job, 0)
            yield Row(case, job, _LATER[first.is_resident], first, measured(case, first))
            if first.is_resident:
                later = planned(case, job, 1)
                yield Row(case, job, "later", later, measured(case, later))


def table(rows: Iterable[Row]) -> str:
    """All figures; those of a full shuffle in parentheses."""
    columns = (
        "recordings | ranks | batch | epochs | cursors x block | steps | step | rank | last steps "
        "| phase | last phase | neighbours | composition | decodes | GiB"
    )
    lines = []
    for case, job, epoch, planned, mixing in rows:
        lines.append(
            [
                *(case.name, str(job), str(job.batch_size), epoch, planned.chosen),
                f"{mixing.num_steps:,}",
                *(f"{figure.ratio:.2f}" for figure in _episodes(mixing)),
                *(f"{share:.4f} ({full:.4f})" for share, full in (mixing.phase, mixing.tail_phase)),
                f"{mixing.neighbours.value:.2f} ({mixing.neighbours.full:.2f})",
                _composition(mixing),
                f"{mixing.decodes:.3f}" if mixing.decodes else "",
                f"{planned.nbytes / 2**30:.2f}",
            ]
        )
    return markdown(columns.split(" | "), lines)


def summary(rows: Iterable[Row]) -> str:
    """The table of docs/order.md: figures in parts of a full shuffle's."""
    columns = (
        "recordings | ranks | epochs | step | rank | last steps | phase | neighbours "
        "| composition | decodes"
    )
    lines = [
        [
            *(row.case.name, str(row.job), row.epoch),
            *(f"{figure.ratio:.2f}" for figure in _episodes(row.mixing)),
            *(f"{f.ratio:.1f}" for f in (row.mixing.phase, row.mixing.neighbours)),
            _composition(row.mixing),
            f"{row.mixing.decodes:.2f}" if row.mixing.decodes else "",
        ]
        for row in rows
        if row.case.in_summary and row.job.ranks != 2 and row.job.workers in (0, 8)
    ]
    return markdown(columns.split(" | "), lines)


def shortfalls(rows: Sequence[Row]) -> str:
    """How many rows are far from a full shuffle, without and with workers."""
    tests: dict[str, Callable[[Mixing], bool]] = {
        "a step has less than 0.95 of the episodes": lambda m: m.step_episodes.ratio < 0.95,
        "a rank's batch less than 0.85": lambda m: m.rank_episodes.ratio < 0.85,
        "phases vary more than twice as much between steps": lambda m: m.phase.ratio > 2,
        "more than a tenth of the frames is decoded twice": lambda m: m.decodes > 1.1,
    }
    kinds = ([r.mixing for r in rows if bool(r.job.workers) == has] for has in (False, True))
    alone, workers = kinds
    words = [
        f"{what} in {sum(map(test, alone))} and {sum(map(test, workers))}"
        for what, test in tests.items()
    ]
    return (
        f"Of {len(alone)} rows without and {len(workers)} with workers in "
        f"`{PAGE}`, {'; '.join(words)}."
    )


def misses(rows: Sequence[Row]) -> str:
    """In how many rows with at least two episodes for each process an epoch misses a full shuffle.

    Phases may vary, between steps, by twice what those of independent clips or cursors do.
    """
    words = dict[str, int]()
    counted = [row for row in rows if len(row.case.lengths) >= 2 * row.job.num_shards]
    for _, job, _, planned, mixing in counted:
        step, tail = mixing.step_episodes, mixing.tail_episodes.value
        independent = min(job.ranks * job.batch_size, planned.num_cursors)
        missed = {
            "step": step.ratio < 0.95 and not job.workers,
            "rank": mixing.rank_episodes.ratio < 0.85,
            "last steps": tail < 0.8 * step.value,
            "phase": mixing.phase.value > 2 / independent,
            "decodes": mixing.decodes > 1.1,
        }
        for name in [name for name, is_missed in missed.items() if is_missed] or ["none"]:
            words[name] = words.get(name, 0) + 1
    return f"Of {len(counted)} rows: {words}"


def _episodes(mixing: Mixing) -> tuple[Figure, Figure, Figure]:
    return mixing.step_episodes, mixing.rank_episodes, mixing.tail_episodes


def _composition(mixing: Mixing) -> str:
    return "" if mixing.composition is None else f"{mixing.composition.ratio:.1f}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("set", nargs="*", help="parts of names of sets; by default all")
    parser.add_argument("--write", action="store_true", help="write ORDER.md and docs/order.md")
    options = parser.parse_args(arguments)
    if options.set and options.write:
        parser.error("--write measures all sets")
    cases = [c for c in CASES if not options.set or any(part in c.name for part in options.set)]
    measured_code = commit_line()
    rows = list(rows_of(cases))
    print(table(rows))
    print(misses(rows))
    if options.write:
        write_block(PAGE, "defaults", f"{measured_code}\n\n{table(rows)}\n")
        block = f"{summary(rows)}\n\n{shortfalls(rows)} {measured_code}\n"
        write_block(DOCS, "mixing", block)


if __name__ == "__main__":
    main()
