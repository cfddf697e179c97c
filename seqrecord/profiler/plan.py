"""plan: what a training will read, hold and cost, before it runs."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from seqrecord.errors import ClipError
from seqrecord.indexing.opening import opened
from seqrecord.pipes.arguments import takes_arguments
from seqrecord.pipes.options import LoaderOptions
from seqrecord.profiler.options import ToolOptions
from seqrecord.reading.dataset import Dataset, DatasetLike
from seqrecord.reading.read_cost import ReadCost
from seqrecord.storage import CachedStorage
from seqrecord.storage.parallel import layers, parallel_of
from seqrecord.text import counted, shown_place, table_lines
from seqrecord.units import check_amount, check_integer, check_size, format_size, parse_size

_OF_RUN = ("epochs", "ranks", "workers", "persistent_workers")


@dataclass(frozen=True, kw_only=True)
class PlanOptions(ToolOptions):
    """The arguments of `plan` beside the dataset: those of a loader, and of the run.

    Args:
        epochs: number of epochs.
        ranks: processes that train, each with its shard of every epoch.
        workers: of the DataLoader of each rank; 0: the loader runs in the rank's process.
        persistent_workers: whether workers live for all epochs; else each epoch starts them anew.
        bandwidth: bytes a second that all ranks together can read, or text such as "1GB".
        price_per_gb: of 10^9 bytes that are read, in any currency.
        price_per_request: in the same currency.
    """

    epochs: int = 1
    ranks: int = 1
    workers: int = 0
    persistent_workers: bool = False
    bandwidth: int | str | None = None
    price_per_gb: float = 0.0
    price_per_request: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("epochs", 1), ("ranks", 1), ("workers", 0)):
            check_integer(name, getattr(self, name), least=least)
        for name in ("price_per_gb", "price_per_request"):
            check_amount(name, getattr(self, name))
        if self.bandwidth is not None:
            check_size("bandwidth", self.bandwidth, least=1)
        for name in ("rank", "world_size", "device"):
            if (value := getattr(self, name)) is not None:
                raise ClipError(f"plan takes no {name}", expected="ranks=, of all", got=value)


@dataclass(frozen=True)
class PlanReport:
    """The result of `plan`, for all ranks and workers together except `peak_memory`.

    `first_epoch` is exact. `later_epoch` is nothing where all frames stay in memory, has no bytes
    where a cache has room for the first epoch, and else equals it: other cuts, phases or weights
    change that by a few percent, and frames that stay only lower it. Workers that live for one
    epoch keep no frames, and open the dataset again if they do not fork.

    `peak_memory` is the most bytes of frames, batches and reads in flight of one rank's loaders, in
    its own process or in its workers. Python, torch, the training and batches that a DataLoader
    holds ready come on top. `first_batch` is what is read before every rank and worker has a batch,
    with `opening`. Times are those of reading at the `bandwidth`; `None` without one.
    """

    url: str
    settings: Mapping[str, Any]
    clips: int  # of the first epoch
    batches: int
    opening: ReadCost  # by all processes
    first_epoch: ReadCost
    later_epoch: ReadCost
    total: ReadCost
    first_batch: ReadCost
    peak_memory: int
    first_batch_seconds: float | None
    hours: float | None
    price: float
    features_resident: list[str]  # whose frames stay in each process, if it lives on
    features_redecoded: list[str]  # in every epoch

    def to_json(self) -> dict[str, Any]:
        """Everything; times are in seconds or hours, and sizes in bytes."""
        return asdict(self)

    def __str__(self) -> str:
        rows = [("", "requests", "read", "frames decoded", "of video, at most")]
        for name in ("opening", "first_batch", "first_epoch", "later_epoch", "total"):
            each: ReadCost = getattr(self, name)
            frames = f"{each.frames_decoded:,}", f"{each.video_frames_decoded:,}"
            label = name.replace("_", " ")
            rows.append((label, f"{each.requests:,}", format_size(each.bytes), *frames))
        hours, seconds = self.hours, self.first_batch_seconds
        facts = {
            **{name: str(value) for name, value in self.settings.items() if name in _OF_RUN},
            "peak memory": f"at most {format_size(self.peak_memory)} of each rank's loaders",
            "stay": ", ".join(self.features_resident),
            "decode again": ", ".join(self.features_redecoded),
            "reading": "" if not hours else f"{hours:,.2f} h, the first batch {seconds:,.1f} s",
            "price": f"{self.price:,.2f}" if self.price else "",
        }
        shown = [(name.replace("_", " "), fact) for name, fact in facts.items() if fact]
        batches = f"{counted(self.clips, 'clip')} in {self.batches:,} batches an epoch"
        lines = ["", *table_lines(rows, left=1), "", *table_lines(shown, left=2)]
        return "\n  ".join([f"{shown_place(self.url)}: {batches}", *lines])


@takes_arguments(PlanOptions)
def plan(dataset: DatasetLike, options: PlanOptions) -> PlanReport:
    """Predict what a training reads, keeps in memory and costs, from index and plan alone.

    No page is read; with a `frame_transform` the first frame. By default batches have 4 clips, and
    clips 16 frames unless `windows` or lists of frames define them. It counts 10,000 to 40,000
    chunks a second.

    Raises `ClipError` for wrong arguments, `MemoryLimitError` for a limit that is too small, and
    the errors of opening the dataset.

    Args:
        dataset: local path or URL, or an open dataset of which nothing was read yet.
    """
    with opened(dataset) as found:
        return _planned(found, options)


def _planned(dataset: Dataset, options: PlanOptions) -> PlanReport:
    from seqrecord.engine.counting import count_loads  # torch takes seconds
    from seqrecord.pipes.clip_loader import ClipLoader
    from seqrecord.pipes.selecting import select
    from seqrecord.sampling import Shard

    given = {f.name: getattr(options, f.name) for f in fields(LoaderOptions)}
    of_rank = LoaderOptions(**{**given, "rank": 0, "world_size": options.ranks})
    opening, anew = _opening(dataset, options)
    before = _requests(dataset)
    selection = select(dataset, of_rank)
    opening += ReadCost(_requests(dataset) - before) * options.ranks  # such as a first frame
    loader = ClipLoader(selection, of_rank)
    workers, clips, batches, peak = max(1, options.workers), 0, 0, 0
    first, batch, stays = ReadCost(), opening, options.persistent_workers or not options.workers
    for index in range(shards := options.ranks * workers):
        plan, in_worker = loader.plan(0, Shard(index, shards)), options.workers > 0
        _, nbytes, rows = loader.planner.execution_memory(
            plan, on_device=False, in_worker=in_worker
        )
        in_epoch, in_batch = count_loads(loader.job(plan), rows)
        first, batch = first + in_epoch, batch + in_batch
        clips, batches = clips + plan.num_clips, batches + plan.num_batches
        peak, stays = max(peak, nbytes * workers), stays and bool(rows)
    later = first
    if not selection.clip_set.differs_by_epoch:
        settings = loader.planner.plan_memory(shards).settings
        is_fixed = shards == 1 or not options.shuffle or settings.resident
        if stays and is_fixed:
            later = ReadCost()
        elif _is_cached(dataset, first.bytes):
            later = replace(first, requests=0, bytes=0)
    total = opening + first + (later + anew) * (options.epochs - 1)
    rate = None if options.bandwidth is None else parse_size(options.bandwidth)
    return PlanReport(
        url=dataset.url,
        settings=options.settings(*PlanOptions.__annotations__),
        clips=clips,
        batches=batches,
        opening=opening,
        first_epoch=first,
        later_epoch=later + anew,
        total=total,
        first_batch=batch,
        peak_memory=peak,
        first_batch_seconds=None if rate is None else batch.bytes / rate,
        hours=None if rate is None else total.bytes / rate / 3600,
        price=total.bytes / 1e9 * options.price_per_gb + total.requests * options.price_per_request,
        **loader.residency(shards),
    )


def _requests(dataset: Dataset) -> int:
    """What the dataset's storage was asked so far."""
    storage = dataset.contents.storage
    return 0 if parallel_of(storage) is None else storage.counters().get("requests", 0)


