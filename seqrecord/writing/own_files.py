"""Files of one writer: names, notes beside record files, small files of a commit.

Notes are not part of the format. They name record files that left a dataset, and their age is the
time since that commit: a reader that opened the dataset before may still read the files. Only
`clean` reads notes.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from seqrecord.checksum import crc32c
from seqrecord.errors import NotFoundError, StorageError, TransientError
from seqrecord.format.footer import RECORDS
from seqrecord.format.manifest import EDITS, FILE_PATH, INDEX, IndexFile, StatisticsFile
from seqrecord.format.statistics_file import encode_statistics
from seqrecord.statistics.by_feature import Statistics
from seqrecord.storage import Storage

_NAME = re.compile(
    r"(?:records/\d{5,}-([0-9a-f]{16})[0-9a-f]{16}\.seqrec"
    r"|records/([0-9a-f]{16})(?:[0-9a-f]{16})?\.(?:left|clock)"
    r"|index/([0-9a-f]{16})(?:[0-9a-f]{16})?-[a-z0-9]+\.(?:arrow|json)"
    r"|edits/\d{8,}-([0-9a-f]{16})\.json)"
)
WRITER_DIGITS = 16  # of an id; a commit id begins with its writer's
_FINAL = "final"
_LEFT = re.compile(rf"{RECORDS}/[0-9a-f]{{32}}\.left")

_logger = logging.getLogger("seqrecord")


def new_writer_id() -> str:
    """A random id, 64 bits in hex, that a writer's files and episodes share."""
    return secrets.token_hex(WRITER_DIGITS // 2)


def writer_of(path: str) -> str | None:
    """Id of the writer of a dataset's file, if the path has one."""
    match = _NAME.fullmatch(path)
    return match and match[match.lastindex or 0]


def own_sizes(sizes: Mapping[str, int], writer: str) -> dict[str, int]:
    """Paths and sizes of the record files of a writer."""
    return {path: size for path, size in sizes.items() if writer_of(path) == writer}


class SmallFiles:
    """The small files that one writer writes for a commit, named by its id; a context manager.

    If the block raises, they are removed. After `keep` they stay, because a manifest may name them;
    `forget` ends that. After a `TransientError` only edits are removed, since each removal would
    wait for the storage.
    """

    def __init__(self, storage: Storage, writer: str | None = None) -> None:
        self.storage, self.writer = storage, writer or new_writer_id()
        self.commit_id = self.writer + secrets.token_hex(8)
        self._paths: list[str] = []
        self._is_kept = False

    def put(self, path: str, data: bytes | memoryview) -> IndexFile:
        """Write a file under a new name that no other writer uses."""
        self._paths.append(path)
        return put_file(self.storage, path, data)

    def put_index(self, name: str, data: bytes | memoryview) -> IndexFile:
        """Write a file into the index folder, with a name that ends in `name`."""
        return self.put(f"{INDEX}/{self.commit_id}-{name}", data)

    def put_statistics(self, statistics: Statistics) -> StatisticsFile | None:
        """Write a file of statistics; `None` if it would be too large."""
        if (data := encode_statistics(statistics)) is None:
            return None
        file, lists = self.put_index("statistics.json", data), statistics.values()
        return StatisticsFile(**vars(file), non_finite=any(one.non_finite for one in lists))

    def keep(self) -> None:
        """Keep the files from now on: a manifest may name them."""
        self._is_kept = True

    def forget(self, named: Iterable[str] = ()) -> None:
        """Stop keeping files: no manifest will ever name them, except the files in `named`."""
        spared = set(named)
        self._paths = [path for path in self._paths if path not in spared]
        self._is_kept = False

    def __enter__(self) -> SmallFiles:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None or self._is_kept:
            return
        if isinstance(error, TransientError):
            self._paths = [path for path in self._paths if path.startswith(f"{EDITS}/")]
        tidy(self.storage, self._paths)


def put_file(storage: Storage, path: str, data: bytes | memoryview) -> IndexFile:
    """Write a file under a new name that no other writer uses."""
    upload = storage.create(path)
    try:
        upload.write(data)
        upload.commit()
    except BaseException:
        upload.abort()
        raise
    return IndexFile(path, len(memoryview(data).cast("B")), f"{crc32c(data):08x}")


def tidy(storage: Storage, paths: Iterable[str]) -> None:
    """Remove unneeded files. A failed removal is logged; a `TransientError` ends the loop."""
    for path in paths:
        try:
            storage.remove(path)
        except StorageError as error:
            _logger.warning("%s/%s: unneeded file cannot be removed: %s", storage.url, path, error)
            if isinstance(error, TransientError):
                return


@dataclass(frozen=True)
class RetiredFiles:
    """A note of record files that left the dataset; `modified` is in seconds since 1970.

    `is_final` is whether they were left on purpose: nothing recovers them.
    """

    path: str
    modified: float
    files: frozenset[str]
    is_final: bool


def is_retired_note(path: str) -> bool:
    """Whether a path is a note of record files that left a dataset."""
    return _LEFT.fullmatch(path) is not None


def put_retired_note(own: SmallFiles, files: Sequence[str], *, is_final: bool = False) -> None:
    """Write a note of these record files, just before the commit that leaves them out."""
    lines = [*files, *([_FINAL] if is_final else [])]
    own.put(f"{RECORDS}/{own.commit_id}.left", "".join(f"{line}\n" for line in lines).encode())


def retired_files(storage: Storage) -> list[RetiredFiles]:
    """All notes of files that left the dataset. Lines that are not paths of a dataset are
    ignored."""
    found = []
    for file in storage.files(RECORDS):
        if is_retired_note(file.path):
            try:
                data, _ = storage.read_whole(file.path, file.size)
            except NotFoundError:  # another clean has removed it
                continue
            lines = data.decode(errors="replace").splitlines()
            named = frozenset(line for line in lines if FILE_PATH.fullmatch(line))
            found.append(RetiredFiles(file.path, file.modified, named, _FINAL in lines))
    return found
