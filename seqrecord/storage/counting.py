"""Counts what would be asked of a storage: `seqrecord plan` runs an epoch's loads on one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from seqrecord.storage.base import Storage, StorageWrapper, check_buffers
from seqrecord.storage.parallel import ParallelStorage
from seqrecord.storage.ranges import ByteRange


@dataclass(frozen=True)
class Amount:
    """What is asked of the storage, and decoded of it.

    `requests` are those to services, none of a local disk or a mount; `bytes` are those that they
    bring, gaps between pages too. `frames_decoded` are counted as in `SeqRecordPipe.stats`, and so
    are `video_frames_decoded`, of which this is the most there can be.
    """

    requests: int = 0
    bytes: int = 0
    frames_decoded: int = 0
    video_frames_decoded: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __sub__(self, other: Amount) -> Amount:
        return self + other * -1

    def __mul__(self, times: float) -> Amount:
        return Amount(*(round(getattr(self, f.name) * times) for f in fields(self)))


@dataclass
class Asked:
    """Requests to services, the bytes that come from these and from mounts, and those of disks.

    Once it `stands_for_all`, nothing is read any more. `seen` are the files that the process at
    hand has asked for.
    """

    requests: int = 0
    nbytes: int = 0
    disk_nbytes: int = 0
    stands_for_all: bool = False
    seen: set[object] = field(default_factory=set)


class CountingStorage(StorageWrapper):
    """Counts the requests that a storage would make for what is read, and leaves buffers as they
    are. With `reads` it reads, too. For one thread."""

    def __init__(self, inner: Storage, asked: Asked, *, reads: bool = False) -> None:
        super().__init__(inner)
        self.asked, self._reads = asked, reads
        self._parallel: ParallelStorage | None = None
        while isinstance(inner, StorageWrapper):
            if isinstance(inner, ParallelStorage):
                self._parallel = inner
            inner = inner.inner
        self._by_file: int = getattr(inner, "requests_by_file", 0)
        self._is_disk = inner.local_path("any name") is not None

    @property
    def leaves_buffers(self) -> bool:
        return self.asked.stands_for_all and not self._reads

    def size(self, path: str) -> int:
        if not self.leaves_buffers:
            return self.inner.size(path)
        self.asked.requests += self._parallel is not None
        return 1 << 62  # it holds whatever is asked for

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        check_buffers(ranges, buffers)
        if self._parallel is None:
            nbytes = sum(item.length for item in ranges)
            self.asked.disk_nbytes += nbytes * self._is_disk
            self.asked.nbytes += nbytes * (not self._is_disk)
        else:
            requests = self._parallel.requests(ranges, buffers)
            self.asked.requests += len(requests)
            self.asked.nbytes += sum(r[-1].stop - r[0].start for r, _ in requests)
            if self._by_file and (self.place, path) not in self.asked.seen:
                self.asked.seen.add((self.place, path))
                self.asked.requests += self._by_file
        if not self.leaves_buffers:
            self.inner.read_ranges(path, ranges, buffers)

    def local_path(self, path: str) -> str | None:
        return self.inner.local_path(path)


def leaves_buffers(storage: Storage) -> bool:
    """Whether what is read of a storage is not there afterwards, so that nothing checks it."""
    return getattr(storage, "leaves_buffers", False)
