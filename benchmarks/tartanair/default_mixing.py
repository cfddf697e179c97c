"""How well default settings mix: `python -m benchmarks.tartanair.default_mixing [SET …] [--write]`.

For sets of recordings, by ranks, workers and batch size: figures of `benchmarks.mixing`, which
compare steps with a full shuffle of the dataset, and memory. `--write` writes the tables into
ORDER.md and docs/order.md. `--shares` measures the order by equal shares, and counts what a full
shuffle has and it has not. Plans only, from lengths, and reads no data: all sets take about a
minute on one core.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple, TypeAlias

import numpy as np
from seqrecord.loader.sampling.bounds import ClipStats, PlanSettings
from seqrecord.loader.sampling.fixed_shards import shard_runs
from seqrecord.loader.sampling.memory import FrameSizes, MemoryPlan, MemoryRequest, usual_limit
from seqrecord.loader.sampling.plan import Plan, order_of
from seqrecord.loader.sampling.used_frames import frames_of_shards

from benchmarks.mixing import EpochRows, Figure, Mixing, measure
from benchmarks.prose import write as write_block
from benchmarks.tartanair.shuffle_quality import ABANDONEDFACTORY, PAGE, commit_line
from benchmarks.timing import markdown
from seqrecord.loader.clips.tables import ClipTable, EpisodeLayout, enumerate_clips
from seqrecord.loader.sampling.decoding_units import FrameGroup
from seqrecord.loader.sampling.row_tables import RowTable
from seqrecord.loader.sampling.runs import Shard, Window
from seqrecord.loader.sampling.share_orders import EpochKey, SharedOrder, order_of_shard
from seqrecord.loader.sampling.share_settings import ShareRequest
from seqrecord.store.clip_spec import ClipSpec
from seqrecord.store.tables.grids import ChunkGrid, IntArray

__all__ = [
    *("CASES", "Case", "Group", "Job", "PlannedEpoch", "Row"),
    *("measured", "misses", "plan_epoch", "plan_shares", "rows_of", "shortfalls", "summary"),
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
SMALL = 1 << 16  # bytes of a frame that is kept in memory whatever its codec
PIECE = 32  # frames of video that are decoded at once
DECODER = 9  # frames that a decoder of video holds
FREE = 2048  # bytes of a frame whose load costs less than the gather of a clip of it
BATCHES = 4  # in memory: two of the loader, two of the training
LEAST_CURSORS, LEAST_BLOCK = 24, 32  # that the default memory limit has room for
USUAL_LIMIT, MOST_LIMIT = 2 << 30, 8 << 30
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

    def frames_of(self, lengths: IntArray, clip_len: int) -> FrameGroup:
        """The group's frames in clips."""
        grid = self.grid(0, lengths).whole_chunks
        decoder = self.decoder_bytes + self.chunk_bytes * (self.gop > 1)
        return FrameGroup(np.arange(clip_len), lengths, self.nbytes, grid, decoder)


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
        fixed_shards: as in `seqrecord.EngineOptions`.
        in_summary: whether docs/order.md has its rows.
    """

    name: str
    lengths: tuple[int, ...]
    groups: tuple[Group, ...]
    clip_len: int = 16
    batch_sizes: tuple[int, ...] = (16,)
    ranks: tuple[int, ...] = (1, 2, 8, 32)
    workers: tuple[int, ...] = ()
    fixed_shards: bool = True
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

    def may_stay(self, num_shards: int) -> bool:
        """Whether frames may be resident: small ones, and decoded ones in fixed shards."""
        if all(group.nbytes <= SMALL and group.gop <= 1 for group in self.groups):
            return True
        is_decoded = any(group.gop for group in self.groups)
        return is_decoded and (self.fixed_shards or num_shards == 1)


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
        Case(f"{name}, streamed", lengths, groups, 16, _LARGE_BATCHES, fixed_shards=False)
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
        fixed_shards=group.gop < 2,  # video of a dataset that does not fit into memory
    )
    for number, (kind, group), clip_len in product((24, 48, 200), _KINDS.items(), (16, 64))
)
_MANY = tuple(
    Case(
        f"2,000 of 300, {kind}",
        (300,) * 2000,
        (_KINDS[kind],),
        ranks=(1, 8, 32),
        fixed_shards=False,
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
    fitted = _plan_memory(case, job, table, layout, seed)
    settings = fitted.settings
    plan_class = order_of(settings).plan_class(settings, epoch, 0)
    columns, nbytes = list[IntArray](), 0
    for index in range(job.num_shards):
        plan = plan_class(table, layout, settings, epoch=epoch, shard=Shard(index, job.num_shards))
        columns.append(_rows(plan, index, job, is_resident=fitted.in_memory is not None))
        resident = [group.max_resident_frames for group in plan.groups]
        nbytes = max(nbytes, fitted.nbytes(fitted.memory(resident)))
    step, rank, episode, start, reader = np.concatenate(columns, axis=1)
    is_decoded = not (settings.resident and epoch)
    return PlannedEpoch(
        EpochRows(step, rank, episode, start, reader if is_decoded else None),
        f"{settings.num_cursors} x {settings.block_frames}" if is_decoded else "all clips",
        nbytes,
        settings.resident,
        settings.num_cursors * job.num_shards if is_decoded else MOST,
    )


def plan_shares(case: Case, job: Job, epoch: int = 0, *, seed: int = 1) -> PlannedEpoch:
    """Plan an epoch by equal shares, with the settings that `ShareRequest` chooses."""
    lengths = np.array(case.lengths, np.int64)
    clips = enumerate_clips(ClipSpec(case.clip_len), case.layout, np.arange(len(lengths)))
    table = RowTable.of(clips)
    groups = [group.frames_of(lengths, case.clip_len) for group in case.groups]
    frame, num_frames = sum(group.nbytes for group in case.groups), int(lengths.sum())
    batches = BATCHES * job.batch_size * case.clip_len * frame
    cursors = max(LEAST_CURSORS, 2 * job.batch_size) * (case.clip_len + LEAST_BLOCK) * frame
    limit = job.memory_limit or min(MOST_LIMIT, max(USUAL_LIMIT, batches + cursors))
    room, shards = limit - batches, job.num_shards
    fixed = shards if case.fixed_shards else 1
    is_small = all(group.nbytes <= FREE and not group.gop for group in case.groups)
    is_permuted = is_small and num_frames * frame <= room
    is_resident = (
        not is_permuted and case.may_stay(shards) and -(-num_frames // fixed) * frame <= room
    )
    request = ShareRequest(
        table, groups, job.batch_size, job.ranks, max(1, job.workers), room, is_resident
    )
    settings = request.choose()
    settings = replace(settings, is_resident=is_resident, is_permuted=is_permuted)
    columns = []
    for index in range(shards):
        numbers = index, shards, job.batch_size
        order = order_of_shard(table, groups, settings, EpochKey(seed, epoch), *numbers)
        emitted = None
        if isinstance(order, SharedOrder):
            emitted = order.rounds.rows(0, order.rounds.num_rounds)
        row = order.rows(0, order.num_rows) if emitted is None else emitted.row
        rank, worker = divmod(index, max(1, job.workers))
        step = np.arange(len(row)) // job.batch_size * max(1, job.workers) + worker
        reader = np.full_like(row, index)
        if emitted is not None and not is_resident:
            reader += shards * emitted.piece
        columns.append(np.stack((step, np.full_like(row, rank), *table.locate(row), reader)))
    step, rank, episode, start, reader = np.concatenate(columns, axis=1)
    is_decoded = not is_permuted and not (is_resident and epoch)
    chosen = f"{settings.num_cursors} x {settings.block_rows}"
    return PlannedEpoch(
        EpochRows(step, rank, episode, start, reader if is_decoded else None),
        "all clips" if is_permuted or (is_resident and epoch) else chosen,
        0,
        is_resident,
        MOST if is_permuted or (is_resident and epoch) else settings.num_cursors * shards,
    )


def measured(case: Case, planned: PlannedEpoch) -> Mixing:
    """Figures of an epoch."""
    return measure(planned.rows, case.lengths, case.clip_len, max(1, case.groups[0].gop))


def _plan_memory(
    case: Case, job: Job, table: ClipTable, layout: EpisodeLayout, seed: int
) -> MemoryPlan:
    """The settings that a `loader.pipes.view_order.ViewOrder` chooses for such a dataset."""
    num_frames, num_groups = int(layout.num_frames.sum()), len(case.groups)

    def request_of(num_shards: int) -> MemoryRequest:
        parts = num_shards if case.fixed_shards else 1
        frames = -(-num_frames // parts) * case.may_stay(num_shards)
        return MemoryRequest(
            ClipStats.of(table, layout),
            PlanSettings(seed=seed, batch_size=job.batch_size),
            case.sizes(job.batch_size),
            num_shards,
            frames_in_memory=(frames,) * num_groups,
        )

    requests = [request_of(number) for number in (1, job.num_shards)]
    wanted = max(request.wanted_limit for request in requests)
    request = requests[-1]
    limit = job.memory_limit or usual_limit(wanted, max(1, job.workers))
    fitted = request.plan_memory(limit)
    if fitted.in_memory is None or not case.fixed_shards:
        return fitted
    settings = replace(fitted.settings, resident=True)
    if job.num_shards > 1:
        windows = [Window.of(table.spec)] * num_groups
        of_shards = shard_runs(table, layout, windows, settings, job.num_shards)
        _, most = frames_of_shards(*of_shards, layout.num_frames, windows)
        fitted = replace(fitted, sizes=request.sizes, in_memory=None).with_all(most)
    if fitted.in_memory is None:
        return replace(request, frames_in_memory=()).plan_memory(limit)
    return replace(fitted, settings=settings)


def _rows(plan: Plan, shard: int, job: Job, *, is_resident: bool) -> IntArray:
    """Step, rank, episode, start and reader of a shard's clips, int64[5, n]."""
    clips = plan.clips(0, plan.num_rounds)
    rank, worker = divmod(shard, max(1, job.workers))
    step = clips.batch * max(1, job.workers) + worker
    reader = np.full_like(step, shard)
    if not is_resident:  # a cursor reads a run of clips
        number = np.unique(np.stack((clips.cursor, clips.run)), axis=1, return_inverse=True)[1]
        reader = number * job.num_shards + shard
    return np.stack((step, np.full_like(step, rank), clips.episode, clips.start, reader.ravel()))


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
    parser.add_argument("--shares", action="store_true", help="measure the order by equal shares")
    options = parser.parse_args(arguments)
    if (options.set or options.shares) and options.write:
        parser.error("--write measures all sets in the order of loaders")
    cases = [c for c in CASES if not options.set or any(part in c.name for part in options.set)]
    measured_code = commit_line()
    rows = list(rows_of(cases, plan_shares if options.shares else plan_epoch))
    print(table(rows))
    print(misses(rows))
    if options.write:
        write_block(PAGE, "defaults", f"{measured_code}\n\n{table(rows)}\n")
        block = f"{summary(rows)}\n\n{shortfalls(rows)} {measured_code}\n"
        write_block(DOCS, "mixing", block)


if __name__ == "__main__":
    main()
