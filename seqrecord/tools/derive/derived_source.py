"""The values of a function as a source for `convert`: an episode for each episode of a dataset.

The clips of all episodes are streamed in order, in batches that may span episodes. So each source
frame is read and decoded once, and the function gets full batches::

    batches     | e0 e0 e0 e0 | e0 e1 e1 e1 | e1 e1 e2 e2 |
    episodes      e0 e0 e0 e0   e0
                                   e1 e1 e1   e1 e1
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.errors import ClipError
from seqrecord.loader.clips.frames import ClipFrames, ClipKeys, NearestWindow
from seqrecord.loader.frames.array_specs import add_place
from seqrecord.loader.pipes.columns import FRAMES_IS_PAD, IS_PAD
from seqrecord.loader.pipes.columns import OF_FEATURES as OF_VALUES
from seqrecord.loader.pipes.loaders import SeqRecordPipe
from seqrecord.loader.pipes.make_view import make_view
from seqrecord.loader.pipes.options import LoaderOptions
from seqrecord.loader.pipes.view import View
from seqrecord.store.feature_kinds import is_picture
from seqrecord.store.format.manifest import Dictionary
from seqrecord.store.originals.inventory import Account
from seqrecord.store.originals.protocol import EpisodeInfo
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.reading.contents import Contents
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.reading.derivations import DERIVED_FROM
from seqrecord.store.schema import Block, FeatureSpec, Frame, Schema
from seqrecord.store.tables.grids import IntArray
from seqrecord.tools.derive.function_errors import carrying_errors
from seqrecord.tools.derive.provenance import (
    Settings,
    columns_in,
    compared,
    entry_of,
    has_equal_facts,
    has_equal_frames,
    has_equal_results,
)
from seqrecord.tools.derive.results import Column, columns_of, rows_of, spec_of

DeriveFunction: TypeAlias = Callable[..., Mapping[str, Any]]
"""Gets a batch of the input features and `arguments`, and returns values by name, one per row."""

SOURCE_START = "source_start"
SOURCE_FRAMES = "source_frames"

OF_FEATURES = ("camera", "columns", "files")  # metadata about features of the source
_OF_BATCHES = ("episode", "start", "dataset", "metadata")  # columns of batches
_DIGEST_DIGITS = 32  # 128 bits, one for each feature of each episode
_OF_STEPS = {"dilation": "dilation", "reverse": "reversed"}  # … for columns of samples


@dataclass(eq=False)
class DerivedSource:
    """The results of a function for the frames, or samples, of a dataset.

    Args:
        dataset: the source.
        function: see `DeriveFunction`.
        features: the inputs of the function.
        keep: features that are copied.
        options: which clips, and in which batches.
        single: the features of the frame `start` alone, which get no axis of frames.
        settings: arguments that decide the values.
        reserved_names: names that the function's results cannot have: texts' values have them.
        dictionaries: values of texts that are stored beside.
        replaced: episodes of the destination, by key, that the commit deletes.
        stored_schema: features of the destination, if it has the values of all episodes.
        first_key: the first episode of which values are computed; `None`: of all.
    """

    dataset: Dataset
    function: DeriveFunction
    features: Sequence[str]
    keep: Sequence[str]
    options: LoaderOptions
    single: Sequence[str]
    settings: Settings
    reserved_names: Collection[str] = ()
    dictionaries: Sequence[Dictionary] = ()
    replaced: Collection[str] = ()
    stored_schema: Schema | None = None
    first_key: str | None = None
    format_name = "derived"
    _has_results: bool = field(default=True, init=False)
    _stream: _Stream | None = field(default=None, init=False)
    _known_facts: dict[int, dict[str, Any]] = field(default_factory=dict, init=False, repr=False)

    @property
    def per_frame(self) -> bool:
        """Whether there is a frame for each frame of the source, else for each sample."""
        return self.settings.is_per_frame

    @property
    def is_selection(self) -> bool:
        """Whether `episodes` or `split` selects some episodes of the source."""
        return self.options.episodes is not None or self.options.split is not None

    @cached_property
    def copied_inputs(self) -> Dataset:
        """The source with the features that values depend on, and those in `keep`."""
        return self.dataset.select([*self.features, *self.keep])

    @cached_property
    def inputs(self) -> Dataset:
        """The source with the inputs of the function."""
        return self.dataset.select([*self.features])

    @cached_property
    def view(self) -> View:
        """The clips of all episodes."""
        view = make_view(self.dataset, self.options)
        cameras = () if view.image_columns is None else view.image_columns.images
        if images := [name for name in self.keep if name in cameras]:
            raise ClipError(
                "derive stores no camera columns of kept images",
                file=self.dataset.url,
                feature=images[0],
                expected="no camera, and the features of poses and intrinsics in keep; copies of "
                "frames have the metadata camera",
                got=f"camera={self.options.camera!r}",
            )
        if _are_drawn(view, self.options) or (view.samples.functions and _differs(view)):
            raise ClipError(
                "samples change from epoch to epoch, so there is no one value per sample",
                file=self.dataset.url,
                expected="samples of epoch 0 in every epoch: a table, or functions that do not "
                "depend on epoch and random numbers; integers as clip_len and repeat",
            )
        if self.options.budget is not None and view.padded_axes:
            raise ClipError(
                "batches of a Budget are padded to their longest frame, and stored values may not "
                "depend on the batch",
                file=self.dataset.url,
                feature=next(iter(view.padded_axes)),
                expected="a number as batch_size; or the size to pad to, in ragged",
                got=f"batch_size={self.options.budget}",
            )
        if lost_names := [name for name in self._stored_masks if name not in view.batch_arrays]:
            raise ClipError(
                "masks of features in keep, which the source stores, would be lost",
                file=self.dataset.url,
                feature=lost_names[0],
                expected=f"keep with {', '.join(lost_names)}; or a source without, by "
                "seqrecord.open(…, features=[…])",
                got=f"keep={[*self.keep]}",
            )
        if missing_names := [n for n in (*self.features, *self.keep) if n not in view.batch_arrays]:
            raise ClipError(
                "transforms return no such input",
                file=self.dataset.url,
                feature=missing_names[0],
                expected="the features of derive, and those in keep",
            )
        return view

    @property
    def _stored_masks(self) -> list[str]:
        """The columns that describe kept features, which the source, derived itself, stores."""
        entry = self.dataset.contents.index.episode_metadata(0).get(DERIVED_FROM)
        columns = entry.get("columns") if isinstance(entry, Mapping) else None
        if not isinstance(columns, list):
            return []
        names = [name + ending for name, ending in product(self.keep, (*OF_VALUES, "_mask"))]
        return [name for name in names if name in columns and name in self.dataset.features]

    @cached_property
    def kept_columns(self) -> Sequence[str]:
        """The columns of batches that describe kept features: masks and ages of their values."""
        view, columns = self.view, self.view.columns
        never_padded = {name + IS_PAD for name in self.single}
        names = [
            column.name
            for column in (*columns.origin, *columns.constants)
            if column.feature in self.keep and column.name not in never_padded
        ]
        names += [
            name
            for name, spec in view.arrays.items()
            if spec.mask_of in self.keep and name in view.batch_arrays
        ]
        if self.keep and view.cut == "pad" and view.clip_episodes.lists_differ:
            names.append(FRAMES_IS_PAD)
        return names

    @cached_property
    def columns(self) -> list[str]:
        """The features beside the function's results."""
        of_samples: list[str] = []
        if not self.per_frame:
            of_samples = [SOURCE_START, SOURCE_FRAMES, *self.columns_of_table]
        names = [*self.keep, *self.kept_columns, *of_samples]
        for name in names:
            if names.count(name) > 1:  # for example source_start of a source that is derived itself
                raise ClipError(
                    "two features of a derived dataset would have one name",
                    feature=name,
                    expected="another name: of a column of samples, or of a feature in keep, by "
                    "seqrecord.open(…).renamed({…})",
                )
        return names

    @property
    def columns_of_table(self) -> list[str]:
        """The columns of the table of samples, as batches have them."""
        samples = self.view.samples.in_epoch(0).samples
        return [*(_OF_STEPS[name] for name in samples.columns if name in _OF_STEPS), *samples.own]

    def check_results(self, names: Collection[str]) -> None:
        """Raise `ClipError` for results of the function under names of other values."""
        for name in names:
            if name in self.columns or name in _OF_BATCHES or name in self.reserved_names:
                raise ClipError(
                    "the function returns a value under the name of another one",
                    feature=name,
                    expected="another name",
                    got=f"{name}, a column of batches, or a feature that is kept",
                )

    @cached_property
    def clips(self) -> ClipKeys:
        """All clips, in order."""
        table = self.view.samples.clips_in(0)
        return table.locate(np.arange(table.num_clips))

    @cached_property
    def episode_of_clips(self) -> IntArray:
        """The episode of each clip, int64 [n], ascending."""
        return self.view.clip_frames.stored_frames(self.clips.episode, self.clips.start)[0]

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The episodes with clips, in order: number in the dataset by key."""
        index = self.dataset.contents.index
        return {index.key(number): number for number in np.unique(self.episode_of_clips).tolist()}

    def is_current(self, number: int, entry: Mapping[str, Any], target: Dataset) -> bool:
        """Whether an episode's stored values are those of the present source and function."""
        stored_columns = columns_in(entry, self.columns, target.features)
        is_equal = stored_columns == self.columns and has_equal_facts(entry, self._facts(number))
        return is_equal and has_equal_frames(entry, self.copied_inputs, number, target.url)

    def stored_rows(
        self, number: int, entry: Mapping[str, Any], key: str, target: Dataset
    ) -> range | None:
        """Return the rows of a derived episode that have the results of an episode's samples.

        All rows, or those at their places: a longer window of a kept feature leaves out samples at
        the ends of episodes. `None`: the results are not stored.
        """
        episode, num_rows = target.episodes[key], self.num_rows(number)
        if len(episode) == num_rows and self.has_results(number, entry, target):
            return range(num_rows)
        spec, facts = target.features.get(SOURCE_FRAMES), self._facts(number)
        is_known = spec is not None and len(spec.shape) == 1 and self._has_one_window
        is_known &= bool(entry.get("rows"))  # of samples, and with the features beside the results
        if not (is_known and has_equal_results(entry, facts, self.features, "forms")):
            return None
        if not has_equal_frames(entry, self.inputs, number, target.url):
            return None
        # They decide the inputs: all have these frames.
        frames = self.frames_of(self._clips_of(number), has_padding=False)
        stored = episode.read(range(len(episode)), features=[SOURCE_FRAMES])[SOURCE_FRAMES]
        place = _place_of_rows(frames, np.asarray(stored))
        return None if place is None else range(place, place + num_rows)

    @cached_property
    def _has_one_window(self) -> bool:
        """Whether the frames of the first input decide the values of all inputs in a sample."""
        windows, options = self._clip_frames.windows, self.options
        keys = {windows[name].key for name in self.features}
        is_other = options.lists_frames and options.ragged == "pad"
        is_other |= any(isinstance(windows[name], NearestWindow) for name in self.features)
        return len(keys) == 1 and not is_other and not self._has_transform

    @property
    def _has_transform(self) -> bool:
        """Whether a transform, which gets all features, makes the inputs."""
        return self.options.frame_transform is not None or self.options.clip_transform is not None

    def has_results(self, number: int, entry: Mapping[str, Any], target: Dataset) -> bool:
        """Whether an episode's stored results are those of the present inputs and function.

        The features beside them may be others. A transform makes the inputs of all features, so
        with one all facts must be equal.
        """
        facts = self._facts(number)
        if not self._has_transform and has_equal_results(entry, facts, self.features):
            return has_equal_frames(entry, self.inputs, number, target.url)
        is_equal = has_equal_facts(entry, facts)
        return is_equal and has_equal_frames(entry, self.copied_inputs, number, target.url)

    def _facts(self, number: int) -> dict[str, Any]:
        """Return what an episode's values depend on, beside its frames."""
        if number not in self._known_facts:
            names = (*self.features, *self.keep)
            clips = self._clips_of(number)
            forms = {name: self._form_of(name, number) for name in names}
            self._known_facts[number] = compared(
                self.settings,
                self.features,
                None if self.per_frame else self._digest_of_rows(clips),
                self._digest_of_normalizations,
                {name: self._digest_of_window(name, forms[name], clips) for name in names},
                {name: _digest_of(forms[name].encode()) for name in self.features},
            )
        return self._known_facts[number]

    def _clips_of(self, number: int) -> ClipKeys:
        """Return the samples of an episode."""
        bounds = np.searchsorted(self.episode_of_clips, [number, number + 1])
        return self.clips.take(slice(*bounds.tolist()))

    @cached_property
    def _digest_of_normalizations(self) -> str | None:
        """A digest of the offsets and scales of features, which follow the dataset's statistics."""
        normalizations = self.view.normalizations
        text = json.dumps(normalizations, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest() if normalizations else None

    def _digest_of_rows(self, clips: ClipKeys) -> str:
        """Return a digest of an episode's samples: their frames, and columns of the table."""
        frames = self.frames_of(clips, has_padding=False)
        digest = hashlib.sha256()
        if self.options.lists_frames:
            frames = self._of_lists(digest, frames)
        digest.update(frames.astype("<i8").tobytes())
        samples = self.view.samples.in_epoch(0).samples
        for name in samples.columns:
            values = samples.values(name, clips)
            plain = values if isinstance(values, list) else values.tolist()
            digest.update(json.dumps([name, plain]).encode())
        return digest.hexdigest()

    def _form_of(self, name: str, number: int) -> str:
        """Return what decides the form of a feature's values in batches, as JSON."""
        view, spec = self.view, self.dataset.features[name]
        form, contents = view.batch_arrays[name], self.dataset.contents
        windows = self._clip_frames.windows
        facts: dict[str, Any] = {
            "form": [str(form.dtype), form.shape, form.value, name in self.single],
            "lists": self.options.lists_frames,
            "arguments": self.settings.form_of(name),
            "normalization": view.normalizations.get(contents.stored_name(name)),
            "declared": [spec.kind, spec.unit],  # by which `resize` and transforms decide
            "window": [
                isinstance(windows[name], NearestWindow),
                windows[name].key == windows[self.features[0]].key,
            ],
        }
        if self.options.clip_transform is not None:  # which gets columns, and cameras for crops
            metadata = contents.index.episode_metadata(number)
            facts["metadata"] = [metadata.get(entry) for entry in ("camera", *view.metadata)]
        return json.dumps(facts, sort_keys=True)

    def _digest_of_window(self, name: str, form: str, clips: ClipKeys) -> str:
        """Return a digest of a feature's values in samples, beside its pages: which frames these
        are, and their form.
        """
        digest = hashlib.sha256(form.encode())
        window = self._clip_frames.find(name, clips)
        frames = self._clip_frames.stored_frames(clips.episode[:, None], window.frames)[1]
        if self.options.lists_frames:
            frames = self._of_lists(digest, np.where(window.is_pad, -1, frames))
        else:
            digest.update(np.array(frames.shape, "<i8").tobytes())
            digest.update(np.packbits(window.is_pad).tobytes())
        digest.update(frames.astype("<i8").tobytes())
        if window.age is not None:
            digest.update(window.age.astype("<i8").tobytes())
        return digest.hexdigest()[:_DIGEST_DIGITS]

    def _of_lists(self, digest: Any, frames: IntArray) -> IntArray:
        """Return the frames of lists, int64 [n], after an update of the digest by their lengths.

        -1 follows a shorter list. Another sample of the table may have a longer one, which changes
        these only with `ragged="pad"`.
        """
        width = frames.shape[1] if self.options.ragged == "pad" else 0
        lengths = (frames >= 0).sum(axis=1)
        digest.update(np.array([width, *lengths.tolist()], "<i8").tobytes())
        listed_frames: IntArray = frames[frames >= 0]
        return listed_frames

    @cached_property
    def _clip_frames(self) -> ClipFrames:
        """The frames of each feature in the samples."""
        return self.view.frames(0)

    def frames_of(self, clips: ClipKeys, *, has_padding: bool) -> IntArray:
        """Return the frames of the first input in clips, int64 [n, T].

        A shorter list of frames is followed by its last frame where the input `has_padding`, else
        by -1.
        """
        window = self._clip_frames.find(self.features[0], clips)
        frames = self._clip_frames.stored_frames(clips.episode[:, None], window.frames)[1]
        if has_padding or not self.options.lists_frames:
            return frames
        return np.where(window.is_pad, -1, frames)

    @carrying_errors()
    def schema(self) -> Schema:
        """Return the features of the first batch; calls the function once, if it has to."""
        if self.stored_schema is not None:
            known_specs = self.stored_schema.values()
            return Schema([replace(spec, codec=(), group=0, added=None) for spec in known_specs])
        stream = self._open(self.first_key or next(iter(self.numbers)))
        columns = stream.peek()
        specs = {name: self._kept_spec(name, columns[name]) for name in self.keep}
        for name, column in columns.items():
            if name not in specs:
                specs[name] = spec_of(name, column)
        return Schema([*specs.values()])

    def _kept_spec(self, name: str, column: Column) -> FeatureSpec:
        """Return the feature of a copy, which may be resized, or in a window with an axis more."""
        spec = replace(self.dataset.features[name], codec=(), group=0, added=None)
        if not isinstance(column, np.ndarray):
            has_lists = not self.per_frame and getattr(column[0], "ndim", 0) > len(spec.shape)
            return spec_of(name, column) if has_lists else spec
        dtype, shape = column.dtype, column.shape[1:]
        if len(shape) == len(spec.shape):  # maybe resized, normalized or padded
            return replace(spec, dtype=dtype, shape=shape, stored_shape=None)
        return FeatureSpec(name, dtype, shape)

    def num_rows(self, number: int) -> int:
        """Return the frames of an episode in the result: those of the source, or its samples."""
        if self.per_frame:
            return int(self.dataset.contents.index.num_frames[number])
        return self.num_clips(number)

    def num_clips(self, number: int) -> int:
        """Return the samples of an episode, or its frames with all inputs."""
        first, end = np.searchsorted(self.episode_of_clips, [number, number + 1]).tolist()
        return int(end - first)

    @carrying_errors()
    def episodes(self) -> Sequence[EpisodeInfo]:
        """Return the episodes that have clips, in the dataset's order."""
        return self._infos

    @cached_property
    def _split_of(self) -> dict[str, str]:
        """The split of each episode that is in one, by key."""
        return {key: name for name, keys in self.dataset.splits.items() for key in keys}

    def _digest_of_labels(self, number: int) -> str:
        """Return a digest of an episode's split and metadata, but for the origin of its values."""
        index = self.dataset.contents.index
        metadata = {**index.episode_metadata(number)}
        metadata.pop(DERIVED_FROM, None)
        labels = [metadata, self._split_of.get(index.key(number))]
        return _digest_of(json.dumps(labels, sort_keys=True).encode())

    def has_labels(self, number: int, entry: Mapping[str, Any]) -> bool:
        """Whether the split and metadata of an episode are those that were copied.

        Those of earlier versions of this package are not known.
        """
        return "labels" not in entry or entry["labels"] == self._digest_of_labels(number)

    @cached_property
    def _infos(self) -> list[EpisodeInfo]:
        contents = self.dataset.contents
        infos = []
        for key, number in self.numbers.items():
            entry = entry_of(self.copied_inputs, number, self._facts(number), self.columns)
            entry["labels"] = self._digest_of_labels(number)
            fps = float(contents.index.fps[number]) or None
            metadata = contents.index.episode_metadata(number)
            metadata = _of_features(metadata, contents, self._copies)
            if DERIVED_FROM in metadata:  # of a derived source, or the user's own
                entry = {**entry, DERIVED_FROM: metadata[DERIVED_FROM]}
            infos.append(
                EpisodeInfo(
                    key,
                    self.num_rows(number),
                    {**metadata, DERIVED_FROM: entry},
                    fps=fps if self.per_frame else None,
                    split=self._split_of.get(key),
                )
            )
        return infos

    @property
    def _copies(self) -> list[str]:
        """The kept features that are copied unchanged."""
        options, specs = self.options, self.dataset.features
        if options.resize or options.clip_transform or options.frame_transform:
            return []
        names = [name for name in self.keep if self.per_frame or name in self.single]
        return [name for name in names if specs[name].stored_shape is None]

    def account(self) -> Account:
        """Return where each feature comes from."""
        places = {name: f"feature {name}" for name in self.keep}
        return Account(f"values of {self.dataset.url}", places)

    def frames(self, info: EpisodeInfo) -> Iterator[Frame]:
        """Yield an episode's frames."""
        for block in self.blocks(info):
            yield from block.frames()

    @property
    def has_empty_frames(self) -> bool:
        """Whether frames may have no value: those that lack an input or a copied feature."""
        return self.per_frame

    def blocks(self, info: EpisodeInfo) -> Iterator[Block]:
        """Yield an episode's frames, as blocks of frames with the same features."""
        next_frame = 0
        for starts, columns in self._open(info.key).episode(info.key):
            if not self.per_frame:
                yield Block(len(starts), columns)
                continue
            jumps = (np.flatnonzero(np.diff(starts) != 1) + 1).tolist()
            for begin, end in pairwise([0, *jumps, len(starts)]):
                yield from _empty(int(starts[begin]) - next_frame)
                yield Block(end - begin, {n: rows_of(c, begin, end) for n, c in columns.items()})
                next_frame = int(starts[end - 1]) + 1
        if self.per_frame:
            yield from _empty(info.num_frames - next_frame)

    @contextmanager
    def without_results(self) -> Iterator[None]:
        """Yield the features beside the results in this block, without calls of the function."""
        self.close()
        self._has_results = False
        try:
            yield
        finally:
            self.close()
            self._has_results = True

    def close(self) -> None:
        """Stop reading."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _open(self, key: str) -> _Stream:
        """Return a stream that is at the beginning of an episode."""
        if self._stream is None or self._stream.key != key:
            self.close()
            self._stream = _Stream(self, key, has_results=self._has_results)
        return self._stream


def _digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:_DIGEST_DIGITS]


def _place_of_rows(frames: IntArray, stored: IntArray) -> int | None:
    """Return the first of consecutive rows of `stored`, [n, S], that are the rows `frames`, [m, T].

    -1 follows the frames of a shorter list.
    """
    width, num_rows = max(frames.shape[1], stored.shape[1]), len(frames)
    frames, stored = (
        np.pad(rows, ((0, 0), (0, width - rows.shape[1])), constant_values=-1)
        for rows in (frames, stored)
    )
    for place in np.flatnonzero((stored == frames[0]).all(axis=1)).tolist():
        if np.array_equal(stored[place : place + num_rows], frames):
            return int(place)
    return None


def _are_drawn(view: View, options: LoaderOptions) -> bool:
    """Whether the number of samples, or their frames, are drawn in each epoch."""
    repeat = view.samples.in_epoch(0).samples.repeat
    is_fraction = repeat is not None and bool((repeat % 1 != 0).any())
    is_subset = options.span is not None and options.span != options.most_frames
    return is_fraction or is_subset or options.clip_lens is not None


def _of_features(
    metadata: Mapping[str, Any], contents: Contents, names: Collection[str]
) -> dict[str, Any]:
    """Return an episode's metadata; entries about features keep only these names."""
    parts = {n: value for n, value in metadata.items() if n not in OF_FEATURES}
    for entry in OF_FEATURES:
        values = metadata.get(entry)
        if not isinstance(values, Mapping):
            continue
        present_values = contents.by_present_names(values)
        selected = {name: present_values[name] for name in names if name in present_values}
        specs = (contents.features[name] for name in names)
        if "fx" in values and any(is_picture(spec.name, spec, spec.kind) for spec in specs):
            selected = {**values}  # one camera of all images
        if selected:
            parts[entry] = selected
    return parts


def _differs(view: View) -> bool:
    """Whether the samples of epoch 1 are others than those of epoch 0."""
    first, second = view.samples.in_epoch(0).samples, view.samples.in_epoch(1).samples
    if first.names != second.names:
        return True
    pairs = ((np.asarray(first[name]), np.asarray(second[name])) for name in first.names)
    return not all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in pairs)


