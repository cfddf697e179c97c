"""Selections: the clips of a request, the arrays of their frames, and the columns of batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeVar

from seqrecord.loader.engine.arena import cut
from seqrecord.loader.engine.batches import ClipDraws, ClipRows
from seqrecord.loader.pipes.clip_sets import ClipSet
from seqrecord.loader.pipes.clip_windows import FeatureWindows
from seqrecord.loader.pipes.collating import SingleClip, batch_memory
from seqrecord.loader.pipes.columns import (
    DIM_IS_PAD,
    FRAMES_IS_PAD,
    ClipColumn,
    ClipColumns,
    ClipEpisodes,
    NoDraws,
    constant,
)
from seqrecord.loader.pipes.frame_arrays import FrameArrays
from seqrecord.loader.pipes.options import ClipOptions
from seqrecord.store.clips.frames import ClipFrames, ClipKeys
from seqrecord.store.clips.tables import EpisodeLayout, IntArray
from seqrecord.store.processes.forks import PerProcess, cached_property
from seqrecord.store.reading.array_specs import ArraySpec
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.text import shown_place

if TYPE_CHECKING:
    from seqrecord.loader.engine.vectors import VectorSteps
    from seqrecord.loader.pipes.draws import StepSampler
    from seqrecord.store.statistics.by_feature import Statistics

_Options = TypeVar("_Options", bound=ClipOptions)


@dataclass(frozen=True, eq=False)
class Selection:
    """The clips of a request, the arrays of their frames, and the columns of batches. Picklable.

    Attributes:
        clip_set: the clips.
        windows: the frames of each feature of clips.
        frames: the arrays of a frame: as stored, and after `frame_transform` or padding.
        episodes: tables of the requested groups. Plans cut episodes at chunks of the leading group,
            which has most bytes per frame.
        clip_episodes: keys and metadata of episodes.
        draws: sampler of `clip_transform` parameters.
        steps: sampler of dilations and directions.
        made: dtype and shape of a frame of each feature in batches.
        lengths: the number of frames of each of these features in a clip.
        metadata: the metadata entries that are columns of batches.
        nested: the features that come as nested tensors.
        squeezed: the features without a frame axis.
        cut: the form of features of frame lists that differ in length; "pad" leaves all frames.
        vectors: steps of features: normalization, placement. `made` includes them.
        memory: pools for single clips, kept as long as the selection.
    """

    clip_set: ClipSet
    windows: FeatureWindows
    frames: FrameArrays
    episodes: EpisodeLayout
    clip_episodes: ClipEpisodes
    draws: NoDraws
    steps: StepSampler | None
    made: Mapping[str, ArraySpec]
    lengths: Mapping[str, int]
    metadata: tuple[str, ...] = ()
    nested: frozenset[str] = frozenset()
    squeezed: frozenset[str] = frozenset()
    cut: str = "pad"
    vectors: VectorSteps = field(default_factory=dict)
    memory: PerProcess[Any] = field(default_factory=partial(PerProcess, batch_memory), repr=False)

    @property
    def dataset(self) -> Dataset:
        """The dataset, with the requested features only."""
        return self.clip_set.dataset

    def given(self, feature: str) -> ArraySpec:
        """Dtype and shape of a frame of a feature before its step."""
        step = self.vectors.get(feature)
        return self.made[feature] if step is None else step.given

    def with_seed(self, seed: int) -> Selection:
        """A copy whose functions of samples draw from another seed."""
        clip_set = self.clip_set.with_seed(seed)
        return self if clip_set is self.clip_set else replace(self, clip_set=clip_set)

    def with_vectors(self, vectors: VectorSteps) -> Selection:
        """A copy with these steps in place of its own."""
        made = {
            name: vectors[name].made if name in vectors else self.given(name) for name in self.made
        }
        return replace(self, made=made, vectors=vectors)

    def cut_clips(
        self, features: dict[str, Any], columns: Mapping[str, Any], *, single: bool = False
    ) -> dict[str, Any]:
        """Cut the features of a batch to the lengths of its lists; of `single` clips, as lists."""
        if self.cut == "pad":
            return features
        lengths = (~columns[FRAMES_IS_PAD]).sum(dim=1).tolist()
        return cut(features, lengths, as_nested=self.cut == "nested" and not single)

    def singles(
        self, features: Mapping[str, Sequence[Any]], columns: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """The clips of a batch, from its features and `columns`, each a sequence over clips."""
        self.memory.get()  # a copy in another process keeps some, too
        values = {**features, **columns, "start": columns["start"].tolist()}
        metadata = frozenset(self.metadata)
        make = partial(SingleClip.of, metadata) if metadata else dict
        # No loop in Python: it would take as long again.
        rows = zip(*values.values(), strict=True)
        return list(map(make, map(zip, repeat(tuple(values)), rows)))

    def compute_statistics(self, **options: Any) -> Statistics:
        """Statistics of all frames of the selected episodes, after `frame_transform`."""
        return self.dataset.compute_statistics(
            episodes=self.clip_set.selected.tolist(),
            frame_transform=self.frames.transform,
            **options,
        )

    def portable(self, options: _Options) -> _Options:
        """The options for another process, without the function that selected episodes."""
        if not callable(options.episodes):
            return options
        keys = self.dataset.contents.index.keys_of(self.clip_set.selected)
        return replace(options, episodes=keys)

    def drawn_frames(
        self, epoch: int, frames_at: Callable[[IntArray], IntArray] | None = None
    ) -> ClipFrames:
        """The frames of each feature of clips in an epoch.

        `frames_at` returns the number of frames of clips by their places, if it is drawn for each
        batch.
        """
        epochs, draw = self.clip_set.epochs, None
        samples = epochs.samples_in(epoch)
        if self.steps is not None:
            drawn = epochs.seed, epoch
            draw = partial(self.steps.draw, *drawn, samples=samples, frames_at=frames_at)
        return replace(self.windows.frames, draw=draw, samples=samples)

    def draw(
        self,
        frames: ClipFrames,
        seed: int,
        epoch: int,
        clips: ClipKeys,
        sources: Sequence[ClipRows[Any]],
        **settings: Any,
    ) -> ClipDraws:
        """Draw parameters for clips, and add their columns for functions of clips.

        `settings` are arguments of `AugmentationSampler.draw`.
        """
        drawn = self.draws.draw(seed, epoch, clips, sources, **settings)
        if drawn.calls is None:
            return drawn
        before_placement = replace(self.columns, constants=())
        columns, _ = before_placement.fill(clips, frames, drawn)
        return replace(drawn, calls=drawn.calls.with_columns(columns))

    @cached_property
    def columns(self) -> ClipColumns:
        """The columns of batches beside features."""
        masks = {name: step.is_padding for name, step in self.vectors.items()}
        constants = [
            constant(n + DIM_IS_PAD, mask) for n, mask in masks.items() if mask is not None
        ]
        span = None if self.steps is None else self.steps.span
        drawn = self.clip_episodes, self.windows, self.draws.columns, span, self.metadata
        return replace(ClipColumns.of(*drawn), constants=constants)

    def check_names(self, reserved: Sequence[str] = ()) -> None:
        """Raise `ClipError` if two entries of a batch have one name."""
        samples = self.clip_set.epochs.samples_in(0)
        self.columns.check_names(self.made, samples, reserved)

    @property
    def column_list(self) -> Sequence[ClipColumn]:
        """The columns of batches of epoch 0."""
        return self.columns.in_table(self.clip_set.epochs.samples_in(0))

    def describe(self, more: str = "") -> str:
        """The number of clips, `more`, and a line with dtype and shape for each feature."""
        found = self.clip_set
        left_out = f"; left out: {found.left_out}" if found.left_out else ""
        place = shown_place(self.dataset.url)
        lines = [f"{place!r}, {found.epochs.clips.num_clips} clips{left_out}{more}"]
        for name, spec in self.made.items():
            frames = () if name in self.squeezed else (self.lengths[name],)
            whole = ArraySpec(spec.dtype, (*frames, *spec.shape), value=spec.value)
            step = f", {self.vectors[name]}" if name in self.vectors else ""
            lines.append(f"{name}: {whole}{step}")
        return "\n  ".join(lines)
