"""Retries of failed requests until a deadline, and rate limits.

Requests per file are limited, since services answer 503 above a rate. A quota limits the requests
to all files of a storage, and the bytes read.
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
from seqrecord.store.processes.forks import PerProcess
from seqrecord.store.storage.base import (
    MAX_PUT_BYTES,
    Entry,
    FileInfo,
    Storage,
    StorageWrapper,
    Unfinished,
    Upload,
)
from seqrecord.store.storage.ranges import ByteRange, check_wanted
from seqrecord.store.text import counted

DEADLINE_SECONDS = 120.0
MAX_RETRY_AFTER = 600.0  # maximum delay in seconds that a server may ask for
REQUESTS_PER_SECOND = 400.0  # per file; Azure's limit is about 500 per blob

# Doubling without this limit would reach a minute before the deadline of 120 s. See
# tests/cloud/test_retrying.py::test_delays_between_attempts.
LONGEST_WAIT = 8.0  # seconds between attempts, so that a recovered server is used soon
_POLL_SECONDS = 0.25
_OTHER_CAUSES = 3  # earlier errors in a message, beside the last one
_PATIENCE_SECONDS = 5.0  # before the first warning, and between warnings

_logger = logging.getLogger("seqrecord")

_T = TypeVar("_T")


class Retrier:
    """Repeats calls that raise `TransientError`; other errors propagate.

    The delay before attempt n + 1 is random in the upper half of [0, 0.25 s * 2 ** (n - 1)], at
    most 8 s, so that threads that failed together do not retry together. A delay that the server
    asked for, see `check_server_delay`, is added, even beyond the deadline. The last attempt starts
    `deadline` seconds after the first, or later if the server asked for it. If it fails too, raises
    `DeadlineError` with the number of attempts, the last error and up to three earlier ones. The
    duration of an attempt is up to its client.

    A request that fails for 5 seconds is logged as a warning, and so is its later
    success; only one of many simultaneous failures is logged.

    Each attempt waits for the `quota` first; this time does not count for the deadline.

    `close`, the end of the main thread, and the condition of `unwanted_if` end all delays with
    `StorageError`. Thread-safe and fork-safe; a pickled copy has new counters. `clock`, `sleep`,
    `draw` (a random number in [0, 1)) and other values of `first_wait` are for tests.
    """

    first_wait = 0.25  # seconds before the second attempt, doubled for each further one

    def __init__(
        self,
        deadline: float = DEADLINE_SECONDS,
        *,
        quota: Quota | None = None,
        max_retry_after: float = MAX_RETRY_AFTER,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        if not deadline >= 0:
            raise ValueError(f"a deadline of {deadline} seconds")
        self.deadline, self.quota = deadline, quota
        self._max_retry_after = max_retry_after
        self.clock, self._sleep, self._draw = clock, sleep, draw
        self._state = PerProcess(_State)

    def __reduce__(self) -> tuple[Any, ...]:
        max_retry_after = self._max_retry_after
        return partial(Retrier, quota=self.quota, max_retry_after=max_retry_after), (self.deadline,)

    def call(
        self,
        function: Callable[[], _T],
        *,
        file: str,
        item: ByteRange | None = None,
        nbytes: int | None = None,
    ) -> _T:
        """Result of `function()`, after retries. `file` and its range `item` are for the error.

        An attempt reads `nbytes`, by default the length of the range.
        """
        if nbytes is None:
            nbytes = 0 if item is None else item.length
        state, start = self._state.get(), self.clock()
        closed, backoff, attempts = state.closed, self.first_wait, 0
        causes: dict[str, None] = {}  # in the order of their last attempts
        while True:
            if self.quota is not None and (quota_delay := self.quota.delay(nbytes)) > 0:
                self.sleep(quota_delay, file=file, closed=closed)
                start += quota_delay
            attempts += 1
            state.count("requests")
            try:
                result = function()
            except DeadlineError:
                raise  # from an inner retrier
            except TransientError as error:
                cause, server_delay = error.message, error.retry_after or 0.0
                causes.pop(cause, None)
                causes[cause] = None
            else:
                if attempts > 1 and state.was_warned():
                    _logger.warning("%s: recovered after %.0f s", file, self.clock() - start)
                return result
            current_time = self.clock()
            remaining_seconds = start + self.deadline - current_time
            if remaining_seconds <= 0:
                break
            self.check_server_delay(server_delay, file=file)
            if current_time - start >= _PATIENCE_SECONDS and state.may_warn(current_time):
                _logger.warning(
                    "%s: %s; tried again for %.0f s more", file, cause, remaining_seconds
                )
            state.count("retries")
            delay = max(
                server_delay,
                min(server_delay + backoff * (1 + self._draw()) / 2, remaining_seconds),
            )
            self.sleep(delay, file=file, closed=closed)
            backoff = min(LONGEST_WAIT, 2 * backoff)
        problem = f"bytes {item.start} to {item.stop} could not be read" if item else "it failed"
        raise DeadlineError(
            f"{problem}: {counted(attempts, 'attempt')} in {current_time - start:.0f} s; at last "
            + "; before that ".join([*reversed(causes)][: 1 + _OTHER_CAUSES]),
            file=file,
        )

    def check_server_delay(self, delay: float, *, file: str) -> None:
        """Log a warning if a server asked for a delay of a second or more.

        Raises `DeadlineError` if the delay exceeds `max_retry_after` seconds.
        """
        if delay > self._max_retry_after:
            raise DeadlineError(
                f"the server asks to wait {delay:.0f} s before the next request",
                file=file,
                expected=f"at most {self._max_retry_after:.0f} s; try again later, or wait longer "
                f"with the storage option max_retry_after={delay:.0f}",
            )
        if delay >= 1 and self._state.get().may_warn(self.clock()):
            _logger.warning("%s: the server asks to wait %.0f s; waiting", file, delay)

    def sleep(self, seconds: float, *, file: str, closed: threading.Event | None = None) -> None:
        """Sleep; raises `StorageError` after `close`, at interpreter exit, or if cancelled."""
        if self._sleep is not None:
            self._sleep(seconds)
            return
        closed = closed or self._state.get().closed
        end = time.monotonic() + seconds
        check_wanted(file)
        while (remaining_seconds := end - time.monotonic()) > 0 or closed.is_set():
            # The end of the main thread sets no event, and must be polled.
            if (
                closed.wait(min(remaining_seconds, _POLL_SECONDS))
                or not threading.main_thread().is_alive()
            ):
                raise StorageError("closed while waiting for a retry", file=file)
            check_wanted(file)

    def counters(self) -> dict[str, int]:
        """`requests` (all attempts) and `retries` (attempts after the first) of this process."""
        return dict(self._state.get().counts)

    def close(self) -> None:
        """End all current delays with an error. Later calls may wait again."""
        state = self._state.get()
        closed, state.closed = state.closed, threading.Event()
        closed.set()


def put_once(
    storage: Storage, path: str, data: bytes, *, expected: str | None, is_lost: bool = False
) -> None:
    """One attempt of `storage.put`; reads the file back if the outcome is unclear.

    `is_lost` means that the response to an earlier attempt was lost. After a `ConflictError` or
    `TransientError`, the file is read. If its content is `data`, the put succeeded. This requires
    that no other file has the same bytes. If the digest is still `expected`, the error is raised
    for a retry, as a `TransientError` if an earlier attempt may still take effect. Otherwise
    another writer was first, or has replaced the file: raises `ConflictError`.
    """
    try:
        storage.put(path, data, expected=expected)
    except (ConflictError, TransientError) as error:
        failure = error
    else:
        return
    stored_data: bytes | None = None
    tag: str | None = None
    try:
        try:
            stored_data, tag = storage.read_whole(path, MAX_PUT_BYTES)
        except NotFoundError:
            pass
        except TransientError:
            raise
        except StorageError:
            tag = expected  # the best guess
        # A lost response looks like a refusal: the second attempt conflicts with our own first one.
        # See tests/cloud/test_lost_requests.py::test_a_lost_response_with_another_commit_on_top.
        if stored_data == data:
            return
        if tag != expected:
            problem = "another writer replaced it meanwhile"
            raise ConflictError(problem, file=f"{storage.url}/{path}")
        if is_lost and isinstance(failure, ConflictError):
            raise TransientError(failure.message, **failure.context()) from failure
        raise failure
    finally:
        del failure  # its traceback refers to this frame


class RetryingStorage(StorageWrapper):
    """Retries requests of the inner storage; see `Retrier`.

    A call of `read_ranges` is one request and is repeated as a whole, so that all its buffers are
    from one attempt. Requests per file do not exceed `requests_per_second`. Writes of uploads are
    forwarded without retries: only the upload itself can repeat them safely.
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
        self._rate = PerProcess(partial(RateLimiter, requests_per_second, clock=self.retrier.clock))

    def size(self, path: str) -> int:
        return self._retry(path, lambda: self.inner.size(path))

    def identity(self, path: str) -> tuple[int, str | None]:
        return self._retry(path, lambda: StorageWrapper.identity(self, path))

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        if not ranges:
            return
        cover = ByteRange(min(r.start for r in ranges), max(r.stop for r in ranges))
        self._retry(
            path,
            lambda: self.inner.read_ranges(path, ranges, buffers),
            cover,
            sum(byte_range.length for byte_range in ranges),
        )

    def read_whole(self, path: str, limit: int) -> tuple[bytes, str]:
        return self._retry(path, lambda: self.inner.read_whole(path, limit))

    def put(self, path: str, data: bytes, *, expected: str | None) -> None:
        is_response_lost = False  # whether an attempt without a response may still take effect

        def attempt() -> None:
            nonlocal is_response_lost
            try:
                put_once(self.inner, path, data, expected=expected, is_lost=is_response_lost)
            except TransientError:
                is_response_lost = True
                raise

        try:
            self._retry(path, attempt)
        except TransientError:
            raise
        except StorageError as error:
            is_refused = isinstance(error, ConflictError) and self.has_conditions
            if is_refused or not is_response_lost:
                raise
            raise TransientError(error.message, **error.context()) from error

    def files(self, folder: str) -> list[FileInfo]:
        return self._retry(folder, lambda: self.inner.files(folder))

    def entries(self, folder: str) -> list[Entry]:
        return self._retry(folder, lambda: StorageWrapper.entries(self, folder))

    def unfinished(self, folder: str) -> list[Unfinished]:
        uploads = self._retry(folder, lambda: self.inner.unfinished(folder))
        return [_RetryingUnfinished(upload, self._retry) for upload in uploads]

    def create(self, path: str) -> Upload:
        return self._retry(path, lambda: self.inner.create(path))

    def remove(self, path: str) -> None:
        self._retry(path, lambda: self.inner.remove(path))

    def counters(self) -> dict[str, int]:
        counts = Counter(self.inner.counters())
        counts.update(self.retrier.counters())
        return dict(counts)

    def close(self) -> None:
        self.retrier.close()
        super().close()

    def _retry(
        self,
        path: str,
        function: Callable[[], _T],
        item: ByteRange | None = None,
        nbytes: int | None = None,
    ) -> _T:
        file = f"{self.url}/{path}"

        def request() -> _T:
            delay = self._rate.get().delay(path)
            if delay > 0:
                self.retrier.sleep(delay, file=file)
            return function()

        return self.retrier.call(request, file=file, item=item, nbytes=nbytes)


