"""MixLoader: plans epochs of a mix, and makes the engines that run its sources."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from math import ceil
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from seqrecord.engine.arena import for_users
from seqrecord.engine.batches import Batch, BatchBuilder, Channel, OpenBatch
from seqrecord.engine.buffers import BufferCache, HostBuffers, Needs
from seqrecord.engine.device.buffers import DeviceBuffers
from seqrecord.engine.engine import Engine
from seqrecord.engine.stats import STAGES, EngineStats, bottleneck
from seqrecord.engine.trace import Trace
from seqrecord.errors import ClipError, StateError
from seqrecord.pipes.clip_loader import ClipLoader
from seqrecord.pipes.distributed import Ranks
from seqrecord.pipes.memory import check_machine, share_out
from seqrecord.pipes.mix_sources import (
    Done,
    Features,
    Join,
    MixPlan,
    SourceLoader,
    StoppingStrategy,
    check_meanings_agree,
)
from seqrecord.pipes.options import LoaderOptions
from seqrecord.pipes.selection import Selection
from seqrecord.pipes.states import Clip, Remainder, Source, State
from seqrecord.reading.frames import ArraySpec, clip_nbytes
from seqrecord.sampling import Part
from seqrecord.sampling.memory import CONSUMER, PREFETCH, usual_limit
from seqrecord.sampling.random_order import key_of
from seqrecord.sampling.shares import Shares, whole_shares

_DATASET = "dataset"  # the column that has the name of each clip's source
_MISSING = "_is_missing"  # how the names of masks end, of clips whose source lacks a feature
_MOST_SLOTS = 1 << 60
_OWN = ("clips", "batches", "data_wait_seconds")  # counted by the mix alone
_SALT = 0x6D6978  # the places of sources are not drawn as clips are


class MixLoader:
    """Plans epochs of a mix and runs them: a `BatchSource`. Picklable.

    Args:
        sources: a loader and a weight of each.
        options: what belongs to the mix: batches, memory, seed, rank, device, threads, trace.

    Raises `ClipError` for sources that do not go together, and `MemoryLimitError`.
    """

    goes_on = True

    def __init__(
        self,
        sources: Mapping[str, tuple[ClipLoader, Fraction]],
        options: LoaderOptions,
        *,
        stopping_strategy: StoppingStrategy,
        join: Join,
        single_source_batches: bool | None,
    ) -> None:
        assert options.batch_size is not None
        self.options, self.stopping_strategy, self.join = options, stopping_strategy, join
        self.batch_size = options.batch_size
        self.names = list(sources)
        self.counts = whole_shares([weight for _, weight in sources.values()])
        each = zip(self.names, self.counts, strict=True)
        self.shares = {name: Fraction(count, sum(self.counts)) for name, count in each}
        for name, (loader, _) in sources.items():
            taken = {*loader.selection.made, *(loader.options.metadata or ())}
            if wrong := [one for one in taken if one == _DATASET or one.endswith(_MISSING)]:
                raise ClipError(
                    f"source {name!r} has a feature or metadata of a name that a mix gives",
                    expected=f"names other than {_DATASET!r} and those that end with {_MISSING!r}",
                    got=", ".join(sorted(wrong)),
                )
        self.features = Features.of({n: one.selection for n, (one, _) in sources.items()}, join)
        check_meanings_agree(
            self.features.specs, {n: one.selection for n, (one, _) in sources.items()}
        )
        disagreement = self.features.disagreement
        if single_source_batches is False and disagreement is not None:
            feature, got = disagreement
            raise ClipError(
                "the sources of a mix disagree in a shape, so they cannot be in one batch",
                feature=feature,
                expected="the same dtype and fixed shape in all of them; or "
                "single_source_batches=True, for batches of one source each",
                got=got,
            )
        self.single_source_batches = (
            disagreement is not None if single_source_batches is None else single_source_batches
        )
        common = list(self.features.specs) if join == "intersection" else None
        size = self.batch_size
        self.loaders = {
            name: SourceLoader(
                name,
                loader,
                common,
                options,
                size if self.single_source_batches else ceil(size * self.shares[name]),
                partial(self._limit_of, name),
            )
            for name, (loader, _) in sources.items()
        }
        self._sources = list(self.loaders.values())
        selections = [loader.selection for loader in self._sources]
        # The features of batches, and their frames: of all sources, or of each one alone.
        self._kinds: list[tuple[Mapping[str, ArraySpec], Mapping[str, int]]]
        if self.single_source_batches:
            self.features = replace(self.features, missing={})
            self._kinds = [
                ({name: one.made[name] for name in common or one.made}, one.lengths)
                for one in selections
            ]
        else:
            self._kinds = [(self.features.specs, self.features.lengths)]
            self._check_columns()
        self._without_cameras = {} if self.single_source_batches else _without_cameras(selections)
        # Of one batch; where sources alternate, of one of each.
        self._batch_bytes = sum(size * max(1, clip_nbytes(*kind)) for kind in self._kinds)
        # The memory that batches leave is divided in this ratio.
        self._weights = {
            name: float(share) * max(1, clip_nbytes(one.made, one.lengths))
            for (name, share), one in zip(self.shares.items(), selections, strict=True)
        }
        self._kept = [BufferCache() for _ in self._kinds]  # for the next iteration
        self._places: dict[tuple[int, int], Shares] = {}  # see `_shares`
        self._limits: dict[int, tuple[int, dict[str, int]]] = {}  # by workers of a rank
        self.prefetch, _ = self._share_out(1)
        for source in self._sources:
            source.planner.fit(1)  # a limit that is too small is an error here and now
        self._done: dict[str, Done] = {}  # in the last iteration

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_done": {}}

    @property
    def ranks(self) -> Ranks:
        """See `BatchSource`."""
        return self._sources[0].ranks

    @property
    def sources(self) -> Sequence[Source]:
        """See `BatchSource`."""
        return tuple(source for loader in self._sources for source in loader.sources)

    def asked(self) -> dict[str, Any]:
        """See `BatchSource`."""
        return {
            "shares": [[name, count] for name, count in zip(self.names, self.counts, strict=True)],
            "stopping_strategy": self.stopping_strategy,
            "batch_size": self.batch_size,
            "seed": self.options.seed,
            "features": self.join,
            "single_source_batches": self.single_source_batches,
        }

    def plan(
        self, epoch: int, part: Part, rest: Remainder | None = None, *, workers: int | None = None
    ) -> MixPlan:
        """The plan of one part of one epoch: the same on all ranks, for workers of one number.

        A rank has so many `workers`; by default as many as there are parts to this rank. `rest`
        says where the mix went on with other ranks or workers; epochs before that do not know it.
        """
        rest = rest if rest is not None and epoch >= rest.epoch else None
        workers = workers or self._sources[0].planner.workers(part.count)
        worker, size = part.index % workers, self.batch_size
        each = zip(self._sources, self.shares.values(), strict=True)
        slots = [max(1, loader.length(0, part.count)) / share for loader, share in each]
        num_batches = whole = MixPlan.count_batches(
            self.stopping_strategy, slots, size, worker, workers
        )
        first = epoch * whole
        if rest is not None:
            left = whole
            if rest.left is not None:
                left = self._remaining_batches(rest, rest.left, part, workers)
            first = 0 if epoch == rest.epoch else left + (epoch - rest.epoch - 1) * whole
            num_batches = left if epoch == rest.epoch else whole
        if (first + num_batches) * size >= _MOST_SLOTS:
            raise ClipError("an epoch that no mix comes to", got=epoch)
        shares = self._shares(worker, 0 if rest is None else rest.number)
        return MixPlan(part, num_batches, size, shares, self.single_source_batches, first, rest)

    def _remaining_batches(self, rest: Remainder, left: int, part: Part, workers: int) -> int:
        """The batches of a part in the epoch of `rest`, of which all parts together have `left`.

        In the first epoch of the mix counts are those of the clips that each source has left of its
        first one; in others what is left is shared out.
        """
        stopping_strategy = self.stopping_strategy
        if isinstance(stopping_strategy, int):
            stopping_strategy = -(-left // (part.count // workers))
        elif rest.epoch:
            return (
                left // part.count
                if stopping_strategy == "first_exhausted"
                else -(-left // part.count)
            )
        each, slots = zip(self._sources, self.shares.values(), rest.sources, strict=True), []
        for loader, share, own in each:
            sessions = own.sessions(0)
            is_over = own.following and not sessions
            slots.append((0 if is_over else loader.length(0, part.count, sessions)) / share)
        return MixPlan.count_batches(
            stopping_strategy, slots, self.batch_size, part.index % workers, workers, 0
        )

    def check_place(self, state: State) -> None:
        """See `BatchSource`."""
        for loader, rest in zip(self._sources, state.rests, strict=True):
            loader.check_remainder(rest, state.sharing.num_parts)
        try:
            plans = self._plans(state)
        except ClipError as error:
            raise StateError(f"the saved state is of no epoch: {error}") from error
        state.check_batches(plan.num_batches for plan in plans)

    def remainder_after(self, state: State) -> Remainder:
        """See `BatchSource`."""
        state = state.of_rank()
        ranks, plans = state.sharing.ranks, self._plans(state)
        given = [plan.given(batch) for plan, batch in zip(plans, state.batches, strict=True)]
        before, left = plans[0].rest, None
        went_on = before is not None and before.epoch == state.epoch and before.left is not None
        if any(state.batches) or went_on:
            left = ranks * (sum(plan.num_batches for plan in plans) - sum(state.batches))
        each = zip(self._sources, plans[0].rests, state.sources, strict=True)
        sources = tuple(
            loader.remainder_of([int(clips[i]) for clips in given], ranks, old, said)
            for i, (loader, old, said) in enumerate(each)
        )
        number = 0 if state.rest is None else state.rest.number
        return Remainder(state.epoch, left, number + 1, sources)

    def _plans(self, state: State) -> list[MixPlan]:
        """Those of the workers that a state has batches of."""
        sharing, count = state.sharing, state.sharing.num_parts
        first = sharing.worker or 0
        return [
            self.plan(state.epoch, Part(first + i, count), state.rest, workers=sharing.workers)
            for i in range(len(state.batches))
        ]

    def start(
        self, plan: MixPlan, _rest: Remainder | None, *, batch: int, stats: EngineStats
    ) -> Engine:
        """An engine that runs a plan from `batch` on; the rest is the plan's."""
        buffers = self._memory_of_batches()
        num_batches, stream = buffers[0].needs.num_batches, buffers[0].stream
        if self.options.device is None:
            nbytes = sum(loader.planner.most_bytes(plan.part.count) for loader in self._sources)
            check_machine(nbytes + num_batches * self._batch_bytes, "a mix")
        self._done = {name: Done(EngineStats(trace=stats.trace)) for name in self.names}
        begin = _begin(plan, buffers, self.features.missing_arrays)
        channel = Channel(num_batches - CONSUMER, stats, begin, batch, len(self._sources))
        clips = zip(plan.given(batch).tolist(), plan.given(plan.num_batches).tolist(), strict=True)
        each = zip(self._sources, clips, self._done.values(), strict=True)
        runs = [
            partial(loader.run, channel, plan, number, some, done, stream)
            for number, (loader, some, done) in enumerate(each)
        ]
        return Engine(channel, runs, stats)

    def trace(self) -> Trace:
        """See `BatchSource`."""
        return self._sources[0].trace()

    def present(self, batch: Batch, plan: MixPlan, number: int) -> list[Clip]:  # noqa: ARG002
        """See `BatchSource`."""
        selection = self._sources[int(batch.source[0])].selection
        squeezed = selection.squeezed if self.single_source_batches else self.features.squeezed
        features = for_users(batch.features, selection.nested, squeezed)
        return [{**features, **self._columns(batch)}]

    def _columns(self, batch: Batch) -> dict[str, Any]:
        """What a batch tells of its clips, each a list or a tensor of clips in its order.

        There are the columns of all sources, whether or not the batch has clips of these; where
        they alternate, of its own.
        """
        loaders, size = self._sources, len(batch)
        columns: dict[str, Any] = {_DATASET: [self.names[i] for i in batch.source.tolist()]}
        for name, lacking in {**self.features.missing, **self._without_cameras}.items():
            columns[name + _MISSING] = torch.from_numpy(np.isin(batch.source, lacking))
        for teller in [loaders[int(batch.source[0])]] if self.single_source_batches else loaders:
            for name, column in teller.selection.column_kinds.items():
                is_list = isinstance(column, list)
                whole = [None] * size if is_list else column.new_zeros((size, *column.shape[1:]))
                columns.setdefault(name, whole)
        draws_dilations = isinstance(columns.get("dilation"), torch.Tensor)
        # Plain Python: NumPy's calls for so few numbers would each wait for the GIL.
        found: dict[tuple[int, int], list[int]] = {}
        kinds = zip(batch.source.tolist(), batch.epoch.tolist(), strict=True)
        for slot, kind in enumerate(kinds):
            found.setdefault(kind, []).append(slot)
        for (source, epoch), some in found.items():
            slots, loader = np.array(some), loaders[source]
            named = batch.episode[slots], batch.start[slots]
            told = loader.columns(*named, epoch, batch.place[slots])
            if draws_dilations:
                [dilation, *_] = loader.options.dilations
                told.setdefault("dilation", torch.full((len(some),), dilation, device="cpu"))
            for name, column in told.items():
                whole = columns[name]
                if isinstance(column, torch.Tensor):
                    whole.numpy()[slots] = column.numpy()
                else:
                    for slot, item in zip(some, column, strict=True):
                        whole[slot] = item
        return columns

    def _check_columns(self) -> None:
        """Raise `ClipError` where what one source tells of its clips has the name of a feature of
        batches, or of something of another kind that another source tells."""
        kinds: dict[str, object] = dict.fromkeys(self.features.specs, "feature")
        for source, loader in self.loaders.items():
            for name, column in loader.selection.column_kinds.items():
                kind = "list" if isinstance(column, list) else (column.dtype, column.shape[1:])
                if kinds.setdefault(name, kind) != kind:
                    raise ClipError(
                        "what one source tells of its clips has the name of something else in "
                        "another",
                        feature=name,
                        expected="another name",
                        got=f"a column of source {source!r}",
                    )

    def stats(self, done: dict[str, Any], epoch: int) -> dict[str, Any]:  # noqa: ARG002
        """See `BatchSource`: of the mix, and of each source."""
        sources = {}
        for name, loader in self.loaders.items():
            own, clips = self._done.get(name) or Done(EngineStats()), loader.clips(0)
            said = own.stats.report()
            sources[name] = {
                **said,
                "bottleneck": STAGES[bottleneck(said, waiting=1.0)],
                "clips_incomplete": clips.num_incomplete,
                "duplicate_clips": own.repeated,
                "num_interleaved": own.num_interleaved,
                "episodes_too_short": clips.num_short_episodes,
                **loader.residency(),
            }
        return {**_summed(done, sources), "sources": sources}

    def _limit_of(self, name: str, num_workers: int) -> int:
        """The memory limit of a source, in each of so many workers of a rank."""
        return self._share_out(num_workers)[1][name]

    def _share_out(self, num_workers: int) -> tuple[int, dict[str, int]]:
        """See `share_out`, for each of so many workers of a rank."""
        if num_workers not in self._limits:
            demands = {name: loader.planner.demand() for name, loader in self.loaders.items()}
            batch, limit = self._batch_bytes, self.options.memory_limit
            if limit is None:
                wanted = sum(demand.wanted_limit for demand in demands.values())
                limit = usual_limit(wanted + (PREFETCH + CONSUMER) * batch, num_workers)
            self._limits[num_workers] = share_out(limit, batch, demands, self._weights)
        return self._limits[num_workers]

    def _memory_of_batches(self) -> list[HostBuffers | DeviceBuffers]:
        """Memory for batches: that of the last iteration of this process, if there is one."""
        in_worker = get_worker_info() is not None
        device = self._sources[0].find_device()
        num_batches = CONSUMER + (1 if in_worker else self.prefetch)
        stream = self._kept[0].stream(device)
        make = HostBuffers if stream is None else partial(DeviceBuffers, stream=stream)
        found: list[Any] = []
        for kept, kind in zip(self._kept, self._kinds, strict=True):
            needs = Needs((), *kind, self.batch_size, num_batches, device, in_worker)
            buffers: Any = kept.acquire(needs, make)
            kept.release(buffers)  # batches that iterations have begun are theirs
            found.append(buffers)
        return found

    def _shares(self, worker: int, change: int) -> Shares:
        """The places of sources, of all ranks' workers of one number, after so many changes of
        ranks or workers."""
        if (worker, change) not in self._places:
            key = key_of(self.options.seed, _SALT, worker, *([change] if change else []))
            self._places[worker, change] = Shares(self.counts, key)
        return self._places[worker, change]


