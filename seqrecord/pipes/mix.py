"""SeqRecordMix: batches of clips from several datasets, by weight."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from numbers import Rational, Real
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils.data import IterableDataset

from seqrecord.errors import ClipError
from seqrecord.pipes.checks import check, refuse
from seqrecord.pipes.clip_loader import ClipLoader
from seqrecord.pipes.epochs import Epochs
from seqrecord.pipes.loaders import Streaming, WithEpochs, loader_of
from seqrecord.pipes.mix_batches import Join
from seqrecord.pipes.mix_loader import MixLoader
from seqrecord.pipes.mix_sources import StoppingStrategy
from seqrecord.pipes.options import EngineOptions, LoaderOptions, one_of
from seqrecord.pipes.states import Clip
from seqrecord.statistics.by_feature import Statistics
from seqrecord.units import MAX_INT, check_integer

_MOST_BATCHES = 1 << 40  # of an epoch
_OF_THE_MIX = (
    *(
        "batch_size",
        "drop_last",
        "even_batches",
        "seed",
        "memory_limit",
        "rank",
        "world_size",
        "device",
    ),
    *(f"tuning.{name}" for name in ("num_threads", "thread_niceness", "video_decoder", "trace")),
)
"""The options that no source may set."""


class SeqRecordMix(WithEpochs, IterableDataset[Clip]):
    """Streams batches of clips from several datasets, each with its share of the clips.

    ::

        mix = seqrecord.SeqRecordMix(
            {
                "bridge": seqrecord.SeqRecordIterableDataset("bridge/", clip_len=16),
                "droid": seqrecord.SeqRecordIterableDataset("droid/", clip_len=16, split="train"),
            },
            weights={"bridge": 0.3, "droid": 0.7},
            batch_size=32,
        )
        for batch in mix: ...   # as of SeqRecordIterableDataset, and "dataset": a list of names

    A batch holds clips of several sources. At every clip of this rank's stream (with worker
    processes, of each worker's) the number that each source has given since the first epoch began,
    or since ranks or workers have changed, differs from its share by less than one clip; where in a
    batch they are is drawn from the seed. `dataset` has the source's name of each clip; `episode`
    and `start` are those in its source. What only some sources say of their clips, such as `crop`,
    is 0 or `None` for others; a `dilation` that only some draw is for others that which they have.

    Batches mix sources where these have a feature in one dtype and one fixed shape, and as many
    frames of it in a clip. Where they don't, whole batches alternate: a batch is then of one
    source, and the shares hold in batches instead of clips, to less than one batch.
    `single_source_batches` asks for that, or makes it an error.

    A source that has given all of its clips begins its next epoch, in the next order of its own.
    Within an epoch of a source each of its clips comes once on all ranks and workers together; a
    source of fewer clips than these gives every one of them one clip, some of them twice. Where an
    epoch of the mix ends is computed from counts, so all ranks have equally many batches, of the
    same number of clips of each source. The next epoch of the mix continues where each source is.

    Batch size, memory, seed, ranks, device and threads are those of the mix: a source that sets one
    is an error. Each source has threads and arenas of its own. Of the memory limit, what batches
    leave is divided by weight times bytes of a clip, and no source gets less than it needs.

    It is an `IterableDataset`, which a `StatefulDataLoader` with `batch_size=None` resumes exactly.

    Raises `ClipError` for weights, sources or shapes that make no sense, for a feature of other
    units or kinds in two sources, and `MemoryLimitError` for a limit that is too small.

    Args:
        sources: loaders by name, without `batch_size`: `SeqRecordIterableDataset`, `SeqRecordPipe`
            or `SeqRecordNode`. A source need not be shuffled. It may be a mix: then its datasets
            are mixed, with their shares of its weight and names such as "indoor/kitchen". The
            `batch_size` and `single_source_batches` of that mix have no meaning.
        weights: how many clips of each source come, relative to the others; 0 leaves a source out.
            By default, as many as it has clips. Where no whole numbers of a sum of at most 65,536
            have the ratio of the weights, they are rounded to numbers of that sum; `shares` says.
        stopping_strategy: when an epoch ends. "first_exhausted": before the first source would
            begin again, but with one batch at least. "all_exhausted": when every source has given
            all of its clips. Or a number of batches, for each rank. Counted are clips of a source's
            first epoch.
        batch_size: clips of a batch.
        features: "union" or "intersection" of the features of the sources. In a union, a clip whose
            source lacks a feature is 0 there, and `<feature>_is_missing`, bool [batch], says so;
            a batch that is of one source has the features of that. What is not in the intersection
            is not read.
        single_source_batches: whether each batch is of one source. By default where shapes make it
            necessary. `False`: sources whose shapes disagree are an error.
        seed: as of `SeqRecordIterableDataset`; the order of each source is drawn from it and the
            name.
        memory_limit: as of `SeqRecordIterableDataset`, for all sources together.
        rank: as of `SeqRecordIterableDataset`.
        world_size: as of `SeqRecordIterableDataset`.
        device: as of `SeqRecordIterableDataset`.
        engine: as of `SeqRecordIterableDataset`: `num_threads` for each source, for one that is
            behind can use them all; `thread_niceness`; `trace`; and `video_decoder`, but for the
            video of sources with a `frame_transform`, which is decoded on the host. `num_cursors`
            and `shuffle_buffer` are those of the sources.
    """

    def __init__(
        self,
        sources: Mapping[str, Streaming | SeqRecordMix],
        *,
        weights: Mapping[str, float | Fraction] | None = None,
        stopping_strategy: StoppingStrategy = "first_exhausted",
        batch_size: int,
        features: Join = "union",
        single_source_batches: bool | None = None,
        seed: int = 0,
        memory_limit: int | str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        device: str | torch.device | None = None,
        engine: EngineOptions | None = None,
    ) -> None:
        super().__init__()
        options = LoaderOptions(
            clip_len=1,
            batch_size=check_integer("batch_size", batch_size, least=1, most=MAX_INT),
            seed=seed,
            memory_limit=memory_limit,
            rank=rank,
            world_size=world_size,
            device=device,
            engine=engine,
        )
        for name in ("num_cursors", "shuffle_buffer"):
            value = getattr(options.tuning, name)
            refuse(value is not None, f"engine.{name} is that of a source", f"no {name}", value)
        stop, alternate = stopping_strategy, single_source_batches
        if isinstance(stop, str):
            one_of("first_exhausted", "all_exhausted")("stopping_strategy", stop)
        else:
            stop = check_integer("stopping_strategy", stop, least=1, most=_MOST_BATCHES)
        one_of("union", "intersection")("features", features)
        is_right = isinstance(alternate, bool | None)
        check("single_source_batches", alternate, is_right, "True, False or None")
        self._mix = MixLoader(_weighted(sources, weights), options, stop, features, alternate)
        self._epochs = Epochs(self._mix)

    @property
    def shares(self) -> dict[str, Fraction]:
        """The share of each source that is drawn from; they sum to 1."""
        return self._mix.shares

    @property
    def single_source_batches(self) -> bool:
        """Whether each batch is of one source."""
        return self._mix.alternate

    def compute_statistics(self, **options: Any) -> dict[str, Statistics]:
        """As of `SeqRecordIterableDataset`, of each source by its name; `Statistics.merged` joins
        them."""
        loaders = self._mix.loaders.items()
        return {name: one.selection.compute_statistics(**options) for name, one in loaders}

    def stats(self) -> dict[str, Any]:
        """As of `SeqRecordIterableDataset`, summed; `sources` has those of each.

        There, `waiting_for_consumer_seconds` are those in which a source was ahead, and waited for
        others or for the consumer: the source with the fewest is what limits the mix.
        """
        return super().stats()

    def __repr__(self) -> str:
        mix = self._mix
        how = "batches" if mix.alternate else "clips"
        lines = [f"{type(self).__name__}(stopping_strategy={mix.stop!r}, shares of {how}"]
        for name, loader in mix.loaders.items():
            lines.append(f"{name!r} {float(mix.shares[name]):.4g}: {loader.selection.describe()}")
        return "\n  ".join(lines) + ")"


_Datasets: TypeAlias = dict[str, tuple[ClipLoader, Fraction]]
"""Loaders of single datasets by name, and a weight or a share of each."""


def _weighted(sources: Any, weights: Any) -> _Datasets:
    """The datasets of all sources that have a weight above 0. Raises `ClipError`."""
    is_right = isinstance(sources, Mapping) and bool(sources)
    check("sources", sources, is_right, "a dict of one loader at least, by name")
    found = {name: _datasets(name, source) for name, source in sources.items()}
    if weights is None:
        each = found.items()
        weights = {n: sum(one.clips(0).num_clips for one, _ in some.values()) for n, some in each}
    is_right = isinstance(weights, Mapping) and set(weights) == set(sources)
    check("weights", weights, is_right, f"a dict of the weights of {', '.join(sources)}")
    drawn: _Datasets = {}
    for source, datasets in found.items():
        weight = _weight(source, weights[source])
        for name, (loader, share) in datasets.items():
            refuse(name in drawn, "two datasets of a mix have one name", "other names", name)
            drawn[name] = loader, weight * share
    drawn = {name: (loader, weight) for name, (loader, weight) in drawn.items() if weight}
    refuse(not drawn, "a mix draws from no source", "a weight above 0", "none")
    return drawn


def _weight(source: str, weight: Any) -> Fraction:
    """A weight as it is shown: 0.1 is a tenth."""
    is_number = isinstance(weight, Real) and not isinstance(weight, (bool, np.timedelta64))
    is_right = is_number and 0 <= weight < math.inf
    check(f"the weight of source {source!r}", weight, is_right, "a number of at least 0")
    return Fraction(weight if isinstance(weight, Rational) else str(weight))


def _datasets(name: Any, source: Any) -> _Datasets:
    """The dataset of a source, or those of a mix, and the share of each."""
    is_right = isinstance(name, str) and bool(name) and name.isprintable()
    check("the name of a source", name, is_right, "a text")
    if isinstance(source, SeqRecordMix):
        mix = source._mix
        _check_source(name, replace(mix.options, batch_size=None))
        what, stop = f"stopping_strategy of source {name!r}", mix.stop
        check(what, stop, stop == "first_exhausted", "none: that of the mix")
        return {f"{name}/{one}": (mix.loaders[one], share) for one, share in mix.shares.items()}
    if not isinstance(source, Streaming):
        raise ClipError(
            f"source {name!r} of a mix is no loader",
            expected="a SeqRecordIterableDataset",
            got=type(source).__name__,
        )
    _check_source(name, source.options)
    return {name: (loader_of(source), Fraction(1))}


def _check_source(name: str, options: LoaderOptions) -> None:
    """Raise `ClipError` for a source that sets what belongs to the mix."""
    refuse(
        options.order == "sequences",
        f"source {name!r} of a mix gives sequences; rows of a mix have clips of all sources",
        "a source without order; for sequences a loader for each dataset",
        "order='sequences'",
    )
    values = {n: attrgetter(n)(options) for n in _OF_THE_MIX}
    usual = LoaderOptions(clip_len=1)
    changed = {n: value for n, value in values.items() if value != attrgetter(n)(usual)}
    given = {n.replace("tuning", "engine"): value for n, value in changed.items()}
    refuse(
        bool(given),
        f"source {name!r} of a mix sets what belongs to the mix",
        f"a loader without {', '.join(given)}; give SeqRecordMix what it has of these",
        ", ".join(f"{n}={value!r}" for n, value in given.items()),
    )
