"""What arrays a frame has: as they are stored, or as `frame_transform` makes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from seqrecord.clips import IntArray
from seqrecord.errors import ClipError
from seqrecord.reading.frames import ArraySpec, FrameTransform, add_place, apply_transform
from seqrecord.reading.reader import SeqRecordReader
from seqrecord.schema import Schema
from seqrecord.text import repr_of

__all__ = ["bytes_by_group", "check_tensors", "stored_arrays", "transformed_arrays"]


def stored_arrays(dataset: SeqRecordReader, episodes: IntArray) -> dict[str, ArraySpec]:
    """Each feature of a frame as it is decoded.

    Of a variable shape it has the size of the largest frame of these episodes, which are given by
    their rows.
    """
    index = dataset.index
    return {
        name: ArraySpec(
            spec.dtype,
            spec.shape,
            None if spec.is_fixed else index.largest_frames(name, episodes),
            spec.value,
        )
        for name, spec in dataset.features.items()
    }


def transformed_arrays(
    transform: FrameTransform,
    dataset: SeqRecordReader,
    key: str,
    frame: int,
    stored: Mapping[str, ArraySpec],
) -> dict[str, ArraySpec]:
    """What `frame_transform` makes of a frame, which is that of every frame.

    An error of the function names the episode, by its key, and the frame. Raises `ClipError` for a
    text that is not under the name of a stored one.
    """
    values = dict(dataset.episodes[key][frame])
    try:
        made = apply_transform(transform, values)
        return {name: _spec_of(name, value, stored) for name, value in made.items()}
    except Exception as error:
        add_place(error, "frame_transform", file=dataset.url, episode=key, frame=frame)
        raise


def bytes_by_group(arrays: Mapping[str, ArraySpec], features: Schema) -> list[int]:
    """Bytes of a frame's features of each group, by the groups' numbers."""
    sizes = dict.fromkeys(sorted({spec.group for spec in features.values()}), 0)
    for name, spec in arrays.items():
        sizes[features[spec.mask_of or name].group] += spec.nbytes
    return list(sizes.values())


def check_tensors(arrays: Mapping[str, ArraySpec], *, url: str) -> None:
    """Raise `ClipError` for a feature of a dtype that no tensor can have."""
    for name, spec in arrays.items():
        try:
            torch.from_numpy(np.empty(0, spec.dtype))
        except (TypeError, ValueError) as error:
            raise ClipError(
                "no tensor can hold this feature; frame_transform can convert it",
                file=url,
                feature=name,
                expected="a dtype that torch.from_numpy takes",
                got=str(spec.dtype),
            ) from error


def _spec_of(name: str, value: Any, stored: Mapping[str, ArraySpec]) -> ArraySpec:
    """What `frame_transform` gives of a feature. Of texts memory is known for stored ones."""
    if not isinstance(value, (str, bytes)):
        return ArraySpec(value.dtype, value.shape)
    kind = "text" if isinstance(value, str) else "bytes"
    if name not in stored or stored[name].value != kind:
        raise ClipError(
            "frame_transform gives a text, whose memory is not known",
            feature=name,
            expected=f"arrays, and {kind} under the name of a stored feature of {kind}",
            got=repr_of(value, 50),
        )
    return stored[name]
