"""Inventories: a source's report on its original, packed and not packed.

::

    class MySource:
        def schema(self): …
        def episodes(self): …
        def frames(self, info): …
        def account(self):  # optional
            left_out = unread_files(self.root, lambda path: path.suffix == ".png")
            return Account("folders with *.png", {"image": "*/image/*.png"}, tuple(left_out))
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from seqrecord.errors import SourceError
from seqrecord.format.inventory import Inventory, LeftOut, PackedFeature
from seqrecord.sources.base import Source
from seqrecord.sources.common.file_types import known_type
from seqrecord.sources.common.files import is_file, is_readable
from seqrecord.sources.common.images import IMAGE_ENDINGS
from seqrecord.sources.common.originals import walk
from seqrecord.sources.common.remote import RemoteSource
from seqrecord.sources.registry import BUILT_IN
from seqrecord.text import counted

__all__ = [
    "Account",
    "Inventory",
    "LeftOut",
    "group_names",
    "inventory_of",
    "is_document",
    "not_selected",
    "unread_files",
]

NO_READER = "no reader"
"""Reason for files of an unknown type."""

UNREADABLE = "unreadable"
"""Reason for files and folders that this user may not read, or that links do not reach."""

NOT_SELECTED = "not selected by features="
"""Reason for data excluded by the caller."""

NO_FRAME = "an image that belongs to no feature"
"""Reason for images outside of all features."""

_TYPED = 50  # patterns whose first file is opened to detect its type
_TO_LAST_NUMBER = re.compile(r".*[0-9]", re.DOTALL)
_DOCUMENTS = frozenset(
    "readme license licence copying citation changelog authors thumbs desktop".split()  # noqa: SIM905
)
_DOCUMENT_ENDINGS = frozenset((".md", ".rst", ".pdf", ".html", ".bib", ".sha256", ".md5"))


@dataclass(frozen=True)
class Account:
    """A source's report on its original, returned by its optional method `account()`.

    Args:
        reason: evidence for the format: "2 folders with image_left/ and pose_left.txt".
        places: path or pattern of each feature in the original.
        left_out: data that is not packed, grouped by pattern.
        notes: assumptions and irregularities.

    Example:
        from seqrecord.sources import Account, LeftOut

        left_out = (LeftOut("lidar/*.pcd", 120, "no reader"),)
        account = Account("3 folders with rgb/", {"rgb": "*/rgb/*.png"}, left_out)
    """

    reason: str
    places: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[LeftOut, ...] = ()
    notes: tuple[str, ...] = ()


def inventory_of(source: Source) -> Inventory:
    """Return the inventory of any source. Without `account()` it lists the features only.

    Errors of the source's methods propagate.

    Example:
        import seqrecord as sr
        from seqrecord.sources import inventory_of

        inventory = inventory_of(sr.open_source("records/"))
        print(inventory.format, [feature.name for feature in inventory.features])
    """
    account = getattr(source, "account", None)
    found: Account = Account("custom source without account()") if not account else account()
    unreadable: Mapping[str, SourceError] = getattr(source, "unreadable", {})
    left_out = [LeftOut(f"feature {n}", 1, str(e), "features") for n, e in unreadable.items()]
    left_out += [each for each in found.left_out if not _is_one_of(each, unreadable)]
    return Inventory(
        format_of(source),
        found.reason,
        tuple(
            PackedFeature(
                spec.name,
                spec.dtype.name if spec.value == "array" else spec.value,
                spec.shape if spec.value == "array" else (),
                spec.kind,
                spec.unit,
                found.places.get(spec.name, ""),
            )
            for spec in source.schema().values()
        ),
        tuple(left_out),
        found.notes,
    )


def _is_one_of(row: LeftOut, unreadable: Iterable[str]) -> bool:
    """Whether a row says of an unreadable feature that it was not selected."""
    name = row.pattern.replace("/", ".").removesuffix(".*")
    return row.reason.startswith(NOT_SELECTED) and name.endswith(tuple(unreadable))


def not_selected(name: str, count: int = 1, unit: str = "features", *, also: str = "") -> LeftOut:
    """Report a feature or field excluded by `features=`, or by the argument `also`."""
    return LeftOut(name, count, NOT_SELECTED + also, unit, is_data=False)


def left_out_by_pattern(counts: Counter[tuple[str, str, bool]], unit: str) -> list[LeftOut]:
    """Convert counts by pattern, reason and `is_data` to inventory lines, most frequent first."""
    return [
        LeftOut(pattern, count, reason, unit, is_data)
        for (pattern, reason, is_data), count in counts.most_common()
    ]


def check_is_written(feature: str, file: str, missing: int, total: int, unit: str) -> None:
    """Raise `SourceError` for a selected feature without any stored row or chunk."""
    if total and missing == total:
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
    goes_down: Callable[[dict[str, bool]], bool] = lambda _: True,
) -> list[LeftOut]:
    """List files below `root` that are not packed, grouped by pattern.

    Documents, hidden files and files for which `is_taken(path)` is true are omitted. Empty if
    `root` is a file. `goes_down` gets a folder's entries (name to whether it is a folder) and
    decides whether to visit its subfolders.
    """
    if is_file(root):
        return []
    paths = (
        folder / name
        for folder, names in walk(root, goes_down)
        for name, is_folder in names.items()
        if not is_folder and not is_document(name)
    )
    return group_names((path for path in paths if not is_taken(path)), root, reason)


def group_names(paths: Iterable[Path], root: Path, reason: str) -> list[LeftOut]:
    """Group files below `root` by pattern, largest group first.

    `seq-01/frame-000000.pose.txt` has the pattern `*.pose.txt`, `P000/lidar/1.pcd` has
    `lidar/*.pcd`. If `reason` is `NO_READER`, the type of a group's first file and its remedy
    replace it where the type is recognized.
    """
    counts: Counter[str] = Counter()
    first: dict[str, Path] = {}
    for path in paths:
        pattern = _pattern(path, root)
        counts[pattern] += 1
        first.setdefault(pattern, path)
    largest = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    found = []
    for place, (pattern, count) in enumerate(largest):
        if reason == NO_READER and place < _TYPED and not is_readable(first[pattern]):
            known: str | None = UNREADABLE
        elif reason == NO_READER and first[pattern].suffix.lower() in IMAGE_ENDINGS:
            known = NO_FRAME
        else:
            known = known_type(first[pattern]) if reason == NO_READER and place < _TYPED else None
        found.append(LeftOut(pattern, count, known or reason))
    return found


def _pattern(path: Path, root: Path) -> str:
    """Replace a name up to its last digit by `*`; keep a parent folder without digits."""
    stem, dot, ending = path.name.partition(".") if path.name[:1] != "." else (path.name, "", "")
    # A number after the first dot belongs to the name: 1305031102.175304.png.
    while ending.partition(".")[0].isdigit():
        more, dot, ending = ending.partition(".")
        stem = f"{stem}.{more}"
    name = _TO_LAST_NUMBER.sub("*", stem) + dot + ending
    parent = path.parent
    if parent == root or any(c.isdigit() for c in parent.name):
        return name
    return f"{parent.name}/{name}"


def is_document(name: str) -> bool:
    """Return whether a file name is that of documentation, such as `README.md`."""
    stem, _, ending = name.lower().partition(".")
    return stem in _DOCUMENTS or f".{ending}" in _DOCUMENT_ENDINGS


def format_of(source: Source) -> str:
    """Return the format name of a source, or its class name for other packages' sources."""
    if isinstance(source, RemoteSource):
        source = source.source
    if (name := getattr(source, "format_name", None)) is not None:
        return str(name)
    module = type(source).__module__
    names = {f"seqrecord.sources.{of}": name for name, of in BUILT_IN.items()}
    return names.get(module, type(source).__name__)
