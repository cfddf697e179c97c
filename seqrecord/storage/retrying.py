"""Attempts that are repeated until one goes well or a deadline passes.

Requests to each file are limited too: a service answers 503 to more. A quota limits those to all
files of a storage, and the bytes that are read.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from seqrecord.errors import (
    ConflictError,
    DeadlineError,
    NotFoundError,
    StorageError,
    TransientError,
)
from seqrecord.processes.forks import PerProcess
from seqrecord.storage.base import (
    MAX_PUT_BYTES,
    Entry,
    FileInfo,
    Storage,
    StorageWrapper,
    Unfinished,
    Upload,
)
from seqrecord.storage.ranges import ByteRange, check_wanted
from seqrecord.text import counted

DEADLINE_SECONDS = 120.0
MAX_RETRY_AFTER = 600.0  # seconds that a server may ask to wait
REQUESTS_PER_SECOND = 400.0  # to one file; Azure's limit is about 500 to a blob

_LONGEST_WAIT = 8.0  # so that a server that recovers is soon asked again
_POLL_SECONDS = 0.25
_OTHER_CAUSES = 3  # in an error, beside the last attempt's
PATIENCE_SECONDS = 5.0  # until a warning, and between two of them

_logger = logging.getLogger("seqrecord")

_T = TypeVar("_T")


class Retrier:
    """Repeats what raises `TransientError`, and nothing else.

    The wait before attempt n + 1 is drawn from the upper half of [0, 0.25 s * 2 ** (n - 1)], at
    most 8 s of it, so that threads which failed together don't try again together. Where the server
    said how long to wait, see `heed`, that comes on top, even after the deadline. The last attempt
    starts at the deadline, `deadline` seconds after the first, or later if the server asked for it;
    when it fails too, it is a `DeadlineError`, which says how many there were, the last one's
    cause, and up to three other causes of those before it. An attempt itself takes as long as its
    client lets it.

    What has failed for `patience` seconds is logged as a warning, and what goes well then too; of
    many requests that fail together, one speaks.

    Each attempt first waits until `quota` allows it, which the deadline does not count.

    `close`, the end of the main thread, and the condition of `unwanted_if`, wake those that wait;
    they fail with `StorageError`.
    Safe to use from many threads, and after a fork; a pickled copy counts from zero. `clock`,
    `sleep`, `draw`, a number from [0, 1), and another `first_wait` are for tests.
    """

    first_wait = 0.25  # seconds before the second attempt, doubled each time

    def __init__(
        self,
        deadline: float = DEADLINE_SECONDS,
        *,
        quota: Quota | None = None,
        max_retry_after: float = MAX_RETRY_AFTER,
        patience: float = PATIENCE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        if not deadline >= 0:
            raise ValueError(f"a deadline of {deadline} seconds")
        self.deadline, self.quota, self._patience = deadline, quota, patience
        self._max_retry_after = max_retry_after
        self.clock, self._sleep, self._draw = clock, sleep, draw
        self._state = PerProcess(_State)

    def __reduce__(self) -> tuple[Any, ...]:
        most = self._max_retry_after
        return partial(Retrier, quota=self.quota, max_retry_after=most), (self.deadline,)

    def call(
        self,
        function: Callable[[], _T],
        *,
        file: str,
        item: ByteRange | None = None,
        nbytes: int | None = None,
    ) -> _T:
        """What `function()` returns, in the end. `file` and its range `item` are for the error.

        An attempt reads `nbytes`, by default all of the range.
        """
        if nbytes is None:
            nbytes = 0 if item is None else item.length
        state, start = self._state.get(), self.clock()
        closed, backoff, attempts = state.closed, self.first_wait, 0
        causes: list[str] = []  # each once, the last attempt's last
        while True:
            if self.quota is not None and (turn := self.quota.delay(nbytes)) > 0:
                self.sleep(turn, file=file, closed=closed)
                start += turn
            attempts += 1
            state.count("requests")
            try:
                result = function()
            except DeadlineError:
                raise  # of a retrier below
            except TransientError as error:
                cause, asked = error.message, error.retry_after or 0.0
                causes = [*(each for each in causes if each != cause), cause][-1 - _OTHER_CAUSES :]
            else:
                if attempts > 1 and state.was_warned():
                    _logger.warning("%s: recovered after %.0f s", file, self.clock() - start)
                return result
            now = self.clock()
            left = start + self.deadline - now
            if left <= 0:
                break
            self.heed(asked, file=file)
            if now - start >= self._patience and state.may_warn(now, self._patience):
                _logger.warning("%s: %s; tried again for %.0f s more", file, cause, left)
            state.count("retries")
            wait = max(asked, min(asked + backoff * (1 + self._draw()) / 2, left))
            self.sleep(wait, file=file, closed=closed)
            backoff = min(_LONGEST_WAIT, 2 * backoff)
        what = f"bytes {item.start} to {item.stop} could not be read" if item else "it failed"
        raise DeadlineError(
            f"{what}: {counted(attempts, 'attempt')} in {now - start:.0f} s; at last "
            + "; before that ".join(reversed(causes)),
            file=file,
        )

    def heed(self, asked: float, *, file: str) -> None:
        """Log a warning if a server asked to wait for a second or more before the next request.

        Raises `DeadlineError` if it asked for more than `max_retry_after` seconds.
        """
        if asked > self._max_retry_after:
            raise DeadlineError(
                f"the server asks to wait {asked:.0f} s before the next request",
                file=file,
                expected=f"at most {self._max_retry_after:.0f} s; try again later, or wait longer "
                f"with the storage option max_retry_after={asked:.0f}",
            )
        if asked >= 1 and self._state.get().may_warn(self.clock(), self._patience):
            _logger.warning("%s: the server asks to wait %.0f s; waiting", file, asked)

    def sleep(self, seconds: float, *, file: str, closed: threading.Event | None = None) -> None:
        """Wait; `StorageError` if closed, if the interpreter exits, or the request is cancelled."""
        if self._sleep is not None:
            self._sleep(seconds)
            return
        closed = closed or self._state.get().closed
        end = time.monotonic() + seconds
        check_wanted(file)
        while (left := end - time.monotonic()) > 0 or closed.is_set():
            # The end of the main thread sets no event, and nothing may run then but what was there.
            if closed.wait(min(left, _POLL_SECONDS)) or not threading.main_thread().is_alive():
                raise StorageError("closed while it waited to be tried again", file=file)
            check_wanted(file)

    def counters(self) -> dict[str, int]:
        """`requests`, attempts that is, and `retries`, the attempts after a first, so far."""
        return dict(self._state.get().counts)

    def close(self) -> None:
        """Wake the threads that wait. Calls that start afterwards may wait again."""
        state = self._state.get()
        closed, state.closed = state.closed, threading.Event()
        closed.set()


def put_once(
    storage: Storage, path: str, data: bytes, *, expected: str | None, is_lost: bool = False
) -> None:
    """One attempt of `storage.put`; the file that is there then tells whether it succeeded.

    `is_lost` says that the answer to an attempt before was lost. After a refusal or an error that
    may pass, the file is read: if it holds `data`, the put succeeded and only its answer was lost.
    So no other file may ever hold the same bytes. If it is still the one of the tag `expected`, the
    error is raised again, for another attempt: a `TransientError` where one before may yet be done.
    Otherwise another writer was there first, or has replaced what was put: `ConflictError`.
    """
    try:
        storage.put(path, data, expected=expected)
    except (ConflictError, TransientError) as error:
        failure = error
    else:
        return
    found: bytes | None = None
    tag: str | None = None
    try:
        found, tag = storage.read_whole(path, MAX_PUT_BYTES)
    except NotFoundError:
        pass
    except TransientError:
        raise
    except StorageError:
        tag = expected  # as far as can be seen
    if found == data:
        return
    if tag != expected:
        raise ConflictError("another writer replaced it meanwhile", file=f"{storage.url}/{path}")
    if is_lost and isinstance(failure, ConflictError):
        raise TransientError(failure.message, **failure.facts()) from failure
    raise failure


class RetryingStorage(StorageWrapper):
    """Repeats every request of the inner storage that may go well the next time; see `Retrier`.

    A call of `read_ranges` is one request, and is repeated whole: its buffers hold all of what one
    attempt read. Requests to one file are kept below `requests_per_second`. Uploads are passed on
    as they are: only who makes them knows what of them may be sent twice.
    """

    def __init__(
        self,
        inner: Storage,
        *,
        requests_per_second: float = REQUESTS_PER_SECOND,
        retrier: Retrier | None = None,
    ) -> None:
        super().__init__(inner)
        self.retrier = retrier or Retrier()
        self._pace = PerProcess(partial(Pace, requests_per_second, clock=self.retrier.clock))

    def size(self, path: str) -> int:
        return self._repeated(path, lambda: self.inner.size(path))

    def identity(self, path: str) -> tuple[int, str | None]:
        return self._repeated(path, lambda: StorageWrapper.identity(self, path))

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        if not ranges:
            return
        cover = ByteRange(min(r.start for r in ranges), max(r.stop for r in ranges))
        self._repeated(
            path,
            lambda: self.inner.read_ranges(path, ranges, buffers),
            cover,
            sum(each.length for each in ranges),
        )

    def read_whole(self, path: str, limit: int) -> tuple[bytes, str]:
        return self._repeated(path, lambda: self.inner.read_whole(path, limit))

    def put(self, path: str, data: bytes, *, expected: str | None) -> None:
        lost = False  # the answer to an attempt, which may yet be done

        def attempt() -> None:
            nonlocal lost
            try:
                put_once(self.inner, path, data, expected=expected, is_lost=lost)
            except TransientError:
                lost = True
                raise

        try:
            self._repeated(path, attempt)
        except TransientError:
            raise
        except StorageError as error:
            refused = isinstance(error, ConflictError) and self.has_conditions
            if refused or not lost:
                raise
            raise TransientError(error.message, **error.facts()) from error

    def files(self, folder: str) -> list[FileInfo]:
        return self._repeated(folder, lambda: self.inner.files(folder))

    def entries(self, folder: str) -> list[Entry]:
        return self._repeated(folder, lambda: StorageWrapper.entries(self, folder))

    def unfinished(self, folder: str) -> list[Unfinished]:
        found = self._repeated(folder, lambda: self.inner.unfinished(folder))
        return [_RetryingUnfinished(each, self._repeated) for each in found]

    def create(self, path: str) -> Upload:
        return self._repeated(path, lambda: self.inner.create(path))

    def remove(self, path: str) -> None:
        self._repeated(path, lambda: self.inner.remove(path))

    def counters(self) -> dict[str, int]:
        counts = Counter(self.inner.counters())
        counts.update(self.retrier.counters())
        return dict(counts)

    def close(self) -> None:
        self.retrier.close()
        super().close()

    def _repeated(
        self,
        path: str,
        function: Callable[[], _T],
        item: ByteRange | None = None,
        nbytes: int | None = None,
    ) -> _T:
        file = f"{self.url}/{path}"

        def request() -> _T:
            delay = self._pace.get().delay(path)
            if delay > 0:
                self.retrier.sleep(delay, file=file)
            return function()

        return self.retrier.call(request, file=file, item=item, nbytes=nbytes)


class _RetryingUnfinished:
    """Repeats what is read of an unfinished upload."""

    def __init__(
        self, inner: Unfinished, repeated: Callable[[str, Callable[[], Any]], Any]
    ) -> None:
        self.path, self.modified = inner.path, inner.modified
        self._inner, self._repeated = inner, repeated

    def checkpoints(self) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = self._repeated(self.path, self._inner.checkpoints)
        return found

    def read_ranges(self, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]) -> None:
        self._repeated(self.path, lambda: self._inner.read_ranges(ranges, buffers))

    def remove(self) -> None:
        self._repeated(self.path, self._inner.remove)


class _State:
    """What a process has counted, and the event that wakes its threads."""

    def __init__(self) -> None:
        self.closed = threading.Event()
        self.counts = {"requests": 0, "retries": 0}
        self._lock = threading.Lock()
        self._warned: float | None = None

    def count(self, name: str) -> None:
        with self._lock:
            self.counts[name] += 1

    def may_warn(self, now: float, patience: float) -> bool:
        """Whether it is time for another warning; then one is given."""
        with self._lock:
            due = self._warned is None or now - self._warned >= patience
            self._warned = now if due else self._warned
            return due

    def was_warned(self) -> bool:
        """Whether a warning stands; no longer after this."""
        with self._lock:
            warned, self._warned = self._warned, None
            return warned is not None


_BURST_SECONDS = 0.1  # this much of a second's requests may come at once
_MANY = 1024


class Pace:
    """When the next request to a file may go: at most `rate` a second, and a tenth more at once.

    The algorithm is the "virtual scheduling" one of ITU-T I.371. Safe to use from many threads.
    """

    def __init__(self, rate: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        if not rate > 0:
            raise ValueError(f"a rate of {rate} requests a second")
        self._interval = 1 / rate
        self._clock = clock
        self._lock = threading.Lock()
        self._due: dict[str, float] = {}  # when the next request is due, at an even pace

    def __len__(self) -> int:
        """Files that it keeps in mind."""
        return len(self._due)

    def delay(self, path: str, amount: int = 1, *, after: float = 0.0) -> float:
        """Seconds that a request to `path` must wait, `after` at least; the turn after it is
        another's.

        One that counts as several delays those after it, not itself.
        """
        with self._lock:
            now = self._clock()
            if len(self._due) > _MANY:
                self._due = {name: due for name, due in self._due.items() if due > now}
            due = max(now + after, self._due.get(path, now))
            self._due[path] = due + amount * self._interval
        return max(after, due - now - _BURST_SECONDS)


class Quota:
    """What all threads of a process together may ask of a storage: requests a second, and bytes
    that are read a second. Picklable; a copy in another process has a pace of its own."""

    def __init__(
        self,
        requests_per_second: float = math.inf,
        bandwidth: float = math.inf,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._requests = PerProcess(partial(Pace, requests_per_second, clock=clock))
        self._bytes = PerProcess(partial(Pace, bandwidth, clock=clock))

    def delay(self, nbytes: int = 0) -> float:
        """Seconds that a request must wait, which reads so many bytes.

        Its turn among requests comes when it may read them, or many would go together then.
        """
        return self._requests.get().delay("", after=self._bytes.get().delay("", nbytes))
