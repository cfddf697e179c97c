"""Files of several datasets under one storage, for a dataset that joins them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from seqrecord.store.storage.base import (
    Storage,
    StorageWrapper,
    has_fixed_files,
    identity_of,
    mapped_path_of,
)
from seqrecord.store.storage.ranges import ByteRange


class JoinedStorage(StorageWrapper):
    """The first storage, and files of others by paths with the number of their storage.

    `+1/records/a.seqrec` is `records/a.seqrec` in the first of `others`. Read-only: datasets that
    are joined are not edited.
    """

    def __init__(self, inner: Storage, others: Sequence[Storage]) -> None:
        super().__init__(inner)
        self.others = tuple(others)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return type(self), (self.inner, self.others)

    def beneath(self, path: str) -> tuple[Storage, str]:
        if not path.startswith("+"):
            return self.inner, path
        number, _, inner_path = path[1:].partition("/")
        return self.others[int(number) - 1], inner_path

    def size(self, path: str) -> int:
        storage, inner_path = self.beneath(path)
        return storage.size(inner_path)

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        storage, inner_path = self.beneath(path)
        storage.read_ranges(inner_path, ranges, buffers)

    def read_whole(self, path: str, limit: int) -> tuple[bytes, str]:
        storage, inner_path = self.beneath(path)
        return storage.read_whole(inner_path, limit)

    def identity(self, path: str) -> tuple[int, str | None]:
        return identity_of(*self.beneath(path))

    def local_path(self, path: str) -> str | None:
        storage, inner_path = self.beneath(path)
        return storage.local_path(inner_path)

    def mapped_path(self, path: str) -> str | None:
        """See `mapped_path_of`."""
        return mapped_path_of(*self.beneath(path))

    @property
    def has_fixed_files(self) -> bool:
        return all(map(has_fixed_files, (self.inner, *self.others)))

    def counters(self) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for storage in dict.fromkeys((self.inner, *self.others)):
            counts.update(storage.counters())
        return dict(counts)

    def close(self) -> None:
        for storage in (self.inner, *self.others):
            storage.close()


def joined_path(number: int, path: str) -> str:
    """Return the path in a `JoinedStorage` for a file of storage `number`; 0 is the first."""
    return f"+{number}/{path}" if number else path
