"""The form of a mix's batches: features, and the columns beside them."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.errors import ClipError
from seqrecord.loader.clips.tables import IntArray
from seqrecord.loader.engine.arena import FORMS, RaggedForm, for_users
from seqrecord.loader.engine.batches import Batch, BatchBuilder, BatchForm, OpenBatch
from seqrecord.loader.engine.buffers import Buffers
from seqrecord.loader.engine.devices import Device
from seqrecord.loader.frames.array_specs import ArraySpec, clip_nbytes
from seqrecord.loader.mixing.agreement import Join
from seqrecord.loader.mixing.mix_datasets import add_source
from seqrecord.loader.mixing.tasks import TASK, TASK_INDEX, TaskNumbers
from seqrecord.loader.pipes.columns import DIM_IS_PAD, ClipColumn, Column
from seqrecord.loader.pipes.padding import cut_padding, padded_axes
from seqrecord.loader.pipes.states import Clip
from seqrecord.loader.pipes.text_columns import MixedTextColumns
from seqrecord.loader.pipes.view import View
from seqrecord.loader.pipes.view_loader import ViewLoader
from seqrecord.loader.sampling.shard_batches import DrawsByPlace, ShardBatches
from seqrecord.store.areas import MIXED_TEXT_VALUES, load_entry
from seqrecord.store.feature_kinds import has_pixels, is_image, known_kind
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.units import raise_if

_DATASET = "dataset"  # the column with the name of each clip's source
_MISSING = "_is_missing"  # the end of the names of masks: the clip's source lacks a feature
_IS_REAL = "_padding_mask"  # LeRobot's name of the opposite, for cameras


@dataclass(frozen=True, eq=False)
class MixedBatches:
    """Batches with clips of some datasets of a mix: features and columns. Picklable.

    Attributes:
        names: the datasets by number.
        loaders: of these datasets.
        specs: dtype and shape of a frame, by feature.
        lengths: the number of frames in a clip, by feature.
        nested: the features that come as nested tensors.
        squeezed: the features without an axis of frames.
        joined: the columns of all datasets.
        missing: the numbers of the datasets without a feature.
        cameras: the images that have padding masks.
        tasks: the numbers of tasks, if they are a column.
        texts: the values of texts.
    """

    names: Mapping[int, str]
    loaders: Mapping[int, ViewLoader]
    specs: Mapping[str, ArraySpec]
    lengths: Mapping[str, int]
    nested: frozenset[str]
    squeezed: frozenset[str]
    joined: Sequence[JoinedColumn]
    missing: Mapping[str, list[int]]
    cameras: Sequence[str] = ()
    tasks: TaskNumbers | None = None
    texts: Sequence[MixedTextColumns] = ()

    @classmethod
    def of(
        cls,
        names: Mapping[int, str],
        loaders: Mapping[int, ViewLoader],
        features: Collection[str],
        *,
        camera_masks: bool = False,
        tasks: TaskNumbers | None = None,
        texts: Set[str] = frozenset(),
    ) -> MixedBatches:
        """Create batches with these features and values of texts, as far as a dataset has them.

        Raises `ClipError` if two kinds of entries have one name.
        """
        kinds = defaultdict[int, dict[str, str]](dict)  # of entries, by source
        views = {number: loader.view for number, loader in loaders.items()}
        form, columns = dict[str, View](), dict[str, ClipColumn]()
        for number, view in views.items():
            problem = f"frame lists of source {names[number]!r} differ in length"
            expected, got = 'ragged="pad" in a mix', f"ragged={view.cut!r}"
            raise_if(view.cut != "pad", problem, expected, got)
            for name in filter(features.__contains__, view.batch_arrays):
                kinds[number][name] = "a feature"
                form.setdefault(name, view)  # of the first source with the feature
            kinds[number] |= dict.fromkeys(texts & {*view.value_names}, "values of texts")
            for column in view.columns.in_table(view.samples.in_epoch(0).samples):
                kind = "a list" if column.dtype is None else f"a column {column.text}"
                # The mix's vectors may add a mask that the source has as a feature.
                known = kinds[number].setdefault(column.name, kind)
                _check_kind(known, column.name, kind, names[number])
                earlier = columns.get(column.name, column)
                needs_frames = earlier.needs_frames or column.needs_frames
                columns[column.name] = replace(column, needs_frames=needs_frames)
        made = [*filter(form.__contains__, features)]
        values, cameras = _text_columns(texts, views), list[str]()
        names_of_texts = [of_texts.name for of_texts in values]
        missing = _missing(kinds, [*made, *names_of_texts])
        specs, lengths = dict[str, ArraySpec](), dict[str, int]()
        nested, squeezed = set[str](), set[str]()
        for name in made:
            view = form[name]
            specs[name], lengths[name] = view.batch_arrays[name], view.lengths[name]
            nested |= {name} & view.nested
            squeezed |= {name} & view.squeezed
            if camera_masks and _is_camera(view, name):
                cameras.append(name)
        batches = cls(
            names,
            loaders,
            specs,
            lengths,
            frozenset(nested),
            frozenset(squeezed),
            _joined(columns.values(), loaders, missing),
            missing,
            cameras,
            tasks,
            values,
        )
        batches._check_names(kinds)
        return batches

    def _check_names(self, kinds: Mapping[int, Mapping[str, str]]) -> None:
        """Raise `ClipError` if kinds of entries, by source, differ from each other or the mix."""
        kind_of = dict[str, str]()
        for column in (*self.columns, *self.late_columns):
            kind_of[column.name] = "a column of the mix"
        for number, of_source in kinds.items():
            for name, kind in of_source.items():
                _check_kind(kind_of.setdefault(name, kind), name, kind, self.names[number])

    @cached_property
    def columns(self) -> Sequence[Column[Batch]]:
        """The columns of the mix itself: names of sources, and what these lack."""
        # No method of this object, which has the columns: a cycle would keep its memory.
        columns = [Column(_DATASET, None, (), partial(_names_of, self.names))]
        for name, numbers in self.missing.items():
            if name in self.specs and self.specs[name].mask_of is not None:
                continue  # its feature is missing, too
            is_missing = partial(_is_of, numbers, False)
            columns.append(Column(name + _MISSING, np.dtype(np.bool_), (), is_missing))
        for name in self.cameras:
            is_real = partial(_is_of, self.missing.get(name, ()), True)
            columns.append(Column(name + _IS_REAL, np.dtype(np.bool_), (), is_real))
        return columns

    @cached_property
    def late_columns(self) -> Sequence[Column[Batch]]:
        """The columns of the mix itself that are made of features."""
        if self.tasks is None:
            return ()
        numbers = partial(_task_numbers, self.tasks, self.names, self.loaders)
        return (Column(TASK_INDEX, np.dtype(np.int64), (), numbers),)

    @property
    def column_texts(self) -> dict[str, str]:
        """The entries beside features, each with dtype and shape of a clip, or "list"."""
        own = {column.name: column.text for column in (*self.columns, *self.late_columns)}
        return own | {one.column.name: one.column.text for one in self.joined}

    @property
    def nested_names(self) -> Set[str]:
        """The features and values of texts that come as nested tensors."""
        return self.nested | {values.name for values in self.texts if values.is_nested}

    @property
    def clip_bytes(self) -> int:
        """Bytes of a clip in a batch."""
        return max(1, clip_nbytes(self.specs, self.lengths))

    @property
    def may_be_joined(self) -> bool:
        """Whether several batches may be parts of one, of which each clip is a row or an item."""
        are_rows = not any(isinstance(FORMS[s.value_kind], RaggedForm) for s in self.specs.values())
        return are_rows and not self.nested_names

    def begin(
        self,
        buffers: Buffers[Any],
        lock: threading.Lock,
        source: IntArray,
        batches: ShardBatches,
        number: int,
    ) -> OpenBatch:
        """Begin batch `number` of `batches`, and those that are joined to it, with clips of these
        datasets, int64[n].

        Missing features are 0.
        """
        frames, sizes, form = batches.frames_in(number), dict[str, tuple[int, int]](), None
        for one in self.loaders.values():
            sizes |= one.view.draws.sizes(partial(batches.draw, number))
        if frames is not None or sizes:
            form = BatchForm(frames, {n: size for n, size in sizes.items() if n in self.specs})
        build = partial(self._build, buffers, source, form)
        describe = partial(self._columns, batches=batches, number=number)
        return OpenBatch(len(source), build, lock, source, frames, describe)

    def _build(
        self, buffers: Buffers[Any], source: IntArray, form: BatchForm | None
    ) -> BatchBuilder[Any]:
        builder = buffers.begin_batch(len(source), form)
        for name, without in self.missing.items():
            spec = self.specs.get(name)  # texts stay `None`
            if spec is not None and FORMS[spec.value_kind].is_stacked:
                builder.clear(name, np.flatnonzero(np.isin(source, without)))
        return builder

    def to_clips(self, batch: Batch, device: Device | None = None, *, fits: bool = False) -> Clip:
        """A batch for users: features, and columns of all datasets; values of texts on a device.

        If it `fits`, features are padded to the longest frame of the batch.
        """
        found: Clip = for_users(batch.features, self.nested, self.squeezed)
        if fits:
            found = cut_padding(found, padded_axes(self.specs, self.specs), device)
        place = None if device is None else device.device
        for values in self.texts:
            found.update(values.fill(batch, found, place, fits=fits))
        found.update(batch.columns)
        for column in self.late_columns:
            found[column.name] = column.fill(batch)
        return found

    def _columns(self, batch: Batch, *, batches: ShardBatches, number: int) -> dict[str, Any]:
        """The columns of a batch. The executing thread makes them, beside the consumer's steps."""
        return self.columns_of(batch, batches, number)

    def columns_of(
        self, batch: Batch, batches: ShardBatches, number: int, *, planned: bool = False
    ) -> dict[str, Any]:
        """The columns for batch `number` of `batches`, without columns made of features.

        Counts window times without a frame, unless the batch is only `planned`.
        """
        frames = batches.frames_in(number)
        draws = DrawsByPlace.of_one(batches, number)
        joined = {one.column.name: one.memory(batch.source, frames) for one in self.joined}
        for dataset, epoch, slots in _by_dataset(batch):
            loader, clips = self.loaders[dataset], batch.clips.take(slots)
            try:
                _, num_far = loader.columns(clips, epoch, draws, joined, slots, planned=planned)
            except ClipError as error:
                add_source(error, self.names[dataset])
                raise
            if not planned:
                loader.count_far(num_far)
        for one in self.joined:
            if planned and one.column.needs_frames:
                del joined[one.column.name]
        return {column.name: column.fill(batch) for column in self.columns} | joined


