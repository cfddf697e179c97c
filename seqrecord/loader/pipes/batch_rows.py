"""The rows of a batch by its number, from integers alone: no frame is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from seqrecord.errors import StateError
from seqrecord.loader.pipes.collating import make_numpy
from seqrecord.loader.pipes.growing_loader import Loader, continued, has_batches_of
from seqrecord.loader.pipes.options import MOST_RANKS
from seqrecord.loader.pipes.states import Clip, Segments, State
from seqrecord.loader.sampling.elastic import items_of_workers
from seqrecord.loader.sampling.plan_settings import EpochSegment
from seqrecord.loader.sampling.runs import Shard
from seqrecord.store.units import MAX_INT, check, check_integer

FillRows: TypeAlias = "Callable[[Any, int, int], Clip]"
"""Makes the columns for items `[first, last)` of a plan, each a list or a tensor."""


class BatchNumber(NamedTuple):
    """A batch as a training counts it.

    Attributes:
        epoch: number of the epoch.
        batch: number of the batch in the epoch, or in its segment, over all workers of the rank.
        rank: the rank, alone or with the number of ranks; `None`: this process's.
        workers: workers of a rank; `None`: as many as the run has.
        segment: number of the epoch's segment; `None`: the last one.
        batch_size: of a DataLoader that makes the batches.
    """

    epoch: int
    batch: int
    rank: int | tuple[int, int] | None = None
    workers: int | None = None
    segment: int | None = None
    batch_size: int | None = None


class _Team(NamedTuple):
    """The ranks and workers that share a segment of an epoch.

    A DataLoader makes batches of `batch_size` items. A `finished` segment has settings of its own;
    those of the last one are the loader's, as in an iteration.
    """

    ranks: int
    workers: int
    batch_size: int
    segments: Segments  # before it
    finished: EpochSegment | None = None


def rows_of_batch(
    source: Loader,
    run: State,
    own: Shard,
    which: BatchNumber,
    fill: FillRows,
) -> Clip:
    """The rows of a batch; see `EpochStream.rows`.

    `run` is the saved position of the run, and `own` the shard of this process.
    """
    which = which._replace(
        epoch=check_integer("epoch", which.epoch, least=0, most=MAX_INT),
        batch=check_integer("batch", which.batch, least=0, most=MAX_INT),
        rank=_checked_rank(which.rank),
    )
    team = _team(source, run, which)
    size = team.batch_size if which.batch_size is None else which.batch_size
    check_integer("batch_size", size, least=1, most=MAX_INT)
    rank = _rank(own, which.rank, team)
    shards = rank.divided(team.workers)
    plans = [source.plan(which.epoch, shard, team.segments, team.finished) for shard in shards]
    lengths = [plan.num_batches for plan in plans]
    num_batches = sum(-(-length // size) for length in lengths)
    if which.batch >= num_batches:
        batches = f"0 to {num_batches - 1}" if num_batches else "none, as nothing is left,"
        raise StateError(
            "the epoch, or its segment, has no such batch",
            expected=f"{batches} on rank {rank.index} of {rank.count} with {team.workers} workers",
            got=which.batch,
        )
    starts, stops = (items_of_workers(lengths, which.batch + i, size) for i in (0, 1))
    [worker] = [i for i, (a, b) in enumerate(zip(starts, stops, strict=True)) if a < b]
    rows = fill(plans[worker], starts[worker], stops[worker])
    if source.batch_size is None and size == 1:
        rows = {name: values[0] for name, values in rows.items()}
        rows["start"] = int(rows["start"])
    return make_numpy(rows) if source.options.output == "numpy" else rows


def _team(source: Loader, run: State, which: BatchNumber) -> _Team:
    """The ranks and workers of the batch, and the segments of the epoch before it.

    Raises `StateError` for a segment that the run does not have.
    """
    segments = run.segments if which.epoch == run.epoch else ()
    if which.segment is not None:
        check_integer("segment", which.segment, least=0, most=MAX_INT)
        if which.segment > len(segments):
            raise StateError(
                f"epoch {which.epoch} has no such segment at this position",
                expected=f"0 to {len(segments)}; or a state that was saved later in this epoch",
                got=which.segment,
            )
        if which.segment < len(segments):
            part = segments[which.segment]
            place = part.ranks, part.workers, part.batch_size
            return _Team(*place, segments[: which.segment], part)
    ranks = which.rank[1] if isinstance(which.rank, tuple) else run.ranks
    workers = run.workers
    if which.workers is not None:
        workers = check_integer("workers", which.workers, least=0, most=(1 << 16) - 1) or 1
    if (ranks, workers) == (run.ranks, run.workers) and has_batches_of(source, run):
        return _Team(ranks, workers, run.batch_size, segments)
    if which.epoch == run.epoch:
        segments = continued(source, run, ranks, workers).segments
    return _Team(ranks, workers, 1, segments)


def _checked_rank(rank: Any) -> int | tuple[int, int] | None:
    """A rank, alone or with the number of ranks, as integers. Raises `ClipError`."""
    expected = "a rank, or a pair (rank, world_size)"
    if rank is None or not isinstance(rank, tuple):
        return None if rank is None else check_integer("rank", rank, expected=expected)
    check("rank", rank, len(rank) == 2, expected)
    return (
        check_integer("rank", rank[0], expected=expected),
        check_integer("world_size of rank", rank[1], least=1, most=MOST_RANKS, expected=expected),
    )


def _rank(own: Shard, rank: int | tuple[int, int] | None, team: _Team) -> Shard:
    """The rank of the batch. Raises `StateError` without one, or for one that there was not."""
    index: object = rank
    if rank is None:
        index = own.rank.index if own.rank.count == team.ranks else None
        index = 0 if team.ranks == 1 else index
    elif isinstance(rank, tuple):
        index = rank[0] if rank[1] == team.ranks else None
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < team.ranks:
        expected = f"rank=0 to rank={team.ranks - 1}, the ranks of this part of the run"
        raise StateError("no such rank", expected=expected, got=f"rank={rank}")
    return Shard(index, team.ranks)
