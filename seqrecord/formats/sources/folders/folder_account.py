"""Inventory of a tree with episode folders."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from seqrecord.errors import SourceError
from seqrecord.formats.sources.common.frame_names import (
    FRAME_NAME,
    FRAME_NUMBER,
    TIMESTAMP,
    number_of,
)
from seqrecord.formats.sources.common.images import IMAGE_ENDINGS
from seqrecord.formats.sources.common.sequences import image_size
from seqrecord.formats.sources.folders.encodings import encoding_note
from seqrecord.formats.sources.folders.rows import RowFiles, find_camera
from seqrecord.formats.sources.folders.tree import (
    METADATA,
    EpisodeFolder,
    FeatureFolder,
    is_frame,
    is_text_name,
)
from seqrecord.formats.sources.inventory import Account, LeftOut, not_selected, unread_files
from seqrecord.in_place.boundary import reader_boundary, skipping_unreadable
from seqrecord.store.schema import FeatureSpec
from seqrecord.store.text import counted

_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True)
class EpisodeFiles:
    """An episode, its row files, and reasons for unused camera files."""

    episode: EpisodeFolder
    rows: RowFiles
    cameras: Mapping[str, str]

    @property
    def features(self) -> set[str]:
        return {*self.episode.folders, *self.episode.arrays, *self.rows.features}


def account_of(
    root: Path,
    episode_files: Sequence[EpisodeFiles],
    features: Collection[str],
    notes: Iterable[str],
    *,
    are_chosen: bool,
) -> Account:
    """Return the account of a tree. `features` are packed; `are_chosen` if the user chose them."""
    first_episode = episode_files[0].episode
    places = dict.fromkeys((FRAME_NUMBER, FRAME_NAME, TIMESTAMP), "file names")
    for files in episode_files:
        for name in files.features:
            places.setdefault(name, _place(root, files, name))
    example = next((places[name] for name in sorted(episode_files[0].features)), METADATA)
    episode_count = counted(len(episode_files), "episode folder")
    reason = f"{episode_count}, such as {_key(root, first_episode)} with {example}"
    offered = sorted({name for files in episode_files for name in files.features} - {*features})
    row_reasons = _reasons(root, [(files.episode, files.rows.reasons) for files in episode_files])
    left_out = [
        *(replace(line, is_data=not are_chosen) for line in row_reasons),
        *_reasons(root, [(files.episode, files.cameras) for files in episode_files]),
        *unread_files(root, _TakenFiles(episode_files)),
        *(not_selected(f"feature {name}") for name in offered),
    ]
    packed_places = {name: place for name, place in places.items() if name in features}
    return Account(reason, packed_places, tuple(left_out), tuple(notes))


def camera_of(
    episode: EpisodeFolder, exif: str | None
) -> tuple[dict[str, Any] | None, dict[str, str]]:
    """Return an episode's camera, if there is one, and reasons for unused camera files."""
    sizes = set[tuple[int, int]]()
    for folder in episode.folders.values() if episode.cameras else ():
        path = episode.path / folder.first
        if path.suffix.lower() in IMAGE_ENDINGS:
            with skipping_unreadable():  # raised by `frames`
                sizes.add(image_size(path, exif))
    try:
        with reader_boundary():
            return find_camera(episode.path, episode.cameras, sizes)
    except SourceError as error:  # no frame depends on a camera file
        return None, dict.fromkeys(episode.cameras, f"camera file: {error.message}")


def encoding_notes(
    specs: Mapping[str, FeatureSpec], episodes: Sequence[EpisodeFolder]
) -> Iterator[str]:
    """Yield notes on images whose values may encode other data, by feature."""
    for name, spec in specs.items():
        places = (episode.folders.get(name) for episode in episodes)
        first_file = next((place.files.first for place in places if place is not None), "")
        if Path(first_file).suffix.lower() not in IMAGE_ENDINGS or spec.unit:
            continue
        if text := encoding_note(f"{name} {first_file}", spec.dtype, spec.shape):
            yield f"feature {name}: {text}"


def _key(root: Path, episode: EpisodeFolder) -> str:
    return episode.path.relative_to(root).as_posix() if episode.path != root else root.name


def _place(root: Path, files: EpisodeFiles, name: str) -> str:
    """Return the pattern of a feature's files below the root."""
    prefix = "" if files.episode.path == root else "*/"
    if (folder := files.episode.folders.get(name)) is not None:
        stem, ending = Path(folder.first).stem, Path(folder.first).suffix
        file = f"{_DIGITS.sub('*', stem) if any(map(str.isdigit, stem)) else '*'}{ending}"
        pattern = f"{folder.folder}/{file}".lstrip("/")
        return f"{prefix}{pattern}" + (f": {folder.member}" if folder.member else "")
    if (rows := files.rows.features.get(name)) is not None:
        return f"{prefix}{rows.file}" + (f": {rows.member}" if rows.member else "")
    return f"{prefix}{files.episode.arrays.get(name, name)}"


def _reasons(
    root: Path, reasons_by_episode: Iterable[tuple[EpisodeFolder, Mapping[str, str]]]
) -> list[LeftOut]:
    """Group files that are not packed by pattern; the reason is the first one."""
    reasons_by_pattern: dict[str, list[str]] = {}
    for episode, reasons in reasons_by_episode:
        prefix = "" if episode.path == root else "*/"
        for file, reason in reasons.items():
            reasons_by_pattern.setdefault(prefix + _DIGITS.sub("*", file), []).append(reason)
    return [
        LeftOut(
            pattern,
            len(group_reasons),
            group_reasons[0] + ("" if len({*group_reasons}) == 1 else ", …"),
        )
        for pattern, group_reasons in reasons_by_pattern.items()
    ]


class _TakenFiles:
    """Return whether a file belongs to a feature, or has its own reason in the inventory."""

    def __init__(self, tree_files: Sequence[EpisodeFiles]) -> None:
        self._files: set[Path] = set()
        self._folders: dict[Path, list[FeatureFolder]] = {}
        self._exported: set[Path] = set()
        for episode_files in tree_files:
            path = episode_files.episode.path
            if episode_files.episode.is_exported:
                self._exported.add(path)
                continue
            rows = (feature.file for feature in episode_files.rows.features.values())
            reasons = (file.partition(": ")[0] for file in episode_files.rows.reasons)
            arrays = episode_files.episode.arrays.values()
            files = (METADATA, *arrays, *episode_files.episode.cameras, *rows, *reasons)
            self._files.update(path / file for file in files)
            for folder in episode_files.episode.folders.values():
                self._folders.setdefault(path / folder.folder, []).append(folder)

    def __call__(self, path: Path) -> bool:
        if path in self._files or not self._exported.isdisjoint((path.parent, path.parent.parent)):
            return True
        return any(_is_frame_of(folder, path.name) for folder in self._folders.get(path.parent, ()))


def _is_frame_of(folder: FeatureFolder, name: str) -> bool:
    """Return whether a file name is that of the feature's frames."""
    path = Path(name)
    if path.suffix.lower() not in folder.files.endings or not (
        is_frame(name) or is_text_name(name)
    ):
        return False
    if (pattern := folder.files.pattern) is None:
        return True
    try:
        return pattern.format(number_of(pattern, path.stem)) == path.stem
    except ValueError:
        return False
