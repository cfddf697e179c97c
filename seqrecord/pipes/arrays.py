"""Arrays of variable shapes, padded or nested, and long chunks of video in pieces.

Long chunks of video are loaded in pieces: each is read once, and decoded as far as clips need. A
chunk of video is one group of pictures at least, of up to 256 frames. Decoded at once it would take
memory for all of them. So plans see pieces of it as chunks, and the engine keeps the page and its
decoder open between two pieces of a cursor's chunk.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import numpy as np
import torch

from seqrecord.clips.tables import EpisodeTable
from seqrecord.errors import ClipError, located
from seqrecord.format.index import GroupIndex
from seqrecord.pipes.checks import are_names, check, refuse
from seqrecord.reading.dataset import Dataset
from seqrecord.reading.frames import ArraySpec, mask_name
from seqrecord.schema import FeatureSpec, Schema
from seqrecord.text import repr_of
from seqrecord.units import is_integer


def bytes_by_group(arrays: Mapping[str, ArraySpec], features: Schema) -> list[int]:
    """Bytes of a frame's features of each group, by the groups' numbers."""
    sizes = dict.fromkeys(sorted({spec.group for spec in features.values()}), 0)
    for name, spec in arrays.items():
        sizes[features[spec.mask_of or name].group] += spec.nbytes
    return list(sizes.values())


def groups_of(dataset: Dataset) -> list[GroupIndex]:
    """The groups of the features that a dataset was opened with, by their numbers."""
    numbers = {spec.group for spec in dataset.features.values()}
    return [dataset.contents.index.groups[number] for number in sorted(numbers)]


def check_tensors(arrays: Mapping[str, ArraySpec]) -> None:
    """Raise `ClipError` for a feature of a dtype that no tensor can have."""
    for name, spec in arrays.items():
        try:
            torch.from_numpy(np.empty(0, spec.dtype))
        except (TypeError, ValueError) as error:
            raise ClipError(
                "no tensor can hold this feature; a transform can convert it",
                feature=name,
                expected="a dtype that torch.from_numpy takes",
                got=str(spec.dtype),
            ) from error


_Form: TypeAlias = "Literal['list', 'pad', 'nested']"

Ragged: TypeAlias = "_Form | Mapping[str, _Form | int | Sequence[int]]"
# How features of variable shapes come: all of them, or by name, there also by sizes.

_FORMS = ("list", "pad", "nested")


def check_ragged(value: Any) -> None:
    """Raise `ClipError` for what is no `ragged`."""
    forms = value if isinstance(value, Mapping) else {"": value}
    are_sized = forms is value
    known = (
        f in _FORMS if isinstance(f, str) else are_sized and _are_sizes(f) for f in forms.values()
    )
    is_right = are_names(forms) and all(known)
    expected = '"list", "pad" or "nested", or a dict of these and of sizes by feature'
    check("ragged", value, is_right, expected)


def ragged_arrays(
    ragged: Ragged, stored: Mapping[str, ArraySpec]
) -> tuple[dict[str, ArraySpec], frozenset[str]]:
    """What frames have of the stored features, and which of them come as nested tensors.

    A padded feature has its sizes, and behind it stands its mask. Raises `ClipError` for a feature
    that does not come as `ragged` says.
    """
    variable = {n: s for n, s in stored.items() if not s.is_fixed and s.value == "array"}
    forms = dict(ragged) if isinstance(ragged, Mapping) else dict.fromkeys(variable, ragged)
    wrong = [name for name in forms if name not in variable]
    got = ", ".join(f"{n}: {stored[n]}" if n in stored else repr_of(n, 50) for n in wrong)
    expected = ", ".join(variable) or "a dataset that has some"
    refuse(bool(wrong), "ragged is for features whose shape varies", expected, got)
    arrays: dict[str, ArraySpec] = {}
    for name, spec in stored.items():
        form = forms.get(name, "list")
        with located(ClipError, feature=name):
            refuse(
                form == "nested" and (spec.shape[:1] != (None,) or None in spec.shape[1:]),
                "a nested tensor can hold frames that differ in their first dimension only",
                '"list", or sizes to pad to',
                spec,
            )
            is_padded = form not in ("list", "nested")
            arrays |= _padded(name, spec, form, stored) if is_padded else {name: spec}
    return arrays, frozenset(name for name, form in forms.items() if form == "nested")


def _padded(
    name: str, spec: ArraySpec, form: Any, stored: Mapping[str, ArraySpec]
) -> dict[str, ArraySpec]:
    """A feature, and the mask that says which of its values are the frame's."""
    mask, count, largest = mask_name(name), spec.shape.count(None), spec.largest or 0
    row = replace(spec, largest=None).nbytes  # of the dimensions that do not vary
    other = f"features without {mask}, or ragged={{{name!r}: 'list'}}"
    refuse(mask in stored, "a feature has the name of the mask of a padded one", other, mask)
    if form == "pad":
        example = f"ragged={{{name!r}: {(480, 640, 3, 2, 2, 2, 2, 2)[:count]}}}"
        refuse(
            count > 1,  # of one, bytes tell the size of the largest frame
            "several dimensions vary, whose largest sizes are not known",
            f"the {count} sizes to pad to, such as {example}",
            spec,
        )
        form = max(1, largest // row)
    sizes = tuple(map(int, form if isinstance(form, Sequence) else [form]))
    problem = "ragged has another number of sizes than there are variable dimensions"
    refuse(len(sizes) != count, problem, count, f"{[*sizes]} for {spec}")
    padded, enough = math.prod(sizes) * row, f"sizes of at least {largest} bytes"
    problem, got = "a frame is larger than what it is padded to", f"{[*sizes]}, which are {padded}"
    refuse(padded < largest, problem, enough, got)
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


def in_pieces(table: EpisodeTable, features: Schema) -> EpisodeTable:
    """The episodes with long chunks of video in pieces, see `ChunkGrid.in_pieces`, and with those
    of raw features marked, of which single frames are read: texts beside them are short."""
    groups = list(table.groups)
    for place, grid in enumerate(groups):
        video = video_of(grid.group, features)
        stored = [spec for spec in features.values() if spec.group == grid.group]
        are_raw = all(spec.stored.is_raw or spec.value == "text" for spec in stored)
        groups[place] = replace(grid, by_frame=are_raw)
        if video is not None:
            most = max(_LEAST_FRAMES, min(_PIECE_FRAMES, _PIECE_BYTES // video.nbytes))
            groups[place] = grid.in_pieces(table.num_frames, most)
    return replace(table, groups=tuple(groups))


def video_of(group: int, features: Schema) -> FeatureSpec | None:
    """The video feature that a group has, if it has one."""
    found = [spec for spec in features.values() if spec.group == group and spec.is_video]
    return found[0] if found else None
