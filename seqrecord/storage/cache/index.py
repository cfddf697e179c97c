"""What a cache holds, when it was used and what it takes: one SQLite file.

It knows nothing of the entries' files. Whoever uses it holds the lock of the cache (see
`store`), so SQLite's own locks are never waited for.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from seqrecord.ranges import ByteRange
from seqrecord.storage.cache.entry import CacheKey

__all__ = ["CacheIndex", "Entry", "Held"]

_VERSION = 1
_PAGE_BYTES = 4096

_TABLES = """
PRAGMA page_size = 4096;
PRAGMA auto_vacuum = FULL;
BEGIN;
CREATE TABLE entries (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    file INTEGER NOT NULL,          -- CacheKey.number
    start INTEGER NOT NULL,
    stop INTEGER NOT NULL,
    size INTEGER NOT NULL,          -- bytes on disk
    used INTEGER NOT NULL,          -- when it was last: nanoseconds
    ready INTEGER NOT NULL,         -- 0 while it is written
    name TEXT NOT NULL              -- of its file
);
CREATE UNIQUE INDEX by_place ON entries (file, start);
CREATE INDEX by_use ON entries (ready, used);
CREATE TABLE files (number INTEGER PRIMARY KEY, url TEXT NOT NULL, path TEXT NOT NULL);
CREATE TABLE totals (ready INTEGER PRIMARY KEY, bytes INTEGER NOT NULL);
INSERT INTO totals VALUES (0, 0), (1, 0);
CREATE TRIGGER added AFTER INSERT ON entries BEGIN
    UPDATE totals SET bytes = bytes + new.size WHERE ready = new.ready;
END;
CREATE TRIGGER removed AFTER DELETE ON entries BEGIN
    UPDATE totals SET bytes = bytes - old.size WHERE ready = old.ready;
END;
CREATE TRIGGER finished AFTER UPDATE OF ready ON entries BEGIN
    UPDATE totals SET bytes = bytes - old.size WHERE ready = old.ready;
    UPDATE totals SET bytes = bytes + new.size WHERE ready = new.ready;