class _RetryingUnfinished:
    """Retries reads of an unfinished upload."""

    def __init__(self, inner: Unfinished, retry: Callable[[str, Callable[[], Any]], Any]) -> None:
        self.path, self.modified = inner.path, inner.modified
        self._inner, self._retry = inner, retry

    def checkpoints(self) -> list[tuple[int, bytes]]:
        checkpoints: list[tuple[int, bytes]] = self._retry(self.path, self._inner.checkpoints)
        return checkpoints

    def read_ranges(self, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]) -> None:
        self._retry(self.path, lambda: self._inner.read_ranges(ranges, buffers))

    def remove(self) -> None:
        self._retry(self.path, self._inner.remove)


class _State:
    """Counters of a process, and the event that ends delays."""

    def __init__(self) -> None:
        self.closed = threading.Event()
        self.counts = {"requests": 0, "retries": 0}
        self._lock = threading.Lock()
        self._warning_time: float | None = None

    def count(self, name: str) -> None:
        with self._lock:
            self.counts[name] += 1

    def may_warn(self, current_time: float) -> bool:
        """Whether another warning is due; if so, records it as given."""
        with self._lock:
            is_due = (
                self._warning_time is None or current_time - self._warning_time >= _PATIENCE_SECONDS
            )
            self._warning_time = current_time if is_due else self._warning_time
            return is_due

    def was_warned(self) -> bool:
        """Whether a warning was given since the last call."""
        with self._lock:
            warning_time, self._warning_time = self._warning_time, None
            return warning_time is not None


