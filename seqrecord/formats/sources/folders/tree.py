"""Find episodes in a tree: which folders are episodes and which are features."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from seqrecord.errors import SourceError, located
from seqrecord.formats.sources.common.array_files import NPZ, RASTER_ENDINGS, npz_names
from seqrecord.formats.sources.common.frame_names import (
    FrameFiles,
    ending_of,
    escaped,
    files_by_feature,
)
from seqrecord.formats.sources.common.images import IMAGE_ENDINGS
from seqrecord.formats.sources.common.originals import check_depth
from seqrecord.formats.sources.common.point_files import POINT_ENDINGS, read_points
from seqrecord.formats.sources.common.specs import feature_name
from seqrecord.formats.sources.common.tables import TEXT_ENDINGS, is_numeric
from seqrecord.formats.sources.folders.exported import DESCRIPTION
from seqrecord.formats.sources.folders.rows import is_camera_name
from seqrecord.in_place.boundary import skipping_unreadable
from seqrecord.in_place.files import json_object, list_folder, read_bytes

METADATA = "metadata.json"

MAX_METADATA_BYTES = 1 << 22
_TIMES = "timestamps.txt"
_NUMBERED = re.compile(r"(.*[_.\- ])?\d+([_.\- ].*)?", re.DOTALL)


@dataclass(frozen=True)
class FeatureFolder:
    """A feature with one file per frame.

    Args:
        folder: folder of its files below the episode's folder; "" for the episode's folder itself.
        files: the files, or their summary.
        member: array in each npz file, or columns of points in each file.
    """

    folder: str
    files: FrameFiles
    member: str | None = None

    @property
    def first(self) -> str:
        """Path of the first frame's file below the episode's folder."""
        return f"{self.folder}/{self.files.first}".lstrip("/")

    @property
    def path_of_number(self) -> str:
        """`str.format` pattern from frame number to path below the episode's folder."""
        folder = f"{self.folder}/" if self.folder else ""
        return f"{escaped(folder)}{self.files.pattern}{escaped(Path(self.first).suffix)}"


@dataclass(frozen=True)
class EpisodeFolder:
    """An episode: feature folders and per-episode arrays, by name.

    Names are feature names, except in exported episodes, whose description names the features.
    `rows` are files below `path` that may have a row per frame: npz and text.
    """

    path: Path
    folders: dict[str, FeatureFolder] = field(default_factory=dict)
    arrays: dict[str, str] = field(default_factory=dict)
    rows: tuple[str, ...] = ()
    cameras: tuple[str, ...] = ()
    has_metadata: bool = False
    is_exported: bool = False


@dataclass(frozen=True)
class Listing:
    """The entries of one folder, by name.

    `groups` are features with one file per frame, by the words of the file names: images, arrays,
    and text if it has other words. `texts` are text files with the words of another group, or
    without any group.
    """

    groups: Mapping[str, FrameFiles]
    texts: Mapping[str, FrameFiles]
    arrays: Mapping[str, str]
    rows: Sequence[str]
    cameras: Sequence[str]
    subfolders: Sequence[str]
    names: frozenset[str]
    inner: str = ""  # the folder of the files, if the folder above gives the name

    @property
    def is_leaf(self) -> bool:
        """Whether its files can belong to the episode above."""
        return not self.subfolders and not self.is_episode

    @property
    def wrapped(self) -> str:
        """The single subfolder beside a file of times, as for a sensor of KITTI raw, or "".

        `image_02/data/0000000000.png` and `image_02/timestamps.txt`.
        """
        is_sensor = self.rows == [_TIMES] and len(self.subfolders) == 1
        return self.subfolders[0] if is_sensor and not (self.groups or self.arrays) else ""

    def named_groups(self, folder: str) -> Iterator[tuple[str, FrameFiles]]:
        """Yield the `groups` with feature names, in a folder below the episode's."""
        for words, files in self.groups.items():
            yield feature_of(folder, words, is_alone=len(self.groups) == 1), files

    def named_texts(self, folder: str) -> Iterator[tuple[str, FrameFiles]]:
        """Yield the `texts` with feature names, in a folder below the episode's."""
        is_alone = len(self.texts) == 1 and not self.groups
        for words, files in self.texts.items():
            yield feature_of(folder, words, is_alone=is_alone), files

    @property
    def is_episode(self) -> bool:
        """Whether its own files make it an episode."""
        return bool(self.arrays) or DESCRIPTION in self.names

    def row_files(self, folder: str) -> list[str]:
        """Return paths of files that may have rows, including text named like camera parameters."""
        files = (*self.rows, *filter(is_text_name, self.cameras))
        return [f"{folder}/{file}".lstrip("/") for file in files]


