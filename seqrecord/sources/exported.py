"""`seqrecord.json`: what the folder of an exported episode holds.

Files alone do not tell which dimensions vary, which frames lack a feature and what a feature is
called whose name is that of another file. `export.to_files` writes it, `Folders` reads it::

    {"version": 1,
     "fps": 10.0,
     "frames": [0, 1, 2],
     "features": [
       {"name": "points", "dtype": "<f4", "shape": [null, 3],
        "kind": "points", "unit": "m", "value": "array",
        "layout": "frames", "path": "points", "num_frames": 2},
       {"name": "pose", "dtype": "<f8", "shape": [7],
        "kind": "pose", "unit": "m", "value": "array",
        "layout": "array", "path": "pose.npy", "num_frames": 3}]}

`frames` are the numbers of the frames in the episode that was exported, and `fps` how many it has a
second, or null. A feature of layout `frames` is a folder of one file for each frame that has it,
`000002.npy`, or `.txt` for text and `.bin` for bytes; one of layout `array` is a file of all
frames. Codecs and groups are not kept: who packs the files chooses them.
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

DESCRIPTION = "seqrecord.json"
ENDINGS = {"text": ".txt", "bytes": ".bin"}
"""Of the files of frames that are no arrays, by `FeatureSpec.value`."""

_VERSION = 1
_MAX_BYTES = 1 << 26  # of some eight million frame numbers
_SPEC_KEYS = ("name", "dtype", "shape", "kind", "unit", "value")
_KEYS = {*_SPEC_KEYS, "layout", "path", "num_frames"}


@dataclass(frozen=True)
class ExportedFeature:
    """A feature and its place in the episode's folder; `num_frames` of the frames have it."""

    spec: FeatureSpec  # without codec and group
    path: str
    is_array: bool
    num_frames: int


@dataclass(frozen=True)
class ExportedEpisode:
    """`frames` are numbers in ascending order; names and paths of features are unique."""

    frames: tuple[int, ...]
    features: tuple[ExportedFeature, ...]
    fps: float | None = None


def frame_stem(number: int) -> str:
    """The name, without its ending, of the files of a frame."""
    return f"{number:06d}"


def encode_description(episode: ExportedEpisode) -> str:
    """The text of `seqrecord.json`."""
    features = []
    for feature in episode.features:
        spec = feature.spec.to_json()
        layout = "array" if feature.is_array else "frames"
        place = {"layout": layout, "path": feature.path, "num_frames": feature.num_frames}
        features.append({**{key: spec[key] for key in _SPEC_KEYS}, **place})
    value = {
        "version": _VERSION,
        "fps": episode.fps,
        "frames": list(episode.frames),
        "features": features,
    }
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
    return ExportedEpisode(tuple(frames), parsed, _fps(value.get("fps")))


def _feature(value: Any, num_frames: int) -> ExportedFeature:
    if not isinstance(value, dict) or set(value) != _KEYS:
        raise ValueError(f"a feature is not an object of {', '.join(sorted(_KEYS))}")
    spec = FeatureSpec.from_json(
        {**{key: value[key] for key in _SPEC_KEYS}, "codec": [], "group": 0}
    )
    layout, path, count = value["layout"], value["path"], value["num_frames"]
    if layout not in ("array", "frames"):
        raise ValueError("a feature's layout is neither array nor frames")
    if not isinstance(path, str) or path in ("", ".", "..") or {"/", "\0"} & set(path):
        raise ValueError("a feature's path is not the name of a file or folder")
    path.encode()  # half a surrogate pair names no file
    if not _is_count(count) or count > num_frames or (layout == "array" and count != num_frames):
        raise ValueError("a feature's number of frames is not one that it can have")
    return ExportedFeature(spec, path, layout == "array", count)


def _fps(value: object) -> float | None:
    if value is None or (type(value) in (int, float) and 0 < value < 1e300):  # type: ignore[operator]
        return None if value is None else float(value)  # type: ignore[arg-type]
    raise ValueError("fps is not a number above 0")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