END;
PRAGMA user_version = 1;
COMMIT;
"""

_COLUMNS = "id, file, start, stop, size, name"


class Entry(NamedTuple):
    """An entry: bytes `[start, stop)` of a stored file, in the file `name` of the cache."""

    id: int
    file: int
    start: int
    stop: int
    size: int
    name: str

    @property
    def range(self) -> ByteRange:
        return ByteRange(self.start, self.stop)


class Held(NamedTuple):
    """What is held of one storage: entries, and bytes on disk."""

    url: str
    entries: int
    size: int


class CacheIndex:
    """The index at `path`, made if it is not there. Entries of a stored file never overlap.

    Raises `sqlite3.DatabaseError`, but not `sqlite3.OperationalError`, for one that is damaged.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        # Autocommit: transactions are begun explicitly.
        self._db = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rw'}",
            uri=True,
            timeout=1,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=64,
        )
        try:
            # After a crash of the machine it may be damaged, which is noticed and costs the cache.
            for pragma in ("journal_mode = TRUNCATE", "synchronous = OFF", "temp_store = MEMORY"):
                self._db.execute(f"PRAGMA {pragma}")
            version = self._number("PRAGMA user_version")
            if version == 0 and not read_only:
                self._db.executescript(_TABLES)
            elif version != _VERSION:
                raise sqlite3.DatabaseError(f"a cache of version {version}")
            elif self._db.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
                raise sqlite3.DatabaseError("the index is damaged")
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        self._db.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All of the changes inside, or none of them."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):  # the first error counts
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
            raise

    def overlapping(self, key: CacheKey, item: ByteRange, *, ready: bool = True) -> list[Entry]:
        """Entries that hold some of a range, in its order; with `ready`, only those written."""
        # Since none overlap, of those that start before the range only the last can reach into it.
        rows = self._db.execute(
            f"SELECT {_COLUMNS} FROM entries WHERE file = :file AND start < :stop "  # noqa: S608
            "AND start >= coalesce((SELECT max(start) FROM entries WHERE file = :file "
            "AND start <= :start), :start) AND stop > :start AND ready >= :ready ORDER BY start",
            {"file": key.number, "start": item.start, "stop": item.stop, "ready": int(ready)},
        )
        return [Entry(*row) for row in rows]

    def of_file(self, key: CacheKey) -> list[Entry]:
        """All entries of a stored file."""
        return self._entries("file = ?", key.number)

    def of_storage(self, url: str) -> list[Entry]:
        """All entries of the files of a storage."""
        return self._entries("file IN (SELECT number FROM files WHERE url = ?)", url)

    def being_written(self) -> list[Entry]:
        """Entries that somebody writes, or was killed writing."""
        return self._entries("ready = 0")

    def oldest(self) -> Iterator[Entry]:
        """Entries that are ready, those first whose use is longest ago. Not to be changed along."""
        for row in self._db.execute(
            f"SELECT {_COLUMNS} FROM entries WHERE ready = 1 ORDER BY used, id"  # noqa: S608
        ):
            yield Entry(*row)

    def names(self) -> dict[str, int]:
        """The id of each entry by the name of its file."""
        return dict(self._db.execute("SELECT name, id FROM entries"))

    def held_bytes(self, *, ready: bool) -> int:
        """Bytes on disk of the entries that are ready, or of those that are being written."""
        return self._number("SELECT bytes FROM totals WHERE ready = ?", int(ready))

    def own_bytes(self) -> int:
        """Bytes on disk of the index itself."""
        return self._number("PRAGMA page_count") * _PAGE_BYTES

    def held(self) -> list[Held]:
        """What is held of each storage."""
        rows = self._db.execute(
            "SELECT url, count(*), sum(size) FROM entries JOIN files ON number = file "
            "GROUP BY url ORDER BY url"
        )
        return [Held(*row) for row in rows]

    def last_use(self) -> tuple[int, int] | None:
        """When the entry was used whose use is longest ago, and the latest; nanoseconds."""
        first, last = self._db.execute("SELECT min(used), max(used) FROM entries").fetchone()
        return None if first is None else (first, last)

    def add(self, key: CacheKey, item: ByteRange, size: int, name: str, used: int) -> int:
        """An entry that is about to be written: its id, never given again."""
        self._db.execute(
            "INSERT OR IGNORE INTO files VALUES (?, ?, ?)", (key.number, key.url, key.path)
        )
        row = (key.number, *item, size, used, name)
        return int(
            self._db.execute(
                "INSERT INTO entries (file, start, stop, size, used, ready, name) "
                "VALUES (?, ?, ?, ?, ?, 0, ?)",
                row,
            ).lastrowid
            or 0
        )

    def finish(self, entry: int) -> bool:
        """The entry is written; false if it was dropped meanwhile."""
        done = self._db.execute("UPDATE entries SET ready = 1 WHERE id = ?", (entry,))
        return done.rowcount == 1

    def remove(self, entries: Iterable[int]) -> int:
        """Drop entries; how many of them there were."""
        rows = [(entry,) for entry in entries]
        return (
            self._db.executemany("DELETE FROM entries WHERE id = ?", rows).rowcount if rows else 0
        )

    def forget_files(self) -> None:
        """Drop the names of files of which nothing is held."""
        self._db.execute("DELETE FROM files WHERE number NOT IN (SELECT file FROM entries)")

    def touch(self, used: Mapping[int, int]) -> None:
        """Entries were used at these times."""
        self._db.executemany(
            "UPDATE entries SET used = max(used, ?) WHERE id = ?",
            [(time, entry) for entry, time in used.items()],
        )

    def _entries(self, where: str, *values: object) -> list[Entry]:
        rows = self._db.execute(
            f"SELECT {_COLUMNS} FROM entries WHERE {where}",  # noqa: S608 - not from outside
            values,
        )
        return [Entry(*row) for row in rows]

    def _number(self, statement: str, *values: object) -> int:
        return int(self._db.execute(statement, values).fetchone()[0])
