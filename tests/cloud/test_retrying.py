from __future__ import annotations

import pickle
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import seqrecord
from seqrecord.cloud.remote import FsspecStorage
from seqrecord.cloud.requests import FsspecReader, check_rate, fill
from seqrecord.cloud.retrying import Quota, RateLimiter, Retrier, RetryingStorage
from seqrecord.edit import clean
from seqrecord.errors import (
    AccessError,
    ConflictError,
    DeadlineError,
    DestinationError,
    LocationError,
    NotFoundError,
    StorageError,
    TransientError,
)
from seqrecord.store.storage.base import Storage
from seqrecord.store.storage.local import LocalStorage
from seqrecord.store.storage.opening import open_storage
from seqrecord.store.storage.ranges import ByteRange
from tests.kit.datasets import write_small
from tests.kit.faults import CountingStorage, FailAt, FailTransiently, Fault, FaultyStorage
from tests.kit.processes import busy_threads, in_fork, wait_for
from tests.kit.services.places import as_remote
from tests.kit.services.web_server import WebFolder
from tests.store.storage_contract import DATA, PATH, StorageContract, get, put

FILE = "az://container/dataset/records/0"

# Some of these tests fork with running threads.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


class Clock:
    """Time that advances in `sleep` only."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def retrier(self, deadline: float = 120.0, draw: float = 1.0) -> Retrier:
        return Retrier(deadline=deadline, clock=self, sleep=self.sleep, draw=lambda: draw)


def failing(*errors: Exception) -> Mock:
    """Raises these errors in turn, then returns 7."""
    return Mock(side_effect=[*errors, 7])


def busy(retry_after: float | None = None) -> TransientError:
    error = TransientError("the storage failed: HTTP status 503")
    error.retry_after = retry_after
    return error


@pytest.fixture
def clock() -> Clock:
    return Clock()


def instantly(inner: Storage) -> RetryingStorage:
    """Retries without waiting."""
    return RetryingStorage(inner, retrier=Clock().retrier())


def faulty(tmp_path: Path, fault: Fault) -> FaultyStorage:
    return FaultyStorage(LocalStorage(tmp_path), fault)


class TestFailingStorage(StorageContract):
    """Every third request fails once, and is retried."""

    @staticmethod
    def make(folder: Path) -> Storage:
        fault = FailTransiently(1, 0.34, ("read", "size", "list", "remove", "create"))
        retrier = Retrier(sleep=lambda _: None)
        return as_remote(RetryingStorage(faulty(folder, fault), retrier=retrier))


# Delays


@pytest.mark.parametrize(
    ("draw", "deadline", "errors", "slept"),
    [
        (1.0, 120, [busy()] * 8, [0.25, 0.5, 1, 2, 4, 8, 8, 8]),
        (0.0, 120, [busy(), busy()], [0.125, 0.25]),  # from the upper half
        (0.5, 120, [busy(), busy()], [0.1875, 0.375]),
        (0.0, 120, [busy(3), busy(), busy(0.5)], [3.125, 0.25, 1.0]),  # plus the server's delay
        (1.0, 10, [busy(300)], [300]),  # in full, even beyond the deadline
    ],
)
def test_delays_between_attempts(
    draw: float, deadline: float, errors: list[Exception], slept: list[float]
) -> None:
    clock = Clock()
    assert clock.retrier(deadline, draw).call(failing(*errors), file=FILE) == 7
    assert clock.slept == slept


# The deadline


def test_the_last_attempt_starts_at_the_deadline(clock: Clock) -> None:
    work = failing(*[busy() for _ in range(99)])
    with pytest.raises(DeadlineError) as caught:
        clock.retrier(deadline=5).call(work, file=FILE, item=ByteRange(100, 150))
    assert clock.slept == [0.25, 0.5, 1, 2, 1.25]
    assert caught.value.file == FILE
    for expected in ("bytes 100 to 150", "6 attempts in 5 s", "HTTP status 503"):
        assert expected in caught.value.message
    assert caught.value.__cause__ is caught.value.__context__ is None
    # The last attempt has little time, so its error is often not the cause.
    causes = ("busy", "no route", "busy", "reset", "cut", "reset", "timed out")
    with pytest.raises(DeadlineError) as caught:
        clock.retrier(deadline=15).call(failing(*map(TransientError, causes)), file=FILE)
    reported = re.findall("timed out|reset|cut|busy|no route", caught.value.message)
    assert reported == ["timed out", "reset", "cut", "busy"]
    for deadline, seconds, message in ((31, 30, "2 attempts in 60 s"), (0, 0, "1 attempt in")):

        def slow(seconds: float = seconds) -> None:
            clock.now += seconds
            raise busy()

        with pytest.raises(DeadlineError, match=message):
            clock.retrier(deadline=deadline).call(slow, file=FILE)


def test_permanent_errors_are_not_retried(clock: Clock) -> None:
    for error in (
        AccessError("refused"),
        NotFoundError("gone"),
        LocationError("nowhere"),
        DestinationError("taken"),
        StorageError("broken"),
        ValueError("a bug"),
        DeadlineError("of an inner retrier"),
    ):
        work, retrier = failing(busy(), error), clock.retrier()
        with pytest.raises(type(error)) as caught:
            retrier.call(work, file=FILE)
        assert caught.value is error
        assert work.call_count == 2
        assert retrier.counters() == {"requests": 2, "retries": 1}


# Logs


def test_long_failures_and_their_end_are_logged(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    retrier = clock.retrier()
    retrier.call(failing(*[busy()] * 4), file=FILE)
    assert caplog.messages == []  # 3.75 s
    retrier.call(failing(*[busy()] * 8), file=FILE)
    assert all(message.startswith(FILE) for message in caplog.messages)
    numbers = [re.findall(r"again for (\d+)|recovered after (\d+)", m) for m in caplog.messages]
    assert numbers == [[("112", "")], [("104", "")], [("96", "")], [("", "32")]]
    caplog.clear()
    retrier.call(failing(busy()), file=FILE)
    assert caplog.messages == []
    # A single log line for many simultaneous failures.
    retrier, start = clock.retrier(deadline=10), clock.now
    for _ in range(10):
        clock.now = start  # simultaneous, as far as possible with one thread
        with pytest.raises(DeadlineError):
            retrier.call(failing(*[busy()] * 99), file=FILE)
    assert len(caplog.messages) == 1


def test_delays_that_the_server_asks_for(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """Logged before the delay; too long ones are an error at once."""
    logged: list[list[str]] = []

    def sleep(seconds: float) -> None:
        logged.append(list(caplog.messages))
        clock.sleep(seconds)

    retrier = Retrier(10, clock=clock, sleep=sleep)
    assert retrier.call(failing(busy(599)), file=FILE) == 7
    assert logged == [[f"{FILE}: the server asks to wait 599 s; waiting"]]
    assert clock.slept == [pytest.approx(599, abs=1)]
    for seconds in (601, 1e12):
        work, slept = failing(busy(seconds)), list(clock.slept)
        with pytest.raises(DeadlineError, match=rf"wait {seconds:.0f} s.*max_retry_after") as info:
            clock.retrier().call(work, file=FILE)
        assert FILE in str(info.value)
        assert (work.call_count, clock.slept) == (1, slept)
        longer = Retrier(max_retry_after=2e12, clock=clock, sleep=clock.sleep)
        assert longer.call(failing(busy(seconds)), file=FILE) == 7
    with pytest.raises(DeadlineError):
        pickle.loads(pickle.dumps(Retrier(max_retry_after=2))).call(failing(busy(3)), file=FILE)


# Closing


def test_closing_ends_all_delays(tmp_path: Path) -> None:
    retrier, waits = Retrier(deadline=3600), threading.Event()

    def fail() -> None:
        waits.set()
        raise busy(300)

    with ThreadPoolExecutor(1) as pool:
        asleep = pool.submit(retrier.call, fail, file=FILE)
        assert waits.wait(60)
        wait_for(lambda: retrier.counters()["retries"] > 0)
        retrier.close()
        with pytest.raises(StorageError, match="closed while waiting") as caught:
            asleep.result(60)
    assert type(caught.value) is StorageError
    storage = RetryingStorage(faulty(tmp_path, FailAt("read", 0, error=busy())))
    put(storage, PATH, DATA)
    storage.close()
    assert get(storage, PATH, 5, 50) == DATA[5:50], "a closed storage can be used again"
    assert storage.counters()["retries"] == 1


# Storages


@pytest.mark.parametrize(
    ("faults", "raised"),
    [
        ([TransientError("lost"), AccessError("refused")], TransientError),
        ([TransientError("lost"), ConflictError("refused")], DeadlineError),
        ([AccessError("refused")], AccessError),
        ([ConflictError("refused")], ConflictError),
    ],
)
def test_a_refusal_after_a_lost_response_is_uncertain(
    tmp_path: Path, clock: Clock, faults: list[StorageError], raised: type[StorageError]
) -> None:
    """The earlier attempt may still be applied."""

    def fault(operation: str, path: str, number: int) -> StorageError | None:
        return faults[min(number, len(faults) - 1)] if operation == "put" else None

    retrier = clock.retrier(deadline=1)
    storage = RetryingStorage(faulty(tmp_path, fault), retrier=retrier)
    with pytest.raises(raised) as found:
        storage.put("manifest.json", b"x", expected=None)
    assert issubclass(raised, TransientError) == isinstance(found.value, TransientError)


def test_other_requests_are_retried_too(tmp_path: Path) -> None:
    put(LocalStorage(tmp_path), PATH, DATA)
    actions: dict[Any, Callable[[Storage], object]] = {
        "size": lambda storage: storage.size(PATH),
        "list": lambda storage: storage.files("records"),
        "create": lambda storage: put(storage, "records/b", DATA),
        "remove": lambda storage: storage.remove(PATH),
    }
    for operation, act in actions.items():
        storage = instantly(faulty(tmp_path, FailAt(operation, error=busy())))
        act(storage)
        assert storage.counters() == {"requests": 2, "retries": 1}
    assert [file.path for file in LocalStorage(tmp_path).files("records")] == ["records/b"]
    upload = instantly(faulty(tmp_path, FailAt("write", error=busy()))).create(PATH)
    with pytest.raises(TransientError):  # writes are not retried
        upload.write(b"x")
    upload.abort()


def test_counters_add_up_and_copies_start_at_zero(tmp_path: Path) -> None:
    inner = instantly(LocalStorage(tmp_path))
    put(inner, PATH, DATA)
    outer = instantly(inner)
    before = inner.counters()["requests"]
    get(outer, PATH, 0, 1)
    assert outer.counters() == {"requests": before + 2, "retries": 0}
    broken = faulty(tmp_path, FailAt("size", onwards=True, error=busy()))
    copy = pickle.loads(pickle.dumps(RetryingStorage(broken, retrier=Retrier(0))))
    with pytest.raises(DeadlineError, match="1 attempt in"):
        copy.size(PATH)
    copy = pickle.loads(pickle.dumps(outer))
    assert get(copy, PATH, 0, 9) == DATA[:9]
    assert copy.counters() == {"requests": 2, "retries": 0}


def test_counters_of_threads_and_forked_processes(tmp_path: Path) -> None:
    """A child has its own locks, slots and counters: the parent's may be locked during the fork."""
    storage = as_remote(
        RetryingStorage(LocalStorage(tmp_path), requests_per_second=1e9), max_requests=1
    )
    put(storage, PATH, DATA)
    before = storage.counters()["requests"]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: get(storage, PATH, i, i + 1), range(1000)))
    assert storage.counters()["requests"] == before + 1000

    def reads() -> bool:
        return get(storage, PATH, 5, 50) == DATA[5:50] and storage.counters()["requests"] == 1

    with busy_threads(lambda: get(storage, PATH, 0, 10), 3):
        assert all(in_fork(reads) for _ in range(5))


