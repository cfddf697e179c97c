"""Data of an original that is not packed, by pattern: rows of a source's `Account`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from seqrecord.errors import SourceError
from seqrecord.formats.sources.common.images import IMAGE_ENDINGS
from seqrecord.formats.sources.common.originals import walk
from seqrecord.in_place.file_types import known_type
from seqrecord.in_place.files import is_file, is_readable
from seqrecord.store.format.inventory import Inventory, LeftOut
from seqrecord.store.originals.inventory import NOT_SELECTED, Account, not_selected
from seqrecord.store.text import counted

__all__ = [
    "NOT_SELECTED",
    "Account",
    "Inventory",
    "LeftOut",
    "group_names",
    "is_document",
    "not_selected",
    "unread_files",
]

NO_READER = "no reader"
"""Reason for files of an unknown type."""

UNREADABLE = "unreadable"
"""Reason for files and folders without read permission, and for broken links."""

NO_FRAME = "an image that belongs to no feature"
"""Reason for images outside of all features."""

_TYPED = 50  # patterns whose first file is opened to detect its type
_TO_LAST_NUMBER = re.compile(r".*[0-9]", re.DOTALL)
_DOCUMENTS = frozenset(
    "readme license licence copying citation changelog authors thumbs desktop".split()  # noqa: SIM905
)
_DOCUMENT_ENDINGS = frozenset((".md", ".rst", ".pdf", ".html", ".bib", ".sha256", ".md5"))


def left_out_by_pattern(counts: Counter[tuple[str, str, bool]], unit: str) -> list[LeftOut]:
    """Convert counts by pattern, reason and `is_data` to inventory lines, most frequent first."""
    return [
        LeftOut(pattern, count, reason, unit, is_data)
        for (pattern, reason, is_data), count in counts.most_common()
    ]


@dataclass
class Unwritten:
    """Rows, chunks or shards that were never written, by place; readers get a fill value."""

    _missing_units: Counter[str] = field(default_factory=Counter)
    _totals: Counter[str] = field(default_factory=Counter)
    _facts: dict[str, tuple[str, str]] = field(default_factory=dict)

    def add(self, place: str, num_missing: int, total: int, unit: str, fill: str) -> None:
        """Count `num_missing` of `total` units at a place, which have this fill value."""
        self._missing_units[place] += num_missing
        self._totals[place] += total
        if num_missing or place not in self._facts:
            self._facts[place] = (unit, fill)

    def notes(self) -> list[str]:
        """Return a note per place with missing units."""
        return [
            f"{num_missing:,} of {counted(self._totals[place], unit)} of {place} were never "
            f"written: filled with {fill}"
            for place, (unit, fill) in self._facts.items()
            if (num_missing := self._missing_units[place])
        ]

    def check(self, places: Mapping[str, str], file: str) -> None:
        """Raise `SourceError` for a feature without any written unit, by the feature's place."""
        for feature, place in places.items():
            if (total := self._totals[place]) and self._missing_units[place] == total:
                unit, _ = self._facts[place]
                raise SourceError(
                    "the feature has no values; exclude it (--features)",
                    file=file,
                    feature=feature,
                    expected=f"written {unit}s",
                    got=f"{counted(total, unit)}, none of them written",
                )


def unread_files(
    root: Path,
    is_taken: Callable[[Path], bool],
    reason: str = NO_READER,
    *,
    goes_down: Callable[[Path, dict[str, bool]], bool] = lambda *_: True,
) -> list[LeftOut]:
    """List files below `root` that are not packed, grouped by pattern.

    Documents, hidden files and files for which `is_taken(path)` is true are omitted. Empty if
    `root` is a file. `goes_down` gets a folder and its entries (name to whether it is a folder) and
    decides whether to visit its subfolders.
    """
    return group_names(unread_paths(root, is_taken, goes_down), root, reason)


def unread_paths(
    root: Path,
    is_taken: Callable[[Path], bool],
    goes_down: Callable[[Path, dict[str, bool]], bool] = lambda *_: True,
) -> Iterator[Path]:
    """Yield the files that `unread_files` groups."""
    for folder, names in () if is_file(root) else walk(root, goes_down):
        for name, is_folder in names.items():
            if not is_folder and not is_document(name) and not is_taken(folder / name):
                yield folder / name


def group_names(paths: Iterable[Path], root: Path, reason: str) -> list[LeftOut]:
    """Group files below `root` by their paths, largest group first.

    A group has files of one depth, ending and kind of name; where their paths differ, its pattern
    has `*`. It finds all of them: `sparse/0/points3D.txt`, `*/lidar/*.pcd`. If `reason` is
    `NO_READER`, the type of a group's first file and its remedy replace it where the type is
    recognized.
    """
    counts: Counter[tuple[int, str]] = Counter()
    first_paths: dict[tuple[int, str], Path] = {}
    common: dict[tuple[int, str], list[str]] = {}
    for path in paths:
        group, parts = _group(path, root), list(path.relative_to(root).parts)
        counts[group] += 1
        first_paths.setdefault(group, path)
        pattern = common.setdefault(group, parts)
        if pattern[-1] != parts[-1]:
            pattern[-1] = _name_pattern(path.name)
        pattern[:-1] = [a if a == b else "*" for a, b in zip(pattern[:-1], parts[:-1], strict=True)]
    sorted_groups = sorted(counts.items(), key=lambda item: (-item[1], common[item[0]]))
    lines = []
    for place, (group, count) in enumerate(sorted_groups):
        path = first_paths[group]
        file_reason: str | None = None
        if reason == NO_READER and place < _TYPED and not is_readable(path):
            file_reason = UNREADABLE
        elif reason == NO_READER and path.suffix.lower() in IMAGE_ENDINGS:
            file_reason = NO_FRAME
        elif reason == NO_READER and place < _TYPED:
            file_reason = known_type(path)
        lines.append(LeftOut("/".join(common[group]), count, file_reason or reason))
    return lines


def _group(path: Path, root: Path) -> tuple[int, str]:
    """Return depth and name of a group: the file's name, below a parent folder without digits."""
    name, parent, depth = _name_pattern(path.name), path.parent, len(path.relative_to(root).parts)
    if parent == root or any(c.isdigit() for c in parent.name):
        return depth, name
    return depth, f"{parent.name}/{name}"


def _name_pattern(file: str) -> str:
    """Replace a name up to its last digit by `*`."""
    stem, dot, ending = file.partition(".") if file[:1] != "." else (file, "", "")
    # A number after the first dot belongs to the name: 1305031102.175304.png.
    while ending.partition(".")[0].isdigit():
        number, dot, ending = ending.partition(".")
        stem = f"{stem}.{number}"
    return _TO_LAST_NUMBER.sub("*", stem) + dot + ending


def is_document(name: str) -> bool:
    """Return whether a file name is that of documentation, such as `README.md`."""
    stem, _, ending = name.lower().partition(".")
    return stem in _DOCUMENTS or f".{ending}" in _DOCUMENT_ENDINGS
