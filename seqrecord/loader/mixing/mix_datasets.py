"""The datasets of a mix: their clips and weights, and what their loaders must agree on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from seqrecord.errors import ClipError, StateError
from seqrecord.loader.mixing.weights import SourceSize
from seqrecord.loader.pipes.budget_costs import SampleCosts
from seqrecord.loader.pipes.option_values import Budget
from seqrecord.loader.pipes.options import EngineOptions, LoaderOptions
from seqrecord.loader.pipes.source_states import has_fewer
from seqrecord.loader.pipes.states import SourceState
from seqrecord.loader.pipes.view import View
from seqrecord.loader.pipes.view_order import plan_clips
from seqrecord.loader.sampling.random_order import Purpose, key_of
from seqrecord.store.text import repr_of
from seqrecord.store.units import raise_if

MIX_OPTIONS = (
    *("batch_size", "last_batch", "seed", "memory_limit", "rank", "device", "output"),
    "normalization",
)
"""Options of the mix; sources must not set them."""

MIX_TUNING = ("num_threads", "video_decoder", "trace")
"""Options of a mix's `engine`; sources must not set them."""

TUNING_OF_SOURCE = ("num_cursors", "shuffle_buffer")
"""Options of a source's `engine`; a mix must not set them."""


@contextmanager
def naming_source(source: str) -> Iterator[None]:
    """Context that adds the source to errors."""
    try:
        yield
    except ClipError as error:
        add_source(error, source)
        raise


def add_source(error: ClipError, source: str) -> None:
    """Add the source to an error."""
    error.message = f"source {source!r} of a mix: {error.message}"


@dataclass(frozen=True, eq=False)
class MixDataset:
    """A dataset of a mix: its clips and its weight. Picklable.

    Attributes:
        name: its name in the mix.
        source: the name of the source that it is, or that is a mix with it.
        view: its clips.
        options: the options of the source.
        weight: its part of its source's weight.
    """

    name: str
    source: str
    view: View
    options: LoaderOptions
    weight: Fraction = Fraction(1)

    @property
    def size(self) -> SourceSize:
        """The clips of its epoch 0, and the frames of its selected episodes."""
        view = self.view
        num_frames = view.dataset.contents.index.num_frames[view.episode_rows]
        return SourceSize(view.samples.clips_in(0).num_clips, int(num_frames.sum()))

    def of_state(self, source: SourceState) -> MixDataset:
        """The dataset with the episodes and samples of a state: itself, unless it has grown.

        Raises `StateError` for a dataset of a nested mix that has grown.
        """
        if not has_fewer(source, self.view):
            return self
        from seqrecord.loader.pipes.growth import view_of_state  # few resumes need it

        view, options = view_of_state(self.view, self.options, source)
        if view is self.view:
            return self
        if self.source != self.name:
            raise StateError(
                f"source {self.source!r} of a mix is a mix, and a dataset of it has grown",
                file=view.dataset.url,
                expected="its datasets as sources of the outer mix, from the first epoch on",
                got=self.name,
            )
        return replace(self, view=view, options=options)

    def in_mix(self, features: Sequence[str] | None, seed: int) -> MixDataset:
        """The dataset in a mix with this seed. Its seed depends on its name, too, and not on other
        sources. Only `features` are read, except transformed ones; `None`: all.
        """
        view, options = self.view, self.options
        has_functions = options.frame_transform is not None or view.draws.functions is not None
        if features is not None and not has_functions:
            names = [name for name in view.dataset.features if name in features]
            options = _of_features(options, names, view)
            steps = {name: step for name, step in view.vectors.items() if name in names}
            view = plan_clips(view.dataset, options).view.with_vectors(steps)
        number = int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:8], "little")
        seed = key_of(Purpose.MIX_SEEDS, seed, number) >> 1
        return replace(self, view=view.with_seed(seed), options=options)


