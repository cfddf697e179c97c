"""Inventory of a tree of episode folders."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from seqrecord.formats.sources.common.frame_names import (
    FRAME_NAME,
    FRAME_NUMBER,
    TIMESTAMP,
    number_of,
)
from seqrecord.formats.sources.common.images import IMAGE_ENDINGS, image_header
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
from seqrecord.in_place.boundary import skipping_unreadable
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
    found: Sequence[EpisodeFiles],
    features: Collection[str],
    notes: Iterable[str],
    *,
    are_chosen: bool,
) -> Account:
    """Return the account of a tree. `features` are packed; `are_chosen` if the user chose them."""
    first = found[0].episode
    places = dict.fromkeys((FRAME_NUMBER, FRAME_NAME, TIMESTAMP), "file names")
    for each in found:
        for name in each.features:
            places.setdefault(name, _place(root, each, name))
    example = next((places[name] for name in sorted(found[0].features)), METADATA)
    episodes = counted(len(found), "episode folder")
    reason = f"{episodes}, such as {_key(root, first)} with {example}"
    offered = sorted({name for each in found for name in each.features} - {*features})
    of_rows = _reasons(root, [(each.episode, each.rows.reasons) for each in found])
    left_out = [
        *(replace(each, is_data=not are_chosen) for each in of_rows),
        *_reasons(root, [(each.episode, each.cameras) for each in found]),
        *unread_files(root, _Taken(found)),
        *(not_selected(f"feature {name}") for name in offered),
    ]
    packed = {name: place for name, place in places.items() if name in features}
    return Account(reason, packed, tuple(left_out), tuple(notes))


def camera_of(episode: EpisodeFolder) -> tuple[dict[str, Any] | None, dict[str, str]]:
    """Return an episode's camera, if there is one, and reasons for unused camera files."""
    sizes = set[tuple[int, int]]()
    for folder in episode.folders.values() if episode.cameras else ():
        path = episode.path / folder.first
        if path.suffix.lower() in IMAGE_ENDINGS:
            with skipping_unreadable():  # raised by `frames`
                height, width = image_header(path).shape[:2]
                sizes.add((height, width))
    return find_camera(episode.path, episode.cameras, sizes)


def encoding_notes(
    specs: Mapping[str, FeatureSpec], episodes: Sequence[EpisodeFolder]
) -> Iterator[str]:
    """Yield notes on images whose values may encode other data, by feature."""
    for name, spec in specs.items():
        places = (each.folders.get(name) for each in episodes)
        first = next((place.files.first for place in places if place is not None), "")
        if Path(first).suffix.lower() not in IMAGE_ENDINGS or spec.unit:
            continue
        if text := encoding_note(f"{name} {first}", spec.dtype, spec.shape):
            yield f"feature {name}: {text}"


def _key(root: Path, episode: EpisodeFolder) -> str:
    return episode.path.relative_to(root).as_posix() if episode.path != root else root.name


def _place(root: Path, each: EpisodeFiles, name: str) -> str:
    """Return the pattern of a feature's files below the root."""
    above = "" if each.episode.path == root else "*/"
    if (folder := each.episode.folders.get(name)) is not None:
        stem, ending = Path(folder.first).stem, Path(folder.first).suffix
        file = f"{_DIGITS.sub('*', stem) if any(map(str.isdigit, stem)) else '*'}{ending}"
        inside = f"{folder.folder}/{file}".lstrip("/")
        return f"{above}{inside}" + (f": {folder.member}" if folder.member else "")
    if (rows := each.rows.features.get(name)) is not None:
        return f"{above}{rows.file}" + (f": {rows.member}" if rows.member else "")
    return f"{above}{each.episode.arrays.get(name, name)}"


def _reasons(root: Path, found: Iterable[tuple[EpisodeFolder, Mapping[str, str]]]) -> list[LeftOut]:
    """Group files that are not packed by pattern; the reason is the first one."""
    grouped: dict[str, list[str]] = {}
    for episode, reasons in found:
        above = "" if episode.path == root else "*/"
        for file, reason in reasons.items():
            grouped.setdefault(above + _DIGITS.sub("*", file), []).append(reason)
    return [
        LeftOut(pattern, len(each), each[0] + ("" if len({*each}) == 1 else ", …"))
        for pattern, each in grouped.items()
    ]


class _Taken:
    """Return whether a file belongs to a feature, or has its own reason in the inventory."""

    def __init__(self, found: Sequence[EpisodeFiles]) -> None:
        self._files: set[Path] = set()
        self._folders: dict[Path, list[FeatureFolder]] = {}
        self._exported: set[Path] = set()
        for each in found:
            path = each.episode.path
            if each.episode.is_exported:
                self._exported.add(path)
                continue
            rows = (feature.file for feature in each.rows.features.values())
            reasons = (file.partition(": ")[0] for file in each.rows.reasons)
            arrays = each.episode.arrays.values()
            files = (METADATA, *arrays, *each.episode.cameras, *rows, *reasons)
            self._files.update(path / file for file in files)
            for folder in each.episode.folders.values():
                self._folders.setdefault(path / folder.folder, []).append(folder)

    def __call__(self, path: Path) -> bool:
        if path in self._files or not self._exported.isdisjoint((path.parent, path.parent.parent)):
            return True
        return any(_is_of(each, path.name) for each in self._folders.get(path.parent, ()))


def _is_of(folder: FeatureFolder, name: str) -> bool:
    """Return whether a file name is that of a frame of the feature."""
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
