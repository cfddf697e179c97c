"""`seqrecord.json`: what the folder of an exported episode holds.

Files alone do not tell which dimensions vary, which frames lack a feature and what a feature is
called whose name is that of another file. `writing.export` writes it, `Folders` reads it::

    {"version": 1,
     "frames": [0, 1, 2],
     "features": [
       {"name": "points", "dtype": "<f4", "shape": [null, 3],
        "kind": "frames", "path": "points", "num_frames": 2},
       {"name": "pose", "dtype": "<f8", "shape": [7],
        "kind": "array", "path": "pose.npy", "num_frames": 3}]}

`frames` are the numbers of the frames in the episode that was exported. A feature of kind `frames`
is a folder of one file for each frame that has it, `000002.npy`; one of kind `array` is a file of
all frames.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from seqrecord.errors import SchemaError, SourceError
from seqrecord.schema import FeatureSpec
from seqrecord.sources.files import read_bytes

__all__ = [
    "DESCRIPTION",
    "ExportedEpisode",
    "ExportedFeature",
    "encode_description",
    "frame_stem",
    "read_description",
]

DESCRIPTION = "seqrecord.json"

_VERSION = 1
_MAX_BYTES = 1 << 26  # of some eight million frame numbers
_KEYS = {"name", "dtype", "shape", "kind", "path", "num_frames"}


@dataclass(frozen=True)
class ExportedFeature:
    """A feature and its place in the episode's folder; `num_frames` of the frames have it."""

    spec: FeatureSpec  # without a codec
    path: str
    is_array: bool
    num_frames: int


@dataclass(frozen=True)
class ExportedEpisode:
    """`frames` are numbers in ascending order; names and paths of features are unique."""

    frames: tuple[int, ...]
    features: tuple[ExportedFeature, ...]


def frame_stem(number: int) -> str:
    """The name, without its ending, of the files of a frame."""
    return f"{number:06d}"


def encode_description(episode: ExportedEpisode) -> str:
    """The text of `seqrecord.json`."""
    features = []
    for feature in episode.features:
        spec = feature.spec.to_json()
        del spec["codec"]
        kind = "array" if feature.is_array else "frames"
        place = {"kind": kind, "path": feature.path, "num_frames": feature.num_frames}
        features.append({**spec, **place})
    value = {"version": _VERSION, "frames": list(episode.frames), "features": features}
    return f"{json.dumps(value)}\n"


def read_description(folder: Path) -> ExportedEpisode:
    """The description of an episode's folder; raises `SourceError` for one that is not sound."""
    path = folder / DESCRIPTION
    try:
        return _parse(json.loads(read_bytes(path, _MAX_BYTES)))
    except (ValueError, RecursionError) as error:  # `SchemaError` is a `ValueError`
        raise SourceError(
            "not the description of an exported episode",
            file=str(path),
            got=(error.message if isinstance(error, SchemaError) else str(error))[:200],
        ) from error


def _parse(value: Any) -> ExportedEpisode:
    if not isinstance(value, dict) or value.get("version") != _VERSION:
        raise ValueError(f"it is not of version {_VERSION}")
    frames, features = value.get("frames"), value.get("features")
    if not isinstance(frames, list) or not all(_is_count(number) for number in frames):
        raise ValueError("frames are not a list of numbers")
    if any(one >= other for one, other in pairwise(frames)):
        raise ValueError("frames are not in ascending order")
    if not isinstance(features, list):
        raise ValueError("features are not a list")
    parsed = tuple(_feature(feature, len(frames)) for feature in features)
    if len({feature.spec.name for feature in parsed}) < len(parsed):
        raise ValueError("a feature stands there twice")
    return ExportedEpisode(tuple(frames), parsed)


def _feature(value: Any, num_frames: int) -> ExportedFeature:
    if not isinstance(value, dict) or set(value) != _KEYS:
        raise ValueError(f"a feature is not an object of {', '.join(sorted(_KEYS))}")
    spec = FeatureSpec.from_json(
        {**{key: value[key] for key in ("name", "dtype", "shape")}, "codec": []}
    )
    kind, path, count = value["kind"], value["path"], value["num_frames"]
    if kind not in ("array", "frames"):
        raise ValueError("a feature's kind is neither array nor frames")
    if not isinstance(path, str) or path in ("", ".", "..") or {"/", "\0"} & set(path):
        raise ValueError("a feature's path is not the name of a file or folder")
    path.encode()  # half a surrogate pair names no file
    if not _is_count(count) or count > num_frames or (kind == "array" and count != num_frames):
        raise ValueError("a feature's number of frames is not one that it can have")
    return ExportedFeature(spec, path, kind == "array", count)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
