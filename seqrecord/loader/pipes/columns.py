"""The columns of batches beside features: episode, start, random parameters, padding, metadata.

A loader's batches are a list of columns. Names, dtypes and shapes are known before the first batch;
a column makes its values for a batch of clips, and may write them to given memory::

    [Column("episode", …), Column("start", …), …]  +  BatchClips  ->  {"episode": […], "start": …}
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.errors import ClipError
from seqrecord.loader.clips.frames import (
    ClipFrames,
    ClipKeys,
    ClipSteps,
    ClipWindow,
    NearestWindow,
    SampleValues,
    WindowFrames,
)
from seqrecord.loader.clips.tables import IntArray
from seqrecord.loader.engine.batches import ClipDraws
from seqrecord.loader.frames.array_specs import ArraySpec
from seqrecord.loader.sampling.random_order import Purpose, hash64, key_of
from seqrecord.store.reading.dataset import Dataset

if TYPE_CHECKING:
    from seqrecord.loader.clips.frame_lists import FrameLists
    from seqrecord.loader.engine.calls import ClipFunctions
    from seqrecord.loader.engine.crops import ClipCrops, DrawBatch

_MOST_EPISODES = 1 << 14  # with metadata in memory

LISTED_FRAMES = "frames"
FRAMES_IS_PAD = "frames_is_pad"
CU_SEQLENS = "cu_seqlens"
"""Name of the mask if lists of frames differ in length: true behind a shorter list."""

IS_PAD = "_is_pad"
"""End of mask names: frames outside their episode, or without a frame near their time."""

DIM_IS_PAD = "_dim_is_pad"
"""End of mask names: values of the last axis that the source lacks."""

OF_FEATURES = (DIM_IS_PAD, IS_PAD, "_age", "_wait")
"""Ends of the names of columns that describe a feature, which `derive` stores as features."""

_T = TypeVar("_T")
_BatchT = TypeVar("_BatchT")


@dataclass(frozen=True, eq=False)
class Column(Generic[_BatchT]):
    """A column of batches beside features. Picklable if `make` is.

    Attributes:
        name: the entry's name.
        dtype: dtype of the values; `None`: a list of texts or other objects.
        shape: shape of a clip's value.
        make: makes the values of a batch's clips, [n, …], in memory of their own.
        per_frame: whether the first axis of a value are the frames of a clip, of which there are
            fewer than in `shape` if a batch draws their number.
        default: the value of clips whose source in a mix lacks the column.
        needs_frames: whether values depend on the frames, which a plan does not read.
        feature: the feature that the column describes; `None` for a column of the clip.
    """

    name: str
    dtype: np.dtype[Any] | None
    shape: tuple[int, ...]
    make: Callable[[_BatchT], npt.NDArray[Any] | list[Any]]
    per_frame: bool = False
    default: Any = 0
    needs_frames: bool = False
    feature: str | None = None

    @property
    def text(self) -> str:
        """Dtype and shape of a value, or "list"."""
        if self.dtype is None:
            return "list"
        return f"{self.dtype} {[*self.shape]}".removesuffix(" []")

    def fill(
        self, batch: _BatchT, memory: torch.Tensor | list[Any] | None = None, slots: Any = ()
    ) -> torch.Tensor | list[Any]:
        """The values of a batch's clips, [n, …]; with `memory`, in these slots of it, int64[n]."""
        values = self.make(batch)
        if memory is None:
            return values if isinstance(values, list) else torch.from_numpy(values)
        if isinstance(memory, torch.Tensor):
            rows = memory.numpy()
            rows[slots] = _as_rows(self.name, values, rows)
        else:
            for slot, value in zip(slots.tolist(), values, strict=True):
                memory[slot] = value
        return memory

    def missing(
        self, size: int, num_frames: int | None = None, default: Any = None
    ) -> torch.Tensor | list[Any]:
        """The values of `size` clips whose source lacks the column: its default or another one, or
        `None` in a list. `num_frames` is drawn for the batch.
        """
        if self.dtype is None:
            return [None] * size
        shape = self.shape
        if self.per_frame and num_frames is not None:
            shape = (min(num_frames, shape[0]), *shape[1:])
        value = self.default if default is None else default
        return torch.from_numpy(np.full((size, *shape), value, self.dtype))


