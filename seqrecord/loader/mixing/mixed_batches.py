"""Batches of a mix: features, extra columns and memory."""

from __future__ import annotations

import shlex
import threading
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.errors import ClipError
from seqrecord.loader.clips.tables import IntArray
from seqrecord.loader.engine.arena import FORMS, for_users
from seqrecord.loader.engine.batches import Batch, BatchBuilder, BatchForm, OpenBatch
from seqrecord.loader.engine.buffers import BufferNeeds, Buffers
from seqrecord.loader.engine.devices import BufferCache, Device
from seqrecord.loader.frames.array_specs import ArraySpec, clip_nbytes
from seqrecord.loader.mixing.sources import SourceLoader, add_source
from seqrecord.loader.mixing.tasks import TASK, TASK_INDEX, TaskNumbers
from seqrecord.loader.pipes.columns import DIM_IS_PAD, OF_FEATURES, ClipColumn, Column
from seqrecord.loader.pipes.distributed import warn_once
from seqrecord.loader.pipes.padding import cut_padding, padded_axes
from seqrecord.loader.pipes.states import Clip
from seqrecord.loader.pipes.text_columns import MixedTextColumns
from seqrecord.loader.pipes.view import View
from seqrecord.loader.sampling.shard_batches import DrawsByPlace, ShardBatches
from seqrecord.store.areas import MIXED_TEXT_VALUES, load_entry
from seqrecord.store.feature_kinds import differences, has_pixels, is_image, known_kind
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.schema import FeatureSpec
from seqrecord.store.units import raise_if

_DATASET = "dataset"  # the column with the name of each clip's source
_MISSING = "_is_missing"  # the end of the names of masks: the clip's source lacks a feature
_IS_REAL = "_padding_mask"  # LeRobot's name of the opposite, for cameras

BatchBuffers: TypeAlias = Buffers[Any]
Join: TypeAlias = Literal["union", "intersection"]