def test_a_closed_storage_ends_the_retries_of_an_upload(monkeypatch: pytest.MonkeyPatch) -> None:
    retrier = Retrier(deadline=90)
    store = FsspecStorage("memory", "gone", shown="memory://gone", retrier=retrier)
    monkeypatch.setattr(store, "upload", Mock(side_effect=busy(300)))
    upload = store.create("file")
    upload.write(bytes(9 << 20))
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(upload.commit)
        wait_for(lambda: retrier.counters()["retries"] > 0)
        began = time.monotonic()
        store.close()
        with pytest.raises(StorageError):
            sending.result()
    assert time.monotonic() - began < 30


# Rates and quotas


def test_requests_per_file_are_limited(tmp_path: Path, clock: Clock) -> None:
    storage = RetryingStorage(
        LocalStorage(tmp_path), requests_per_second=100, retrier=clock.retrier()
    )
    put(storage, PATH, DATA)
    for _ in range(50):
        get(storage, PATH, 0, 1)
    assert clock.now == pytest.approx(0.4)  # 51 with the retry of `create`, the first 11 at once
    put(storage, "records/other", b"x")
    assert clock.now == pytest.approx(0.4), "another file has its own limit"
    clock.now += 10
    get(storage, PATH, 0, 1)
    assert clock.now == pytest.approx(10.4)
    pace = RateLimiter(100, clock=clock)
    for i in range(3000):
        clock.now += 1
        assert pace.delay(str(i)) == 0
    assert len(pace) < 2000, "idle files are removed"