@dataclass(frozen=True, eq=False)
class JoinedColumn:
    """A column that only some sources of a mix have; clips of others get `defaults`."""

    column: ClipColumn
    defaults: Mapping[int, Any]

    def memory(self, source: IntArray, num_frames: int | None) -> torch.Tensor | list[Any]:
        """Memory for clips of these sources, int64[n], with the defaults."""
        memory = self.column.missing(len(source), num_frames)
        for number, default in self.defaults.items():
            memory[source == number] = default
        return memory


def _check_kind(known: str, name: str, kind: str, source: str) -> None:
    """Raise `ClipError` if an entry of a source is of another kind than the known one."""
    if known != kind:
        raise ClipError(
            "two entries of a mix's batches have one name",
            feature=name,
            expected=f"a new name for {known} or the other entry",
            got=f"{kind} of source {source!r}",
        )


def _joined(
    columns: Iterable[ClipColumn],
    loaders: Mapping[int, ViewLoader],
    missing: Mapping[str, Collection[int]],
) -> list[JoinedColumn]:
    """Batch columns of all sources; `missing` has the numbers of sources without a feature."""
    joined = []
    for column in columns:
        name, defaults = column.name, dict[int, Any]()
        if column.dtype is not None and name == "dilation":
            # Sources that draw it write their own.
            defaults = {number: one.options.dilations[0] for number, one in loaders.items()}
        elif column.dtype is not None and name.endswith(DIM_IS_PAD):
            defaults = dict.fromkeys(missing.get(name.removesuffix(DIM_IS_PAD), ()), True)
        joined.append(JoinedColumn(column, defaults))
    return joined