def _without_cameras(selections: Sequence[Selection]) -> dict[str, tuple[int, ...]]:
    """The numbers of the sources that do not tell intrinsics, by the name of those that others
    tell."""
    columns = [one.column_kinds for one in selections]
    names = dict.fromkeys(n for one in columns for n in one if n.endswith("intrinsics"))
    each = {name: tuple(i for i, one in enumerate(columns) if name not in one) for name in names}
    return {name: lacking for name, lacking in each.items() if lacking}


def _begin(
    plan: MixPlan,
    kept: list[HostBuffers | DeviceBuffers],
    missing: Mapping[str, Sequence[int]],
) -> Callable[[int], OpenBatch]:
    """What begins a batch, by its number: a slot whose source lacks a feature is 0 there.

    It does not refer to the loader, which may be dropped.
    """
    lock = threading.Lock()

    def begin(number: int) -> OpenBatch:
        sources = plan.sources(number)

        def build() -> BatchBuilder[Any]:
            first = int(sources[0]) if len(kept) > 1 else 0
            builder = kept[first].begin_batch(len(sources))
            for name, without in missing.items():
                if len(slots := np.flatnonzero(np.isin(sources, without))):
                    builder.clear(name, slots)
            return builder

        return OpenBatch(len(sources), build, lock, sources)

    return begin


def _summed(own: dict[str, Any], sources: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The mix's own counts, with what its sources have counted."""
    total = dict(own)
    for said in sources.values():
        for name, value in said.items():
            if isinstance(value, dict):
                before = total.get(name, {})
                more = {feature: before.get(feature, 0.0) + n for feature, n in value.items()}
                total[name] = {**before, **more}
            elif isinstance(value, list):  # of features
                total[name] = [*dict.fromkeys([*total.get(name, ()), *value])]
            elif name not in _OWN and not isinstance(value, str):
                total[name] = total.get(name, 0) + value
    if not own["clips"]:
        return total
    # Each waits for the others or for the consumer; the one that does so least limits the mix.
    waits = {name: said["waiting_for_consumer_seconds"] for name, said in sources.items()}
    slowest = min(waits, key=waits.__getitem__)
    total["waiting_for_consumer_seconds"] = waits[slowest]
    if own["data_wait_seconds"] < waits[slowest]:
        return {**total, "bottleneck": STAGES["consumer"]}
    words = sources[slowest]["bottleneck"]
    return {**total, "bottleneck": f"source {slowest!r}: {words}"}
