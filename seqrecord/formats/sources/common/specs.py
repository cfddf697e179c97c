"""Feature specs: names, kinds and merging across episodes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from seqrecord.errors import SchemaError, SourceError
from seqrecord.formats.sources.common.images import passthrough_of_both
from seqrecord.in_place.files import check_array
from seqrecord.store.feature_kinds import pixel_kind
from seqrecord.store.schema import MAX_NAME_LENGTH, FeatureSpec, Schema

_STATES = frozenset("qpos qvel effort state states agent_pos robot_state".split())  # noqa: SIM905
_PARTS_OF_STATES = ("robot0_", "robot1_", "joint_", "cartesian_", "gripper_")


class UnsupportedError(SourceError):
    """A feature of a type that the source cannot read, whatever the state of its files."""


def feature_name(path: str) -> str:
    """Convert a path to a feature name: `/camera/color/image_raw` to `camera.color.image_raw`.

    Invalid characters become `_`. Two paths may give the same name.
    """
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", path.strip("/").replace("/", "."))
    return re.sub(r"^[.-]|[.-]$", "_", name)[:MAX_NAME_LENGTH] or "_"


def feature_spec(
    name: str, dtype: np.dtype[Any], shape: Sequence[int | None], path: Path, **properties: Any
) -> FeatureSpec:
    """Create a feature spec. Raises `UnsupportedError` for an invalid name or dtype."""
    try:
        return FeatureSpec(name, dtype, tuple(shape), **properties)
    except SchemaError as error:
        remedy = "; rename the file or its folder" if "name" in error.message else ""
        raise UnsupportedError(
            f"{error.message}{remedy}",
            file=str(path),
            feature=name,
            expected=error.expected,
            got=error.got,
        ) from error


def text_spec(name: str, path: Path) -> FeatureSpec:
    """Create the spec of a text feature: one `str` per frame."""
    return feature_spec(name, np.dtype("u1"), (None,), path, kind="text", value="text")


def kind_of(name: str, dtype: np.dtype[Any], shape: Sequence[int | None]) -> str | None:
    """Guess a feature's kind from name, dtype and shape.

    Returns a pixel kind (see `pixel_kind`), `action`, `state` or `None`.
    """
    if (kind := pixel_kind(name, dtype, shape)) is not None:
        return kind
    *parents, leaf = parts = name.lower().split(".")
    if parts[0].startswith("action"):
        return "action"
    is_state = _STATES & {leaf, *parents} or leaf.startswith(_PARTS_OF_STATES)
    return "state" if is_state else None


def frame_rate(value: object) -> float | None:
    """Return the value if it is a frame rate, a number above 0 and below a million, else `None`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 < value < 1e6 else None


def merge_specs(first_spec: FeatureSpec, second_spec: FeatureSpec) -> FeatureSpec:
    """Merge two specs of a feature: dimensions that differ become variable, codecs cover both.

    If dtype or number of dimensions differ, `first_spec` is returned; reading the other episode
    then fails.
    """
    if first_spec.dtype != second_spec.dtype or len(first_spec.shape) != len(second_spec.shape):
        return first_spec
    shape = tuple(
        first_size if first_size == second_size else None
        for first_size, second_size in zip(first_spec.shape, second_spec.shape, strict=True)
    )
    return replace(
        first_spec, shape=shape, codec=passthrough_of_both(first_spec.codec, second_spec.codec)
    )


def select_schema(
    readable_specs: Iterable[FeatureSpec],
    features: Sequence[str] | None,
    root: Path,
    offered: Iterable[str] = (),
) -> Schema:
    """Merge specs by name into a schema of the selected `features`, in that order; all by default.

    Raises `SourceError` if no feature is left, or if a selected one does not exist. The message
    lists the names in `readable_specs` and `offered`.
    """
    specs: dict[str, FeatureSpec] = {}
    for spec in readable_specs:
        specs[spec.name] = merge_specs(specs.get(spec.name, spec), spec)
    names = select_names(specs, features, root, "no such feature", offered)
    return Schema([specs[name] for name in names])


def select_names(
    known_names: Iterable[str],
    features: Sequence[str] | None,
    root: Path,
    message: str,
    offered: Iterable[str] = (),
) -> list[str]:
    """Return `features`, by default all `known_names` names. Raises `SourceError` for unknown
    names.
    """
    available = list(known_names)
    if not available and features is None:
        raise SourceError(
            "no supported feature found", file=str(root), expected="1 or more", got="none"
        )
    names = available if features is None else list(features)
    unknown = [name for name in names if name not in available]
    if unknown or not names:
        raise SourceError(
            message,
            file=str(root),
            expected=f"names among {', '.join(dict.fromkeys([*available, *offered])) or 'none'}",
            got=", ".join(unknown) or None,
        )
    return names


def check_spec(dtype: np.dtype[Any], shape: tuple[int, ...], spec: FeatureSpec, path: Path) -> None:
    """Raise `SourceError` unless an array's dtype and shape match `spec`."""
    check_array(dtype.newbyteorder("<"), shape, spec.dtype, spec.shape, path)


def check_like_first(
    noun: str, dtype: np.dtype[Any], shape: tuple[int, ...], spec: FeatureSpec, path: Path
) -> None:
    """Raise `SourceError` unless dtype and shape match `spec`, which comes from the first value.

    `noun` names the value in the message: "image".
    """
    if dtype != spec.dtype or not spec.accepts(shape):
        raise SourceError(
            f"{noun} differs from the first one in dtype or shape",
            file=str(path),
            feature=spec.name,
            expected=str(spec),
            got=f"{dtype.name} {list(shape)}",
        )
