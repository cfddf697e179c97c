"""Arrays of variable shapes, padded or nested; long chunks of video in pieces.

A video chunk is at least one group of pictures, of up to 256 frames. Decoded at once, it would need
memory for all of them. So plans treat pieces of it as chunks: each piece is decoded as far as clips
need it, and the engine keeps the page and its decoder open between two pieces of a cursor's chunk.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import numpy as np
import torch

from seqrecord.clips.tables import EpisodeLayout
from seqrecord.errors import ClipError, located
from seqrecord.format.index import GroupIndex
from seqrecord.reading.array_specs import ArraySpec, mask_name
from seqrecord.reading.dataset import Dataset
from seqrecord.schema import Schema
from seqrecord.units import are_names, check, is_integer, raise_if


def bytes_by_group(arrays: Mapping[str, ArraySpec], features: Schema) -> list[int]:
    """Bytes of one frame in each group, ordered by group number."""
    sizes = dict.fromkeys(sorted({spec.group for spec in features.values()}), 0)
    for name, spec in arrays.items():
        sizes[features[spec.mask_of or name].group] += spec.nbytes
    return list(sizes.values())


def groups_of(dataset: Dataset) -> list[GroupIndex]:
    """The groups of the dataset's open features, ordered by number."""
    numbers = {spec.group for spec in dataset.features.values()}
    return [dataset.contents.index.groups[number] for number in sorted(numbers)]


def check_tensors(arrays: Mapping[str, ArraySpec]) -> None:
    """Raise `ClipError` for a feature with a dtype that torch lacks."""
    for name, spec in arrays.items():
        try:
            torch.from_numpy(np.empty(0, spec.dtype))
        except (TypeError, ValueError) as error:
            raise ClipError(
                "torch has no such dtype; convert the feature by a transform",
                feature=name,
                expected="a dtype that torch.from_numpy takes",
                got=str(spec.dtype),
            ) from error


_Form: TypeAlias = "Literal['list', 'pad', 'nested']"

Ragged: TypeAlias = "_Form | Mapping[str, _Form | int | Sequence[int]]"
# Form of features of variable shapes: for all, or by name, then also sizes to pad to.

_FORMS = ("list", "pad", "nested")


def check_ragged(value: Any) -> None:
    """Raise `ClipError` for an invalid `ragged`."""
    forms = value if isinstance(value, Mapping) else {"": value}
    are_known = all(
        form in _FORMS if isinstance(form, str) else forms is value and _are_sizes(form)
        for form in forms.values()
    )
    expected = '"list", "pad" or "nested", or a dict of these and sizes by feature'
    check("ragged", value, are_names(forms) and are_known, expected)


def ragged_arrays(
    ragged: Ragged, stored: Mapping[str, ArraySpec]
) -> tuple[dict[str, ArraySpec], frozenset[str]]:
    """The arrays of a frame, and the names of nested features.

    A padded feature has the padded sizes, and its mask follows it. Raises `ClipError` for a feature
    that `ragged` cannot convert.
    """
    variable = {n: s for n, s in stored.items() if not s.is_fixed and s.value == "array"}
    forms = dict(ragged) if isinstance(ragged, Mapping) else dict.fromkeys(variable, ragged)
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
    mask, count, largest = mask_name(name), spec.shape.count(None), spec.largest or 0
    problem = f"{mask} is a feature, and the name of the mask of a padded one"
    raise_if(mask in stored, problem, f"features without {mask}, or ragged={{{name!r}: 'list'}}")
    row = replace(spec, largest=None).nbytes  # of the dimensions that do not vary
    if form == "pad" and count == 1:  # the largest frame's size follows from its bytes
        form = max(1, largest // row)
    sizes = (form,) if form == "pad" or is_integer(form) else tuple(map(int, form))
    problem = f"ragged needs the sizes of {count} dimensions that vary"
    example = f"such as ragged={{{name!r}: {(480, 640, 3, 2, 2, 2, 2, 2)[:count]}}}"
    raise_if("pad" in sizes or len(sizes) != count, problem, example, f"{[*sizes]} for {spec}")
    problem, padded = "a frame is larger than its padded size", math.prod(sizes) * row
    got = f"{[*sizes]}, which are {padded}"
    raise_if(padded < largest, problem, f"sizes of at least {largest} bytes", got)
    filled = iter(sizes)
    shape = tuple(next(filled) if size is None else size for size in spec.shape)
    of_mask = ArraySpec(np.dtype(np.bool_), sizes, mask_of=name)
    return {name: ArraySpec(spec.dtype, shape), mask: of_mask}


def _are_sizes(value: Any) -> bool:
    sizes = [value] if is_integer(value) else value
    return isinstance(sizes, Sequence) and all(
        is_integer(size) and 1 <= size < 2**31 for size in sizes
    )


_PIECE_FRAMES = 32  # at most, as other chunks have
_PIECE_BYTES = 48 << 20  # decoded, likewise
_LEAST_FRAMES = 4


def in_pieces(table: EpisodeLayout, features: Schema) -> EpisodeLayout:
    """The episodes with long chunks of video in pieces, see `ChunkGrid.in_pieces`, and with
    chunks of raw features marked, of which single frames are read: texts beside them are short."""
    groups = list(table.groups)
    for place, grid in enumerate(groups):
        stored = [spec for spec in features.values() if spec.group == grid.group]
        video = next((spec for spec in stored if spec.is_video), None)
        are_raw = all(spec.stored.is_raw or spec.value == "text" for spec in stored)
        groups[place] = replace(grid, by_frame=are_raw)
        if video is not None:
            most = max(_LEAST_FRAMES, min(_PIECE_FRAMES, _PIECE_BYTES // video.nbytes))
            groups[place] = grid.in_pieces(table.num_frames, most)
    return replace(table, groups=tuple(groups))