@dataclass(frozen=True, eq=False)
class MixedBatches:
    """Batches with clips from some sources of a mix: features, extra columns and memory. Picklable.

    Attributes:
        sources: the sources by number.
        specs: dtype and shape of a frame, by feature.
        lengths: the number of frames in a clip, by feature.
        nested: the features that come as nested tensors.
        squeezed: the features without an axis of frames.
        joined: the extra columns of all sources.
        missing: the numbers of the sources without a feature.
        cameras: the images that have padding masks.
        tasks: the numbers of tasks, if they are a column.
        texts: the values of texts.
        kept: the memory of batches, for the next iteration.
    """

    sources: Mapping[int, SourceLoader]
    specs: Mapping[str, ArraySpec]
    lengths: Mapping[str, int]
    nested: frozenset[str]
    squeezed: frozenset[str]
    joined: Sequence[JoinedColumn]
    missing: Mapping[str, list[int]]
    cameras: Sequence[str] = ()
    tasks: TaskNumbers | None = None
    texts: Sequence[MixedTextColumns] = ()
    kept: BufferCache = field(default_factory=BufferCache)

    @classmethod
    def of(
        cls,
        sources: Mapping[int, SourceLoader],
        features: Collection[str],
        *,
        camera_masks: bool = False,
        tasks: TaskNumbers | None = None,
        texts: Set[str] = frozenset(),
    ) -> MixedBatches:
        """Create batches with these features and values of texts, as far as a source has them.

        Raises `ClipError` if two kinds of entries have one name.
        """
        kinds = defaultdict[int, dict[str, str]](dict)  # of entries, by source
        views = {number: source.view for number, source in sources.items()}
        form, columns = dict[str, View](), dict[str, ClipColumn]()
        for number, source in sources.items():
            view = source.view
            problem = f"frame lists of source {source.name!r} differ in length"
            expected, got = 'ragged="pad" in a mix', f"ragged={view.cut!r}"
            raise_if(view.cut != "pad", problem, expected, got)
            for name in filter(features.__contains__, view.batch_arrays):
                kinds[number][name] = "a feature"
                form.setdefault(name, view)  # of the first source with the feature
            kinds[number] |= dict.fromkeys(texts & {*view.value_names}, "values of texts")
            for column in view.columns.in_table(view.samples.in_epoch(0).samples):
                kind = "a list" if column.dtype is None else f"a column {column.text}"
                # The mix's vectors may add a mask that the source has as a feature.
                _check_kind(kinds[number].setdefault(column.name, kind), column.name, kind, source)
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
            sources,
            specs,
            lengths,
            frozenset(nested),
            frozenset(squeezed),
            _joined(columns.values(), sources, missing),
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
                _check_kind(kind_of.setdefault(name, kind), name, kind, self.sources[number])

    @cached_property
    def columns(self) -> Sequence[Column[Batch]]:
        """The columns of the mix itself: names of sources, and what these lack."""
        # No method of this object, which has the columns: a cycle would keep its memory.
        names = {number: source.name for number, source in self.sources.items()}
        columns = [Column(_DATASET, None, (), partial(_names_of, names))]
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
        numbers = partial(_task_numbers, self.tasks, self.sources)
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

    def buffers(self, needs: BufferNeeds, device: Device | None) -> BatchBuffers:
        """Memory for batches; reuses the memory of this process's last iteration.

        `needs` lacks the features.
        """
        needs = replace(needs, specs=self.specs, lengths=self.lengths)
        buffers: BatchBuffers = self.kept.acquire(needs, device)
        self.kept.release(buffers)  # batches that iterations have begun are theirs
        return buffers

    def begin(
        self,
        buffers: BatchBuffers,
        lock: threading.Lock,
        source: IntArray,
        batches: ShardBatches,
        number: int,
    ) -> OpenBatch:
        """Begin batch `number` of `batches` with clips from these sources, int64[n].

        Missing features are 0.
        """
        frames, sizes, form = _frames_of(batches, number), dict[str, tuple[int, int]](), None
        for one in self.sources.values():
            sizes |= one.view.draws.sizes(partial(batches.draw, number))
        if frames is not None or sizes:
            form = BatchForm(frames, {n: size for n, size in sizes.items() if n in self.specs})
        build = partial(self._build, buffers, source, form)
        describe = partial(self._columns, batches=batches, number=number)
        return OpenBatch(len(source), build, lock, source, frames, describe)

    def _build(
        self, buffers: BatchBuffers, source: IntArray, form: BatchForm | None
    ) -> BatchBuilder[Any]:
        builder = buffers.begin_batch(len(source), form)
        for name, without in self.missing.items():
            spec = self.specs.get(name)  # texts stay `None`
            if spec is not None and FORMS[spec.value_kind].is_stacked:
                builder.clear(name, np.flatnonzero(np.isin(source, without)))
        return builder

    def to_clips(self, batch: Batch, device: Device | None = None, *, fits: bool = False) -> Clip:
        """A batch for users: features, and columns of all sources; values of texts on a device.

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
        """The columns of a batch. A thread of a source makes them, as they take milliseconds."""
        return self.columns_of(batch, batches, number)

    def columns_of(
        self, batch: Batch, batches: ShardBatches, number: int, *, planned: bool = False
    ) -> dict[str, Any]:
        """The columns for batch `number` of `batches`, without columns made of features.

        Counts window times without a frame, unless the batch is only `planned`.
        """
        frames = _frames_of(batches, number)
        draws = DrawsByPlace.of_one(batches, number)
        joined = {one.column.name: one.memory(batch.source, frames) for one in self.joined}
        for (number, epoch), some in _by_source(batch).items():
            slots, source = np.array(some), self.sources[number]
            clips = batch.clips.take(slots)
            try:
                _, num_far = source.columns(clips, epoch, draws, joined, slots, planned=planned)
            except ClipError as error:
                add_source(error, source.name)
                raise
            if not planned:
                source.count(num_far)
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


def _check_kind(known: str, name: str, kind: str, source: SourceLoader) -> None:
    """Raise `ClipError` if an entry of a source is of another kind than the known one."""
    if known != kind:
        raise ClipError(
            "two entries of a mix's batches have one name",
            feature=name,
            expected=f"a new name for {known} or the other entry",
            got=f"{kind} of source {source.name!r}",
        )


def _joined(
    columns: Iterable[ClipColumn],
    sources: Mapping[int, SourceLoader],
    missing: Mapping[str, Collection[int]],
) -> list[JoinedColumn]:
    """Batch columns of all sources; `missing` has the numbers of sources without a feature."""
    joined = []
    for column in columns:
        name, defaults = column.name, dict[int, Any]()
        if column.dtype is not None and name == "dilation":
            # Sources that draw it write their own.
            defaults = {number: one.options.dilations[0] for number, one in sources.items()}
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
    tasks: TaskNumbers, sources: Mapping[int, SourceLoader], batch: Batch
) -> IntArray:
    """The number of each clip's task, int64 [clips]."""
    numbers = np.zeros(len(batch), np.int64)
    clips: Any = batch.features.get(TASK)
    for (number, _), some in _by_source(batch).items():
        source, slots = sources[number], np.array(some)
        texts = [] if clips is None else [clips[slot] for slot in some]
        episode = batch.clips.episode[slots]
        numbers[slots] = tasks.column(source.name, source.view, episode, texts)
    return numbers