def look(folder: Path) -> Listing:
    """List a folder. Reads a sample of the text files with a number in their names."""
    names: defaultdict[str, list[str]] = defaultdict(list)
    for name, is_folder in list_folder(folder):
        kind = next((kind for kind, fits in _FILE_KINDS if fits(name)), "other")
        names["subfolder" if is_folder else kind].append(name)
    rows = names["row"]
    groups = files_by_feature(names["frame"])
    numeric: dict[str, FrameFiles] = {}
    for words, files in files_by_feature(names["text"]).items():
        if files.num_frames == 1 and all(group.num_frames > 1 for group in groups.values()):
            rows.append(files.first)
        elif is_numeric([folder / name for name in files.names.values()]):
            is_beside = words in groups or not groups
            (numeric if is_beside else groups)[words] = files
    arrays = {Path(name).stem: name for name in names["array"]}
    return Listing(
        *(groups, numeric, dict(sorted(arrays.items())), sorted(rows), sorted(names["camera"])),
        *(sorted(names["subfolder"]), frozenset(names["description"])),
    )


def look_inside(path: Path, folders: Sequence[str]) -> dict[str, Listing]:
    """List an episode's subfolders, by path below the episode's folder."""
    listings = {}
    for name in folders:
        listing = look(path / name)
        if listing.wrapped and (inner_listing := look(path / name / listing.wrapped)).is_leaf:
            name, listing = f"{name}/{listing.wrapped}", inner_listing
        listings[name] = listing
    return listings


def name_features(
    path: Path,
    listing: Listing,
    sub_listings: Mapping[str, Listing],
    sparse: Collection[str] = (),
) -> tuple[dict[str, FeatureFolder], list[str]]:
    """Return an episode's features by name, and the files that may have a row per frame.

    `listing` lists the episode's folder at `path`, `sub_listings` its subfolders. Text files for
    fewer than half of the frames count as row files, unless the feature is `sparse`.
    """
    parts = _parts_with_frames(sub_listings)
    # A single group of files without numbers beside features is an unrelated picture.
    is_alone = not parts and all(group.pattern for group in listing.groups.values())
    if len(listing.groups) > 1 or is_alone:
        parts = {"": listing, **parts}
    features: dict[str, FeatureFolder] = {}
    for folder, part in parts.items():
        for name, files in part.named_groups(folder):
            for member in _members(path / folder / files.first):
                place = _member_feature(name, member, files.first)
                if place in features:
                    place = f"{name}.{place}"
                features[place] = FeatureFolder(folder, files, member)
    rows: list[str] = []
    for folder, leaf in {"": listing, **_leaves(sub_listings)}.items():
        for name, files in leaf.named_texts(folder):
            features[f"{name}.txt" if name in features else name] = FeatureFolder(folder, files)
        rows += leaf.row_files(folder)
    for name in _rare_texts(features, sparse):
        paths = files_like(path / features.pop(name).first)
        rows += [file.relative_to(path).as_posix() for file in paths]
    return features, rows


def _parts_with_frames(sub_listings: Mapping[str, Listing]) -> dict[str, Listing]:
    """Return the subfolders with features of one file per frame."""
    return {name: part for name, part in sub_listings.items() if part.groups}


def _leaves(sub_listings: Mapping[str, Listing]) -> dict[str, Listing]:
    """Return the subfolders whose files can belong to the episode."""
    return {name: part for name, part in sub_listings.items() if part.is_leaf}


def _rare_texts(features: Mapping[str, FeatureFolder], sparse: Collection[str]) -> list[str]:
    """Return the features of text files for fewer than half of the other features' frames."""
    counts = {name: feature.files.num_frames for name, feature in features.items()}
    texts = [name for name, feature in features.items() if is_text_name(feature.first)]
    num_frames = max((counts[name] for name in counts.keys() - texts), default=0)
    return [name for name in texts if 2 * counts[name] < num_frames and name not in sparse]


def files_like(first_file: Path) -> list[Path]:
    """Return the text or array files of the feature whose first file is `first_file`."""
    listing = look(first_file.parent)
    groups = (*listing.groups.values(), *listing.texts.values())
    names = next((group.names.values() for group in groups if group.first == first_file.name), ())
    return [first_file.parent / name for name in names] or [first_file]


def find_episodes(root: Path, sparse: Collection[str] = ()) -> list[EpisodeFolder]:
    """Return all episodes from `root` down, in path order. See `name_features` for `sparse`."""
    episodes: list[EpisodeFolder] = []
    fallback_episodes: list[EpisodeFolder] = []
    part = _visit(root, 0, sparse, episodes, fallback_episodes)
    if part is not None and len(part.groups) + bool(part.rows or part.texts) > 1:
        episodes.append(_make_episode(root, part, {}, sparse))
    return sorted(episodes or fallback_episodes, key=lambda episode: episode.path.parts)