def check_source(name: str, options: LoaderOptions) -> None:
    """Raise `ClipError` for a source with options of the mix."""
    order = options.epoch_order
    raise_if(
        not order.is_for_mixes,
        f"source {name!r} of a mix gives {order.name}; rows of a mix have clips of all sources",
        f"a source without order; for {order.name} a loader for each dataset",
        f"order={order.name!r}",
    )
    tuning, changed = options.tuning, dict[str, Any]()
    for name_of_mix in MIX_OPTIONS:
        if (value := getattr(options, name_of_mix)) != getattr(LoaderOptions, name_of_mix):
            changed[name_of_mix] = value
    for name_of_mix in MIX_TUNING:
        if (value := getattr(tuning, name_of_mix)) != getattr(EngineOptions, name_of_mix):
            changed[f"engine.{name_of_mix}"] = value
    if changed:
        raise ClipError(
            f"source {name!r} of a mix sets options of the mix",
            expected=f"a loader without {', '.join(changed)}; pass them to SeqRecordMix if it has "
            "them",
            got=", ".join(f"{option}={value!r}" for option, value in changed.items()),
        )


def agreed_clip_len(datasets: Sequence[MixDataset]) -> int | tuple[int, int]:
    """The `clip_len` that all sources draw for each batch; 1 if none is drawn.

    Raises `ClipError` if sources differ.
    """
    drawn = {dataset.options.clip_lens for dataset in datasets}
    if len(drawn) > 1:
        raise ClipError(
            "a batch of a mix has one number of frames, and sources draw clip_len differently",
            expected="the same clip_len of all sources",
            got=", ".join(f"{one.name}: {one.options.clip_len}" for one in datasets),
        )
    return next(iter(drawn)) or 1


def agreed_batch_size(datasets: Sequence[MixDataset], budget: Budget) -> int | Budget:
    """The batch size of a mix with a budget: a number of clips, unless frames are drawn per batch.

    Raises `ClipError` unless all clips of all sources have one number of frames, and cost them.
    """
    if any(dataset.options.clip_lens is not None for dataset in datasets):
        return budget
    if budget.cost != "frames":
        raise ClipError(
            "a Budget of a mix counts frames, and not a column or function of samples",
            expected="Budget(…) without cost, for clips of one number of frames; or a loader for "
            "each source with the Budget, in turn",
            got=f"cost={repr_of(budget.cost, 100)}",
        )
    numbers = dict[str, int | None]()
    for dataset in datasets:
        costs = SampleCosts.of(dataset.view, replace(dataset.options, batch_size=budget))
        numbers[dataset.name] = None if costs is None else costs.constant
    if None in numbers.values() or len({*numbers.values()}) > 1:
        texts: dict[int | None, object] = {None: "differ"}
        raise ClipError(
            "the clips of a mix differ in their number of frames, and its Budget is for clips of "
            "one number",
            expected="a number of clips as batch_size; or a loader for each source with the "
            "Budget, in turn",
            got=", ".join(f"{name}: {texts.get(cost, cost)}" for name, cost in numbers.items()),
        )
    return budget.rows(max(cost or 1 for cost in numbers.values()))


def _of_features(options: LoaderOptions, names: list[str], view: View) -> LoaderOptions:
    """The options of a source that reads only these features."""

    def some(given: Mapping[str, Any]) -> dict[str, Any]:
        return {name: given[name] for name in given if name in names}

    windows, ragged = some(options.windows or {}) or None, options.ragged
    has_frames = windows or options.lists_frames or options.clip_len
    return replace(
        options,
        features=names,
        rename=None,
        resize=None,  # the dataset has both
        vectors=None,
        windows=windows,
        clip_len=options.clip_len if has_frames else 1,  # the frame `start`
        pad=options.pad if has_frames else None,
        ragged=some(ragged) if isinstance(ragged, Mapping) else ragged,
        clip_transform=_steps_of(view, names),
        camera=None if view.image_columns is None else view.image_columns.of_features(names),
    )


def _steps_of(view: View, names: list[str]) -> list[Any] | dict[str, Any] | None:
    """The crops and flips of these features and of their padding masks."""
    found: list[Any] = []
    by_name: dict[str, Any] = {}
    for crops in view.draws.crops:
        arrays = {n: spec for n, spec in view.arrays.items() if n in crops.features}
        kept = tuple(n for n, spec in arrays.items() if (spec.mask_of or n) in names)
        if kept and crops.name is not None:
            by_name[crops.name] = [step.of_features(None) for step in crops.steps]
        elif kept:  # not chosen by the largest remaining feature
            found += [step.of_features(kept) for step in crops.steps]
    return by_name or found or None