def _as_rows(
    name: str, values: npt.NDArray[Any] | list[Any], rows: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    """The values with the dtype of a larger batch.

    Raises `ClipError` if they do not fit: functions of samples may return another form of a column
    in each epoch.
    """
    if isinstance(values, np.ndarray) and values.shape[1:] == rows.shape[1:]:
        if values.dtype == rows.dtype:
            return values
        if np.can_cast(values.dtype, rows.dtype, "same_kind"):
            cast = values.astype(rows.dtype)
            if rows.dtype.kind == "f" or np.array_equal(cast, values):
                return cast
    text = "texts" if isinstance(values, list) else f"{values.dtype} {[*values.shape[1:]]}"
    raise ClipError(
        f"the column {name} of samples has another form than in epoch 0, which batches of a mix "
        "keep",
        expected=f"{rows.dtype} {[*rows.shape[1:]]}".removesuffix(" []"),
        got=text.removesuffix(" []"),
    )


class EpisodeMetadata(NamedTuple):
    """Key, number and metadata of an episode."""

    key: str
    number: int  # a hash of the key: draws do not depend on other episodes
    metadata: dict[str, Any]  # `None` where there is none


@dataclass(frozen=True, eq=False)
class ClipEpisodes:
    """Looks up keys, numbers and metadata of episodes. Picklable.

    `metadata` has the names of entries. With `lists`, episode rows are theirs. If an
    epoch `repeats` clips, copies of a clip have different numbers.
    """

    dataset: Dataset
    metadata: Sequence[str]
    lists: FrameLists | None
    repeats: bool
    _known: dict[int, EpisodeMetadata] = field(default_factory=dict, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": {}}

    def of(self, episode: IntArray) -> list[EpisodeMetadata]:
        """The metadata of episodes by row, int64[n]."""
        return [self._known.get(row) or self._find(row) for row in self.rows(episode).tolist()]

    def rows(self, episode: IntArray) -> IntArray:
        """The rows of episodes in the index, int64[n]."""
        return episode if self.lists is None else self.lists.episode[episode]

    def key(self, row: int) -> str:
        """The key of the episode in this row of the index."""
        return self.dataset.contents.index.key(row)

    def frames(self, clips: ClipKeys) -> IntArray | None:
        """The frames of clips from frame lists, int64[n, T]; `None` for other clips."""
        return None if self.lists is None else self.lists.frames_of(clips.row)

    @property
    def lists_differ(self) -> bool:
        """Whether clips are lists of frames that differ in length."""
        return self.lists is not None and self.lists.length_of is not None

    def starts(self, clips: ClipKeys) -> IntArray:
        """The first frames of clips in their stored episodes, int64[n]."""
        return clips.start if self.lists is None else self.lists.starts_of(clips.row)

    def numbers(self, clips: ClipKeys) -> IntArray:
        """Numbers of clips, int64[n], which depend on the keys of episodes and the starts, and on
        the samples if an epoch repeats clips."""
        start = clips.start
        if (frames := self.frames(clips)) is not None:
            start = np.zeros_like(start)
            for number, frame in enumerate(frames.T):
                drawn = hash64(key_of(Purpose.LISTED_FRAMES, number), start + frame) >> np.uint64(8)
                start = drawn.astype(np.int64)
        numbers = np.array([one.number for one in self.of(clips.episode)], np.int64) + start
        if self.repeats:
            numbers += (hash64(key_of(Purpose.COPY_NUMBERS), clips.sample) >> np.uint64(8)).astype(
                np.int64
            )
        return numbers

    def _find(self, row: int) -> EpisodeMetadata:
        index, known = self.dataset.contents.index, self._known
        key, entries = index.key(row), index.episode_metadata(row) if self.metadata else {}
        digest = hashlib.blake2b(key.encode(), digest_size=7).digest()
        metadata = {name: entries.get(name) for name in self.metadata}
        if len(known) > _MOST_EPISODES:  # another thread may clear it meanwhile
            known.clear()
        known[row] = found = EpisodeMetadata(key, int.from_bytes(digest, "little"), metadata)
        return found


class NoDraws:
    """No random parameters of clips; `draws.AugmentationSampler` draws them for `clip_transform`.

    Attributes:
        crops: the crops of each camera.
        functions: functions called after the crops.
        is_any: whether there is anything to draw.
        is_random: whether the draws of a clip differ by epoch.
        columns: columns of the parameters.
        sized_by_frames: features whose windows depend on sizes that vary between episodes.
        changed: vectors whose values follow windows: intrinsics, distortion, points.
    """

    crops: tuple[ClipCrops, ...] = ()
    functions: ClipFunctions | None = None
    columns: tuple[ClipColumn, ...] = ()
    sized_by_frames: frozenset[str] = frozenset()
    changed: frozenset[str] = frozenset()
    is_any = is_random = False

    def draw(self, *_: Any, **_settings: Any) -> ClipDraws:
        """Draw parameters for clips; see `AugmentationSampler.draw`."""
        return ClipDraws()

    def sizes(self, draw_batch: DrawBatch) -> dict[str, tuple[int, int]]:  # noqa: ARG002
        """Height and width of features in a batch, if batches differ in size."""
        return {}


NO_DRAWS = NoDraws()
_INT64, _BOOL = np.dtype(np.int64), np.dtype(np.bool_)


@dataclass(frozen=True, eq=False)
class ClipColumns:
    """The columns of a loader's batches beside features. Picklable.

    Attributes:
        episodes: keys, numbers and metadata of episodes.
        origin: `episode`, `start`, and `frames` of lists or drawn ones; random parameters;
            `<feature>_is_pad`, and `<feature>_age` or `<feature>_wait`.
        metadata: metadata of episodes, `None` if an episode lacks an entry.
        constants: the same values for all clips, `<feature>_dim_is_pad`.
        entries: names of the other entries of batches: features, and columns of the order.
    """

    episodes: ClipEpisodes
    origin: Sequence[ClipColumn]
    metadata: Sequence[ClipColumn]
    constants: Sequence[ClipColumn]
    entries: Collection[str]

    def in_table(
        self, samples: SampleValues | None, entries: Collection[str] = ()
    ) -> Sequence[ClipColumn]:
        """The batch columns of an epoch with these samples.

        Raises `ClipError` if samples have the name of another column or one of these entries.
        """
        fixed = [*self.origin, *self.constants, *self.metadata]
        if samples is None or not samples.columns:
            return fixed
        steps: list[ClipColumn] = []
        if "dilation" in samples.columns:
            steps.append(Column("dilation", *samples.value_form("dilation"), _dilation))
        if "reverse" in samples.columns:
            steps.append(Column("reversed", _BOOL, (), _is_reversed))
        others = {*entries, *(column.name for column in (*fixed, *steps))}
        for name in samples.own:
            if name in others:
                problem = "samples has the name of another column of batches"
                raise ClipError(problem, expected="another name", got=name)
        own = [Column(n, *samples.value_form(n), partial(_of_sample, n)) for n in samples.own]
        return [*self.origin, *steps, *self.constants, *self.metadata, *own]

    def fill(
        self,
        clips: ClipKeys,
        frames: ClipFrames,
        drawn: ClipDraws,
        memory: Mapping[str, Any] | None = None,
        slots: Any = (),
        *,
        planned: bool = False,
    ) -> tuple[dict[str, Any], int]:
        """The values of n clips, tensors [n, …] or lists by name, and the number of window times
        without a frame nearby.

        Args:
            clips: the clips.
            frames: the frames of each feature, and the samples of the epoch.
            drawn: the random parameters.
            memory: entries of a larger batch, of which the clips have `slots`, int64[n].
            planned: whether frames are not read, and columns that need them are left out.
        """
        steps = None if frames.draw is None else frames.draw(clips)
        metadata = self.episodes.of(clips.episode)
        num_frames = None
        if steps is not None and steps.num_frames is not None and len(clips.start):
            num_frames = int(steps.num_frames[0])  # equal in a batch
        batch = BatchClips(clips, frames, drawn, self.episodes, metadata, steps, num_frames)
        values = dict[str, Any]()
        for column in self.in_table(frames.samples, self.entries):
            if planned and column.needs_frames:
                continue
            entry = None if memory is None else memory.get(column.name)
            if memory is not None and entry is None:
                raise ClipError(
                    f"samples has the column {column.name}, and batches of a mix have the columns "
                    "of epoch 0",
                    expected="the same columns from a function of samples in every epoch",
                    got=column.name,
                )
            values[column.name] = column.fill(batch, entry, slots)
        return values, batch.num_far


@dataclass(eq=False)
class BatchClips:
    """n clips of a batch, of which columns are made.

    Attributes:
        clips: the clips.
        frames: the frames of each feature, and the samples of the epoch.
        drawn: the random parameters.
        episodes: looks up episodes.
        metadata: keys and metadata of the clips' episodes.
        steps: dilations, directions and drawn frames.
        num_frames: the frames of each clip, if their number is drawn for the batch.
        num_far: number of window times without a frame nearby, in columns that were made.
    """

    clips: ClipKeys
    frames: ClipFrames
    drawn: ClipDraws
    episodes: ClipEpisodes
    metadata: Sequence[EpisodeMetadata]
    steps: ClipSteps | None
    num_frames: int | None
    num_far: int = 0
    _made: dict[object, Any] = field(default_factory=dict)

    def once(self, key: object, make: Callable[[], _T]) -> _T:
        """A value that several columns need, made by the first one."""
        if key not in self._made:
            self._made[key] = make()
        value: _T = self._made[key]
        return value

    def window(self, feature: str) -> WindowFrames:
        """The frames of a feature."""
        key = self.frames.windows[feature].key
        if key not in self._made:
            self._made[key] = self.frames.find(feature, self.clips)
        window: WindowFrames = self._made[key]
        return window


ClipColumn: TypeAlias = Column[BatchClips]
"""A column of a loader's batches."""


def origin_columns(
    episodes: ClipEpisodes,
    frames: ClipFrames,
    arrays: Mapping[str, ArraySpec],
    *,
    padded: Collection[str],
    drawn: Sequence[ClipColumn],
    drawn_window: ClipWindow | None,
) -> list[ClipColumn]:
    """The columns of clips from episodes, frames and draws, see `ClipColumns`.

    Args:
        episodes: the episodes of the clips.
        frames: the frames of each feature.
        arrays: the features, and masks.
        padded: features whose clips may have frames outside their episode.
        drawn: the columns of random parameters.
        drawn_window: the window from which a clip's frames are drawn; `None`: these are not.
    """
    origin: list[ClipColumn] = [
        Column("episode", None, (), _keys),
        Column("start", _INT64, (), _starts),
    ]
    if (lists := episodes.lists) is not None:
        origin.append(_of_frames(LISTED_FRAMES, _INT64, lists.length, _listed))
        if episodes.lists_differ:
            origin.append(_of_frames(FRAMES_IS_PAD, _BOOL, lists.length, _behind_lists))
    elif drawn_window is not None:
        make = partial(_drawn_frames, drawn_window)
        origin.append(_of_frames("frames", _INT64, drawn_window.length, make))
    origin += drawn
    distances = list[ClipColumn]()  # of features without a mask, behind all masks
    for name, spec in arrays.items():
        window = frames.windows[name]
        has_mask = spec.mask_of is None and (name in padded or window.pads)
        if has_mask:
            fill = partial(_is_pad, name)
            origin.append(_of_frames(name + IS_PAD, _BOOL, window.length, fill, name))
        if spec.mask_of is None and isinstance(window, NearestWindow):
            distance = f"{name}_{'wait' if window.looks_ahead else 'age'}"
            column = _of_frames(distance, _INT64, window.length, partial(_distance, name), name)
            (origin if has_mask else distances).append(column)
    return [*origin, *distances]


def metadata_column(name: str) -> ClipColumn:
    """The column of a metadata entry."""
    return Column(name, None, (), partial(_metadata, name))


def constant(name: str, value: npt.NDArray[Any], feature: str) -> ClipColumn:
    """A column of a feature with the same value for all clips."""
    return Column(name, value.dtype, value.shape, partial(_tiled, value), feature=feature)


def _of_frames(
    name: str,
    dtype: np.dtype[Any],
    length: int,
    make: Callable[[BatchClips], npt.NDArray[Any]],
    feature: str | None = None,
) -> ClipColumn:
    """A column with a value for each of `length` frames."""
    return Column(name, dtype, (length,), make, per_frame=True, feature=feature)


# ---- values of columns, which users may change


def _keys(batch: BatchClips) -> list[str]:
    return [episode.key for episode in batch.metadata]


def _starts(batch: BatchClips) -> IntArray:
    return batch.episodes.starts(batch.clips)


def _listed(batch: BatchClips) -> IntArray:
    frames = batch.once("listed", lambda: batch.episodes.frames(batch.clips))
    assert frames is not None, "clips of frame lists"
    return frames


def _behind_lists(batch: BatchClips) -> npt.NDArray[np.bool_]:
    return _listed(batch) < 0


def _drawn_frames(window: ClipWindow, batch: BatchClips) -> IntArray:
    return window.find(batch.clips, batch.frames).frames[:, : batch.num_frames]


def _is_pad(feature: str, batch: BatchClips) -> npt.NDArray[np.bool_]:
    window = batch.window(feature)
    batch.num_far += window.num_far
    return np.array(window.is_pad[:, : batch.num_frames])  # a copy: features share it


def _distance(feature: str, batch: BatchClips) -> IntArray:
    age = batch.window(feature).age
    assert age is not None, "a window that looks for values"
    return np.array(age[:, : batch.num_frames])


def _dilation(batch: BatchClips) -> IntArray:
    assert batch.steps is not None, "a loader with drawn steps"
    return batch.steps.dilation


def _is_reversed(batch: BatchClips) -> npt.NDArray[np.bool_]:
    assert batch.steps is not None, "a loader with drawn steps"
    return batch.steps.is_reversed


def _tiled(value: npt.NDArray[Any], batch: BatchClips) -> npt.NDArray[Any]:
    return np.tile(value, (len(batch.clips.start), *(1 for _ in value.shape)))


def _metadata(name: str, batch: BatchClips) -> list[Any]:
    return [deepcopy(episode.metadata[name]) for episode in batch.metadata]


def _of_sample(name: str, batch: BatchClips) -> npt.NDArray[Any] | list[Any]:
    assert batch.frames.samples is not None, "a table"
    return batch.frames.samples.values(name, batch.clips)
