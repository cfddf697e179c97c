"""Finding episodes in a tree of folders: which folder is an episode and which a feature."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seqrecord.errors import SourceError
from seqrecord.sources.array_files import RASTER_ENDINGS
from seqrecord.sources.exported import DESCRIPTION
from seqrecord.sources.files import list_folder, read_bytes
from seqrecord.sources.images import IMAGE_FORMATS
from seqrecord.sources.originals import check_depth, natural_order

__all__ = [
    "MAX_METADATA_BYTES",
    "METADATA",
    "EpisodeFolder",
    "FeatureFolder",
    "find_episodes",
    "list_stems",
    "read_metadata",
]

METADATA = "metadata.json"

MAX_METADATA_BYTES = 1 << 22
_NUMBERED = re.compile(r"(.*[_.\- ])?\d+([_.\- ].*)?", re.DOTALL)


@dataclass(frozen=True)
class FeatureFolder:
    """A folder of one file a frame: how many there are, and the first one's name."""

    num_frames: int
    first: str
    all_images: bool


@dataclass(frozen=True)
class EpisodeFolder:
    """An episode: feature folders and per-episode arrays by the names of their places.

    These are the features' names, unless the episode is exported: then its description tells.
    """

    path: Path
    folders: dict[str, FeatureFolder] = field(default_factory=dict)
    arrays: dict[str, str] = field(default_factory=dict)
    has_metadata: bool = False
    is_exported: bool = False


def find_episodes(root: Path) -> list[EpisodeFolder]:
    """All episodes below `root`, which may be one itself, in the order of their paths."""
    found: list[EpisodeFolder] = []
    _visit(root, 0, found)
    return sorted(found, key=lambda episode: episode.path.parts)


def list_stems(folder: Path, ending: str | None = None) -> dict[str, str]:
    """File name by stem of a feature folder's frames, numbers in the order of their values.

    Frames are images and npy files, or the files of the given ending.
    """
    names: dict[str, str] = {}
    for name, is_folder in list_folder(folder):
        if not is_folder and (_is_frame(name) if ending is None else name.endswith(ending)):
            stem = Path(name).stem
            if stem in names:
                raise SourceError(
                    "two files of one frame", file=str(folder / name), got=f"{names[stem]} too"
                )
            names[stem] = name
    return {stem: names[stem] for stem in sorted(names, key=natural_order)}


def read_metadata(path: Path) -> dict[str, Any]:
    """The episode's metadata; raises `SourceError` unless it is a JSON object."""
    try:
        value = json.loads(read_bytes(path, MAX_METADATA_BYTES), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise SourceError(
            "metadata that is not JSON", file=str(path), got=str(error)[:200]
        ) from error
    if not isinstance(value, dict):
        raise SourceError(
            "metadata of the wrong kind",
            file=str(path),
            expected="a JSON object",
            got=type(value).__name__,
        )
    return value


def _visit(path: Path, depth: int, found: list[EpisodeFolder]) -> FeatureFolder | None:
    """What `path` is to the folder above it, if it is a feature; episodes go to `found`.

    Each folder is listed once, and no names of frames' files are kept.
    """
    check_depth(path, depth)
    count, first = 0, ""
    subfolders: list[str] = []
    arrays: dict[str, str] = {}
    files: set[str] = set()
    all_images = True
    for name, is_folder in list_folder(path):
        if is_folder:
            subfolders.append(name)
        elif _is_frame(name):
            count += 1
            first = name if count == 1 else min(first, name, key=natural_order)
            all_images &= Path(name).suffix.lower() in IMAGE_FORMATS
        elif name.lower().endswith(".npy"):
            arrays[Path(name).stem] = name
        elif name in (METADATA, DESCRIPTION):
            files.add(name)
    children = {name: _visit(path / name, depth + 1, found) for name in sorted(subfolders)}
    folders = {name: feature for name, feature in children.items() if feature}
    if folders or arrays or DESCRIPTION in files:
        arrays = dict(sorted(arrays.items()))
        found.append(EpisodeFolder(path, folders, arrays, METADATA in files, DESCRIPTION in files))
        return None
    return FeatureFolder(count, first, all_images) if count else None


def _is_frame(name: str) -> bool:
    """Images, and npy files with a number in their name: others hold a whole episode."""
    stem, ending = Path(name).stem, Path(name).suffix.lower()
    is_image = ending in IMAGE_FORMATS or ending in RASTER_ENDINGS
    return is_image or (ending == ".npy" and bool(_NUMBERED.fullmatch(stem)))


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")