def test_a_quota_limits_requests_to_all_files(tmp_path: Path, clock: Clock) -> None:
    """Retries count too; the requests of the first tenth of a second start at once."""
    retrier = Retrier(clock=clock, sleep=clock.sleep, quota=Quota(10, clock=clock))
    inner = LocalStorage(tmp_path)
    for name in ("records/a", "records/b"):
        put(inner, name, DATA)
    storage = RetryingStorage(faulty(tmp_path, FailTransiently(1, 0.3)), retrier=retrier)
    for i in range(10):
        get(storage, ("records/a", "records/b")[i % 2], 0, 1)
    requests = storage.counters()["requests"]
    assert requests > 10
    assert clock.now >= (requests - 1) / 10 - 0.1


def limited(tmp_path: Path, clock: Clock, quota: Quota, fault: Fault | None = None) -> Storage:
    """A storage with this quota, and with `DATA` at `PATH`."""
    put(LocalStorage(tmp_path), PATH, DATA)
    retrier = Retrier(deadline=5, clock=clock, sleep=clock.sleep, quota=quota)
    inner = LocalStorage(tmp_path)
    return RetryingStorage(inner if fault is None else FaultyStorage(inner, fault), retrier=retrier)


def test_bandwidth_limits_the_bytes_read(tmp_path: Path, clock: Clock) -> None:
    """Gaps between ranges do not count."""
    storage = limited(tmp_path, clock, Quota(bandwidth=len(DATA), clock=clock))
    for _ in range(5):
        assert get(storage, PATH, 0, len(DATA)) == DATA
    assert clock.now == pytest.approx(3.9)  # the first one at once, the next a tenth earlier
    clock.now += 10
    get(storage, PATH, 0, 1)
    assert clock.now == pytest.approx(13.9), "unused bandwidth does not accumulate"
    quota = Quota(bandwidth=10, clock=clock)
    ranges = [ByteRange(0, 10), ByteRange(len(DATA) - 10, len(DATA))]
    storage = limited(tmp_path / "other", clock, quota)
    storage.read_ranges(PATH, ranges, [memoryview(bytearray(10)) for _ in ranges])
    assert quota.delay(1) == pytest.approx(1.9)  # 20 bytes, and a tenth of a second at once
    # After a delay for bytes, requests keep their rate.
    quota = Quota(10, 100, clock=clock)
    assert quota.delay(1000) == 0  # the next byte is due in 10 s
    assert [quota.delay(1) for _ in range(3)] == pytest.approx([9.9, 9.91, 10.0])
    clock.now += 20
    assert [quota.delay() for _ in range(3)] == pytest.approx([0, 0, 0.1])


