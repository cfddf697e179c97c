"""Values of texts in batches: a value of a dictionary for each text of a feature.

They come beside the texts, as a feature with a value in each frame would::

    task              [["open the door", "open the door"], ["close it", "close it"]]
    task_embedding    [[[12, 4096], [12, 4096]], [[7, 4096], [7, 4096]]]     ragged="list"
    task_embedding    [2, 2, 12, 4096]                                       ragged="pad"

Equal texts of a list are one tensor.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.errors import ClipError
from seqrecord.loader.engine.arena import nested, pad
from seqrecord.loader.engine.tensors import tensor_of
from seqrecord.loader.frames.array_specs import ArraySpec, array_spec_of, mask_name
from seqrecord.loader.pipes.frame_arrays import check_tensors, ragged_arrays
from seqrecord.loader.pipes.option_values import Ragged
from seqrecord.loader.pipes.text_columns import Cut, TextColumns
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.reading.text_dictionaries import TextDictionary
from seqrecord.store.schema import FeatureSpec
from seqrecord.store.text import repr_of

Clips: TypeAlias = "Sequence[str | Sequence[str] | None]"
"""The texts of clips: of their frames, of a single frame, or `None` without any."""

Value: TypeAlias = "npt.NDArray[Any]"


@dataclass(frozen=True, eq=False)
class TextValues(TextColumns):
    """Values of texts in the batches of a view. Picklable.

    Attributes:
        dictionaries: the dictionaries by name.
        arrays: dtype and shape of a frame's value, and masks of padded ones.
        nested: the values that come as nested tensors.
    """

    dictionaries: Mapping[str, TextDictionary] = field(default_factory=dict)
    arrays: Mapping[str, ArraySpec] = field(default_factory=dict)
    nested: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        dataset: Dataset,
        features: Mapping[str, ArraySpec],
        requested: Sequence[str] | None,
        ragged: Ragged,
    ) -> TextValues:
        """The values for texts in batches with these features.

        Raises `ClipError` for `requested` values whose texts are not in batches.
        """
        dictionaries = dict[str, TextDictionary]()
        for name, dictionary in dataset.dictionaries.items():
            text = features.get(dictionary.text)
            if text is not None and text.value == "text":
                dictionaries[name] = dictionary
            elif requested is not None and name in requested:
                raise ClipError(
                    "the texts of these values are not in batches",
                    file=dataset.url,
                    feature=name,
                    expected=f"texts {dictionary.text}, unchanged by frame_transform and "
                    f"clip_transform, or features without {name}",
                    got="no such entry" if text is None else f"{dictionary.text}: {text}",
                )
        specs = {name: array_spec_of(dictionary) for name, dictionary in dictionaries.items()}
        arrays, as_nested = ragged_arrays(ragged, specs, others=features.keys())
        check_tensors(arrays)
        if taken := sorted(arrays.keys() & features.keys()):
            raise ClipError(
                "values of texts have the name of a feature; rename either, with rename=",
                file=dataset.url,
                feature=taken[0],
            )
        return cls(dictionaries, arrays, as_nested)

    @property
    def names(self) -> Collection[str]:
        """The names of the dictionaries."""
        return self.dictionaries.keys()

    def text_of(self, name: str) -> str:
        """Return the feature of the texts, for values or their mask."""
        return self.dictionaries[self.arrays[name].mask_of or name].text

    def fill(
        self,
        features: Mapping[str, Any],
        cut: Cut = "pad",
        *,
        single: bool = False,
        device: torch.device | None = None,
        fits: bool = False,
    ) -> dict[str, Any]:
        """Return the values for the texts in the features of a batch, by name.

        With `single`, lists over clips; if it `fits`, padded to the longest value of the batch.
        Raises `ClipError` for a text without a value.
        """
        entries = dict[str, Any]()
        for name, dictionary in self.dictionaries.items():
            clips = features[dictionary.text]
            values = find_values(dictionary, clips)
            form = self.form_of(name)
            if single:
                parts = [form.batch([clip], [values], "list") for clip in clips]
                entries |= {key: [part[key][0] for part in parts] for key in form.names}
                if name in self.nested:
                    entries[name] = [part[name] for part in parts]
            else:
                entries |= form.batch(clips, [values] * len(clips), cut, fits=fits)
        return on_device(entries, device)

    def form_of(self, name: str) -> ValueForm:
        """Return the form of a dictionary's values."""
        mask = self.arrays.get(mask_name(name))
        spec, feature = self.arrays[name], self.dictionaries[name].spec
        axis, as_nested = None if mask is None else mask.padded_axis, name in self.nested
        is_padded = mask is not None
        return ValueForm(name, spec, feature, axis, is_padded=is_padded, as_nested=as_nested)


def find_values(dictionary: TextDictionary, clips: Clips) -> dict[str, Value]:
    """Return the value of each text in clips. Raises `ClipError` for a text without one."""
    texts = dict.fromkeys(text for clip in clips for text in texts_of(clip))
    values = dictionary.stored(texts)
    if lacking := [text for text in texts if text not in values]:
        raise ClipError(
            f"{len(lacking)} of {len(texts)} texts have no value; derive again, which computes "
            f"values of new texts, or select features without {dictionary.name}",
            file=dictionary.place.storage.url,
            feature=dictionary.name,
            expected=f"a value for each text of {dictionary.text}",
            got=repr_of(lacking[0], 200),
        )
    return values


def texts_of(clip: str | Sequence[str] | None) -> Sequence[str]:
    """The texts of a clip."""
    if clip is None:
        return ()
    return (clip,) if isinstance(clip, str) else clip


