"""Detect datasets below or around a folder, before a fallback format reads a part of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from seqrecord.errors import SourceError
from seqrecord.in_place.files import is_directory, is_file, list_folder, read_bytes
from seqrecord.store.format.manifest import DICTIONARIES
from seqrecord.store.text import counted

_LEROBOT_INFO = "meta/info.json"
_MAX_INFO_BYTES = 16 << 20
_LEROBOT_PARTS = ("data", "images", "meta", "videos")
_ZARR_ENDS = "meta/episode_ends"
_MOST_ABOVE = 5  # folder levels from a LeRobot image to its dataset
_MOST_BELOW, _MOST_FOLDERS, _MOST_OF_FOLDER = 3, 300, 1000
_SHOWN = 5


class NestedError(SourceError):
    """The folder contains datasets, or is a part of one."""


def check_nested(path: Path, *, only_lerobot: bool) -> None:
    """Raise `NestedError` for a folder that contains LeRobot datasets, or is a part of one.

    Without `only_lerobot`, other formats count too.
    """
    for parent in islice(path.parents, _MOST_ABOVE):
        part = path.relative_to(parent).parts[0]
        if part in _LEROBOT_PARTS and _is_lerobot(parent):
            raise NestedError(
                f"part of a LeRobot dataset; use the dataset, `seqrecord write --src {parent}`"
                "; --format NAME reads only this part",
                file=str(path),
                expected=str(parent),
                got=f"its {part}/",
            )
    if is_file(path):
        return
    datasets = sorted(_find_datasets(path, only_lerobot=only_lerobot))
    if datasets:
        names = [place.relative_to(path).as_posix() for _, place in datasets]
        formats = ", ".join(dict.fromkeys(name for name, _ in datasets))
        suffix = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        raise NestedError(
            f"the folder contains {counted(len(datasets), 'dataset')} ({formats}); choose one, "
            f"`seqrecord write --src {datasets[0][1]}`, and join several by `seqrecord merge`; "
            "--format NAME reads the files as they are",
            file=str(path),
            expected="one dataset",
            got=", ".join(names[:_SHOWN]) + suffix,
        )


def _find_datasets(root: Path, *, only_lerobot: bool) -> Iterator[tuple[str, Path]]:
    """Yield format and folder of the datasets below `root`, breadth first, up to the limits."""
    queue = deque([(root, 0)])
    for _ in range(_MOST_FOLDERS):
        if not queue:
            return
        folder, depth = queue.popleft()
        names = dict(islice(list_folder(folder), _MOST_OF_FOLDER))
        if depth == 0:  # the dictionaries of an interrupted derivation
            names.pop(DICTIONARIES, None)
        format_ = None if depth == 0 else _format_of(folder, names)
        if format_ == "lerobot" or (format_ is not None and not only_lerobot):
            yield format_, folder
        elif depth < _MOST_BELOW:
            queue.extend((folder / n, depth + 1) for n, is_folder in names.items() if is_folder)


def _format_of(folder: Path, names: dict[str, bool]) -> str | None:
    if names.get("meta") and _is_lerobot(folder):
        return "lerobot"
    if "manifest.json" in names and names.get("index"):
        return "seqrecord"
    if names.get("data") and is_directory(folder / _ZARR_ENDS):
        return "zarr"
    return None


def _is_lerobot(folder: Path) -> bool:
    info = folder / _LEROBOT_INFO
    return is_file(info) and b'"codebase_version"' in read_bytes(info, _MAX_INFO_BYTES)
