"""SeqRecordMix: batches of clips from several datasets, by weight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import chain
from os import PathLike
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset

from seqrecord.errors import ClipError
from seqrecord.loader.frames.normalization import Normalization
from seqrecord.loader.mixing.agreement import Join, joined_features
from seqrecord.loader.mixing.form import MixForm
from seqrecord.loader.mixing.loader import MixLoader, MixParts
from seqrecord.loader.mixing.mix_datasets import (
    TUNING_OF_SOURCE,
    MixDataset,
    agreed_batch_size,
    agreed_clip_len,
    check_source,
)
from seqrecord.loader.mixing.order import MixPlan, StoppingStrategy
from seqrecord.loader.mixing.weights import (
    Proportions,
    SourceSize,
    Weighting,
    Weights,
    by_epoch,
    excluded_always,
    excluded_sources,
)
from seqrecord.loader.pipes.epochs import Epochs
from seqrecord.loader.pipes.loaders import EpochStream, StreamingLoader, loader_of
from seqrecord.loader.pipes.option_values import Budget, Vector
from seqrecord.loader.pipes.options import EngineOptions, LoaderOptions, one_of
from seqrecord.loader.pipes.states import Clip
from seqrecord.loader.sampling.shares import MOST_SLOTS
from seqrecord.store.areas import MIX_FILE, MIX_SUMMARY, load_entry
from seqrecord.store.statistics.by_feature import Statistics
from seqrecord.store.units import MAX_INT, check, check_flag, check_integer, check_seed, raise_if

if TYPE_CHECKING:
    from typing_extensions import Self

_MOST_BATCHES = 1 << 40  # of an epoch
_MOST_CHANGING = 1 << 10  # slots of a period, if weights change: a late epoch counts all of them


class SeqRecordMix(EpochStream, IterableDataset[Clip]):
    """Stream batches of clips from several datasets, each with its share of the clips.

    Returns the batches of `SeqRecordIterableDataset` and the column `dataset`, a list of source
    names; `episode` and `start` refer to the clip's source. Columns that only some sources have,
    such as `crop`, are 0 or `None` for the others; `dilation` is then the fixed dilation of the
    others.

    Each rank (with workers: each worker) draws from the sources in proportion: after every clip,
    the number drawn from a source since the first epoch differs from its share by less than one
    clip. The seed determines the places of sources in a batch.

    A batch mixes sources if each feature has the same dtype, fixed shape and number of frames in
    all of them. Otherwise every batch comes from a single source, and shares are exact to less than
    one batch. `single_source_batches` chooses explicitly.

    An exhausted source begins its next epoch, in its next order. Across all ranks and workers, each
    clip of a source comes once in each of the source's epochs; a source with fewer clips than ranks
    and workers gives one clip to each, some of them twice. All ranks have the same number of
    batches, and the same number of clips per source in them. The next epoch of the mix continues at
    the current position of each source.

    Batch size, memory, seed, ranks, device and threads are arguments of the mix: a source that sets
    one raises `ClipError`. All sources share the threads. Memory not used by batches is divided by
    weight times bytes of a clip, and each source gets at least its minimum.

    A `StatefulDataLoader` with `batch_size=None` resumes the mix exactly. On other ranks or workers
    a state of the mix continues with what is left of its epoch and of each source. In workers, call
    `set_epoch` after an iteration that was left early.

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
        weights: relative numbers of clips by source, at least 0; 0 excludes a source. Or "clips"
            (default): each source's number of clips; "frames": the number of frames in its selected
            episodes; "equal": 1. Weights are rounded to integer ratios with a sum of at most
            65,536; `shares` has the result. By epoch: `{0: {"old": 0.9, "new": 0.1}, 10: "equal"}`,
            each from an epoch on, or a pure function of the epoch, below 65,536, which every
            process calls for epochs 0 to the current one; their sum is at most 1,024. Each source
            continues where the last epoch ended.
        alpha: power of the sizes "clips" or "frames", of 0 (equal weights) to 1 (default): with 0.5
            a source of 100 times the size has 10 times the weight.
        repeat: how often each clip of a source comes in an epoch on average, as in MosaicML's
            `Stream`: 2 gives each clip twice, 0.5 every second one. Default: 1. The result is
            rounded down to clips.
        choose: clips of a source in an epoch, as in MosaicML's `Stream`; 0 excludes the source.
            `repeat` and `choose` exclude `weights` and `stopping_strategy`: over all ranks, an
            epoch has the sum of the sources' clips, rounded down to whole batches. The next epoch
            continues, so no clip is lost.
        stopping_strategy: end of an epoch. "first_exhausted" (default): before the first source
            would begin again, but after at least one batch. "all_exhausted": when every source has
            returned its last clip. An integer: number of batches on each rank. The clips of the
            first epoch of each source determine the length.
        batch_size: clips of a batch, at least 1; or a `Budget`, as in `SeqRecordIterableDataset`:
            if all clips of all sources have one cost; or if all sources have the same drawn
            `clip_len`, for batches of several sources and epochs without an integer
            `stopping_strategy`.
        features: "union" (default) or "intersection" of the sources' features. In a union, a
            feature is 0 for clips whose source lacks it, and `<feature>_is_missing`, bool [batch],
            marks them; single-source batches have the features of their source. Features outside an
            intersection are not read; sizes (`weights`, `repeat`) are of the others. Masks and ages
            that `derive` stored, such as `<feature>_is_pad`, come with their features.
        vectors: form of vectors, by feature: `{"action": Vector(pad_to=32, normalize="mean_std",
            statistics="source")}`, for every source with the feature. Vectors of different sizes
            then mix in one batch; `place` is a value of sources. Statistics are the stored ones
            (`seqrecord stats`), merged after `place` and `pad_to`. One `Vector` without a dict
            normalizes every float feature [D] of the kinds action, state, imu, or none;
            `mix.normalized` lists them.
        camera_padding_masks: whether batches have `<camera>_padding_mask`, bool [batch], for each
            image: true for clips whose source has it, as LeRobot's policies expect. The opposite of
            `<camera>_is_missing`.
        number_tasks: whether batches have `task_index`, int64 [batch]: the place of the clip's task
            in `mix.tasks`, the sorted distinct texts of all sources. The task is the text feature
            `task` of the clip's first frame, else the metadata `task` or the first of `tasks`.
        single_source_batches: whether each batch comes from a single source. Default: only if
            shapes require it. `False` raises `ClipError` if they do.
        seed: as in `SeqRecordIterableDataset`; each source's order is drawn from the seed and the
            source's name.
        memory_limit: as in `SeqRecordIterableDataset`, for all sources together.
        rank: as in `SeqRecordIterableDataset`.
        device: as in `SeqRecordIterableDataset`.
        output: as in `SeqRecordIterableDataset`.
        normalization: as in `SeqRecordIterableDataset`, of all sources.
        engine: as in `SeqRecordIterableDataset`, for all sources together, except for video of
            sources with a `frame_transform`, which the host decodes. `num_cursors` and
            `shuffle_buffer` belong to the sources.
    """

    def __init__(
        self,
        sources: Mapping[str, StreamingLoader | SeqRecordMix],
        *,
        weights: Weights | None = None,
        alpha: float = 1,
        repeat: Mapping[str, float | Fraction] | None = None,
        choose: Mapping[str, int] | None = None,
        stopping_strategy: StoppingStrategy = "first_exhausted",
        batch_size: int | Budget | None = None,
        features: Join = "union",
        vectors: Vector | Mapping[str, Vector] | None = None,
        camera_padding_masks: bool = False,
        number_tasks: bool = False,
        single_source_batches: bool | None = None,
        seed: int = 0,
        memory_limit: int | str | None = None,
        rank: tuple[int, int] | None = None,
        device: str | torch.device | None = None,
        output: str = "torch",
        normalization: str | None = None,
        engine: EngineOptions | None = None,
    ) -> None:
        super().__init__()
        one_of("union", "intersection")("features", features)
        proportions = {"weights": weights, "alpha": alpha, "repeat": repeat, "choose": choose}
        datasets, weighting = _weighted(sources, features, check_seed(seed), proportions)
        if has_budget := isinstance(batch_size, Budget):
            batch_size = agreed_batch_size(datasets, batch_size)
        else:
            batch_size = check_integer("batch_size", batch_size, least=1, most=MAX_INT)
        options = LoaderOptions(
            clip_len=agreed_clip_len(datasets),
            batch_size=batch_size,
            seed=seed,
            memory_limit=memory_limit,
            rank=rank,
            device=device,
            output=output,
            normalization=normalization,
            engine=engine,
        )
        for name in TUNING_OF_SOURCE:
            value, usual = getattr(options.tuning, name), getattr(EngineOptions, name)
            raise_if(value != usual, f"engine.{name} is that of a source", f"no {name}", value)
        stop, alternate = stopping_strategy, single_source_batches
        if isinstance(stop, str):
            one_of("first_exhausted", "all_exhausted")("stopping_strategy", stop)
        else:
            stop = check_integer("stopping_strategy", stop, least=1, most=_MOST_BATCHES)
        if alternate is not None:
            alternate = check_flag("single_source_batches", alternate, "True, False or None")
        problem = "repeat and choose determine the length of an epoch"
        expected = "no stopping_strategy; or weights"
        has_clips = repeat is not None or choose is not None
        raise_if(has_clips and stop != "first_exhausted", problem, expected, stop)
        form = MixForm(vectors, camera_padding_masks, number_tasks)
        parts = MixParts(
            datasets, weighting, options, stop, features, alternate, form, fits=has_budget
        )
        self._epochs = Epochs(MixLoader(parts))

    @classmethod
    def from_file(
        cls, path: str | PathLike[str], *, split: str | None = None, **overrides: Any
    ) -> Self:
        """Create a mix from a YAML file of sources and arguments; see docs/mixing.md.

        The mix is the same as with these arguments in Python. Unknown and duplicate keys are
        errors, and so are names of features that no source has.

        Args:
            path: local path of the file. Paths in it are relative to its folder.
            split: the episodes of each source: a name in its `splits`, or else a split stored in
                its dataset. Default: `split` in the file, or all episodes.
            overrides: arguments of the mix, or of all sources, that replace top-level keys of the
                file. Keys of a source take precedence over arguments of all sources.

        Raises `ClipError` with file, line and source for an invalid file, `NotFoundError` for a
        missing file or dataset, and the errors of the sources and of the mix.

        Example:
            text = 'sources: {a: {location: "records/"}, b: {location: "more-records/"}}'
            Path("mix.yaml").write_text(text)
            mix = seqrecord.SeqRecordMix.from_file("mix.yaml", clip_len=4, batch_size=2)
            names = next(iter(mix))["dataset"]  # for example ["a", "b"]
        """
        mix: Self = load_entry(MIX_FILE)(cls, path, split, overrides)
        return mix

    @property
    def shares(self) -> dict[str, Fraction]:
        """The share of each source in the clips, after rounding; they sum to 1.

        If weights change by epoch: in the current one, or between iterations in the next one.
        """
        epoch = self._epochs.current
        loader = self._epochs.loader_in(epoch)
        assert isinstance(loader, MixLoader)
        return loader.order.schedule.shares(epoch)

    @property
    def single_source_batches(self) -> bool:
        """Whether each batch comes from a single source."""
        return self._mix.alternate

    @property
    def normalized(self) -> dict[str, dict[str, Normalization]]:
        """The normalizations of each source, by feature, for example to undo them."""
        found: dict[str, dict[str, Normalization]] = {}
        for source, loader in self._mix.loaders.items():
            steps = loader.view.vectors.items()
            found[source] = {n: s.normalization for n, s in steps if s.normalization is not None}
        return found

    @property
    def tasks(self) -> list[str]:
        """The texts that `task_index` numbers; empty without `number_tasks`."""
        return [] if self._mix.tasks is None else list(self._mix.tasks.numbers)

    def compute_statistics(self, **options: Any) -> dict[str, Statistics]:
        """Compute statistics of each source by name; `Statistics.merged` joins them.

        `options` are the same as in `SeqRecordIterableDataset.compute_statistics`.
        """
        loaders = self._mix.loaders.items()
        return {name: one.view.compute_statistics(**options) for name, one in loaders}

    def summarize(self) -> Any:
        """Summarize sources, shares and features, and changes to the stored features.

        Returns a `seqrecord.types.MixSummary`. Reads no frame; `seqrecord info mix.yaml` prints it.
        """
        return load_entry(MIX_SUMMARY).of(self._mix)

    def stats(self) -> dict[str, Any]:
        """Return statistics as in `SeqRecordIterableDataset`, summed.

        `sources` has the statistics of each; its `waiting_for_loads_seconds` is the time in which
        batches waited for its frames.
        """
        return super().stats()

    def _fill_rows(
        self,
        loader: MixLoader,
        plan: MixPlan,
        first: int,
        last: int,  # noqa: ARG002 - a mix has batches only
    ) -> Clip:
        return loader.rows(plan, first)

    @property
    def _mix(self) -> MixLoader:
        loader = self._epochs.loader
        assert isinstance(loader, MixLoader)
        return loader

    def __repr__(self) -> str:
        mix = self._mix
        how = "batches" if mix.alternate else "clips"
        chosen, stop = mix.order.epoch_clips, mix.order.stop
        end = f"stopping_strategy={stop!r}" if chosen is None else f"epoch of {chosen:,} clips"
        lines = [f"{type(self).__name__}({end}, shares of {how}"]
        shares = self.shares
        for name, loader in mix.loaders.items():
            lines.append(f"{name!r} {float(shares[name]):.4g}: {loader.view.describe()}")
        return "\n  ".join(lines) + ")"


def _weighted(
    sources: Any, join: Join, seed: int, proportions: Mapping[str, Any]
) -> tuple[list[MixDataset], Weighting]:
    """The datasets of all sources with a weight above 0 in some epoch, and their weights.

    Sizes are of the features that are read. Raises `ClipError`.
    """
    is_right = isinstance(sources, Mapping) and bool(sources)
    check("sources", sources, is_right, "a dict of one loader at least, by name")
    datasets = [*chain.from_iterable(map(_datasets, sources, sources.values()))]
    name, count = Counter(dataset.name for dataset in datasets).most_common(1)[0]
    raise_if(count > 1, "two datasets of a mix have one name", "other names", name)
    others, features = dict(proportions), None
    weights_at, changes = by_epoch(others.pop("weights"))
    excluded = excluded_sources(others.values()) | excluded_always(weights_at, changes)
    used = {one.name: one.view for one in datasets if one.source not in excluded}
    if join == "intersection" and used:
        features = joined_features(used, join)
    datasets = [one.in_mix(features, seed) if one.name in used else one for one in datasets]
    sizes, clips = dict.fromkeys(sources, SourceSize(0, 0)), _chosen_clips(sources)
    for dataset in datasets:
        sizes[dataset.source] += dataset.size
    for name, number in clips.items():
        sizes[name] = replace(sizes[name], clips=number)
    weights = Proportions.of(sizes, weights=weights_at(0), **others)
    is_drawn = {name: changes != (0,) or bool(weight) for name, weight in weights.weights.items()}
    drawn = [one for one in datasets if one.name in used and is_drawn[one.source]]
    raise_if(not drawn, "a mix draws from no source", "a weight above 0", "none")
    most = MOST_SLOTS if changes == (0,) else max(_MOST_CHANGING, 16 * len(drawn))
    return drawn, _weighting(drawn, sizes, clips, weights_at, changes, others, most)


def _weighting(
    datasets: Sequence[MixDataset],
    sizes: Mapping[str, SourceSize],
    clips: Mapping[str, int],
    *arguments: Any,
) -> Weighting:
    """The weights of datasets, whose sources have these sizes and chosen clips."""
    parts = tuple((dataset.source, dataset.weight) for dataset in datasets)
    names = {source for source, _ in parts}
    others = {name: size for name, size in sizes.items() if name not in names}
    chosen = {name: number for name, number in clips.items() if name in names}
    return Weighting(tuple(d.name for d in datasets), parts, others, chosen, *arguments)


def _chosen_clips(sources: Mapping[str, Any]) -> dict[str, int]:
    """Clips per epoch, of sources that are mixes and determine them."""
    clips = dict[str, int]()
    for name, source in sources.items():
        number = source._mix.order.epoch_clips if isinstance(source, SeqRecordMix) else None
        if number is not None:
            clips[name] = number
    return clips


def _datasets(name: Any, source: Any) -> list[MixDataset]:
    """The dataset of a source, or the datasets of a nested mix, with their shares in the source."""
    is_right = isinstance(name, str) and bool(name) and name.isprintable()
    check("the name of a source", name, is_right, "a text")
    if isinstance(source, SeqRecordMix):
        mix = source._mix
        check_source(name, replace(mix.options, batch_size=None))
        what, stop = f"stopping_strategy of source {name!r}", mix.order.stop
        check(what, stop, stop == "first_exhausted", "none: that of the mix")
        problem = f"weights of source {name!r} change by epoch"
        raise_if(
            not mix.order.schedule.is_constant,
            problem,
            "weights by epoch of the outer mix, with the datasets as its sources",
            "a mix in a mix",
        )
        shares = mix.order.schedule.shares(0)
        return [
            MixDataset(f"{name}/{inner}", name, loader.view, loader.options, shares[inner])
            for inner, loader in mix.loaders.items()
        ]
    if not isinstance(source, StreamingLoader):
        raise ClipError(
            f"source {name!r} of a mix is no loader",
            expected="a SeqRecordIterableDataset",
            got=type(source).__name__,
        )
    loader = loader_of(source)
    check_source(name, loader.options)
    return [MixDataset(name, name, loader.view, loader.options)]


def mix_loader(mix: SeqRecordMix) -> MixLoader:
    """The loader that plans and runs the epochs of a mix."""
    return mix._mix
