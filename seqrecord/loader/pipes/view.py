"""View: a dataset with samples and columns, which plans and runs read and never change.

    dataset      episodes of frames, with the requested features
    samples      the rows of each epoch: an episode and a start, or a list of frames
    frames       which frames of each feature a sample has
    arrays       what a frame is, as stored, as resident rows, and in batches
    columns      what batches have beside features

`make_view` makes a view from a location and options.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from seqrecord.loader.clips.frames import ClipFrames, ClipKeys, ClipWindow
from seqrecord.loader.clips.tables import EpisodeLayout, IntArray
from seqrecord.loader.engine.arena import cut, split
from seqrecord.loader.engine.batches import ClipDraws, ClipRows
from seqrecord.loader.engine.decoding import Transform
from seqrecord.loader.frames.array_specs import ArraySpec
from seqrecord.loader.pipes.clip_windows import Windows
from seqrecord.loader.pipes.collating import SingleClip, batch_memory
from seqrecord.loader.pipes.columns import (
    DIM_IS_PAD,
    FRAMES_IS_PAD,
    ClipColumn,
    ClipColumns,
    ClipEpisodes,
    NoDraws,
    constant,
    metadata_column,
    origin_columns,
)
from seqrecord.loader.pipes.epoch_samples import EpochSamples
from seqrecord.loader.pipes.options import ClipOptions
from seqrecord.loader.pipes.padding import padded_axes
from seqrecord.loader.sampling.frame_uses import RunFrames, SampleFrames
from seqrecord.loader.sampling.runs import Runs, Window
from seqrecord.store.processes.forks import PerProcess, cached_property
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.text import shown_place

if TYPE_CHECKING:
    from seqrecord.loader.clips.frame_lists import FrameLists
    from seqrecord.loader.engine.vectors import VectorSteps
    from seqrecord.loader.pipes.clip_steps import StepSampler
    from seqrecord.loader.pipes.registered_columns import ImageColumns
    from seqrecord.loader.pipes.text_columns import Cut, TextColumns
    from seqrecord.store.statistics.by_feature import Statistics

_Options = TypeVar("_Options", bound=ClipOptions)


@dataclass(frozen=True, eq=False, kw_only=True)
class View:
    """A dataset with samples and columns. Picklable, without state.

    Attributes:
        dataset: the dataset, with the requested features only.
        episode_rows: rows of the selected episodes, int64[n].
        episodes: tables of the requested groups. Plans cut episodes at chunks of the leading group,
            which has most bytes per frame.
        samples: the samples of each epoch.
        lists: the listed frames of each episode, if `samples` lists frames. Plans take them for
            episodes, and places among them for frames and starts.
        left_out: numbers of the episodes and samples left out, with reasons; empty without any.
        windows: the window of each feature.
        clip_frames: the frames of each feature in clips, before any draw.
        steps: sampler of dilations and directions.
        stored_arrays: dtype and shape of a frame, by stored feature. The size of a variable
            shape is that of the largest frame in the selected episodes.
        arrays: … after `transform` or padding: for the rows of resident frames.
        batch_arrays: … in batches, after crops, functions and `vectors`.
        transform: the `frame_transform`, bound to the dataset's units, with its results.
        is_deterministic: whether its results may be kept in memory.
        unchanged_features: features that it leaves unchanged.
        draws: sampler of `clip_transform` parameters.
        image_columns: columns of images that another part makes, if requested.
        vectors: steps of features: normalization, placement.
        lengths: the number of frames in a clip, for each of these features.
        nested: the features that come as nested tensors.
        squeezed: the features without a frame axis.
        cut: the form of features if frame lists differ in length; "pad" leaves all frames.
        clip_episodes: keys and metadata of episodes.
        metadata: the metadata entries that are columns of batches.
        order_columns: the columns of batches that the order adds, see `Order.columns`.
        texts: values of texts in batches, if the dataset has some.
        saved_fingerprint: the fingerprint of the dataset before it grew, in the view of a state's
            episodes.
        memory: pools for single clips, kept as long as the view.
    """

    dataset: Dataset
    episode_rows: IntArray
    episodes: EpisodeLayout
    samples: EpochSamples
    lists: FrameLists | None
    left_out: str
    windows: Windows
    clip_frames: ClipFrames
    steps: StepSampler | None
    stored_arrays: Mapping[str, ArraySpec]
    arrays: Mapping[str, ArraySpec]
    batch_arrays: Mapping[str, ArraySpec]
    transform: Transform | None
    is_deterministic: bool
    unchanged_features: frozenset[str]
    draws: NoDraws
    image_columns: ImageColumns | None = None
    vectors: VectorSteps = field(default_factory=dict)
    lengths: Mapping[str, int]
    nested: frozenset[str]
    squeezed: frozenset[str] = frozenset()
    cut: Cut = "pad"
    clip_episodes: ClipEpisodes
    metadata: tuple[str, ...]
    order_columns: tuple[str, ...] = ()
    texts: TextColumns | None = None
    saved_fingerprint: str | None = None
    memory: PerProcess[Any] = field(default_factory=partial(PerProcess, batch_memory), repr=False)

    # ---- samples and their frames

    @cached_property
    def identity(self) -> dict[str, Any]:
        """See `Contents.identity`."""
        identity = self.dataset.contents.identity(self.episode_rows)
        return {**identity, "dataset": self.saved_fingerprint or identity["dataset"]}

    @property
    def num_rows(self) -> int | None:
        """The rows in the table of samples; `None` without a table."""
        return self.samples.base.episodes.num_rows

    def with_seed(self, seed: int) -> View:
        """A copy whose functions of samples draw from another seed."""
        samples = self.samples
        return self if seed == samples.seed else replace(self, samples=replace(samples, seed=seed))

    def portable(self, options: _Options) -> _Options:
        """The options for another process, without the function that selected episodes."""
        if not callable(options.episodes):
            return options
        keys = self.dataset.contents.index.keys_of(self.episode_rows)
        return replace(options, episodes=keys)

    def frames(
        self, epoch: int, frames_at: Callable[[IntArray], IntArray] | None = None
    ) -> ClipFrames:
        """The frames of each feature in an epoch's clips.

        `frames_at` returns each clip's number of frames by its place, if it is drawn for each
        batch.
        """
        samples, draw = self.samples.in_epoch(epoch).samples, None
        if self.steps is not None:
            seed = self.samples.seed
            draw = partial(self.steps.draw, seed, epoch, samples=samples, frames_at=frames_at)
        return replace(self.clip_frames, draw=draw, samples=samples)

    @cached_property
    def group_windows(self) -> Sequence[Window]:
        """How far samples reach in each group of features, from their starts."""
        stride, group_windows = self.samples.common.stride, list[Window]()
        for windows in self._windows_of_groups:
            group_window = Window.around(
                [window.reach for window in windows],
                stride,
                dilations=self.windows.dilations,
                pads=any(self.windows.pads),
                draws=self.steps is not None,
            )
            if group_window.whole and self.has_fixed_frames:
                frames = self.group_frames(0)[len(group_windows)]
                most_frames = self._most_frames(group_window, frames)
                group_window = replace(group_window, most_frames=most_frames)
            group_windows.append(group_window)
        return group_windows

    def _most_frames(self, window: Window, frames: SampleFrames) -> int:
        """The most frames of an episode that samples have in a group."""
        runs = Runs.of(self.samples.common.clips)
        run_frames = RunFrames(runs, self.episodes.num_frames, window, frames)
        _, used = run_frames.intervals(np.zeros_like(runs.run))
        return int(np.bincount(used.episode, used.counts).max())

    @property
    def has_fixed_frames(self) -> bool:
        """Whether samples have the same frames in all epochs."""
        return not self.samples.common.are_random and self.steps is None

    def group_frames(self, epoch: int) -> Sequence[SampleFrames]:
        """The functions that find the frames of an epoch's samples in each group of features.

        Of samples whose number of frames is drawn for each batch, the greatest number.
        """
        frames = self.frames(epoch)
        return [partial(_frames_of, windows, frames) for windows in self._windows_of_groups]

    @cached_property
    def _windows_of_groups(self) -> Sequence[Sequence[ClipWindow]]:
        """The windows for each group of features; with a frame transform, for a single group."""
        groups, features = dict[int, dict[object, ClipWindow]](), self.dataset.features
        for name, window in self.clip_frames.windows.items():
            if self.transform is not None or name in features:  # no mask of another one
                group = 0 if self.transform is not None else features[name].group
                groups.setdefault(group, {}).setdefault(window.key, window)
        return [[*windows.values()] for _, windows in sorted(groups.items())]

    # ---- arrays

    def array_before_step(self, feature: str) -> ArraySpec:
        """Dtype and shape of a feature's frames in batches, before its step of `vectors`."""
        step = self.vectors.get(feature)
        return self.batch_arrays[feature] if step is None else step.given

    def with_vectors(self, vectors: VectorSteps) -> View:
        """A copy with these steps in place of its own."""
        arrays = {
            name: vectors[name].made if name in vectors else self.array_before_step(name)
            for name in self.batch_arrays
        }
        return replace(self, batch_arrays=arrays, vectors=vectors)

    @property
    def normalizations(self) -> dict[str, Any]:
        """Mode, offset and scale of normalized features by their stored names, as JSON."""
        steps, stored = self.vectors.items(), self.dataset.contents.stored_name
        normalizations = {stored(name): step.normalization for name, step in steps}
        return {
            name: {"mode": n.mode, "offset": n.offset.tolist(), "scale": n.scale.tolist()}
            for name, n in normalizations.items()
            if n is not None
        }

    def compute_statistics(self, **options: Any) -> Statistics:
        """Statistics of the selected episodes' frames, after `frame_transform`."""
        return self.dataset.compute_statistics(
            episodes=self.dataset.contents.numbers_of(self.episode_rows).tolist(),
            frame_transform=None if self.transform is None else self.transform.function,
            **options,
        )

    # ---- columns

    @cached_property
    def columns(self) -> ClipColumns:
        """The columns of batches."""
        constants = []
        for name, step in self.vectors.items():
            if (mask := step.is_padding) is not None:
                constants.append(constant(name + DIM_IS_PAD, mask, name))
        drawn: Sequence[ClipColumn] = self.draws.columns
        if (images := self.image_columns) is not None:
            needs_frames = not self.draws.sized_by_frames.isdisjoint(images.images)
            drawn = [*drawn, *(replace(c, needs_frames=needs_frames) for c in images.columns)]
        span, windows = None if self.steps is None else self.steps.span, self.windows
        padded: Collection[str] = ()
        if any(windows.pads):
            padded = self.arrays if windows.has_clip_len else windows.requested
        origin = origin_columns(
            self.clip_episodes,
            self.clip_frames,
            self.arrays,
            padded=padded,
            drawn=drawn,
            drawn_window=None if span is None else windows.usual,
        )
        metadata = [metadata_column(name) for name in self.metadata]
        entries = frozenset((*self.batch_arrays, *self.order_columns))
        return ClipColumns(self.clip_episodes, origin, metadata, constants, entries)

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

    # ---- clips of batches

    @cached_property
    def padded_axes(self) -> Mapping[str, int]:
        """See `padded_axes` of `loader.pipes.padding`."""
        return padded_axes(self.arrays, self.batch_arrays)

    def cut_clips(
        self,
        features: dict[str, Any],
        columns: Mapping[str, Any],
        *,
        single: bool = False,
        packed: bool = False,
    ) -> dict[str, Any]:
        """Cut the features of a batch to the lengths of its lists; of `single` clips, as lists; of
        a `packed` batch, whose lists come one after another.
        """
        if self.cut == "pad" and not packed:
            return features
        lengths = (~columns[FRAMES_IS_PAD]).sum(dim=1).tolist()
        if packed:
            return split(features, lengths, as_nested=self.cut == "nested")
        return cut(features, lengths, as_nested=self.cut == "nested" and not single)

    def text_values(
        self,
        features: Mapping[str, Any],
        *,
        single: bool = False,
        packed: bool = False,
        device: torch.device | None = None,
        fits: bool = False,
    ) -> dict[str, Any]:
        """The values of the texts in the features of a batch, after `cut_clips`; if it `fits`,
        padded to the longest value of the batch.
        """
        if self.texts is None:
            return {}
        form: Cut = "list" if packed and self.cut == "pad" else self.cut
        return self.texts.fill(features, form, single=single, device=device, fits=fits)

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

    @property
    def value_names(self) -> Collection[str]:
        """The names of values of texts, without masks."""
        return () if self.texts is None else self.texts.names

    def frames_of_texts(self, name: str) -> tuple[int, ...]:
        """The frames of text values in a clip; empty for a single frame."""
        assert self.texts is not None, "a dataset with values of texts"
        text = self.texts.text_of(name)
        return () if text in self.squeezed else (self.lengths[text],)

    def describe(self, more: str = "") -> str:
        """The number of clips, `more`, and a line with dtype and shape for each feature."""
        left_out = f"; left out: {self.left_out}" if self.left_out else ""
        place = shown_place(self.dataset.url)
        lines = [f"{place!r}, {self.samples.common.clips.num_clips} clips{left_out}{more}"]
        for name, spec in self.batch_arrays.items():
            frames = () if name in self.squeezed else (self.lengths[name],)
            whole = ArraySpec(spec.dtype, (*frames, *spec.shape), value=spec.value)
            step = f", {self.vectors[name]}" if name in self.vectors else ""
            lines.append(f"{name}: {whole}{step}")
        for name, spec in self.texts.arrays.items() if self.texts is not None else ():
            whole = ArraySpec(spec.dtype, (*self.frames_of_texts(name), *spec.shape))
            lines.append(f"{name}: {whole}")
        return "\n  ".join(lines)


def _frames_of(windows: Sequence[ClipWindow], frames: ClipFrames, clips: ClipKeys) -> IntArray:
    """The frames of clips in these windows, int64[n, T]."""
    parts = [window.find(clips, frames, checks=False).frames for window in windows]
    return np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]
