"""Inventory counts of Zarr buffers: missing chunks, unused rows, and arrays that are not packed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from seqrecord.originals.files import first_line, is_file, open_file
from seqrecord.originals.remote import remote_files
from seqrecord.sources.common.originals import walk
from seqrecord.sources.inventory import (
    NOT_SELECTED,
    LeftOut,
    Unwritten,
    left_out_by_pattern,
)

_MOST_CHUNKS = 1_000_000  # chunks of an array that are listed
_MOST_REMOTE = 1_000  # on a URL, where each folder of chunks is a request


@dataclass
class ZarrAccount:
    """Collect counts over all buffers."""

    notes: list[str] = field(default_factory=list)
    unwritten: Unwritten = field(default_factory=Unwritten)
    _unused_rows: Counter[str] = field(default_factory=Counter)
    _arrays: Counter[tuple[str, str, bool]] = field(default_factory=Counter)

    def add_data(
        self, path: Path, arrays: Mapping[str, Any], selected: Container[str], stop: int
    ) -> None:
        """Count chunks of selected arrays, and their rows from `stop` on."""
        names = _names(path, "") if is_file(path) else set()
        for name, array in arrays.items():
            if name not in selected:
                self._arrays[(f"data/{name}", NOT_SELECTED, False)] += 1
                continue
            self._unused_rows[name] += max(0, array.shape[0] - max(0, stop))
            self._add_chunks(path, array, names)

    def add_meta(self, path: Path, arrays: Iterable[Any]) -> None:
        """Count chunks of the arrays in `meta`."""
        names = _names(path, "") if is_file(path) else set()
        for array in arrays:
            self._add_chunks(path, array, names)

    def add_others(self, path: Path, group: Any, taken: Container[str]) -> None:
        """Count arrays below a group whose paths are not `taken`."""
        with self._listing(path):
            for place in _array_places(group, ""):
                if place not in taken:
                    within = place.startswith("meta/")
                    reason = "not a finite number per episode" if within else "outside of data/"
                    if place.startswith("data/"):
                        reason = "in a subgroup of data/"
                    self._arrays[(place, reason, True)] += 1

    def left_out(self) -> list[LeftOut]:
        """Return rows and arrays that are not packed."""
        rows = [
            LeftOut(f"data/{name}", count, "after the last episode", "rows")
            for name, count in self._unused_rows.items()
            if count
        ]
        return rows + left_out_by_pattern(self._arrays, "arrays")

    def _add_chunks(self, path: Path, array: Any, names: set[str]) -> None:
        grid, place = _grid(array), array.path
        total = math.prod(grid)
        most = _MOST_REMOTE if remote_files(path) and not is_file(path) else _MOST_CHUNKS
        if total > most:
            self.notes.append(f"missing chunks of {place} not counted: {total:,} chunks")
            return
        missing = total - _present(names or _names(path, place), array, grid)
        unit = "chunk" if array.shards is None else "shard"
        self.unwritten.add(place, missing, total, unit, _fill(array))

    @contextmanager
    def _listing(self, path: Path) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # zarr raises many types; episodes do not need these arrays
            self.notes.append(f"{path.name}: cannot list other arrays: {first_line(error)}")


def _array_places(group: Any, prefix: str) -> Iterator[str]:
    """Yield the paths of all arrays below a group, from its current metadata."""
    import zarr

    for name in sorted(group.array_keys()):
        yield f"{prefix}{name}"
    for name in sorted(group.group_keys()):
        place = f"{prefix}{name}"
        below = zarr.open_group(group.store, path=place, mode="r", use_consolidated=False)
        yield from _array_places(below, f"{place}/")


def _grid(array: Any) -> list[int]:
    """Return the number of files (chunks or shards) along each dimension."""
    files = array.shards or array.chunks
    return [-(-size // length) for size, length in zip(array.shape, files, strict=True)]


def _present(names: Container[str], array: Any, grid: Sequence[int]) -> int:
    """Return the number of existing chunks or shards."""
    encode = array.metadata.encode_chunk_key
    return sum(f"{array.path}/{encode(at)}" in names for at in product(*map(range, grid)))


def _names(path: Path, place: str) -> set[str]:
    """Return the files of an array by path in its store; for a ZIP file all files."""
    if is_file(path):
        with open_file(path) as stream, ZipFile(stream) as file:
            return {*file.namelist()}
    return {
        f"{above}/{name}"
        for folder, entries in walk(path / place)
        for above in [folder.relative_to(path).as_posix()]
        for name, is_folder in entries.items()
        if not is_folder
    }


def _fill(array: Any) -> str:
    value = array.metadata.fill_value
    return "0" if value is None else repr(value.item() if hasattr(value, "item") else value)[:50]