def test_quota_delays_do_not_count_for_the_deadline_and_copies_share_the_quota(
    tmp_path: Path, clock: Clock
) -> None:
    storage = limited(tmp_path, clock, Quota(0.1, clock=clock), FailAt("read", error=busy()))
    get(storage, PATH, 0, 1)  # two attempts
    get(storage, PATH, 1, 2)
    assert clock.now > 2 * 9
    # Copies share a quota, too.
    quota = Quota(2.0)
    first, second = pickle.loads(pickle.dumps((Retrier(quota=quota), Retrier(quota=quota))))
    assert first.quota is second.quota
    assert first.quota.delay() == 0
    assert first.quota.delay() > 0.3


def test_every_client_has_the_quota(tmp_path: Path) -> None:
    """For a web server; other services create their retriers in the same way."""
    with WebFolder(tmp_path) as server:
        (server.folder / "file").write_bytes(DATA)
        for backend in ("urllib3", "fsspec"):
            options = {"backend": backend, "bandwidth": 30 * len(DATA)}
            with closing(open_storage(f"http://{server.host}", options)) as storage:
                storage.size("file")  # creates the client
                begin = time.monotonic()
                for _ in range(8):
                    assert get(storage, "file", 0, len(DATA)) == DATA
                assert time.monotonic() - begin > 0.12


def test_threads_share_a_quota(tmp_path: Path) -> None:
    put(LocalStorage(tmp_path), PATH, DATA)
    quota = Quota(1000, 100 * len(DATA))
    storage = RetryingStorage(
        LocalStorage(tmp_path), requests_per_second=1e9, retrier=Retrier(quota=quota)
    )
    begin = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: get(storage, PATH, 0, len(DATA)), range(31)))
    assert time.monotonic() - begin > 0.19


