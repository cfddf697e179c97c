"""What a cache holds, and emptying it: for people, not for reading through it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from seqrecord.errors import NotFoundError, StorageError
from seqrecord.storage.cache.folder import CacheFolder
from seqrecord.storage.cache.lock import check_folder
from seqrecord.storage.places import is_place_of, shown_place
from seqrecord.storage.url import local_path
from seqrecord.units import format_size

__all__ = ["CacheInfo", "cache_info", "clear_cache"]

_PATIENCE_SECONDS = 10.0  # a person would rather wait than start again


@dataclass(frozen=True, order=True)
class Held:
    """What is held of one storage: entries, and bytes on disk."""

    url: str
    entries: int
    size: int


@dataclass(frozen=True)
class CacheInfo:
    """What a cache holds.

    `size` is what it takes on disk, in bytes, its index included; `datasets` are those of which
    something is held. The times of the use that is longest ago, and of the latest, are UTC.
    """

    path: str
    size: int
    entries: int
    oldest_use: datetime | None
    latest_use: datetime | None
    datasets: tuple[Held, ...]

    def to_json(self) -> dict[str, Any]:
        """As JSON has it; times as ISO 8601."""
        return {
            **asdict(self),
            "oldest_use": self.oldest_use and self.oldest_use.isoformat(timespec="seconds"),
            "latest_use": self.latest_use and self.latest_use.isoformat(timespec="seconds"),
        }

    def __str__(self) -> str:
        lines = [f"{self.path}: {format_size(self.size)} in {_entries(self.entries)}"]
        if self.oldest_use is not None and self.latest_use is not None:
            lines.append(f"used from {_minute(self.oldest_use)} to {_minute(self.latest_use)} UTC")
        lines += [
            f"  {held.url}: {format_size(held.size)} in {_entries(held.entries)}"
            for held in self.datasets
        ]
        return "\n".join(lines)


def cache_info(cache_dir: str | os.PathLike[str]) -> CacheInfo:
    """What the cache in a folder holds, while others may use it.

    Raises `NotFoundError` where there is no cache.
    """
    with _opened(cache_dir) as folder:
        entries, size = folder.scan()
        held = _held(folder)
        return CacheInfo(
            path=str(folder.path),
            size=size,
            entries=len(entries),
            oldest_use=_time(entries[0].used) if entries else None,
            latest_use=_time(entries[-1].used) if entries else None,
            datasets=tuple(sorted(each for each in held.values() if each.entries)),
        )


def clear_cache(
    cache_dir: str | os.PathLike[str], location: str | os.PathLike[str] | None = None
) -> int:
    """Empty a cache, or remove what it holds of the dataset at `location`; the bytes freed.

    A location without account and endpoint means the datasets of that name in all of them; one of
    them is meant by what `cache_info` calls it.
    Processes that use the cache meanwhile continue, and read again. Raises `NotFoundError` where
    there is no cache, or where it holds nothing of that dataset.
    """
    with _opened(cache_dir) as folder:
        held = _held(folder)
        if location is not None:
            found = {at: each for at, each in held.items() if is_place_of(location, each.url)}
            if not any(each.entries for each in found.values()):
                raise NotFoundError(
                    "the cache holds nothing of this dataset",
                    file=str(folder.path),
                    expected=", ".join(each.url for each in held.values() if each.entries)[:500]
                    or "it is empty",
                    got=shown_place(location),
                )
            held = found
        folder.clear(list(held))
        return sum(each.size for each in held.values())


def _held(folder: CacheFolder) -> dict[Path, Held]:
    """What is held of each storage, by its folder."""
    found = {}
    for path, url in folder.places().items():
        entries, _ = CacheFolder(path).scan()
        found[path] = Held(url, len(entries), sum(entry.size for entry in entries))
    return found


@contextlib.contextmanager
def _opened(cache_dir: str | os.PathLike[str]) -> Iterator[CacheFolder]:
    path = local_path(cache_dir, "the cache's folder").absolute()
    if not check_folder(path):
        raise NotFoundError("no cache here", file=str(path))
    try:
        yield CacheFolder(path, patience=_PATIENCE_SECONDS)
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"the cache cannot be used: {error}", file=str(path)) from error


def _time(nanoseconds: int) -> datetime:
    return datetime.fromtimestamp(nanoseconds / 1e9, timezone.utc)


def _minute(time: datetime) -> str:
    return time.strftime("%Y-%m-%d %H:%M")


def _entries(number: int) -> str:
    return f"{number:,} {'entry' if number == 1 else 'entries'}"
