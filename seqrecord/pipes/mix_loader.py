"""MixLoader: plans epochs of a mix, and makes the engines that run its sources."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
from torch.utils.data import get_worker_info

from seqrecord.clips import IntArray
from seqrecord.engine.arena import for_users
from seqrecord.engine.batches import Batch, BatchBuilder, Channel, OpenBatch
from seqrecord.engine.buffers import HostBuffers, KeptBuffers, Needs
from seqrecord.engine.device.buffers import DeviceBuffers
from seqrecord.engine.device.streams import find_device, side_stream
from seqrecord.engine.engine import Engine
from seqrecord.engine.stats import STAGES, EngineStats, bottleneck
from seqrecord.engine.trace import Trace
from seqrecord.errors import ClipError, StateError
from seqrecord.pipes.clip_loader import ClipLoader, open_trace
from seqrecord.pipes.distributed import Ranks
from seqrecord.pipes.memory import check_machine, share_out
from seqrecord.pipes.mix_features import (
    DATASET,
    MISSING,
    Features,
    Join,
    check_columns,
    columns_of,
    made_of,
)
from seqrecord.pipes.mix_plan import MixPlan, Stop, count_batches
from seqrecord.pipes.mix_sources import (
    SourceLoader,
    SourceRunner,
    source_seed,
)
from seqrecord.pipes.options import LoaderOptions
from seqrecord.pipes.states import Clip, Rest, State
from seqrecord.reading.frames import clip_nbytes
from seqrecord.sampling import Part
from seqrecord.sampling.memory import CONSUMER, PREFETCH, usual_limit
from seqrecord.sampling.random_order import key_of
from seqrecord.sampling.shares import Shares, whole_shares
from seqrecord.storage import local_path

__all__ = ["MixLoader"]

_MOST_SLOTS = 1 << 60
_OWN = ("clips", "batches", "waiting_for_batches_seconds")  # counted by the mix alone
_SALT = 0x6D6978  # the places of sources are not drawn as clips are


class MixLoader:
    """Plans epochs of a mix and runs them: a `BatchSource`. Picklable.

    `options` has what belongs to the mix: batches, memory, seed, rank, device, threads, trace.
    Raises `ClipError` for sources that do not go together, and `MemoryLimitError`.
    """

    goes_on = True

    def __init__(
        self,
        loaders: Mapping[str, ClipLoader],
        weights: Mapping[str, Any],
        options: LoaderOptions,
        *,
        stop: Stop,
        join: Join,
        alternate: bool | None,
    ) -> None:
        assert options.batch_size is not None
        self.options, self.stop, self.join = options, stop, join
        self.batch_size = options.batch_size
        self.names = list(loaders)
        self.counts = whole_shares([weights[name] for name in self.names])
        made = {name: made_of(loader.selection) for name, loader in loaders.items()}
        for name, features in made.items():
            taken = {*features, *(loaders[name].options.metadata or ())}
            if wrong := [one for one in taken if one == DATASET or one.endswith(MISSING)]:
                raise ClipError(
                    f"source {name!r} has a feature or metadata of a name that a mix gives",
                    expected=f"names other than {DATASET!r} and those that end with {MISSING!r}",
                    got=", ".join(sorted(wrong)),
                )
        self.features = Features.of(made, join)
        disagreement = self.features.disagreement
        if alternate is False and disagreement is not None:
            feature, got = disagreement
            raise ClipError(
                "the sources of a mix disagree in a shape, so they cannot be in one batch",
                feature=feature,
                expected="the same dtype and fixed shape in all of them; or alternate=True, for "
                "batches of one source each",
                got=got,
            )
        self.alternate = disagreement is not None if alternate is None else alternate
        sizes = dict(zip(self.names, self._source_batches, strict=True))
        common = list(self.features.specs) if join == "intersection" else None
        self.loaders = {
            name: SourceLoader(
                loader,
                common,
                seed=source_seed(options.seed, name),
                batch_size=sizes[name],
                device=options.device,
                video_decoder=_decoder_of(loader, options),
                num_threads=options.num_threads,
                rank=options.rank,
                world_size=options.world_size,
            )
            for name, loader in loaders.items()
        }
        if not self.alternate:
            check_columns(self.loaders, self.features.specs)
        self.ranks = Ranks(options.rank, options.world_size)
        self._trace = None
        if options.trace is not None:
            self._trace = local_path(options.trace, "trace").absolute()
        self._kept = [KeptBuffers() for _ in self._memories]  # for the next iteration
        self._places: dict[tuple[int, int], Shares] = {}  # see `_shares`
        self._limits: dict[int, tuple[int, dict[str, int]]] = {}  # by workers of a rank
        self.prefetch, _ = self._share_out(1)
        for name, loader in self.loaders.items():
            loader.limit(partial(self._limit_of, name))
        self.runners: dict[str, SourceRunner] = {}  # of the last iteration

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "runners": {}}

    @property
    def sources(self) -> Sequence[SourceLoader]:
        """See `BatchSource`."""
        return list(self.loaders.values())

    def asked(self) -> dict[str, Any]:
        """See `BatchSource`."""
        return {
            "shares": [[name, count] for name, count in zip(self.names, self.counts, strict=True)],
            "stop": self.stop,
            "batch_size": self.batch_size,
            "seed": self.options.seed,
            "features": self.join,
            "alternate": self.alternate,
        }

    @property
    def shares(self) -> dict[str, Fraction]:
        """The share of each source; they sum to 1."""
        total = sum(self.counts)
        return {n: Fraction(c, total) for n, c in zip(self.names, self.counts, strict=True)}

    def plan(
        self,
        epoch: int,
        part: Part,
        rest: Rest | None = None,
        *,
        workers: int | None = None,
    ) -> MixPlan:
        """The plan of one part of one epoch: the same on all ranks, for workers of one number.

        A rank has so many `workers`; by default as many as there are parts to this rank. `rest`
        says where the mix went on with other ranks or workers; epochs before that do not know it.
        """
        rest = rest if rest is not None and epoch >= rest.epoch else None
        if workers is None:
            ranks = self.ranks.current().count
            workers = part.count // ranks if part.count % ranks == 0 else 1
        worker = part.index % workers
        lengths = [max(1, loader.length(0, part.count)) for loader in self.loaders.values()]
        num_batches = whole = self._count(self.stop, lengths, worker, workers)
        first = epoch * whole
        if rest is not None:
            left = whole
            if rest.left is not None:
                left = self._batches_left(rest, rest.left, part.count, worker, workers)
            first = 0 if epoch == rest.epoch else left + (epoch - rest.epoch - 1) * whole
            num_batches = left if epoch == rest.epoch else whole
        if (first + num_batches) * self.batch_size >= _MOST_SLOTS:
            raise ClipError("an epoch that no mix comes to", got=epoch)
        shares = self._shares(worker, 0 if rest is None else rest.number)
        return MixPlan(
            epoch, part, num_batches, self.batch_size, shares, self.alternate, first, rest
        )

    def _batches_left(
        self, rest: Rest, left: int, num_parts: int, worker: int, workers: int
    ) -> int:
        """The batches of a part in the epoch of `rest`, of which all parts together have `left`.

        In the first epoch of the mix counts are those of the clips that each source has left of its
        first one; in others what is left is shared out.
        """
        stop = self.stop
        if isinstance(stop, int):
            stop = -(-left // (num_parts // workers))
        elif rest.epoch:
            return left // num_parts if stop == "first" else -(-left // num_parts)
        lengths = []
        for loader, source in zip(self.loaders.values(), rest.sources, strict=True):
            stages = source.stages(0)
            is_over = source.following and not stages
            lengths.append(0 if is_over else loader.length(0, num_parts, stages))
        return self._count(stop, lengths, worker, workers, least=0)

    def _count(
        self, stop: Stop, lengths: Sequence[int], worker: int, workers: int, least: int = 1
    ) -> int:
        return count_batches(
            stop,
            lengths,
            list(self.shares.values()),
            self.batch_size,
            worker=worker,
            workers=workers,
            least=least,
        )

    def check_place(self, state: State) -> None:
        """See `BatchSource`."""
        try:
            plans = self._plans(state)
        except ClipError as error:
            raise StateError(f"the saved state is of no epoch: {error}") from error
        state.check_batches(plan.num_batches for plan in plans)

    def rest_after(self, state: State) -> Rest:
        """See `BatchSource`."""
        state = state.of_rank()
        ranks, plans = state.sharing.ranks, self._plans(state)
        given = [plan.given(batch) for plan, batch in zip(plans, state.batches, strict=True)]
        before, left = plans[0].rest, None
        went_on = before is not None and before.epoch == state.epoch and before.left is not None
        if any(state.batches) or went_on:
            left = ranks * (sum(plan.num_batches for plan in plans) - sum(state.batches))
        sources = tuple(
            loader.rest_of(
                [int(clips[i]) for clips in given],
                ranks,
                None if before is None else before.sources[i],
                said if before is not None else replace(said, left=()),
            )
            for i, (loader, said) in enumerate(zip(self.sources, state.sources, strict=True))
        )
        return Rest(state.epoch, left, 1 if state.rest is None else state.rest.number + 1, sources)

    def _plans(self, state: State) -> list[MixPlan]:
        """Those of the workers that a state has batches of."""
        sharing, first = state.sharing, state.sharing.worker or 0
        return [
            self.plan(
                state.epoch,
                Part(first + i, sharing.num_parts),
                state.rest,
                workers=sharing.workers,
            )
            for i in range(len(state.batches))
        ]

    def start(
        self,
        plan: MixPlan,
        rest: Rest | None = None,  # noqa: ARG002
        *,
        batch: int = 0,
        stats: EngineStats,
    ) -> Engine:
        """An engine that runs a plan from `batch` on; `rest` is the plan's."""
        buffers = self._memory_of_batches()
        num_batches, stream = buffers[0].needs.num_batches, buffers[0].stream
        if self.options.device is None:
            nbytes = sum(one.most_bytes(plan.part.count) for one in self.loaders.values())
            check_machine(nbytes + num_batches * self._bytes_of_batch, "a mix")
        missing = {} if self.alternate else self.features.missing_arrays
        rests = [None] * len(self.loaders) if plan.rest is None else plan.rest.sources
        self.runners = {
            name: SourceRunner(loader, plan.part, EngineStats(trace=stats.trace), stream, rest)
            for (name, loader), rest in zip(self.loaders.items(), rests, strict=True)
        }
        begin = partial(_begin, plan, buffers, threading.Lock(), missing)
        channel = Channel(num_batches - CONSUMER, stats, begin, batch, len(self.runners))
        given, last = plan.given(batch), plan.given(plan.num_batches)
        runs = [
            partial(runner.run, channel, plan, number, int(given[number]), int(last[number]))
            for number, runner in enumerate(self.runners.values())
        ]
        return Engine(channel, runs, stats)

    def trace(self) -> Trace:
        """The trace of an iteration in this process."""
        return open_trace(self._trace, self.ranks)

    def present(self, batch: Batch, plan: MixPlan, number: int) -> list[Clip]:  # noqa: ARG002
        """See `BatchSource`."""
        first = self.names[int(batch.source[0])]
        columns = columns_of(
            batch,
            self.loaders,
            tellers=[first] if self.alternate else self.names,
            missing={} if self.alternate else self.features.missing,
        )
        nested = self.loaders[first].selection.nested
        return [{**for_users(batch.features, nested), **columns}]

    def stats(self, done: dict[str, Any], epoch: int) -> dict[str, Any]:  # noqa: ARG002
        """See `BatchSource`: of the mix, and of each source."""
        sources = {}
        for name, loader in self.loaders.items():
            runner, clips = self.runners.get(name), loader.clips(0)
            said = EngineStats().report() if runner is None else runner.stats.report()
            sources[name] = {
                **said,
                "bottleneck": STAGES[bottleneck(said, waiting=1.0)],
                "clips_incomplete": clips.num_incomplete,
                "clips_repeated": 0 if runner is None else runner.repeated,
                "mixed_from": 0 if runner is None else runner.mixed_from,
                "episodes_too_short": clips.num_short_episodes,
            }
        return {**_summed(done, sources), "sources": sources}

    @property
    def _source_batches(self) -> list[int]:
        """About how many clips each source has in a batch."""
        total, size = sum(self.counts), self.batch_size
        return [size if self.alternate else -(-size * c // total) for c in self.counts]

    @property
    def _memories(self) -> list[tuple[Mapping[str, Any], Mapping[str, int]]]:
        """The features of batches, and their frames: of all sources, or of each one alone."""
        if not self.alternate:
            return [(self.features.specs, self.features.lengths)]
        names = None if self.join == "union" else list(self.features.specs)
        return [_memory(loader, names) for loader in self.loaders.values()]

    def _limit_of(self, name: str, num_workers: int) -> int:
        """The memory limit of a source, in each of so many workers of a rank."""
        return self._share_out(num_workers)[1][name]

    def _share_out(self, num_workers: int) -> tuple[int, dict[str, int]]:
        """See `share_out`, for each of so many workers of a rank."""
        if num_workers not in self._limits:
            batch, limit = self._bytes_of_batch, self.options.memory_limit
            if limit is None:
                wanted = sum(loader.demand().wanted_limit for loader in self.loaders.values())
                limit = usual_limit(wanted + (PREFETCH + CONSUMER) * batch, num_workers)
            self._limits[num_workers] = share_out(
                limit,
                batch,
                {name: loader.demand().least_limit for name, loader in self.loaders.items()},
                {
                    name: float(share) * _batch_bytes(*_memory(self.loaders[name]), 1)
                    for name, share in self.shares.items()
                },
            )
        return self._limits[num_workers]

    @property
    def _bytes_of_batch(self) -> int:
        """Of one batch; where sources alternate, of one of each."""
        return sum(_batch_bytes(*memory, self.batch_size) for memory in self._memories)

    def _memory_of_batches(self) -> list[HostBuffers | DeviceBuffers]:
        """Memory for batches: that of the last iteration of this process, if there is one."""
        device, in_worker = None, get_worker_info() is not None
        if self.options.device is not None:
            device = find_device(self.options.device)
        num_batches = CONSUMER + (1 if in_worker else self.prefetch)
        stream = None if device is None else side_stream(device)
        found: list[Any] = []
        for kept, (specs, lengths) in zip(self._kept, self._memories, strict=True):
            size = self.batch_size
            needs = Needs((), specs, lengths, size, num_batches, device, in_worker)
            make = HostBuffers if device is None else partial(DeviceBuffers, stream=stream)
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


def _begin(
    plan: MixPlan,
    kept: list[HostBuffers | DeviceBuffers],
    lock: threading.Lock,
    missing: Mapping[str, tuple[int, ...]],
    number: int,
) -> OpenBatch:
    """A batch to fill."""
    sources = plan.sources(number)
    return OpenBatch(len(sources), partial(_builder, kept, missing, sources), lock, sources)


def _builder(
    kept: list[HostBuffers | DeviceBuffers],
    missing: Mapping[str, tuple[int, ...]],
    sources: IntArray,
) -> BatchBuilder[Any]:
    """The memory of a batch with slots for these sources, 0 where they lack a feature."""
    first = int(sources[0])
    builder: Any = kept[first if len(kept) > 1 else 0].begin_batch(len(sources))
    for name, without in missing.items():
        slots = np.flatnonzero(np.isin(sources, without))
        if len(slots):
            builder.clear(name, slots)
    found: BatchBuilder[Any] = builder
    return found


def _summed(own: dict[str, Any], sources: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The mix's own counts, with what its sources have counted."""
    total = dict(own)
    for said in sources.values():
        for name, value in said.items():
            if name in _OWN or isinstance(value, str):
                continue
            if isinstance(value, dict):
                total[name] = {**total.get(name, {})}
                for feature, seconds in value.items():
                    total[name][feature] = total[name].get(feature, 0.0) + seconds
            else:
                total[name] = total.get(name, 0) + value
    if not own["clips"]:
        return total
    # Each waits for the others or for the consumer; the one that does so least limits the mix.
    waits = {name: said["waiting_for_consumer_seconds"] for name, said in sources.items()}
    slowest = min(waits, key=waits.__getitem__)
    total["waiting_for_consumer_seconds"] = waits[slowest]
    if own["waiting_for_batches_seconds"] < waits[slowest]:
        return {**total, "bottleneck": STAGES["consumer"]}
    words = sources[slowest]["bottleneck"]
    return {**total, "bottleneck": f"source {slowest!r}: {words}"}


def _decoder_of(loader: ClipLoader, options: LoaderOptions) -> str:
    """What decodes a source's video: on the host, where it transforms frames."""
    return "pyav" if loader.options.frame_transform is not None else options.video_decoder


def _memory(
    loader: ClipLoader, names: list[str] | None = None
) -> tuple[Mapping[str, Any], Mapping[str, int]]:
    """Of a source's features, or of those with these names: what a frame is, and how many."""
    made = made_of(loader.selection)
    specs = {name: made[name][0] for name in names or made}
    return specs, {name: made[name][1] for name in specs}


def _batch_bytes(specs: Mapping[str, Any], lengths: Mapping[str, int], size: int) -> int:
    return size * max(1, clip_nbytes(specs, lengths))