def _opening(dataset: Dataset, options: PlanOptions) -> tuple[ReadCost, ReadCost]:
    """What opening the dataset asks for: in all processes of the first epoch, and in those that a
    later one starts."""
    of, requests = dataset.contents, _requests(dataset)
    is_disk = of.storage.local_path("any name") is not None
    nbytes = 0 if is_disk else sum(file.size for file in of.manifest.index.values())
    # To ask without `allow_none` would fix the method of this process.
    method = multiprocessing.get_start_method(allow_none=True)
    method = method or multiprocessing.get_all_start_methods()[0]
    num_workers = 0 if method == "fork" else options.ranks * options.workers
    workers = ReadCost(max(0, requests - 1), nbytes) * num_workers  # they are sent the manifest
    again = ReadCost() if options.persistent_workers else workers
    return ReadCost(requests, nbytes) * options.ranks + workers, again


def _is_cached(dataset: Dataset, nbytes: int) -> bool:
    """Whether everything remote has a cache that is sure to have room for so many bytes."""
    of = dataset.contents
    storages = [of.storage]
    if of.externals is not None and any(group.external.any() for group in of.index.groups):
        storages += of.externals.storages()
    remote = [each for each in storages if each.local_path("any name") is None]
    caches = [each for some in remote for each in layers(some) if isinstance(each, CachedStorage)]
    return len(caches) == len(remote) > 0 and all(nbytes <= each.limit for each in caches)