def _missing(kinds: Mapping[int, Mapping[str, str]], names: Iterable[str]) -> dict[str, list[int]]:
    """The numbers of the sources without an entry, for each of these that a source lacks."""
    numbers = dict[str, list[int]]()
    for name in dict.fromkeys(names):
        for number, entries in kinds.items():
            if name not in entries:
                numbers.setdefault(name, []).append(number)
    return numbers


def _names_of(names: Mapping[int, str], batch: Batch) -> list[str]:
    """The name of each clip's source."""
    return [names[number] for number in batch.source.tolist()]


def _task_numbers(
    tasks: TaskNumbers, names: Mapping[int, str], loaders: Mapping[int, ViewLoader], batch: Batch
) -> IntArray:
    """The number of each clip's task, int64 [clips]."""
    numbers = np.zeros(len(batch), np.int64)
    clips: Any = batch.features.get(TASK)
    for dataset, _, slots in _by_dataset(batch):
        texts = [] if clips is None else [clips[slot] for slot in slots.tolist()]
        place = names[dataset], loaders[dataset].view, batch.clips.episode[slots]
        numbers[slots] = tasks.column(*place, texts)
    return numbers


def _is_of(numbers: Collection[int], invert: bool, batch: Batch) -> npt.NDArray[np.bool_]:
    """Whether clips are of these sources, or of others."""
    return np.isin(batch.source, [*numbers], invert=invert)


