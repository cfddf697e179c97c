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
from seqrecord.pipes.checks import check, raise_if
from seqrecord.pipes.clip_loader import ClipLoader
from seqrecord.pipes.epochs import Epochs
from seqrecord.pipes.loaders import EpochStream, StreamingLoader, loader_of
from seqrecord.pipes.mix_batches import Join
from seqrecord.pipes.mix_loader import MixLoader
from seqrecord.pipes.mix_sources import StoppingStrategy
from seqrecord.pipes.options import EngineOptions, LoaderOptions, one_of
from seqrecord.pipes.states import Clip
from seqrecord.statistics.by_feature import Statistics
from seqrecord.units import MAX_INT, check_integer

_MOST_BATCHES = 1 << 40  # of an epoch
_MIX_OPTIONS = (
    *("batch_size", "drop_last", "even_batches", "seed"),
    *("memory_limit", "rank", "world_size", "device", "output"),
    *(f"tuning.{name}" for name in ("num_threads", "thread_niceness", "video_decoder", "trace")),
)
"""Options of the mix; sources must not set them."""


class SeqRecordMix(EpochStream, IterableDataset[Clip]):
    """Stream batches of clips from several datasets, each with its share of the clips.

    Returns the batches of `SeqRecordIterableDataset` and the column `dataset`, a list of source
    names; `episode` and `start` refer to the clip's source. Columns that only some sources have,
    such as `crop`, are 0 or `None` for the others; `dilation` is then the fixed dilation of the
    others.

    Each rank (with workers: each worker) draws from the sources in proportion: after every clip,
    the number drawn from a source since the first epoch, or since a change of ranks or workers,
    differs from its share by less than one clip. The seed determines the places of sources in a
    batch.

    A batch mixes sources if each feature has the same dtype, fixed shape and number of frames in
    all of them. Otherwise every batch comes from a single source, and shares are exact to less than
    one batch. `single_source_batches` chooses explicitly.

    An exhausted source begins its next epoch, in its next order. Across all ranks and workers, each
    clip of a source comes once in each of the source's epochs; a source with fewer clips than ranks
    and workers gives one clip to each, some of them twice. All ranks have the same number of
    batches, and the same number of clips per source in them. The next epoch of the mix continues at
    the current position of each source.

    Batch size, memory, seed, ranks, device and threads are arguments of the mix: a source that sets
    one raises `ClipError`. Each source has threads and arenas of its own. Memory not used by
    batches is divided by weight times bytes of a clip, and each source gets at least its minimum.

    A `StatefulDataLoader` with `batch_size=None` resumes the mix exactly.

    Raises `ClipError` for invalid weights, sources or shapes, or if a feature's kind or unit
    differs between sources; `MemoryLimitError` if the limit is too small.

    Example:
        mix = seqrecord.SeqRecordMix(
            {
                "demo": seqrecord.SeqRecordIterableDataset("records/", clip_len=4),
                "more": seqrecord.SeqRecordIterableDataset("more-records/", clip_len=4),
            },
            weights={"demo": 0.3, "more": 0.7},
            batch_size=4,
        )
        names = next(iter(mix))["dataset"]  # for example ["more", "demo", "more", "more"]

    Args:
        sources: loaders by name, without `batch_size`: `SeqRecordIterableDataset`, `SeqRecordPipe`,
            `SeqRecordNode` or another mix. `shuffle=False` is allowed. The datasets of a nested mix
            divide its weight by their shares and get names such as "indoor/kitchen"; its
            `batch_size` and `single_source_batches` are ignored.
        weights: relative numbers of clips, at least 0; 0 excludes a source. Default: the number of
            clips of each source. Weights are rounded to integer ratios with a sum of at most
            65,536; `shares` has the result.
        stopping_strategy: end of an epoch. "first_exhausted" (default): before the first source
            would begin again, but after at least one batch. "all_exhausted": when every source has
            returned its last clip. An integer: number of batches of each rank. The clips of the
            first epoch of each source determine the length.
        batch_size: clips of a batch, at least 1.
        features: "union" (default) or "intersection" of the sources' features. In a union, a
            feature is 0 for clips whose source lacks it, and `<feature>_is_missing`, bool [batch],
            marks them; single-source batches have the features of their source. Features outside an
            intersection are not read.
        single_source_batches: whether each batch comes from a single source. Default: only if
            shapes require it. `False` raises `ClipError` if they do.
        seed: as in `SeqRecordIterableDataset`; each source's order is drawn from the seed and the
            source's name.
        memory_limit: as in `SeqRecordIterableDataset`, for all sources together.
        rank: as in `SeqRecordIterableDataset`.
        world_size: as in `SeqRecordIterableDataset`.
        device: as in `SeqRecordIterableDataset`.
        output: as in `SeqRecordIterableDataset`.
        engine: as in `SeqRecordIterableDataset`. `num_threads` applies to each source, so that a
            slow source can use every thread; `thread_niceness`, `trace` and `video_decoder` to the
            mix, except for video of sources with a `frame_transform`, which the host decodes.
            `num_cursors` and `shuffle_buffer` belong to the sources.
    """

    def __init__(
        self,
        sources: Mapping[str, StreamingLoader | SeqRecordMix],
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
        output: str = "torch",
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
            output=output,
            engine=engine,
        )
        for name in ("num_cursors", "shuffle_buffer"):
            value = getattr(options.tuning, name)
            raise_if(value is not None, f"engine.{name} is that of a source", f"no {name}", value)
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
        """The share of each source in the clips, after rounding; they sum to 1."""
        return self._mix.shares

    @property
    def single_source_batches(self) -> bool:
        """Whether each batch comes from a single source."""
        return self._mix.alternate

    def compute_statistics(self, **options: Any) -> dict[str, Statistics]:
        """Compute statistics of each source by name; `Statistics.merged` joins them.

        `options` are the same as in `SeqRecordIterableDataset.compute_statistics`.
        """
        loaders = self._mix.loaders.items()
        return {name: one.selection.compute_statistics(**options) for name, one in loaders}

    def stats(self) -> dict[str, Any]:
        """Return statistics as in `SeqRecordIterableDataset`, summed; `sources` has the statistics
        of each.

        For a source, `waiting_for_consumer_seconds` is the time in which it was ahead and waited
        for other sources or for the consumer: the source with the shortest time limits the mix.
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
"""Loader and weight, or share, of each single dataset by name."""


def _weighted(sources: Any, weights: Any) -> _Datasets:
    """The datasets of all sources with a weight above 0. Raises `ClipError`."""
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
            raise_if(name in drawn, "two datasets of a mix have one name", "other names", name)
            drawn[name] = loader, weight * share
    drawn = {name: (loader, weight) for name, (loader, weight) in drawn.items() if weight}
    raise_if(not drawn, "a mix draws from no source", "a weight above 0", "none")
    return drawn


def _weight(source: str, weight: Any) -> Fraction:
    """Convert a weight by its decimal representation: 0.1 is a tenth."""
    is_number = isinstance(weight, Real) and not isinstance(weight, (bool, np.timedelta64))
    is_right = is_number and 0 <= weight < math.inf
    check(f"the weight of source {source!r}", weight, is_right, "a number of at least 0")
    return Fraction(weight if isinstance(weight, Rational) else str(weight))


def _datasets(name: Any, source: Any) -> _Datasets:
    """The dataset of a source, or the datasets of a nested mix, with shares."""
    is_right = isinstance(name, str) and bool(name) and name.isprintable()
    check("the name of a source", name, is_right, "a text")
    if isinstance(source, SeqRecordMix):
        mix = source._mix
        _check_source(name, replace(mix.options, batch_size=None))
        what, stop = f"stopping_strategy of source {name!r}", mix.stop
        check(what, stop, stop == "first_exhausted", "none: that of the mix")
        return {f"{name}/{one}": (mix.loaders[one], share) for one, share in mix.shares.items()}
    if not isinstance(source, StreamingLoader):
        raise ClipError(
            f"source {name!r} of a mix is no loader",
            expected="a SeqRecordIterableDataset",
            got=type(source).__name__,
        )
    _check_source(name, source.options)
    return {name: (loader_of(source), Fraction(1))}


def _check_source(name: str, options: LoaderOptions) -> None:
    """Raise `ClipError` for a source with options of the mix."""
    raise_if(
        options.order == "sequences",
        f"source {name!r} of a mix gives sequences; rows of a mix have clips of all sources",
        "a source without order; for sequences a loader for each dataset",
        "order='sequences'",
    )
    values = {n: attrgetter(n)(options) for n in _MIX_OPTIONS}
    usual = LoaderOptions(clip_len=1)
    changed = {n: value for n, value in values.items() if value != attrgetter(n)(usual)}
    given = {n.replace("tuning", "engine"): value for n, value in changed.items()}
    raise_if(
        bool(given),
        f"source {name!r} of a mix sets options of the mix",
        f"a loader without {', '.join(given)}; pass them to SeqRecordMix if it has them",
        ", ".join(f"{n}={value!r}" for n, value in given.items()),
    )
