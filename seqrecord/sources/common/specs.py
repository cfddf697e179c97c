"""Features of sources: their names, what they are, and those of several episodes made one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from seqrecord.errors import SchemaError, SourceError
from seqrecord.feature_kinds import pixel_kind
from seqrecord.schema import MAX_NAME_LENGTH, FeatureSpec, Schema
from seqrecord.sources.common.images import passthrough_of_both

_STATES = frozenset("qpos qvel effort state states agent_pos robot_state".split())  # noqa: SIM905
_PARTS_OF_STATES = ("robot0_", "robot1_", "joint_", "cartesian_", "gripper_")


def feature_name(path: str) -> str:
    """`/camera/color/image_raw` is `camera.color.image_raw`.

    What a name cannot have becomes `_`. Two paths may become one name.
    """
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", path.strip("/").replace("/", "."))
    return re.sub(r"^[.-]|[.-]$", "_", name)[:MAX_NAME_LENGTH] or "_"


def feature_spec(
    name: str, dtype: np.dtype[Any], shape: Sequence[int | None], path: Path, **more: Any
) -> FeatureSpec:
    """The feature; what cannot be stored is a `SourceError` that names the file."""
    try:
        return FeatureSpec(name, dtype, tuple(shape), **more)
    except SchemaError as error:
        remedy = "; rename the file or its folder" if "name" in error.message else ""
        raise SourceError(
            f"{error.message}{remedy}",
            file=str(path),
            feature=name,
            expected=error.expected,
            got=error.got,
        ) from error


def text_spec(name: str, path: Path) -> FeatureSpec:
    """A feature of texts, of which a frame's value is a `str`."""
    return feature_spec(name, np.dtype("u1"), (None,), path, kind="text", value="text")


def kind_of(name: str, dtype: np.dtype[Any], shape: Sequence[int | None]) -> str | None:
    """The kind of a feature by its name, dtype and shape: one of pixels (see `pixel_kind`),
    `action`, `state`, or unknown."""
    if (kind := pixel_kind(name, dtype, shape)) is not None:
        return kind
    *above, last = parts = name.lower().split(".")
    if parts[0].startswith("action"):
        return "action"
    is_state = _STATES & {last, *above} or last.startswith(_PARTS_OF_STATES)
    return "state" if is_state else None


def frame_rate(value: object) -> float | None:
    """Frames a second, if the value is a number above 0 and below a million."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 < value < 1e6 else None


def widened(known: FeatureSpec, other: FeatureSpec) -> FeatureSpec:
    """`known` with the dimensions in which `other` differs made variable, and with the codec that
    keeps images of both.

    Another dtype or number of dimensions stays unseen here: that episode's frames say so.
    """
    if known.dtype != other.dtype or len(known.shape) != len(other.shape):
        return known
    shape = tuple(
        one if one == two else None for one, two in zip(known.shape, other.shape, strict=True)
    )
    return replace(known, shape=shape, codec=passthrough_of_both(known.codec, other.codec))


def chosen_schema(
    found: Iterable[FeatureSpec],
    features: Sequence[str] | None,
    root: Path,
    offered: Iterable[str] = (),
) -> Schema:
    """The schema of all that episodes have: those asked for in that order, by default all.

    Raises `SourceError` for none, and for a feature that no episode has; it names those that are
    found or `offered`.
    """
    specs: dict[str, FeatureSpec] = {}
    for spec in found:
        specs[spec.name] = widened(specs.get(spec.name, spec), spec)
    names = chosen_names(specs, features, root, "no such feature here", offered)
    return Schema([specs[name] for name in names])


def chosen_names(
    known: Iterable[str],
    features: Sequence[str] | None,
    root: Path,
    message: str,
    offered: Iterable[str] = (),
) -> list[str]:
    """`features`, by default all that are `known`; raises `SourceError` for none and for others."""
    every = list(known)
    if not every and features is None:
        raise SourceError(
            "no feature here that can be packed", file=str(root), expected="1 or more", got="none"
        )
    names = every if features is None else list(features)
    unknown = [name for name in names if name not in every]
    if unknown or not names:
        raise SourceError(
            message,
            file=str(root),
            expected=f"some of {', '.join(dict.fromkeys([*every, *offered])) or 'none'}",
            got=", ".join(unknown) or None,
        )
    return names


def check_spec(dtype: np.dtype[Any], shape: tuple[int, ...], spec: FeatureSpec, path: Path) -> None:
    """Raises `SourceError` unless an array of `dtype` and `shape` is one of `spec`."""
    if dtype.newbyteorder("<") != spec.dtype:
        raise SourceError("wrong dtype", file=str(path), expected=spec.dtype.name, got=str(dtype))
    if not spec.accepts(shape):
        wanted = ["any" if size is None else size for size in spec.shape]
        raise SourceError("wrong shape", file=str(path), expected=wanted, got=list(shape))


def check_like_first(
    what: str, dtype: np.dtype[Any], shape: tuple[int, ...], spec: FeatureSpec, path: Path
) -> None:
    """Raises `SourceError` unless an array of `dtype` and `shape` is one of `spec`, which is that
    of the first one. The message says `what` it is: "an image"."""
    if dtype != spec.dtype or not spec.accepts(shape):
        raise SourceError(
            f"{what} that differs from the first one",
            file=str(path),
            feature=spec.name,
            expected=str(spec),
            got=f"{dtype.name} {list(shape)}",
        )
