"""Storages that count reads or inject faults, and abandoned writers."""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from weakref import WeakKeyDictionary

from seqrecord import SeqRecordWriter
from seqrecord.errors import StorageError, TransientError
from seqrecord.store.storage.base import FileInfo, Storage, StorageWrapper, Unfinished, Upload
from seqrecord.store.storage.opening import StorageLike, open_storage
from seqrecord.store.storage.ranges import ByteRange
from tests.kit.processes import own_threads, wait_for

if TYPE_CHECKING:
    import pytest

Operation: TypeAlias = Literal["size", "read", "create", "write", "commit", "put", "list", "remove"]
Ending: TypeAlias = Literal["short", "cut", "damaged"]
"""A read ends halfway like a short file or a lost connection, with other bytes in the rest of its
buffers; or a bit of its first buffer is flipped."""

Failure: TypeAlias = "Exception | Ending | None"
"""The error to raise, the `Ending` of a read, or `None`."""

Fault: TypeAlias = Callable[[Operation, str, int], Failure]
"""`fault(operation, path, number)` for the number-th operation of its kind, counted from 0.

It may sleep.
"""


class CountingStorage(StorageWrapper):
    """Counts requests and bytes. A pickled copy starts from zero.

    `ranges` are the ranges read, in order, by path; `sizes` counts requests for a file's length,
    and `lists` listings of a folder. It is a local disk only with `is_local`.
    """

    def __init__(self, inner: Storage, *, is_local: bool = False) -> None:
        super().__init__(inner)
        self._lock, self._is_local = threading.Lock(), is_local
        self.reset()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(CountingStorage, is_local=self._is_local), (self.inner,)

    def local_path(self, path: str) -> str | None:
        return self.inner.local_path(path) if self._is_local else None

    def reset(self) -> None:
        """Forget what was counted."""
        with self._lock:
            self.ranges: dict[str, list[ByteRange]] = {}
            self.sizes: Counter[str] = Counter()
            self.lists: Counter[str] = Counter()

    @property
    def bytes_read(self) -> int:
        with self._lock:
            return sum(item.length for ranges in self.ranges.values() for item in ranges)

    def size(self, path: str) -> int:
        with self._lock:
            self.sizes[path] += 1
        return super().size(path)

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        with self._lock:
            self.ranges.setdefault(path, []).extend(ranges)
        super().read_ranges(path, ranges, buffers)

    def read_whole(self, path: str, limit: int) -> tuple[bytes, str]:
        data, tag = super().read_whole(path, limit)
        with self._lock:
            self.ranges.setdefault(path, []).append(ByteRange(0, len(data)))
        return data, tag

    def files(self, folder: str) -> list[FileInfo]:
        with self._lock:
            self.lists[folder] += 1
        return super().files(folder)


class FaultyStorage(StorageWrapper):
    """Calls `fault` before every operation, and injects its result; see `Fault`.

    `injected` counts the faults. A pickled copy counts its operations from zero.
    """

    def __init__(self, inner: Storage, fault: Fault) -> None:
        super().__init__(inner)
        self._fault = fault
        self._lock = threading.Lock()
        self._counts: Counter[Operation] = Counter()
        self.injected = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return FaultyStorage, (self.inner, self._fault)

    def ask(self, operation: Operation, path: str) -> Ending | None:
        """Raise the operation's error, if any; returns how a read ends early, if it does."""
        with self._lock:
            number = self._counts[operation]
            self._counts[operation] += 1
        failure = self._fault(operation, path, number)
        self.injected += failure is not None
        if isinstance(failure, Exception):
            raise failure
        return failure

    def size(self, path: str) -> int:
        self.ask("size", path)
        return super().size(path)

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        ends = self.ask("read", path)
        super().read_ranges(path, ranges, buffers)
        if ends == "damaged":
            buffers[0].cast("B")[buffers[0].nbytes // 2] ^= 1
        elif ends is not None:
            cut = ranges[-1].length // 2
            buffers[-1].cast("B")[cut:] = bytes(ranges[-1].length - cut)
            if ends == "short":
                raise StorageError("the file ended early", file=f"{self.url}/{path}")
            raise TransientError("an answer was cut", file=f"{self.url}/{path}")

    def read_whole(self, path: str, limit: int) -> tuple[bytes, str]:
        if self.ask("read", path) is not None:
            raise TransientError("an answer was cut", file=f"{self.url}/{path}")
        return super().read_whole(path, limit)

    def create(self, path: str) -> Upload:
        self.ask("create", path)
        return _FaultyUpload(self, super().create(path))

    def put(self, path: str, data: bytes, *, expected: str | None) -> None:
        self.ask("put", path)
        super().put(path, data, expected=expected)

    def files(self, folder: str) -> list[FileInfo]:
        self.ask("list", folder)
        return super().files(folder)

    def unfinished(self, folder: str) -> list[Unfinished]:
        return [_FaultyUnfinished(self, upload) for upload in super().unfinished(folder)]

    def remove(self, path: str) -> None:
        self.ask("remove", path)
        super().remove(path)


class _FaultyUpload:
    def __init__(self, storage: FaultyStorage, inner: Upload) -> None:
        self._storage, self._inner = storage, inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def write(self, data: Any) -> None:
        self._storage.ask("write", self.path)
        self._inner.write(data)

    def commit(self) -> None:
        self._storage.ask("commit", self.path)
        self._inner.commit()


class _FaultyUnfinished:
    def __init__(self, storage: FaultyStorage, inner: Unfinished) -> None:
        self._storage, self._inner = storage, inner

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._inner, name)
        if name not in ("checkpoints", "read_ranges", "remove"):
            return function

        def call(*args: Any) -> Any:
            self._storage.ask("remove" if name == "remove" else "read", self._inner.path)
            return function(*args)

        return call