def _by_dataset(batch: Batch) -> Iterator[tuple[int, int, IntArray]]:
    """Yield each dataset and pass of a batch, and its slots, ascending, int64[n]."""
    order = np.lexsort((batch.epoch, batch.source))
    source, epoch = batch.source[order], batch.epoch[order]
    is_next = (np.diff(source) != 0) | (np.diff(epoch) != 0)
    edges = [0, *(np.flatnonzero(is_next) + 1).tolist(), len(order)]
    for begin, end in pairwise(edges):
        if end > begin:
            yield int(source[begin]), int(epoch[begin]), order[begin:end]


def _is_camera(view: View, name: str) -> bool:
    """Whether a feature is an image."""
    spec, stored = view.batch_arrays[name], view.dataset.features.get(name)
    kind = None if stored is None else stored.kind
    return has_pixels(spec) and is_image(spec, known_kind(name, spec, kind))


def joined_texts(views: Collection[View], join: Join) -> Set[str]:
    """The names of values of texts in batches."""
    counts = Counter(name for view in views for name in view.value_names)
    names = (name for name, count in counts.items() if join == "union" or count == len(views))
    return dict.fromkeys(names).keys()


def _text_columns(names: Collection[str], views: Mapping[int, View]) -> Sequence[MixedTextColumns]:
    """Return the entries of these names that a source has.

    Raises `ClipError` if sources disagree about them.
    """
    having = {name for view in views.values() for name in view.value_names}
    if not (known := [name for name in names if name in having]):
        return ()
    columns: Sequence[MixedTextColumns] = [
        load_entry(MIXED_TEXT_VALUES).of(name, views) for name in known
    ]
    return columns