def feature_of(folder: str, words: str, *, is_alone: bool) -> str:
    """Return a feature's name: its folder, plus the words of its file names if needed."""
    folder = folder.partition("/")[0]
    if not folder:
        return words or "frame"
    return folder if is_alone or not words else f"{folder}.{words}"


def read_metadata(path: Path) -> dict[str, Any]:
    """Read an episode's metadata. Raises `SourceError` unless it is a JSON object."""
    with located(SourceError, file=str(path)):
        return json_object(read_bytes(path, MAX_METADATA_BYTES), parse_constant=_no_constant)


def _visit(
    path: Path,
    depth: int,
    sparse: Collection[str],
    episodes: list[EpisodeFolder],
    fallback_episodes: list[EpisodeFolder],
) -> Listing | None:
    """Search `path` for episodes; return its entries, or `None` if it is an episode itself.

    Episodes are appended to `episodes`. Folders with npz files are appended to `fallback_episodes`;
    they are episodes only if `episodes` has none.

    Each folder is listed once; file names of frames are not kept. A folder with one feature is a
    feature of the folder above. A folder with several features is an episode, unless a folder
    beside it has one feature with other words: then both belong to the folder above.
    """
    check_depth(path, depth)
    listing = look(path)
    listing = replace(listing, groups=_summaries(listing.groups), texts=_summaries(listing.texts))
    sub_listings: dict[str, Listing] = {}
    for name in listing.subfolders:
        part = _visit(path / name, depth + 1, sparse, episodes, fallback_episodes)
        if part is not None:
            sub_listings[f"{name}/{part.inner}".rstrip("/")] = part
    if depth and (part := sub_listings.get(listing.wrapped)) and part.is_leaf:
        return replace(part, inner=listing.wrapped)
    parts = _parts_with_frames(sub_listings)
    groups = [part.groups.keys() for part in parts.values()]
    shared_words = set[str]().union(*(words for words in groups if len(words) > 1)) - {""}
    has_feature = any(len(words) == 1 and not words & shared_words for words in groups)
    if listing.is_episode or has_feature:
        episodes.append(_make_episode(path, listing, sub_listings, sparse))
        return None
    episodes.extend(_make_episode(path / name, part, {}, sparse) for name, part in parts.items())
    if NPZ in map(ending_of, listing.rows):
        fallback_episodes.append(_make_episode(path, listing, sub_listings, sparse))
    return listing


def _make_episode(
    path: Path,
    listing: Listing,
    sub_listings: Mapping[str, Listing],
    sparse: Collection[str],
) -> EpisodeFolder:
    """Return the episode with the features of its folders."""
    folders, rows = name_features(path, listing, sub_listings, sparse)
    cameras = [
        f"{name}/{file}" for name, part in _leaves(sub_listings).items() for file in part.cameras
    ]
    return EpisodeFolder(
        path,
        folders,
        dict(listing.arrays),
        tuple(rows),
        (*listing.cameras, *cameras),
        METADATA in listing.names,
        DESCRIPTION in listing.names,
    )


def _summaries(groups: Mapping[str, FrameFiles]) -> dict[str, FrameFiles]:
    return {words: files.summary() for words, files in groups.items()}


def _member_feature(name: str, member: str | None, file: str) -> str:
    """Return the feature of an array in an npz file, or of points' columns."""
    if member is None:
        return name
    is_points = ending_of(file) in POINT_ENDINGS
    return f"{name}.{member}".rstrip(".") if is_points else feature_name(member)


def _members(first_file: Path) -> Sequence[str | None]:
    """Return the names of several arrays in an npz file or a file of points, else `None`."""
    ending, names = first_file.suffix.lower(), list[str]()
    with skipping_unreadable():  # raised by the reader
        if ending == NPZ:
            names = npz_names(first_file)
        elif ending in POINT_ENDINGS:
            names = [*read_points(first_file)]
    return names if len(names) > 1 else (None,)


def is_frame(name: str) -> bool:
    """Return whether a file is one frame: an image, or an array or points with a number."""
    ending = ending_of(name)
    if ending in IMAGE_ENDINGS or ending in RASTER_ENDINGS:
        return True
    return ending in (".npy", NPZ, *POINT_ENDINGS) and bool(_NUMBERED.fullmatch(Path(name).stem))


def is_text_name(name: str) -> bool:
    return ending_of(name) in TEXT_ENDINGS


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


_FILE_KINDS: tuple[tuple[str, Callable[[str], bool]], ...] = (
    ("frame", is_frame),
    ("array", lambda name: ending_of(name) == ".npy"),
    ("description", frozenset((METADATA, DESCRIPTION)).__contains__),
    ("camera", is_camera_name),
    ("text", lambda name: is_text_name(name) and bool(_NUMBERED.fullmatch(Path(name).stem))),
    ("row", lambda name: is_text_name(name) or ending_of(name) == NPZ),
)
"""File kinds in a folder by name; the first that fits."""
