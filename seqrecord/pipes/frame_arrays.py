"""Frame arrays: each feature's dtype and shape, as stored and after a transform or padding."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np

from seqrecord.clips.tables import IntArray
from seqrecord.engine.decoding import Transform
from seqrecord.pipes.arrays import ragged_arrays
from seqrecord.pipes.clip_sets import ClipSet
from seqrecord.pipes.option_values import FrameTransform
from seqrecord.pipes.options import ClipOptions
from seqrecord.reading.array_specs import (
    ArraySpec,
    FrameFunction,
    add_place,
    apply_transform,
    bound,
    first_frame,
    unchanged_values,
)
from seqrecord.reading.dataset import Dataset
from seqrecord.text import repr_of
from seqrecord.units import raise_if


@dataclass(frozen=True, eq=False)
class FrameArrays:
    """The arrays of a frame. Picklable if the transform is.

    Attributes:
        stored: each feature as it is decoded. The size of a variable shape is that of the largest
            frame of the selected episodes.
        arrays: each feature after `transform` or padding.
        nested: features of nested tensors.
        unchanged: features that `transform` leaves unchanged.
        transform: the `frame_transform`, bound to the dataset's units.
        is_deterministic: whether its results may stay in memory.
        cache_key: key of its results in a frame cache.
    """

    stored: Mapping[str, ArraySpec]
    arrays: Mapping[str, ArraySpec]
    nested: frozenset[str] = frozenset()
    unchanged: frozenset[str] = frozenset()
    transform: FrameFunction | None = None
    is_deterministic: bool = True
    cache_key: str | None = None

    @property
    def of_engine(self) -> Transform | None:
        """The `frame_transform` with its results."""
        transform = self.transform
        return None if transform is None else Transform(transform, self.arrays, self.cache_key)

    @classmethod
    def of(cls, options: ClipOptions, found: ClipSet) -> FrameArrays:
        """The arrays of a request. Raises `ClipError` for unsupported features."""
        dataset, clips, excerpts = found.dataset, found.epochs.clips, found.excerpts
        rows = clips.episode if excerpts is None else excerpts.episode[clips.episode]
        stored = _stored_arrays(dataset, np.unique(rows))
        if options.frame_transform is None:
            arrays, nested = ragged_arrays(options.ragged, stored)
            return cls(stored, arrays, nested)
        from seqrecord.clips.depth import DepthToMeters

        problem = "ragged does not go with frame_transform, which gives frames of one shape"
        is_wrong = options.ragged != "list" and (excerpts is None or excerpts.length_of is None)
        raise_if(is_wrong, problem, 'ragged="list"', repr_of(options.ragged, 100))
        given = options.frame_transform
        given = given if isinstance(given, FrameTransform) else FrameTransform(given)
        transform, windows = bound(given.function, dataset.features), found.windows.stored
        first = clips.locate(np.zeros(1, np.int64))
        place = windows.find(next(iter(windows.windows)), first).frames[:, 0]
        row, frame = (int(numbers[0]) for numbers in windows.stored(first.episode, place))
        key = dataset.contents.index.key(row)
        try:
            arrays, unchanged = _transformed(transform, dataset.episodes[key][frame], stored)
        except Exception as error:
            add_place(error, "frame_transform", file=dataset.url, episode=key, frame=frame)
            raise
        may_stay = given.deterministic or isinstance(transform, DepthToMeters)
        made = arrays, frozenset[str](), unchanged, transform
        return cls(stored, *made, may_stay, given.cache_key)


def _stored_arrays(dataset: Dataset, episodes: IntArray) -> dict[str, ArraySpec]:
    """Each feature of a frame as decoded.

    A variable shape has the size of its largest frame in these episodes, given by row.
    """
    found = {}
    for name, spec in dataset.features.items():
        largest = None if spec.is_fixed else dataset.contents.index.largest_frames(name, episodes)
        found[name] = ArraySpec(spec.dtype, spec.shape, largest, spec.value)
    return found


def _transformed(
    transform: FrameFunction, frame: Mapping[str, Any], stored: Mapping[str, ArraySpec]
) -> tuple[dict[str, ArraySpec], frozenset[str]]:
    """The arrays that `frame_transform` returns, and the features that it leaves unchanged.

    Raises `ClipError` for a text under a name that is no stored text feature.
    """
    from seqrecord.engine.calls import text_spec

    first_frame(transform, frame)
    given, copies = dict(frame), deepcopy(dict(frame))
    made = apply_transform(transform, dict(frame))
    specs = {
        name: text_spec("frame_transform", name, value, stored)
        if isinstance(value, (str, bytes))
        else ArraySpec(value.dtype, value.shape)
        for name, value in made.items()
    }
    return specs, unchanged_values(given, copies, made)