def _is_of(numbers: Collection[int], invert: bool, batch: Batch) -> npt.NDArray[np.bool_]:
    """Whether clips are of these sources, or of others."""
    return np.isin(batch.source, [*numbers], invert=invert)


def _by_source(batch: Batch) -> dict[tuple[int, int], list[int]]:
    """The slots of each source and epoch."""
    # Plain Python: NumPy's calls for so few numbers would each wait for the GIL.
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for slot, group in enumerate(zip(batch.source.tolist(), batch.epoch.tolist(), strict=True)):
        groups[group].append(slot)
    return groups


def _frames_of(batches: ShardBatches, number: int) -> int | None:
    """The number of frames in each clip of a batch, if drawn."""
    return None if batches.draws is None else int(batches.frames(np.array([number]))[0])


def check_sizes(sources: Mapping[str, View]) -> None:
    """Raise `ClipError` if sources draw the size of a feature differently."""
    drawn: dict[str, dict[str, str]] = {}  # of each feature, the steps of each source
    for source, one in sources.items():
        steps = dict.fromkeys(one.batch_arrays, "none")
        for crops in one.draws.crops:
            text = ", ".join(repr(s.of_features(None)) for s in crops.steps if s.per_batch)
            steps |= dict.fromkeys(crops.features, text or "none")
        for name, text in steps.items():
            drawn.setdefault(name, {})[source] = text
    for name, texts in drawn.items():
        if len({*texts.values()}) > 1:
            raise ClipError(
                "the sources of a mix draw the size of a feature differently",
                feature=name,
                expected="one BatchResize in the clip_transform of every source",
                got=_listed(texts),
            )


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


def joined_features(sources: Mapping[str, View], join: Join) -> list[str]:
    """The features of batches. Raises `ClipError` for an empty intersection.

    In an intersection, masks and ages that `derive` stored come with their features.
    """
    counts = Counter(name for view in sources.values() for name in view.batch_arrays)
    common = {name for name, count in counts.items() if join == "union" or count == len(sources)}
    for end in OF_FEATURES:
        common |= {name for name in counts if name.removesuffix(end) in common}
    names = [name for name in counts if name in common]
    if not names:
        raise ClipError(
            "no feature is in all sources of the mix",
            expected='one, or features="union"',
            got=_listed({source: ", ".join(view.batch_arrays) for source, view in sources.items()}),
        )
    return names