class LosesResponse(StorageWrapper):
    """Loses the response to the first put of a manifest: raises an error of type `raises`.

    With `now` the put takes effect at once, otherwise `land` does it later, on its condition.
    `meanwhile` is called before the error is raised. Without `has_conditions` a late put
    overwrites.
    """

    def __init__(
        self,
        inner: Storage,
        *,
        now: bool,
        meanwhile: Callable[[], object] = lambda: None,
        raises: type[BaseException] = TransientError,
        has_conditions: bool = True,
    ) -> None:
        super().__init__(inner)
        self._now, self._meanwhile, self._raises = now, meanwhile, raises
        self._conditions = has_conditions
        self._late: tuple[str, bytes, str | None] | None = None
        self.count = 0

    @property
    def has_conditions(self) -> bool:
        return self._conditions

    def put(self, path: str, data: bytes, *, expected: str | None) -> None:
        if path != "manifest.json":
            super().put(path, data, expected=expected)
            return
        self.count += 1
        if self.count > 1 or self._now:
            super().put(path, data, expected=expected)
        if self.count == 1:
            self._late = None if self._now else (path, data, expected)
            self._meanwhile()
            raise self._raises("the connection was reset")

    def land(self) -> None:
        """Do the delayed put."""
        assert self._late is not None
        path, data, expected = self._late
        if not self._conditions:
            expected = self.inner.read_whole(path, 1 << 25)[1]
        self.inner.put(path, data, expected=expected)


class FailAt:
    """Fails the `number`-th operation of one kind, on paths that contain `path`.

    With `onwards` all following ones fail, too, as on a full disk.
    """

    def __init__(
        self,
        operation: Operation,
        number: int = 0,
        *,
        path: str = "",
        error: Failure = None,
        onwards: bool = False,
    ) -> None:
        self._chosen = operation, number, path, onwards
        self._error, self._seen = error, 0

    def __call__(self, operation: Operation, path: str, number: int) -> Failure:
        chosen, at, part, onwards = self._chosen
        if operation != chosen or part not in path:
            return None
        self._seen += 1
        if not (self._seen > at if onwards else self._seen == at + 1):
            return None
        return self._error or StorageError(f"{operation} {number} fails as asked", file=path)


def damages_once(inner: Storage, ending: str = ".seqrec", *, number: int = 0) -> FaultyStorage:
    """Flips a bit of the data of read `number`, from 0, of files with this ending."""
    return FaultyStorage(inner, FailAt("read", number, path=ending, error="damaged"))


def fail_calls(
    patch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    code: int,
    *,
    below: Path | None = None,
    flags: int = 0,
) -> None:
    """Let a function that takes a path or a descriptor first raise `OSError` with this `code`.

    Only for files below a folder, and only for `os.open` with any of the `flags`, if given.
    """
    real = getattr(owner, name)

    def call(target: Any, *args: Any, **options: Any) -> Any:
        is_open = isinstance(target, int)
        path = Path(f"/proc/self/fd/{target}").readlink() if is_open else Path(target)
        if (below and not path.is_relative_to(below)) or (flags and not args[0] & flags):
            return real(target, *args, **options)
        raise OSError(code, os.strerror(code), None if is_open else target)

    patch.setattr(owner, name, call)


class CreateGate:
    """No fault: the creation of a record file sets `reached`, and waits for `opened`."""

    def __init__(self) -> None:
        self.opened, self.reached = threading.Event(), threading.Event()

    def __call__(self, operation: Operation, path: str, number: int) -> Failure:
        if operation == "create" and path.startswith("records/"):
            self.reached.set()
            assert self.opened.wait(60)
        return None


class FailTransiently:
    """Transient faults in a share `rate` of the operations of these kinds, chosen by the seed.

    Errors, and reads that end early; some errors have a `retry_after` in seconds.
    """

    def __init__(
        self,
        seed: int,
        rate: float,
        operations: Sequence[Operation] = ("read", "size", "list"),
        *,
        retry_after: float | None = None,
    ) -> None:
        self._seed, self._rate, self._operations = seed, rate, tuple(operations)
        self._retry_after = retry_after

    def __call__(self, operation: Operation, path: str, number: int) -> Failure:
        if operation not in self._operations:
            return None
        rng = random.Random(f"{self._seed} {operation} {number}")
        if rng.random() >= self._rate:
            return None
        kind = rng.randrange(3)
        if kind == 0 and operation == "read":
            return "cut"
        error = TransientError(f"{operation} {number} fails as asked", file=path)
        error.retry_after = self._retry_after if kind == 1 else None
        return error


_STORAGES: WeakKeyDictionary[SeqRecordWriter, Storage] = WeakKeyDictionary()


def abandonable(destination: StorageLike, **options: Any) -> SeqRecordWriter:
    """A `SeqRecordWriter` for `abandon`."""
    storage = open_storage(destination)
    writer = SeqRecordWriter(storage, **options)
    _STORAGES[writer] = storage
    return writer


def small_writer(where: Any, mode: Any = "create", **options: Any) -> SeqRecordWriter:
    """A writer with short chunks and files, for `abandon`."""
    defaults = {"codecs": "raw", "chunk_frames": 2, "max_file_size": 700}
    return abandonable(where, mode=mode, **(defaults | options))


def abandon(writer: SeqRecordWriter) -> None:
    """Stop all writes as if its process were killed; open files stay as they are."""
    _STORAGES.pop(writer).close()
    wait_for(lambda: not own_threads("seqrecord-commit"))