def _empty(count: int) -> Iterator[Block]:
    """Frames that lack all features."""
    if count > 0:
        yield Block(count, {})


def _without_axis(values: Any) -> Any:
    """Remove the axis of frames from clips of one frame: a tensor, nested, or lists."""
    if isinstance(values, torch.Tensor):
        return list(values.unbind()) if values.is_nested else values.squeeze(1)
    return [clip[0] for clip in values]


def _texts_of_starts(values: Any) -> Any:
    """Return the first text of each clip's list of texts; other values are unchanged."""
    if isinstance(values, list) and values and isinstance(values[0], list):
        return [clip[0] if isinstance(clip[0], (str, bytes)) else clip for clip in values]
    return values


class _Stream:
    """Results of batches, in order; `key` is the episode of the next row, `None` at the end.

    A stream that begins at a later episode has the same batches as a stream of all episodes. Unless
    it `has_results`, it calls no function, and has the features beside the results.
    """

    def __init__(self, source: DerivedSource, key: str, *, has_results: bool) -> None:
        self.key: str | None = key
        self._later_keys = iter([*source.numbers])
        for earlier_key in self._later_keys:
            if earlier_key == key:
                break
        self._source, self._has_results = source, has_results
        # Not a loader of the remaining episodes: functions of samples would get another table, and
        # `ragged="pad"` another size
        # (tests/tools/test_derive.py::test_a_continued_call_has_the_samples_of_a_whole_one).
        self._pipe = SeqRecordPipe.from_options(source.dataset, source.options)
        first_clip = int(np.searchsorted(source.episode_of_clips, source.numbers[key]))
        batch, self._num_skipped = self._place_of(key) if first_clip else (0, 0)
        self._pipe.set_epoch(0, batches=batch)
        self._batches: Any = iter(self._pipe)
        self._next_clip = first_clip - self._num_skipped
        self._keys: list[str] = []
        self._starts: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self._columns: dict[str, Column] = {}

    def close(self) -> None:
        self._batches.close()

    def _place_of(self, key: str) -> tuple[int, int]:
        """Return the first batch with rows of an episode, and the number of rows before these."""

        def last_episode(batch: int) -> int:
            return self._source.numbers[self._pipe.rows(0, batch)["episode"][-1]]

        batches = range(len(self._pipe))
        batch = bisect_left(batches, self._source.numbers[key], key=last_episode)
        return batch, self._pipe.rows(0, batch)["episode"].index(key)

    def peek(self) -> dict[str, Column]:
        """Return the results of the next rows, without taking them."""
        if not self._keys:
            self._next()
        return self._columns

    def episode(self, key: str) -> Iterator[tuple[npt.NDArray[np.int64], dict[str, Column]]]:
        """Take the rows of the next episode: starts, int64 [n], and values by feature."""
        num_remaining = self._source.num_clips(self._source.numbers[key])
        while num_remaining:  # not until another key comes, for which the function would be called
            if not self._keys:
                self._next()
            count = min(num_remaining, len(self._keys))
            columns = {n: rows_of(c, 0, count) for n, c in self._columns.items()}
            starts = self._starts[:count]
            self._drop(count)
            num_remaining -= count
            yield starts, columns
        self.key = next(self._later_keys, None)

    def _drop(self, count: int) -> None:
        self._keys, self._starts = self._keys[count:], self._starts[count:]
        self._columns = {n: rows_of(c, count, len(c)) for n, c in self._columns.items()}

    @carrying_errors()
    def _next(self) -> None:
        """Read a batch, and call the function."""
        batch = next(self._batches, None)
        if batch is None:
            return
        source, count = self._source, len(batch["episode"])
        self._keys, self._starts = batch["episode"], np.asarray(batch["start"].cpu(), np.int64)
        for name, spec in source.view.batch_arrays.items():
            if (spec.mask_of or name) in source.single:
                batch[name] = _without_axis(batch[name])
        columns = self._results(batch) if self._has_results else {}
        others = {name: _texts_of_starts(batch[name]) for name in source.keep}
        others |= {name: batch[name] for name in source.kept_columns}
        if not source.per_frame:
            others |= self._of_samples(batch)
        source.check_results(columns)
        self._columns = {**columns_of(others, count), **columns} if others else columns
        self._drop(self._num_skipped)  # rows of the episode before, in the first batch
        self._num_skipped = 0

    def _results(self, batch: Mapping[str, Any]) -> dict[str, Column]:
        """Call the function for a batch."""
        source = self._source
        inputs = {name: batch[name] for name in source.features}
        try:
            with torch.no_grad():
                results = source.function(inputs, **source.settings.arguments)
        except Exception as error:
            frame, file = int(self._starts[0]), source.dataset.url
            what = "the function of derive"
            add_place(error, what, file=file, episode=self._keys[0], frame=frame)
            raise
        return columns_of(results, len(self._keys))

    def _of_samples(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the columns of samples: their frames in the source, and the table's own."""
        source, count = self._source, len(batch["episode"])
        clips = source.clips.take(slice(self._next_clip, self._next_clip + count))
        self._next_clip += count
        return {
            SOURCE_START: batch["start"],
            SOURCE_FRAMES: source.frames_of(clips, has_padding=source.options.ragged == "pad"),
            **{name: batch[name] for name in source.columns_of_table},
        }