def differing_shapes(
    sources: Mapping[str, View],
    formed: Mapping[str, View],
    features: Sequence[str],
    alternate: bool | None,
    own_units: Collection[str] | None,
) -> dict[str, str]:
    """The features that cannot be in one batch, with the dtype and shape of each source.

    Args:
        sources: the sources.
        formed: the sources with the steps of the mix.
        features: the features of batches.
        alternate: whether each batch comes from a single source, by the user's choice.
        own_units: features that are normalized by source, which may differ in unit. `None`: all
            normalized ones.

    Raises `ClipError` for different kinds or units of a feature, and for such features if
    `alternate` is false.
    """
    unitless = {
        name
        for view in formed.values()
        for name, step in view.vectors.items()
        if step.normalization is not None and (own_units is None or name in own_units)
    }
    _check_meanings(features, sources, unitless)
    found: dict[str, str] = {}
    for name in () if alternate else features:
        shapes = {
            source: _shape(one, name) for source, one in formed.items() if name in one.batch_arrays
        }
        if len({*shapes.values()}) > 1 or "?" in next(iter(shapes.values())):
            found[name] = _listed(shapes)
    if found and alternate is False:
        name, got = next(iter(found.items()))
        raise ClipError(
            "the sources of a mix disagree in a shape, so they cannot be in one batch",
            feature=name,
            expected="the same dtype and fixed shape in every source; or "
            "single_source_batches=True, for batches of a single source",
            got=got,
        )
    return found


def _shape(view: View, name: str) -> str:
    """Dtype and shape of a feature in a clip, with a `?` for each varying dimension."""
    spec = view.batch_arrays[name]
    frames = () if name in view.squeezed else (view.lengths[name],)
    return spec.value_kind.describe_clip(spec, frames)


def _check_meanings(
    features: Iterable[str], sources: Mapping[str, View], unitless: Collection[str]
) -> None:
    """Raise `ClipError` if kind or unit of a feature differ between sources.

    Logs a warning if only some sources declare them. Features made or changed by user functions are
    exempt, and so are texts, and units of `unitless` features.
    """
    for name in features:
        specs = dict[str, FeatureSpec]()
        for source, view in sources.items():
            spec: FeatureSpec | None = meaning(view, name) if name in view.batch_arrays else None
            if spec is not None and spec.value_kind.number_dtype(spec) is not None:
                specs[source] = spec
        for attribute in ("kind", "unit") if name not in unitless else ("kind",):
            declaring = (s for s in specs.values() if getattr(s, attribute) is not None)
            if (first_spec := next(declaring, None)) is None:
                continue
            for source, spec in specs.items():
                is_known = differences(first_spec, spec).get(attribute)
                if is_known is not None:
                    _report(name, attribute, specs, sources[source], is_known)


def _report(
    name: str, attribute: str, specs: Mapping[str, FeatureSpec], view: View, is_known: bool
) -> None:
    """Raise `ClipError` for a feature whose kind or unit differs in a source, or log a warning if
    it is unknown there.
    """
    declared = {source: getattr(spec, attribute) for source, spec in specs.items()}
    text = next(text for text in declared.values() if text is not None)
    described = f"{view.dataset.contents.stored_name(name)}={text}"
    command = f"`seqrecord edit describe {shlex.quote(view.dataset.url)} --{attribute} {described}`"
    if not is_known:
        problem = f"{attribute} of feature {name} is unknown in a source of a mix"
        warn_once(f"{problem}: {_listed(declared)}; if it is {text}: {command}")
        return
    raise ClipError(
        f"the sources of a mix disagree on the {attribute} of a feature",
        feature=name,
        expected=f"one {attribute}: rename the feature of a source (rename=), convert it, "
        f"depth by DepthToMeters({name!r}); or correct a wrong one: {command}",
        got=_listed(declared),
    )


def _listed(of_source: Mapping[str, object]) -> str:
    """A text for each source, joined for an error."""
    return "; ".join(f"{source}: {text or 'unknown'}" for source, text in of_source.items())


def meaning(view: View, name: str) -> FeatureSpec | None:
    """A feature with its kind and unit; `None` if a user function makes or changes it.

    A function may declare its unit, as `DepthToMeters` does.
    """
    spec, functions = view.dataset.features.get(name), view.draws.functions
    called = () if functions is None else functions.functions
    transform = () if view.transform is None else (view.transform.function,)
    for one in reversed((*transform, *called)):
        if spec is not None and name in (units := getattr(one, "units", {})):
            return replace(spec, unit=units[name])
    is_kept = view.transform is None or name in view.unchanged_features
    return spec if is_kept and (functions is None or name in functions.unchanged) else None
