"""Finding episodes in a tree of folders: which folder is an episode and which a feature."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from seqrecord.errors import SourceError
from seqrecord.sources.array_files import RASTER_ENDINGS
from seqrecord.sources.exported import DESCRIPTION
from seqrecord.sources.files import list_folder, read_bytes
from seqrecord.sources.frame_names import FrameFiles, escaped, files_by_feature
from seqrecord.sources.images import IMAGE_FORMATS
from seqrecord.sources.originals import check_depth

METADATA = "metadata.json"

MAX_METADATA_BYTES = 1 << 22
_NUMBERED = re.compile(r"(.*[_.\- ])?\d+([_.\- ].*)?", re.DOTALL)


@dataclass(frozen=True)
class FeatureFolder:
    """A feature of one file a frame.

    `folder` is that of its files, below the episode's, or empty if they lie in it; `first` is the
    first file's name. `endings` are those of the files, in lower case. See `FrameFiles.pattern`.
    """

    folder: str
    num_frames: int
    first: str
    endings: frozenset[str]
    pattern: str | None

    @property
    def all_images(self) -> bool:
        """Whether all files are PNG or JPEG images."""
        return self.endings <= IMAGE_FORMATS.keys()

    @property
    def path_of_number(self) -> str:
        """Makes of a number, by `str.format`, the path of its file below the episode's folder."""
        folder = f"{self.folder}/" if self.folder else ""
        return f"{escaped(folder)}{self.pattern}{escaped(Path(self.first).suffix)}"


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
    part = _visit(root, 0, found)
    if part is not None and len(part.folders) > 1:
        found.append(_whole(part, {}))
    return sorted(found, key=lambda episode: episode.path.parts)


def list_frames(folder: Path) -> dict[str, FrameFiles]:
    """The features of a folder, by the words in the names of its images and npy files."""
    names = (name for name, is_folder in list_folder(folder) if not is_folder and is_frame(name))
    return files_by_feature(names)


def are_features(
    own: Mapping[str, FeatureFolder] | Mapping[str, FrameFiles], folders: Collection[str]
) -> bool:
    """Whether frames' files beside the arrays and folders of an episode are features of it: several
    are, and one with numbers is if there are only arrays. Others are some picture."""
    return len(own) > 1 or (not folders and all(each.pattern for each in own.values()))


def feature_of(folder: str, words: str, *, is_alone: bool) -> str:
    """What a feature is called: its folder, with the words in the names of its files where the
    folder has several."""
    if not folder:
        return words or "frame"
    return folder if is_alone or not words else f"{folder}.{words}"


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


def _visit(path: Path, depth: int, found: list[EpisodeFolder]) -> EpisodeFolder | None:
    """What `path` holds for the folder above, by the words of features; episodes go to `found`.

    Each folder is listed once, and no names of frames' files are kept. A folder of one feature is
    a feature of the folder above, and one of several is an episode; unless there are others beside
    it, of which one is a feature with other words.
    """
    check_depth(path, depth)
    frames: list[str] = []
    subfolders: list[str] = []
    arrays: dict[str, str] = {}
    files: set[str] = set()
    for name, is_folder in list_folder(path):
        if is_folder:
            subfolders.append(name)
        elif is_frame(name):
            frames.append(name)
        elif name.lower().endswith(".npy"):
            arrays[Path(name).stem] = name
        elif name in (METADATA, DESCRIPTION):
            files.add(name)
    own = {words: _summary(each) for words, each in files_by_feature(frames).items()}
    del frames
    here = EpisodeFolder(
        path, own, dict(sorted(arrays.items())), METADATA in files, DESCRIPTION in files
    )
    visited = (_visit(path / name, depth + 1, found) for name in sorted(subfolders))
    parts = {part.path.name: part for part in visited if part is not None}
    several = (part.folders for part in parts.values() if len(part.folders) > 1)
    shared = {words for folders in several for words in folders if words}
    alone = (part.folders.keys() for part in parts.values() if len(part.folders) == 1)
    if arrays or here.is_exported or any(not words & shared for words in alone):
        found.append(_whole(here, parts))
        return None
    found.extend(_whole(part, {}) for part in parts.values())
    return here if own else None


def _whole(here: EpisodeFolder, parts: Mapping[str, EpisodeFolder]) -> EpisodeFolder:
    """The episode with the features of folders in it, by their names."""
    features = {name: part.folders for name, part in parts.items()}
    if are_features(here.folders, features):
        features = {"": here.folders, **features}
    folders = {
        feature_of(folder, words, is_alone=len(every) == 1): replace(each, folder=folder)
        for folder, every in features.items()
        for words, each in every.items()
    }
    return replace(here, folders=folders)


def _summary(files: FrameFiles) -> FeatureFolder:
    names = list(files.names.values())
    endings = frozenset(Path(name).suffix.lower() for name in names)
    return FeatureFolder("", len(names), names[0], endings, files.pattern)


def is_frame(name: str) -> bool:
    """Images, and npy files with a number in their name: others hold a whole episode."""
    stem, ending = Path(name).stem, Path(name).suffix.lower()
    is_image = ending in IMAGE_FORMATS or ending in RASTER_ENDINGS
    return is_image or (ending == ".npy" and bool(_NUMBERED.fullmatch(stem)))


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")
