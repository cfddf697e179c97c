"""What a cache holds, and emptying it: for people, not for reading through it."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from seqrecord.errors import NotFoundError, StorageError
from seqrecord.storage.cache.folder import check_folder
from seqrecord.storage.cache.index import Held
from seqrecord.storage.cache.store import CacheStore
from seqrecord.storage.url import local_path, parse_location
from seqrecord.units import format_size

__all__ = ["CacheInfo", "cache_info", "clear_cache"]

_PATIENCE_SECONDS = 10.0  # a person would rather wait than start again


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
            "datasets": [held._asdict() for held in self.datasets],
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
    with _opened(cache_dir) as (path, store):
        use = store.ask(lambda index: index.last_use())
        datasets = tuple(store.ask(lambda index: index.held()))
        return CacheInfo(
            path=str(path),
            size=store.own_bytes() + sum(held.size for held in datasets),
            entries=sum(held.entries for held in datasets),
            oldest_use=use and _time(use[0]),
            latest_use=use and _time(use[1]),
            datasets=datasets,
        )


def clear_cache(
    cache_dir: str | os.PathLike[str], location: str | os.PathLike[str] | None = None
) -> int:
    """Empty a cache, or drop what it holds of the dataset at `location`; bytes that it gave back.

    Whoever uses it meanwhile goes on, and reads anew. Raises `NotFoundError` where there is no
    cache, or where it holds nothing of that dataset.
    """
    with _opened(cache_dir) as (path, store):
        held = store.ask(lambda index: index.held())
        if location is None:
            store.clear()
            return sum(item.size for item in held)
        names = _names(location)
        found = [item for item in held if item.url in names]
        if not found:
            raise NotFoundError(
                "the cache holds nothing of this dataset",
                file=str(path),
                expected=", ".join(item.url for item in held[:5]) or "it is empty",
                got=min(names),
            )
        for item in found:
            store.clear(item.url)
        return sum(item.size for item in found)


@contextlib.contextmanager
def _opened(cache_dir: str | os.PathLike[str]) -> Iterator[tuple[Path, CacheStore]]:
    path = local_path(cache_dir, "the cache's folder").absolute()
    if not check_folder(path):
        raise NotFoundError("no cache here", file=str(path))
    store = CacheStore(path, limit=0, patience=_PATIENCE_SECONDS)
    try:
        yield path, store
    except StorageError:
        raise
    except (OSError, sqlite3.Error) as error:
        raise StorageError(f"the cache cannot be used: {error}", file=str(path)) from error
    finally:
        store.close()


def _names(location: str | os.PathLike[str]) -> set[str]:
    """The URLs by which a cache may know a dataset."""
    where = parse_location(location)
    shown = where.shown.rstrip("/")
    return {str(Path(shown).expanduser().absolute())} if where.protocol == "file" else {shown}


def _time(nanoseconds: int) -> datetime:
    return datetime.fromtimestamp(nanoseconds / 1e9, timezone.utc)


def _minute(time: datetime) -> str:
    return time.strftime("%Y-%m-%d %H:%M")


def _entries(number: int) -> str:
    return f"{number:,} {'entry' if number == 1 else 'entries'}"
