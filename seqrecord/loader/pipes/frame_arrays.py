"""Frame arrays: each feature's dtype and shape, as stored and after a transform or padding.

Features of variable shapes are padded, nested or lists.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from seqrecord.errors import ClipError, located
from seqrecord.loader.engine.arena import FORMS
from seqrecord.loader.engine.decoding import Transform
from seqrecord.loader.engine.tensors import torch_dtype
from seqrecord.loader.frames.array_specs import (
    ArraySpec,
    add_place,
    apply_transform,
    bind_schema,
    first_frame,
    mask_name,
    unchanged_values,
)
from seqrecord.loader.pipes.epoch_samples import EpochSamples
from seqrecord.loader.pipes.option_values import FrameTransform, Ragged
from seqrecord.loader.pipes.options import ClipOptions
from seqrecord.loader.pipes.view_episodes import ViewEpisodes
from seqrecord.store.schema import Schema
from seqrecord.store.tables.grids import distinct
from seqrecord.store.text import repr_of
from seqrecord.store.units import is_integer, raise_if
from seqrecord.store.value_kinds import FrameFunction


class FrameArrays(NamedTuple):
    """The arrays of a frame.

    Attributes:
        stored: each feature as decoded. A variable shape has the size of the largest frame in the
            episodes of samples.
        rows: … after `frame_transform` or padding: for the rows of resident frames.
        nested: features that come as nested tensors.
        transform: the `frame_transform`, bound to the dataset's units, with its results.
        is_deterministic: whether its results may be kept in memory.
        unchanged: features that it leaves unchanged.
    """

    stored: Mapping[str, ArraySpec]
    rows: Mapping[str, ArraySpec]
    nested: frozenset[str] = frozenset()
    transform: Transform | None = None
    is_deterministic: bool = True
    unchanged: frozenset[str] = frozenset()


def find_arrays(options: ClipOptions, episodes: ViewEpisodes, samples: EpochSamples) -> FrameArrays:
    """The arrays of a request's frames. Calls `frame_transform` twice with the first frame.

    Raises `ClipError` for a feature that `ragged` cannot convert.
    """
    common, dataset = samples.common, episodes.dataset
    rows = (samples.base.clips if common.rows_differ else common.clips).episode  # of all epochs
    rows = distinct(rows if episodes.lists is None else episodes.lists.episode[rows])
    stored, index = dict[str, ArraySpec](), dataset.contents.index
    for name, spec in dataset.features.items():
        largest = None if spec.is_fixed else index.largest_frames(name, rows)
        stored[name] = ArraySpec(spec.dtype, spec.shape, largest, spec.value)
    if options.frame_transform is not None:
        return _of_transform(options.frame_transform, options.ragged, episodes, samples, stored)
    texts = [place.name for place in dataset.contents.dictionaries]
    return FrameArrays(stored, *ragged_arrays(options.ragged, stored, texts))


def _of_transform(
    frame_transform: FrameFunction | FrameTransform,
    ragged: Ragged,
    episodes: ViewEpisodes,
    samples: EpochSamples,
    stored: Mapping[str, ArraySpec],
) -> FrameArrays:
    """The arrays with the results of `frame_transform`."""
    from seqrecord.loader.clips.depth import DepthToMeters

    dataset, windows = episodes.dataset, episodes.windows.stored
    problem = "ragged does not go with frame_transform, which gives frames of one shape"
    # Whether lists of frames differ in length is known from the table only, so lists of one
    # length take the same arguments.
    is_wrong = ragged != "list" and episodes.lists is None
    raise_if(is_wrong, problem, 'ragged="list"', repr_of(ragged, 100))
    settings = frame_transform
    if not isinstance(settings, FrameTransform):
        settings = FrameTransform(settings)
    function = bind_schema(settings.function, dataset.features)
    clip = samples.first_clip
    place = windows.find(next(iter(windows.windows)), clip).frames[:, 0]
    row, frame = (int(numbers[0]) for numbers in windows.stored_frames(clip.episode, place))
    key = dataset.contents.index.key(row)
    try:
        rows, unchanged = _transformed(function, dataset.episodes[key][frame], stored)
    except Exception as error:
        add_place(error, "frame_transform", file=dataset.url, episode=key, frame=frame)
        raise
    transform = Transform(function, rows, settings.cache_key)
    is_deterministic = settings.deterministic or isinstance(function, DepthToMeters)
    return FrameArrays(stored, rows, frozenset(), transform, is_deterministic, unchanged)


def bytes_by_group(arrays: Mapping[str, ArraySpec], features: Schema) -> list[int]:
    """Bytes of one frame in each group, ordered by group number."""
    sizes = dict.fromkeys(sorted({spec.group for spec in features.values()}), 0)
    for name, spec in arrays.items():
        sizes[features[spec.mask_of or name].group] += spec.nbytes
    return list(sizes.values())


def check_tensors(arrays: Mapping[str, ArraySpec]) -> None:
    """Raise `ClipError` for a feature with a dtype that torch lacks."""
    for name, spec in arrays.items():
        try:
            torch_dtype(spec.dtype)
        except (TypeError, ValueError) as error:
            raise ClipError(
                "torch has no such dtype; convert the feature by a transform",
                feature=name,
                expected="a dtype that torch.from_numpy takes",
                got=str(spec.dtype),
            ) from error


def ragged_arrays(
    ragged: Ragged, stored: Mapping[str, ArraySpec], others: Collection[str] = ()
) -> tuple[dict[str, ArraySpec], frozenset[str]]:
    """The arrays of a frame, and the names of nested features.

    A padded feature has the padded sizes, and its mask follows it. Forms of `others` are ignored.
    Raises `ClipError` for a feature that `ragged` cannot convert.
    """
    variable = [name for name, spec in stored.items() if FORMS[spec.value_kind].takes_ragged]
    if isinstance(ragged, Mapping):
        forms: dict[str, Any] = {n: form for n, form in ragged.items() if n not in others}
    else:
        forms = dict.fromkeys(variable, ragged)
    if not variable and not forms:
        return dict(stored), frozenset()
    if wrong := [name for name in forms if name not in variable]:
        raise ClipError(
            "ragged is for features whose shape varies",
            expected=", ".join(variable) or "a dataset that has some",
            got=", ".join(f"{name}: {stored.get(name, 'unknown')}" for name in wrong),
        )
    arrays: dict[str, ArraySpec] = {}
    for name, spec in stored.items():
        form = forms.get(name, "list")
        problem = "nested tensors support one varying dimension, the first"
        with located(ClipError, feature=name):
            can_nest = spec.shape[:1] == (None,) and None not in spec.shape[1:]
            raise_if(form == "nested" and not can_nest, problem, '"list", or sizes to pad to', spec)
            is_padded = form not in ("list", "nested")
            arrays |= _padded(name, spec, form, stored) if is_padded else {name: spec}
    return arrays, frozenset(name for name, form in forms.items() if form == "nested")


def _padded(
    name: str, spec: ArraySpec, form: Any, stored: Mapping[str, ArraySpec]
) -> dict[str, ArraySpec]:
    """A padded feature, and its mask: true for values of the frame."""
    mask, count, largest = mask_name(name), spec.shape.count(None), spec.max_nbytes or 0
    problem = f"{mask} is a feature, and the name of the mask of a padded one"
    raise_if(mask in stored, problem, f"features without {mask}, or ragged={{{name!r}: 'list'}}")
    row, axis = replace(spec, max_nbytes=None).nbytes, None  # of the dimensions that do not vary
    if form == "pad" and count == 1:  # the largest frame's size follows from its bytes
        form, axis = max(1, largest // row), spec.shape.index(None) - len(spec.shape)
    sizes = (form,) if form == "pad" or is_integer(form) else tuple(map(int, form))
    problem = f"ragged needs the sizes of {count} dimensions that vary"
    example = f"such as ragged={{{name!r}: {(480, 640, 3, 2, 2, 2, 2, 2)[:count]}}}"
    raise_if("pad" in sizes or len(sizes) != count, problem, example, f"{[*sizes]} for {spec}")
    problem, padded = "a frame is larger than its padded size", math.prod(sizes) * row
    got = f"{[*sizes]}, which are {padded}"
    raise_if(padded < largest, problem, f"sizes of at least {largest} bytes", got)
    filled = iter(sizes)
    shape = tuple(next(filled) if size is None else size for size in spec.shape)
    of_mask = ArraySpec(np.dtype(np.bool_), sizes, mask_of=name, padded_axis=axis)
    return {name: ArraySpec(spec.dtype, shape), mask: of_mask}


def _transformed(
    transform: FrameFunction, frame: Mapping[str, Any], stored: Mapping[str, ArraySpec]
) -> tuple[dict[str, ArraySpec], frozenset[str]]:
    """The arrays that `frame_transform` returns, and the features that it leaves unchanged.

    Raises `ClipError` for a text under a name that is no stored text feature.
    """
    from seqrecord.loader.engine.calls import text_spec

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
