"""`seqrecord.json`, the description of an exported episode's folder.

`export.to_files` writes it, `FolderSource` reads it. It stores properties that files alone do not:
variable dimensions, frames without a feature, and names that clash with file names::

    {"version": 1,
     "fps": 10.0,
     "split": "train",
     "frames": [0, 1, 2],
     "features": [
       {"name": "points", "dtype": "<f4", "shape": [null, 3],
        "kind": "points", "unit": "m", "value": "array",
        "layout": "frames", "path": "points", "num_frames": 2},
       {"name": "pose", "dtype": "<f8", "shape": [7],
        "kind": "pose", "unit": "m", "value": "array",
        "layout": "array", "path": "pose.npy", "num_frames": 3}]}

`frames` are the exported frame numbers, `fps` is frames per second or null, and
`split` the episode's split or null. A feature of layout
`frames` is a folder with one file for each frame that has it: `000002.npy`, or `.txt` for text and
`.bin` for bytes. A feature of layout `array` is one file for all frames. Codecs and groups are not
stored; the next conversion chooses them.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from seqrecord.errors import FormatError, SeqRecordError, SourceError
from seqrecord.in_place.files import read_bytes
from seqrecord.store.json_object import JsonObject
from seqrecord.store.schema import FeatureSpec

DESCRIPTION = "seqrecord.json"

_VERSION = 1
_MAX_BYTES = 1 << 26  # about eight million frame numbers
_SPEC_KEYS = ("name", "dtype", "shape", "kind", "unit", "value")
_LAYOUT = re.compile("array|frames")
_FILE_NAME = re.compile(r"(?!\.{1,2}\Z)[^/\0\ud800-\udfff]+")  # half a surrogate pair names no file


@dataclass(frozen=True)
class ExportedFeature:
    """A feature and its path in the episode's folder; `num_frames` of the frames have it."""

    spec: FeatureSpec  # without codec and group
    path: str
    is_array: bool
    num_frames: int


@dataclass(frozen=True)
class ExportedEpisode:
    """Frame numbers in ascending order, and features with unique names and paths."""

    frames: tuple[int, ...]
    features: tuple[ExportedFeature, ...]
    fps: float | None = None
    split: str | None = None

    @property
    def by_name(self) -> dict[str, ExportedFeature]:
        return {feature.spec.name: feature for feature in self.features}


def frame_stem(number: int) -> str:
    """Return the name, without ending, of a frame's files."""
    return f"{number:06d}"


def encode_description(episode: ExportedEpisode) -> str:
    """Return the text of `seqrecord.json`."""
    features = []
    for feature in episode.features:
        spec = feature.spec.to_json()
        layout = "array" if feature.is_array else "frames"
        place = {"layout": layout, "path": feature.path, "num_frames": feature.num_frames}
        features.append({**{key: spec[key] for key in _SPEC_KEYS}, **place})
    value = {
        "version": _VERSION,
        "fps": episode.fps,
        "split": episode.split,
        "frames": list(episode.frames),
        "features": features,
    }
    return f"{json.dumps(value)}\n"


def read_description(folder: Path) -> ExportedEpisode:
    """Read the description of an episode's folder. Raises `SourceError` if it is invalid."""
    path = folder / DESCRIPTION
    try:
        return _parse(json.loads(read_bytes(path, _MAX_BYTES)))
    except (ValueError, RecursionError, FormatError) as error:  # `SchemaError` is a `ValueError`
        raise SourceError(
            "invalid description of an exported episode",
            file=str(path),
            got=(error.message if isinstance(error, SeqRecordError) else str(error))[:200],
        ) from error


def _parse(value: Any) -> ExportedEpisode:
    keys = ("version", "frames", "features")
    description = JsonObject(value, keys, "a description", optional=("fps", "split"))
    description.integer("version", _VERSION, _VERSION)
    frames, fps = description.list("frames", maximum=_MAX_BYTES), value.get("fps")
    if not all(type(number) is int for number in frames):
        raise ValueError("frames are not a list of numbers")
    if any(number >= next_number for number, next_number in pairwise([-1, *frames])):
        raise ValueError("frames are not in ascending order")
    features = tuple(_feature(feature, len(frames)) for feature in description.list("features"))
    if len({feature.spec.name for feature in features}) < len(features):
        raise ValueError("duplicate feature")
    if fps is not None and not (type(fps) in (int, float) and 0 < fps < 1e300):
        raise ValueError("fps is not a number above 0")
    if not isinstance(split := value.get("split"), (str, type(None))):
        raise ValueError("split is not a text")
    return ExportedEpisode(tuple(frames), features, None if fps is None else float(fps), split)


def _feature(value: Any, num_frames: int) -> ExportedFeature:
    description = JsonObject(value, (*_SPEC_KEYS, "layout", "path", "num_frames"), "a feature")
    spec = FeatureSpec.from_json(
        {**{key: value[key] for key in _SPEC_KEYS}, "codec": [], "group": 0}
    )
    is_array = description.text("layout", _LAYOUT) == "array"
    count = description.integer("num_frames", num_frames if is_array else 0, num_frames)
    return ExportedFeature(spec, description.text("path", _FILE_NAME), is_array, count)