@dataclass(frozen=True, eq=False)
class ValueForm:
    """The form of a dictionary's values in batches.

    Attributes:
        name: the name of the values.
        spec: dtype and shape in batches.
        feature: dtype and shape of stored values.
        padded_axis: see `ArraySpec`.
        is_padded: whether ragged values are padded, and have a mask.
        as_nested: whether they come as nested tensors.
    """

    name: str
    spec: ArraySpec
    feature: FeatureSpec
    padded_axis: int | None
    is_padded: bool
    as_nested: bool

    @property
    def names(self) -> list[str]:
        """The entries of batches."""
        return [self.name, mask_name(self.name)] if self.is_padded else [self.name]

    def describe(self, text: str, frames: tuple[int, ...]) -> str:
        """Dtype and shape of a clip's values."""
        return f"{ArraySpec(self.spec.dtype, (*frames, *self.spec.shape))} for {text}"

    def joined(self, other: ValueForm) -> ValueForm | None:
        """Return the form for values of both; `None` if these cannot be in one batch."""
        shapes = self.feature.shape, other.feature.shape
        is_alike = self.spec.dtype == other.spec.dtype and shapes[0] == shapes[1]
        if not is_alike or (self.is_padded, self.as_nested) != (other.is_padded, other.as_nested):
            return None
        if not self.is_padded:
            return self
        sizes: Any = tuple(map(max, zip(self.spec.shape, other.spec.shape, strict=True)))
        return replace(self, spec=replace(self.spec, shape=sizes))

    def batch(
        self,
        clips: Clips,
        values: Sequence[Mapping[str, Value]],
        cut: Cut,
        num_frames: int | None = None,
        *,
        fits: bool = False,
    ) -> dict[str, Any]:
        """Return the entries for clips, given the values of each clip's texts.

        Clips of `None` have `num_frames` frames without a value: zeros, or `None` in lists. If it
        `fits`, values are padded to the longest of these clips.
        """
        if self.spec.is_fixed:
            return self._stacked(clips, values, cut, num_frames, fits=fits)
        tensors: dict[int, torch.Tensor] = {}

        def tensor(clip: int, text: str) -> torch.Tensor:
            value = values[clip][text]
            if (made := tensors.get(id(value))) is None:
                made = tensors[id(value)] = tensor_of(np.array(value))
            return made

        lists: list[Any] = []
        for number, clip in enumerate(clips):
            if isinstance(clip, str):
                lists.append(tensor(number, clip))
            else:
                lists.append(None if clip is None else [tensor(number, text) for text in clip])
        return {self.name: self._nested(lists, num_frames) if self.as_nested else lists}

    def _nested(self, lists: Sequence[Any], num_frames: int | None) -> torch.Tensor:
        """Join the tensors of all frames; frames without a value have no rows."""
        parts: list[torch.Tensor] = []
        for item in lists:
            if item is None:
                shape = tuple(size or 0 for size in self.spec.shape)
                parts += [tensor_of(np.zeros(shape, self.spec.dtype))] * (num_frames or 1)
            else:
                parts += item if isinstance(item, list) else [item]
        return nested(parts)

    def _stacked(
        self,
        clips: Clips,
        values: Sequence[Mapping[str, Value]],
        cut: Cut,
        num_frames: int | None,
        *,
        fits: bool,
    ) -> dict[str, Any]:
        """Return arrays [clips, frames, …], or [clips, …] of single frames; lists of them if clips
        differ in length.
        """
        distinct: list[Value] = []
        rows = dict[int, int]()  # by value
        indices: list[npt.NDArray[np.int64]] = []
        for clip, values_of_clip in zip(clips, values, strict=True):
            numbers = list[int]()
            for text in texts_of(clip):
                value = values_of_clip[text]
                if id(value) not in rows:
                    rows[id(value)] = len(distinct)
                    distinct.append(value)
                numbers.append(rows[id(value)])
            if clip is None:
                index = np.full(() if num_frames is None else num_frames, -1, np.int64)
            else:
                index = np.array(numbers[0] if isinstance(clip, str) else numbers, np.int64)
            indices.append(index)
        entries = dict[str, Any]()
        for key, table in self._tables(distinct, fits=fits).items():
            if cut == "pad":
                entries[key] = tensor_of(table.take(np.stack(indices), axis=0))
            else:
                parts = [tensor_of(table.take(index, axis=0)) for index in indices]
                entries[key] = nested(parts) if cut == "nested" else parts
        return entries

    def _tables(self, values: Sequence[Value], *, fits: bool) -> dict[str, Value]:
        """Return values and their masks as rows [n + 1, …], of which the last one is 0."""
        nothing = np.zeros([size or 0 for size in self.feature.shape], self.spec.dtype)
        if not self.is_padded:
            return {self.name: np.stack([*values, nothing])}
        feature: Any = replace(self.feature, name=self.name)
        sizes = [*self.spec.shape]
        if fits and self.padded_axis is not None:
            sizes[self.padded_axis] = max((v.shape[self.padded_axis] for v in values), default=0)
        rows, masks = pad(feature, [*values, nothing], sizes)
        return {self.name: rows, mask_name(self.name): masks}


def on_device(entries: dict[str, Any], device: torch.device | None) -> dict[str, Any]:
    """Move the tensors of a batch to a device; `None` is the host, where they are."""
    if device is None:
        return entries
    return {name: _moved(value, device) for name, value in entries.items()}


def _moved(value: Any, device: torch.device) -> Any:
    """Move tensors, also in lists."""
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    return [_moved(item, device) for item in value] if isinstance(value, list) else value