# A clip's ranges arrive at once; a strict rate would delay the first ones too. See
# tests/cloud/test_retrying.py::test_requests_per_file_are_limited.
_BURST_SECONDS = 0.1  # requests of this time may go at once
_MAX_TRACKED_FILES = 1024


class RateLimiter:
    """Rate limit per file: at most `rate` requests per second, with bursts of a tenth as many.

    Uses the "virtual scheduling" algorithm of ITU-T I.371. Thread-safe.
    """

    def __init__(self, rate: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        if not rate > 0:
            raise ValueError(f"a rate of {rate} requests a second")
        self._interval = 1 / rate
        self._clock = clock
        self._lock = threading.Lock()
        self._due: dict[str, float] = {}  # time of the next request at an even rate

    def __len__(self) -> int:
        """Number of tracked files."""
        return len(self._due)

    def delay(self, path: str, amount: int = 1, *, min_delay: float = 0.0) -> float:
        """Reserve a request to `path`; returns the seconds to wait, at least `min_delay`.

        A request of a larger `amount` delays later ones, not itself.
        """
        with self._lock:
            current_time = self._clock()
            if len(self._due) > _MAX_TRACKED_FILES:
                self._due = {name: due for name, due in self._due.items() if due > current_time}
            due = max(current_time + min_delay, self._due.get(path, current_time))
            self._due[path] = due + amount * self._interval
        return max(min_delay, due - current_time - _BURST_SECONDS)


class Quota:
    """Rate limits of a process's threads together: requests and bytes read per second.

    Picklable; a copy in another process has separate limits.
    """

    def __init__(
        self,
        requests_per_second: float = math.inf,
        bandwidth: float = math.inf,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._requests = PerProcess(partial(RateLimiter, requests_per_second, clock=clock))
        self._bytes = PerProcess(partial(RateLimiter, bandwidth, clock=clock))

    def delay(self, nbytes: int = 0) -> float:
        """Reserve a request that reads `nbytes`; returns the seconds to wait.

        Waits for bandwidth first, since requests delayed by bandwidth would otherwise go at once.
        """
        return self._requests.get().delay("", min_delay=self._bytes.get().delay("", nbytes))