def test_invalid_settings_are_refused() -> None:
    for bad in (-1, float("nan")):
        with pytest.raises(ValueError, match="deadline"):
            Retrier(deadline=bad)
        with pytest.raises(ValueError, match="rate"):
            RateLimiter(bad)


# Commands


def test_commands_fail_after_one_deadline(tmp_path: Path) -> None:
    commands: list[Any] = [
        seqrecord.open,
        seqrecord.verify,
        seqrecord.reindex,
        partial(seqrecord.SeqRecordWriter, mode="append"),
        partial(clean, older_than=0),
    ]
    for command in commands:
        clock = Clock()
        down = faulty(tmp_path, FailAt("read", error=busy(), onwards=True))
        with pytest.raises(DeadlineError, match="in 120 s"):
            command(RetryingStorage(down, retrier=clock.retrier()))
        assert clock.now == 120
    # A failed check is an error, not a problem of the dataset.
    write_small(tmp_path)
    down = faulty(tmp_path, FailAt("read", 12, error=busy(), onwards=True))
    with pytest.raises(DeadlineError, match="in 120 s"):
        seqrecord.verify(RetryingStorage(down, retrier=Clock().retrier()), num_threads=1)


# Requests


class _Sizes:
    def info(self, _path: str) -> dict[str, int]:
        return {"size": len(DATA)}


class RecordingReader(FsspecReader):
    """Reads `DATA` and records the ranges of its requests."""

    def __init__(self) -> None:
        super().__init__(_Sizes, "", "")
        self.asked: list[ByteRange] = []

    def read(self, path: str, request: tuple[ByteRange, list[memoryview]]) -> None:
        item, views = request
        self.asked.append(item)
        fill(views, [DATA[item.start : item.stop]])


def test_adjacent_ranges_are_one_request() -> None:
    reader = RecordingReader()
    pairs = [(10, 20), (20, 25), (25, 25), (25, 40), (39, 50), (60, 61)]
    ranges = [ByteRange(*pair) for pair in pairs]
    arrays = [np.zeros(item.length, np.uint8) for item in ranges]
    reader.read_ranges("a", ranges, [array.data for array in arrays])
    assert reader.asked == [(10, 40), (39, 50), (60, 61)]
    for item, array in zip(ranges, arrays, strict=True):
        assert array.tobytes() == DATA[item.start : item.stop]
    # Response chunks fill views of any lengths.
    for step in (1, 3, 100):
        arrays = [np.zeros(n, np.uint8) for n in (1, 5, 2, 9)]
        chunks = [DATA[i : min(i + step, 20)] for i in range(0, 20, step)]
        assert fill([array.data for array in arrays], chunks) == 17
        assert b"".join(array.tobytes() for array in arrays) == DATA[:17]
    # Missing bytes: the file's end, or a transient error.
    error = reader.truncation_error("a", "f", ByteRange(10, len(DATA) + 1), 5)
    assert isinstance(
        reader.truncation_error("a", "f", ByteRange(10, len(DATA)), 5), TransientError
    )
    assert not isinstance(error, TransientError)
    assert "ended early" in str(error)


def test_a_slow_response_is_a_transient_error() -> None:
    times = iter(range(0, 1000, 10))
    chunks = [bytes(640 << 10)] * 2 + [bytes(1000)] * 20  # 64 KiB/s, then almost nothing
    got = []
    with pytest.raises(TransientError, match=r"too slowly: \d+ bytes in 30 s; file: f"):
        got += list(check_rate(iter(chunks), 15, "f", clock=lambda: next(times)))
    assert len(list(check_rate(iter(chunks), 30, "f", clock=lambda: 1.0))) == 22


def test_each_piece_is_retried_separately(tmp_path: Path) -> None:
    counting = CountingStorage(
        FaultyStorage(LocalStorage(tmp_path), FailTransiently(3, 0.4, ("read",)))
    )
    put(counting, PATH, DATA)
    retrying = RetryingStorage(counting, retrier=Retrier(sleep=lambda _: None))
    storage = as_remote(retrying, max_bytes=8000, max_gap=100, max_requests=4)
    for _ in range(20):
        assert get(storage, PATH, 0, 64_000) == DATA[:64_000]
    counters = storage.counters()
    assert counters["retries"] > 20
    assert counting.bytes_read == 20 * 64_000 + counters["retries"] * 8000
