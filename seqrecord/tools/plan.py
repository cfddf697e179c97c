"""plan: what a training will read, hold and cost, before it runs.

The plan of an epoch is made as a loader makes it, and its loads are done as an engine does them,
but on a storage that counts requests and makes none.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from seqrecord.errors import ClipError
from seqrecord.format.manifest import MANIFEST
from seqrecord.indexing.opening import opened
from seqrecord.pipes.arguments import takes_arguments
from seqrecord.pipes.options import LoaderOptions
from seqrecord.processes.machine import usable_cores
from seqrecord.reading.dataset import Dataset, DatasetLike, counted_dataset
from seqrecord.storage import CachedStorage, Storage, StorageWrapper
from seqrecord.storage.counting import Amount, Asked
from seqrecord.storage.parallel import ParallelStorage
from seqrecord.text import counted, shown_place
from seqrecord.tools.options import ToolOptions
from seqrecord.units import check_amount, check_integer, format_size, parse_size

if TYPE_CHECKING:
    from seqrecord.engine.counting import Walk
    from seqrecord.engine.engine import Execution
    from seqrecord.pipes.clip_loader import ClipLoader
    from seqrecord.sampling import Plan

_MOST_LOADS = 5_000  # that are counted one by one; of more, those of some rounds
_MOST_PARTS = 4  # whose plans are made, where there are more clips than that
_LOADS_WHERE_KEPT = 10  # times as many loads are counted, where frames stay, …
_CLIPS_OF_LATER = 400  # … and times as many clips of later epochs are planned
_GOLDEN = (5**0.5 - 1) / 2
_SPANS = 32  # of rounds, of each of these
_LEAST_SPANS = 4  # … however many loads a round has
_LEAST_ROUNDS = 8  # in each, where they have few: a chunk is read in one round, and used in others


@dataclass(frozen=True, kw_only=True)
class PlanOptions(ToolOptions):
    """What `plan` is told beside the dataset: the loader's arguments, and those of the run.

    Args:
        epochs: how many.
        ranks: processes that train, each with its part of every epoch.
        workers: of the DataLoader of each rank; 0: the loader runs in the rank's process.
        bandwidth: bytes a second that all ranks together can read, or text such as "1GB".
        price_per_gb: of 10^9 bytes that are read, in any currency.
        price_per_request: in the same currency.
        most_loads: so many loads of chunks are counted one by one; of an epoch with more, those of
            rounds that are spread over it, of which one in the beginning.
    """

    epochs: int = 1
    ranks: int = 1
    workers: int = 0
    bandwidth: int | str | None = None
    price_per_gb: float = 0.0
    price_per_request: float = 0.0
    most_loads: int = _MOST_LOADS

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("epochs", 1), ("ranks", 1), ("workers", 0), ("most_loads", 1)):
            check_integer(name, getattr(self, name), least=least)
        for name in ("price_per_gb", "price_per_request"):
            check_amount(name, getattr(self, name))
        if self.bandwidth is not None and _rate(self.bandwidth) < 1:
            raise ClipError("bandwidth is no rate", expected="1 or more", got=self.bandwidth)
        given = {"rank": self.rank, "world_size": self.world_size, "device": self.device}
        for name, value in given.items():
            if value is not None:
                expected = "ranks=, for all of them" if name != "device" else "no device"
                raise ClipError(f"plan takes no {name}", expected=expected, got=value)


def _rate(bandwidth: int | str) -> int:
    try:
        return parse_size(bandwidth)
    except ValueError as error:
        raise ClipError(f"bandwidth: {error}") from None


@dataclass(frozen=True)
class PlanReport:
    """What `plan` has found, of all ranks and workers together, but for memory.

    `peak_memory` is what the loaders of one rank take at most, in bytes: frames, batches and reads
    in flight, in its own process or in those of its workers. What Python, torch and the training
    take, and the batches that a DataLoader holds ready, come on top. `first_batch` is what is read
    before every rank and worker has a batch, with `opening`, and the times are what reading takes
    at the `bandwidth`; `None` without one. `later_epoch` is the second epoch, and each one after it
    but where small frames stay in memory: there an epoch reads what its rank has not read before,
    and only `total` has what those after the second read. Workers that do not fork open the dataset
    in each epoch.
    """

    url: str
    settings: Mapping[str, Any]
    clips: int  # of the first epoch
    batches: int
    opening: Amount  # by all processes
    first_epoch: Amount
    later_epoch: Amount
    total: Amount
    first_batch: Amount
    peak_memory: int
    first_batch_seconds: float | None
    hours: float | None
    price: float
    is_exact: bool  # whether every load was counted
    features_resident: list[str]  # whose frames stay in each process, if it lives on
    features_redecoded: list[str]  # in every epoch

    def to_json(self) -> dict[str, Any]:
        """Everything; times are in seconds or hours, and sizes in bytes."""
        return asdict(self)

    def __str__(self) -> str:
        ranks, workers = self.settings["ranks"], self.settings["workers"]
        what = f"{counted(self.clips, 'clip')} in {self.batches:,} batches"
        whose = f"{counted(ranks, 'rank')} with {counted(workers, 'worker')}"
        about = "" if self.is_exact else "about "
        rows = [("opening", self.opening), ("first epoch", self.first_epoch)]
        if self.settings["epochs"] > 1:
            later = self.later_epoch * (self.settings["epochs"] - 1)
            is_each = self.total == self.opening + self.first_epoch + later
            name = "each later epoch" if is_each else "second epoch"
            rows += [(name, self.later_epoch), ("all", self.total)]
        lines = [
            (
                f"{shown_place(self.url)}: {counted(self.settings['epochs'], 'epoch')} of {what}, "
                f"{whose}"
            ),
            "",
            f"  {'':<18}{'requests':>14}{'read':>14}{'frames decoded':>18}",
            *(
                f"  {name:<18}{amount.requests:>14,}{format_size(amount.bytes):>14}"
                f"{amount.frames_decoded:>18,}"
                for name, amount in rows
            ),
            "",
            f"  peak memory   {format_size(self.peak_memory)} of each rank's loaders",
            f"  first batch   after {format_size(self.first_batch.bytes)} and "
            f"{counted(self.first_batch.requests, 'request')}"
            + ("" if self.first_batch_seconds is None else f": {self.first_batch_seconds:,.1f} s"),
        ]
        if videos := self.total.video_frames_decoded:
            lines.append(f"  video         at most {videos:,} frames decoded")
        for what, names in (
            ("stay", self.features_resident),
            ("decode again", self.features_redecoded),
        ):
            if names:
                lines.append(f"  {what:<13} {', '.join(names)}")
        if self.hours is not None:
            lines.append(f"  time          {about}{self.hours:,.2f} h of reading")
        if self.price:
            lines.append(f"  price         {about}{self.price:,.2f}")
        if not self.is_exact:
            lines += ["", "Counted from a part of the loads."]
        return "\n".join(lines)


@takes_arguments(PlanOptions)
def plan(dataset: DatasetLike, options: PlanOptions) -> PlanReport:
    """Say what a training will read, hold in memory and cost, from index and plan alone.

    No page is read, but of an index of originals those that say where these lie; with a
    `frame_transform` the first frame. Epochs after the second count as the second one, but where
    small frames stay in memory: there they read less and less. With a cache that is large enough
    for what the first epoch reads, later ones read nothing, unless they have clips of other frames;
    a smaller one counts as none.

    By default batches have 4 clips, and clips 16 frames where neither `windows` nor lists of frames
    say which.

    Raises `ClipError` for what makes no sense, `MemoryLimitError` for a limit that is too small,
    and what opening the dataset raises.

    Args:
        dataset: local path or URL, or an open dataset of which nothing was read yet.
    """
    with opened(dataset) as found:
        return _planned(found, options)


def _planned(dataset: Dataset, options: PlanOptions) -> PlanReport:
    from seqrecord.pipes.clip_loader import ClipLoader  # torch takes seconds
    from seqrecord.pipes.selecting import select

    given = {f.name: getattr(options, f.name) for f in fields(LoaderOptions)}
    tuning, workers = options.tuning, max(1, options.workers)
    threads = tuning.num_threads or max(1, usable_cores() // workers)  # as each process has
    given |= {
        "rank": 0,
        "world_size": options.ranks,
        "engine": replace(tuning, num_threads=threads),
    }
    loader_options = LoaderOptions(**given)
    asked, opening, anew = Asked(), *_opening(dataset, options)
    selection = select(counted_dataset(dataset, asked), loader_options)
    opening += Amount(asked.requests, asked.nbytes) * options.ranks  # such as a first frame
    asked.stands_for_all = True
    counter = _Counter(ClipLoader(selection, loader_options), options, asked)
    first, batch, clips, batches = counter.epoch(0)
    later = rest = Amount()
    cache = _cache_limit(dataset)
    if options.epochs > 1:
        later = counter.second(first)
        rest = counter.after(first, later)
        if cache is not None and first.bytes <= cache and not counter.differs:
            later, rest = (replace(each, requests=0, bytes=0) for each in (later, rest))
        later, rest = later + anew, rest + anew * (options.epochs - 2)
    total = opening + first + later + rest
    rate = None if options.bandwidth is None else _rate(options.bandwidth)
    return PlanReport(
        url=dataset.url,
        settings={
            **{name: getattr(options, name) for name in _SETTINGS},
            "stride": options.spec.stride,
        },
        clips=clips,
        batches=batches,
        opening=opening,
        first_epoch=first,
        later_epoch=later,
        total=total,
        first_batch=opening + batch,
        peak_memory=counter.peak_memory,
        first_batch_seconds=None if rate is None else (opening + batch).bytes / rate,
        hours=None if rate is None else total.bytes / rate / 3600,
        price=total.bytes / 1e9 * options.price_per_gb + total.requests * options.price_per_request,
        is_exact=counter.is_exact,
        **counter.residency(),
    )


_SETTINGS = (
    *("clip_len", "stride", "dilation", "features", "order", "shuffle", "seed", "batch_size"),
    *("split", "episode_filter", "pad", "drop_last", "rotate_phase"),
    *("memory_limit", "epochs", "ranks", "workers", "bandwidth", "price_per_gb"),
    "price_per_request",
)


class _Counter:
    """Counts epochs, whose parts are those of ranks and workers."""

    def __init__(self, loader: ClipLoader, options: PlanOptions, asked: Asked) -> None:
        from seqrecord.engine.buffers import BufferCache

        self._loader, self._options, self._asked = loader, options, asked
        self._parts = options.ranks * max(1, options.workers)
        # What a process keeps from epoch to epoch: its memory, and the files that it knows.
        self._kept: dict[int, tuple[BufferCache, set[object]]] = {}
        self.is_exact = True
        self.stays = False
        """Whether frames stay in memory, so that epochs read what those before have not."""
        self.stays_in_part = False
        """Whether not all loads of frames that stay were counted, so that no epoch can follow."""
        self.differs = False
        """Whether epochs use frames that the first one does not."""
        self.peak_memory = 0

    def second(self, first: Amount) -> Amount:
        """What the second epoch reads, where the first one reads so much."""
        if self.stays_in_part:
            return first * self._share_left(first)
        return self.epoch(1)[0] if self.stays or self.is_exact else first

    def after(self, first: Amount, later: Amount) -> Amount:
        """What all epochs after the second one read, where the first two read so much.

        Where frames stay, each epoch reads a share of what the one before has read. So after 4 R
        epochs on R ranks, and some, less than 2 % are left, and the later half of these tells of
        them. Of many clips so many epochs would take minutes: of those after the last one that is
        walked, the share that is to be expected tells.
        """
        options, differs, ranks = self._options, self.differs, self._options.ranks
        if not self.stays:
            return later * (options.epochs - 2)
        found, stop = [later], min(options.epochs, 4 * ranks + 40)
        of_epoch = max(1, self._loader.clips(1).num_clips)
        most = 0 if self.stays_in_part else _CLIPS_OF_LATER * options.most_loads // of_epoch
        walked = range(2, min(stop, 2 + most))
        for number in walked:
            found.append(self.epoch(number, _MOST_PARTS)[0])
            quiet = found[-2 * ranks :]
            if not differs and len(quiet) == 2 * ranks and not any(map(_reads, quiet)):
                return sum(found[1:], Amount())
        left = options.epochs - 1 - len(found)
        rest = sum(found[1:], Amount())
        if walked.stop < stop:
            self.is_exact = False
            return rest + found[-1] * _series(self._share_left(first), left)
        half = len(found) // 2
        before, last = (sum(each, Amount()) for each in (found[-2 * half : -half], found[-half:]))
        if left and _reads(last):
            self.is_exact = False
            share = last.bytes / before.bytes if last.bytes < before.bytes else 1.0
            rest += last * _series(share, left / half)
        return rest

    def residency(self) -> dict[str, list[str]]:
        """See `ClipLoader.residency`."""
        return self._loader.residency(self._parts)

    def _share_left(self, first: Amount) -> float:
        """The share of what an epoch has read that the next one reads, where frames stay.

        Of clips that are shuffled among R ranks in every epoch, each rank has read one in R by
        then; of others all of them. Where epochs have clips of other frames, the share of all
        frames that the `first` one has read counts.
        """
        selection, options = self._loader.selection, self._options
        frames = int(selection.episodes.num_frames[selection.clip_set.selected].sum())
        read = min(1.0, first.frames_decoded / max(1, frames)) if self.differs else 1.0
        is_fixed = self._loader.planner.fit(self._parts).settings.resident
        return 1 - read / (options.ranks if options.shuffle and not is_fixed else 1)

    def epoch(self, number: int, most_parts: int | None = None) -> tuple[Amount, Amount, int, int]:
        """What an epoch reads, what its first batches do, and its clips and batches."""
        from seqrecord.sampling import Part

        count = min(self._parts, most_parts or self._parts)
        if self._loader.clips(number).num_clips > self._options.most_loads:
            count = min(count, _MOST_PARTS)
        self.is_exact &= count == self._parts
        whole, first, clips, batches = Amount(), Amount(), 0, 0
        for index in (self._parts * i // count for i in range(count)):
            plan = self._loader.plan(number, Part(index, self._parts))
            read, batch = self._part(plan, count)
            whole, first = whole + read, first + batch
            self.differs |= self._uses_others(plan)
            clips, batches = clips + plan.num_clips, batches + plan.num_batches
        scale = self._parts / count
        totals = round(clips * scale), round(batches * scale)
        return whole * scale, first * scale, *totals

    def _part(self, plan: Plan, num_parts: int) -> tuple[Amount, Amount]:
        from seqrecord.engine.buffers import BufferCache
        from seqrecord.engine.counting import walk
        from seqrecord.engine.stats import EngineStats
        from seqrecord.pipes.clip_loader import Counted

        in_worker = self._options.workers > 0
        buffers, seen = self._kept.pop(plan.part.index, (BufferCache(), set()))
        self._asked.seen.clear()
        self._asked.seen |= seen
        execution = self._loader.execution(
            plan, (), EngineStats(), counted=Counted(buffers, in_worker)
        )
        stays = bool(execution.resources.rows)
        most_loads = self._options.most_loads * (_LOADS_WHERE_KEPT if stays else 1)
        spans = _spans(plan, most_loads // num_parts)
        walked = walk(execution, self._asked, spans)
        execution.release()
        if not in_worker:  # else the next epoch has another process
            self.stays = stays
            self.stays_in_part |= stays and len(spans) > 1
            kept = buffers if stays and not self.stays_in_part else BufferCache()
            self._kept[plan.part.index] = kept, set(self._asked.seen)
        read, taken = walked.total, self._loader.taken(self._parts, walked.memory, walked.chunk)
        self.peak_memory = max(self.peak_memory, taken * max(1, self._options.workers))
        if len(spans) > 1:
            self.is_exact = False
            read *= self._scale(execution, walked)
        return read, walked.first

    def _uses_others(self, plan: Plan) -> bool:
        """Whether an epoch uses other frames than the next, but at the ends of episodes."""
        selection = self._loader.selection
        span = min(group.window.span for group in plan.groups)
        is_apart = selection.clip_set.chosen is not None or self._options.spec.stride > span
        return selection.clip_set.differs_by_epoch and is_apart

    def _scale(self, execution: Execution, walked: Walk) -> float:
        """How many times what was walked a plan has: by frames, but by clips where these are not
        all of what lies between."""
        from seqrecord.engine.engine import whole_chunks
        from seqrecord.engine.stores import used_rows

        plan, rows = execution.job.plan, execution.resources.rows
        group, window = plan.groups[plan.leading].group, plan.groups[plan.leading].window
        stays_whole = bool(rows) and group in whole_chunks(execution.job)
        if self._options.spec.stride >= window.span and not stays_whole:
            return plan.num_clips / max(1, walked.clips)
        if rows:  # no frame is loaded twice
            used = int(np.count_nonzero(used_rows(plan, plan.leading, rows[plan.leading])))
            return used / window.frame_step / max(1, walked.frames)
        _, begin, stop = plan.used(plan.leading)
        return int((-(begin - stop) // window.frame_step).sum()) / max(1, walked.frames)


def _series(share: float, number: float) -> float:
    """The sum of the first so many powers of a share: itself, its square, and so on."""
    return number if share == 1 else share * (1 - share**number) / (1 - share)


def _spans(plan: Plan, most_loads: int) -> list[tuple[int, int]]:
    """Rounds `[start, stop)`: all of a plan, or as many as have about so many loads."""
    middle = plan.num_rounds // 2
    some = list(plan.rounds(middle, min(middle + _LEAST_ROUNDS, plan.num_rounds)))
    loads = sum(len(todo.loads) for each in some for todo in each.groups)
    rounds = int(most_loads * max(1, len(some)) / max(1, loads))
    if plan.num_rounds <= rounds:
        return [(0, plan.num_rounds)]
    number = max(_LEAST_SPANS, min(_SPANS, rounds // _LEAST_ROUNDS))
    length = max(1, rounds // number)
    if plan.num_rounds <= number * length:
        return [(0, plan.num_rounds)]
    # Episodes of one length have rounds that repeat themselves: evenly spaced ones may be alike.
    places = (i * _GOLDEN % 1 for i in range(number))
    starts = dict.fromkeys(int(plan.num_rounds * place) // length * length for place in places)
    return [(start, min(start + length, plan.num_rounds)) for start in starts]


def _opening(dataset: Dataset, options: PlanOptions) -> tuple[Amount, Amount]:
    """What opening the dataset asks for: in all processes of the first epoch, and in those that a
    later one starts."""
    of = dataset.contents
    asks = any(isinstance(each, ParallelStorage) for each in _layers(of.storage))  # no mount does
    requests = of.storage.counters().get("requests", 0) if asks else 0
    is_disk = of.storage.local_path(MANIFEST) is not None
    nbytes = 0 if is_disk else sum(file.size for file in of.manifest.index.values())
    # To ask without `allow_none` would fix the method of this process.
    method = multiprocessing.get_start_method(allow_none=True)
    method = method or multiprocessing.get_all_start_methods()[0]
    in_worker = Amount(max(0, requests - 1), nbytes)  # it is sent the manifest
    workers = in_worker * (options.ranks * options.workers * (method != "fork"))
    return Amount(requests, nbytes) * options.ranks + workers, workers


def _cache_limit(dataset: Dataset) -> int | None:
    """What is sure to fit into the caches of all that is no disk; `None` where one has no cache."""
    of = dataset.contents
    storages = [of.storage]
    if of.externals is not None and any(group.external.any() for group in of.index.groups):
        storages += of.externals.storages()
    limits = [_limit_of(each) for each in storages if each.local_path(MANIFEST) is None]
    known = [limit for limit in limits if limit is not None]
    return min(known) if known and len(known) == len(limits) else None


def _limit_of(storage: Storage) -> int | None:
    return next((each.limit for each in _layers(storage) if isinstance(each, CachedStorage)), None)


def _layers(storage: Storage) -> Iterator[Storage]:
    """A storage, and those that it wraps."""
    yield storage
    if isinstance(storage, StorageWrapper):
        yield from _layers(storage.inner)


def _reads(amount: Amount) -> bool:
    return amount.bytes > 0 or amount.frames_decoded > 0
