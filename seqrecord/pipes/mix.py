"""SeqRecordMix: batches of clips from several datasets, by weight."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from numbers import Rational, Real
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from torch.utils.data import IterableDataset

from seqrecord.errors import ClipError
from seqrecord.pipes.checks import check, refuse
from seqrecord.pipes.clip_loader import ClipLoader
from seqrecord.pipes.epochs import Epochs
from seqrecord.pipes.loaders import (
    SeqRecordIterableDataset,
    SeqRecordPipe,
    Streaming,
    WithEpochs,
    loader_of,
)
from seqrecord.pipes.mix_loader import MixLoader
from seqrecord.pipes.mix_sources import Join, MixPlan, StoppingStrategy, check_source
from seqrecord.pipes.options import EngineOptions, LoaderOptions, one_of
from seqrecord.pipes.states import Clip
from seqrecord.statistics.by_feature import Statistics
from seqrecord.text import repr_of
from seqrecord.units import MAX_INT, check_integer

if TYPE_CHECKING:
    import torch

    from seqrecord.pipes.node import SeqRecordNode

_MOST_BATCHES = 1 << 40  # of an epoch, exclusive


class SeqRecordMix(WithEpochs[MixPlan], IterableDataset[Clip]):
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
        sources: loaders by name, without `batch_size`: `SeqRecordIterableDataset`, or another that
            streams. A source need not be shuffled. It may be a mix: then its datasets are mixed,
            with their shares of its weight and names such as "indoor/kitchen". The `batch_size` and
            `single_source_batches` of that mix have no meaning.
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
        sources: Mapping[
            str, SeqRecordIterableDataset | SeqRecordPipe | SeqRecordNode | SeqRecordMix
        ],
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
            refuse(
                value is not None, f"engine.{name} is that of a source", "sources with it", value
            )
        one_of("union", "intersection")("features", features)
        check(
            "single_source_batches",
            single_source_batches,
            isinstance(single_source_batches, bool | None),
            "True, False or None",
        )
        found = _checked_sources(sources)
        if weights is None:
            weights = {
                name: sum(loader.clips(0).num_clips for loader, _ in each.values())
                for name, each in found.items()
            }
        weights = _checked_weights(weights, found)
        drawn = {
            name: (loader, _fraction(weights[outer]) * share)
            for outer, each in found.items()
            for name, (loader, share) in each.items()
            if weights[outer]
        }
        self._mix = MixLoader(
            drawn,
            options,
            stopping_strategy=_checked_strategy(stopping_strategy),
            join=features,
            single_source_batches=single_source_batches,
        )
        self._epochs = Epochs[MixPlan](self._mix)

    @property
    def shares(self) -> dict[str, Fraction]:
        """The share of each source that is drawn from; they sum to 1."""
        return self._mix.shares

    @property
    def single_source_batches(self) -> bool:
        """Whether each batch is of one source."""
        return self._mix.single_source_batches

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
        how = "batches" if mix.single_source_batches else "clips"
        lines = [
            f"{type(self).__name__}(stopping_strategy={mix.stopping_strategy!r}, shares of {how}"
        ]
        for name, loader in mix.loaders.items():
            lines.append(f"{name!r} {float(mix.shares[name]):.4g}: {loader.selection.describe()}")
        return "\n  ".join(lines) + ")"


_Datasets: TypeAlias = dict[str, tuple[ClipLoader, Fraction]]
"""The loader of each dataset of a source, and its share of that source's clips."""


def _checked_sources(sources: Any) -> dict[str, _Datasets]:
    """What each source has: one dataset, or those of a mix."""
    if not isinstance(sources, Mapping) or not sources:
        raise ClipError(
            "a mix needs sources", expected="a dict of loaders by name", got=repr_of(sources, 100)
        )
    found: dict[str, _Datasets] = {}
    for name, source in sources.items():
        if not isinstance(name, str) or not name or not _is_unicode(name):
            raise ClipError("a source's name is no text", expected="a name", got=repr_of(name, 100))
        if isinstance(source, SeqRecordMix):
            mix = source._mix
            check_source(name, replace(mix.options, batch_size=None))
            what = f"stopping_strategy of source {name!r}"
            check(
                what,
                mix.stopping_strategy,
                mix.stopping_strategy == "first_exhausted",
                "no stopping_strategy: that of the mix",
            )
            each = mix.loaders.items()
            found[name] = {f"{name}/{inner}": (one, mix.shares[inner]) for inner, one in each}
            continue
        if not isinstance(source, Streaming):
            raise ClipError(
                f"source {name!r} of a mix is no loader",
                expected="a SeqRecordIterableDataset",
                got=type(source).__name__,
            )
        check_source(name, source.options)
        found[name] = {name: (loader_of(source), Fraction(1))}
    names = [name for each in found.values() for name in each]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ClipError(
            "two datasets of a mix have one name", expected="other", got=", ".join(twice)
        )
    return found


def _fraction(weight: Any) -> Fraction:
    """A weight as it is shown."""
    return Fraction(weight if isinstance(weight, Rational) else str(weight))


def _is_unicode(name: str) -> bool:
    """Whether this is a text that can be encoded: half a surrogate pair cannot."""
    return not any("\ud800" <= c <= "\udfff" for c in name)


def _checked_weights(weights: Any, loaders: Mapping[str, object]) -> dict[str, Any]:
    """A weight for each source, one of them above 0."""
    if not isinstance(weights, Mapping) or set(weights) != set(loaders):
        raise ClipError(
            "weights has other names than the sources of the mix",
            expected=", ".join(loaders),
            got=", ".join(map(str, weights)) if isinstance(weights, Mapping) else repr(weights),
        )
    for name, weight in weights.items():
        is_number = isinstance(weight, Real) and not isinstance(weight, (bool, np.timedelta64))
        if not is_number or not 0 <= weight < math.inf:
            raise ClipError(
                f"the weight of source {name!r} makes no sense",
                expected="a number of at least 0",
                got=repr_of(weight, 100),
            )
    refuse(not any(weights.values()), "a mix draws from no source", "a weight above 0", "none")
    return {name: weights[name] for name in loaders}


def _checked_strategy(stopping_strategy: Any) -> StoppingStrategy:
    if isinstance(stopping_strategy, str):
        found: StoppingStrategy = one_of("first_exhausted", "all_exhausted")(
            "stopping_strategy", stopping_strategy
        )
        return found
    number = check_integer("stopping_strategy", stopping_strategy, least=1)
    check(
        "stopping_strategy", number, number < _MOST_BATCHES, f"fewer than {_MOST_BATCHES} batches"
    )
    return number
