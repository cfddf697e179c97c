"""Frames in memory: dtypes, shapes, and the user's `frame_transform`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from seqrecord.errors import ClipError, SeqRecordError
from seqrecord.loader.frames.trials import check_signature, repeatable
from seqrecord.store.bfloat16 import as_array
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.reading.text_dictionaries import TextDictionary
from seqrecord.store.schema import Schema
from seqrecord.store.text import repr_of
from seqrecord.store.value_kinds import VALUE_KINDS, FrameFunction, ValueKind, ValueName

_Transform = TypeVar("_Transform")


@dataclass(frozen=True)
class ArraySpec:
    """Dtype and shape of a feature's frames in clips; `None` marks a variable dimension.

    `max_nbytes` is the size of the largest frame in bytes, for variable shapes. `value` is "text"
    or "bytes" if frames are `str` or `bytes`, stored as uint8 [?]. `mask_of` is the feature whose
    padding this mask describes; `padded_axis` the varying axis of that feature, counted from the
    end, if it is padded to the largest frame and not to given sizes.
    """

    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]
    max_nbytes: int | None = None
    value: ValueName = "array"
    mask_of: str | None = None
    padded_axis: int | None = None

    @cached_property
    def value_kind(self) -> ValueKind:
        """Behaviour of the frames' values."""
        return VALUE_KINDS[self.value][None in self.shape]

    @property
    def is_fixed(self) -> bool:
        return None not in self.shape

    @cached_property
    def nbytes(self) -> int:
        """Memory for one frame in bytes: for variable shapes the largest frame, and its shape."""
        return self.value_kind.row_nbytes(self, self.max_nbytes)

    def __str__(self) -> str:
        return self.value_kind.describe(self)


def array_spec_of(dictionary: TextDictionary) -> ArraySpec:
    """Return dtype and shape of a value, and the size of the largest one."""
    spec = dictionary.spec
    return ArraySpec(spec.dtype, spec.shape, dictionary.largest_nbytes)


def clip_nbytes(specs: Mapping[str, ArraySpec], lengths: Mapping[str, int]) -> int:
    """Return a clip's memory in bytes; `lengths` has its frames by feature."""
    return sum(spec.nbytes * lengths[name] for name, spec in specs.items())


def mask_name(feature: str) -> str:
    """Return the name of a padded feature's mask."""
    return f"{feature}_mask"


def arrays_by_name(what: str, result: Any) -> dict[str, Any]:
    """Return a user function's result as a dict.

    Raises `ClipError` unless it is a mapping by name.
    """
    if not (isinstance(result, Mapping) and result and all(isinstance(n, str) for n in result)):
        raise ClipError(
            f"{what} does not return arrays by name",
            expected="a dict of arrays with at least one",
            got=repr_of(result, 100),
        )
    return dict(result)


def apply_transform(transform: FrameFunction, frame: dict[str, Any]) -> dict[str, Any]:
    """Apply `transform` to a frame; returns arrays, `str` and `bytes` by name.

    Raises `ClipError` for another result.
    """
    return {
        name: value if isinstance(value, (str, bytes)) else as_array(value)
        for name, value in arrays_by_name("frame_transform", transform(frame)).items()
    }


def bind_schema(transform: _Transform, schema: Schema) -> _Transform:
    """Bind a user's transform to a dataset's schema, if it has a method `with_schema`."""
    bind: Any = getattr(transform, "with_schema", None)
    bound_transform: _Transform = transform if bind is None else bind(schema)
    return bound_transform


def first_frame(transform: FrameFunction, frame: Mapping[str, Any]) -> dict[str, Any]:
    """Apply `transform` to a copy of the first frame, with more checks.

    Also raises `ClipError` for a wrong signature, and for random results: each frame is transformed
    once, in any thread, and may be kept in memory.
    """
    check_signature("frame_transform", transform, "frame")

    def call() -> dict[str, Any]:
        values = {n: np.array(v) if isinstance(v, np.ndarray) else v for n, v in frame.items()}
        return apply_transform(transform, values)

    return dict(
        repeatable(
            "frame_transform",
            call,
            expected="a result that depends only on the frame; for random augmentation use "
            "clip_transform, with its generator",
        )
    )


def unchanged_values(
    arguments: Mapping[str, Any], copies: Mapping[str, Any], results: Mapping[str, Any]
) -> frozenset[str]:
    """Return the names of values that a user function left unchanged.

    `arguments` are the function's, `copies` copies of them, `results` what it returned. An array of
    zeros that was copied counts as changed, since zeros are the same in every unit.
    """
    names = set()
    for name in arguments.keys() & results.keys():
        value, copied = results[name], copies[name]
        if not isinstance(value, np.ndarray) or not isinstance(copied, np.ndarray):
            continue
        is_same = (value.dtype, value.shape) == (copied.dtype, copied.shape)
        is_telling = copied.any() or np.may_share_memory(value, arguments[name])
        if is_same and is_telling and value.tobytes() == copied.tobytes():
            names.add(name)
    return frozenset(names)


def check_arrays(
    what: str,
    unit: str,
    arrays: Mapping[str, Any],
    specs: Mapping[str, ArraySpec],
    list_names: Collection[str] = (),
) -> None:
    """Raise `ClipError` unless a function's results match `specs`, from its first result.

    The results in `list_names` are lists, and `specs` has their length as first dimension.
    """
    if arrays.keys() != specs.keys():
        raise ClipError(
            f"{what} returns other features than for the first {unit}",
            expected=", ".join(specs),
            got=", ".join(arrays),
        )
    for name, spec in specs.items():
        values = arrays[name] if name in list_names else [arrays[name]]
        if name in list_names and not (isinstance(values, list) and len(values) == spec.shape[0]):
            raise ClipError(
                f"{what} returns a different number of texts than for the first {unit}",
                feature=name,
                expected=spec.shape[0],
                got=len(values) if isinstance(values, list) else repr_of(values, 50),
            )
        for value in values:
            spec.value_kind.check_result(what, unit, name, value, spec, spec.max_nbytes)


def add_place(
    error: Exception,
    what: str,
    *,
    file: str | None = None,
    episode: str | None = None,
    frame: int | None = None,
) -> None:
    """Add episode and frame to an error being raised, in its message or as a note.

    A `StopIteration`, which would end iteration silently, becomes a `ClipError`.
    """
    if isinstance(error, StopIteration):
        raise ClipError(
            f"{what} raised StopIteration, which ends an iterator",
            file=file,
            episode=episode,
            frame=frame,
            expected="a result, or another error",
            got=repr_of(error, 100),
        ) from error
    if isinstance(error, SeqRecordError):
        error.located(file=file, episode=episode, frame=frame)
        return
    place = f"in {what}" if episode is None else f"in {what} of episode {episode}"
    place += "" if frame is None else f", frame {frame}"
    place += "" if file is None else f", {file}"
    if hasattr(error, "add_note"):  # Python 3.11
        error.add_note(place)
    elif error.args and isinstance(error.args[0], str):
        error.args = (f"{error.args[0]} ({place})", *error.args[1:])
