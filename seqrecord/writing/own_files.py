"""Files that are one writer's: their names, notes beside record files, small files of a commit.

Notes are no part of the format: they name record files that left a dataset. The age of a note is
the time since that commit, for a reader that had opened the dataset may still read the files; only
`clean` looks at it.
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
from seqrecord.format.manifest import EDITS, FILE_PATH, INDEX, IndexFile
from seqrecord.storage import Storage

_NAME = re.compile(
    r"(?:records/\d{5,}-([0-9a-f]{16})[0-9a-f]{16}\.seqrec"
    r"|records/([0-9a-f]{16})(?:[0-9a-f]{16})?\.(?:left|clock)"
    r"|index/([0-9a-f]{16})(?:[0-9a-f]{16})?-[a-z0-9]+\.(?:arrow|json)"
    r"|edits/\d{8,}-([0-9a-f]{16})\.json)"
)
_LEFT = re.compile(rf"{RECORDS}/[0-9a-f]{{32}}\.left")

_logger = logging.getLogger("seqrecord")


def new_writer_id() -> str:
    """What a writer's files and episodes have in common and no other writer's: 64 random bits."""
    return secrets.token_hex(8)


def writer_of(path: str) -> str | None:
    """The id of the writer of a file of a dataset, if its name has one."""
    match = _NAME.fullmatch(path)
    return match and match[match.lastindex or 0]


def own_sizes(sizes: Mapping[str, int], writer: str) -> dict[str, int]:
    """Of the record files of these paths and sizes those of a writer."""
    return {path: size for path, size in sizes.items() if writer_of(path) == writer}


class SmallFiles:
    """The small files that one writer writes for a commit, whose id they have; a context manager.

    If the block raises, they are removed, unless a manifest may name them: from `keep` on they
    stay, until `forget` says that no manifest can name them but perhaps those that it is given.
    After a `TransientError` only edits are removed: it would be waited for each file.
    """

    def __init__(self, storage: Storage, writer: str | None = None) -> None:
        self.storage, self.writer = storage, writer or new_writer_id()
        self.commit_id = self.writer + secrets.token_hex(8)
        self._paths: list[str] = []
        self._is_kept = False

    def put(self, path: str, data: bytes | memoryview) -> IndexFile:
        """Write a file under a name that nobody else uses, and which nothing names yet."""
        self._paths.append(path)
        return put_file(self.storage, path, data)

    def put_index(self, name: str, data: bytes | memoryview) -> IndexFile:
        """The same in the folder of the index, under a name that ends so."""
        return self.put(f"{INDEX}/{self.commit_id}-{name}", data)

    def keep(self) -> None:
        """A manifest that names the files may be there from now on."""
        self._is_kept = True

    def forget(self, named: Iterable[str] = ()) -> None:
        """No manifest names the files, and none ever will, but those that are `named`."""
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
    """Write a file under a name that nobody else uses, and which nothing names yet."""
    upload = storage.create(path)
    try:
        upload.write(data)
        upload.commit()
    except BaseException:
        upload.abort()
        raise
    return IndexFile(path, len(memoryview(data).cast("B")), f"{crc32c(data):08x}")


def tidy(storage: Storage, paths: Iterable[str]) -> None:
    """Remove files that nothing needs. One that cannot be removed is logged, and stays.

    Nor are those after it removed where the storage does not answer.
    """
    for path in paths:
        try:
            storage.remove(path)
        except StorageError as error:
            _logger.warning(
                "%s/%s is not needed but cannot be removed: %s", storage.url, path, error
            )
            if isinstance(error, TransientError):
                return


@dataclass(frozen=True)
class RetiredFiles:
    """A note: its path, when it was written (seconds since 1970), and the files that it names."""

    path: str
    modified: float
    files: frozenset[str]


def is_retired_note(path: str) -> bool:
    """Whether it is the path of a note of files that left a dataset."""
    return _LEFT.fullmatch(path) is not None


def put_retired_note(own: SmallFiles, files: Sequence[str]) -> None:
    """Write a note of these record files, just before the commit that leaves them out."""
    own.put(f"{RECORDS}/{own.commit_id}.left", "".join(f"{file}\n" for file in files).encode())


def retired_files(storage: Storage) -> list[RetiredFiles]:
    """All notes of files that left. What is no path of a file of a dataset is not in them."""
    found = []
    for file in storage.files(RECORDS):
        if is_retired_note(file.path):
            try:
                data, _ = storage.read_whole(file.path, file.size)
            except NotFoundError:  # another clean has removed it
                continue
            lines = data.decode(errors="replace").splitlines()
            named = frozenset(line for line in lines if FILE_PATH.fullmatch(line))
            found.append(RetiredFiles(file.path, file.modified, named))
    return found
