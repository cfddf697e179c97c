"""Contract of storages: tests inherited by each storage's tests."""

from __future__ import annotations

import pickle
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqrecord import errors
from seqrecord.store.storage.base import (
    Storage,
    StorageWrapper,
    Unfinished,
    entries_of,
    identity_of,
    upload_limits_of,
)
from seqrecord.store.storage.opening import open_storage
from seqrecord.store.storage.ranges import ByteRange
from tests.kit.processes import wait_for

PATH = "records/00000-ab.seqrec"
DATA = np.random.default_rng(0).bytes(100_000)
UNCLEAN = (
    *("../a", "/a", "a//b", "a/./b", "a/..", "", "a/", "C:/a", "c:a", "a\\b"),
    *("a\nb", "a\x7f", "a\x85b", "a\udcff", "a\u2028b", "a/\u202eb", "\u2066a"),
)
NAMES = (
    *("Screenshot at 10.30.00\u202fPM.png", "a\u00a0b \u200b.png", "\u3000", "\u200e\u05d0"),
    *("1:2", "ab:c", "e\u0301", "\U0001f469\u200d\U0001f680", "\uf8ff"),
)
"""Names with odd spaces, marks of direction, colons, joined emoji and private characters."""

Add = Callable[[str, bytes], None]


def mounted(folder: Path) -> Any:
    """The storage of a mount at this folder."""
    storage = open_storage(folder, {"mount": True})
    assert isinstance(storage, StorageWrapper)  # it retries requests
    return storage.inner


def put(storage: Storage, path: str, data: bytes) -> None:
    upload = storage.create(path)
    for start in range(0, len(data), 30_000):
        upload.write(data[start : start + 30_000])
    assert upload.tell() == len(data)
    upload.commit()


def skip_if_lost(storage: Storage) -> None:
    if upload_limits_of(storage) is not None:
        pytest.skip("a kill loses unfinished uploads")


def get(storage: Storage, path: str, start: int = 0, stop: int | None = None) -> bytes:
    item = ByteRange(start, storage.size(path) if stop is None else stop)
    buffer = bytearray(item.length)
    storage.read_ranges(path, [item], [memoryview(buffer)])
    return bytes(buffer)


def names(storage: Storage, folder: str) -> list[str]:
    return [file.path for file in storage.files(folder)]


def unfinished_uploads(storage: Storage, folder: str = "records") -> list[tuple[str, Any, bytes]]:
    """Path, checkpoints and bytes up to the last checkpoint of each unfinished upload."""
    found = []
    for each in storage.unfinished(folder):
        checkpoints = each.checkpoints()
        size = checkpoints[-1][0] if checkpoints else 0
        found.append((each.path, checkpoints, read_part(each, 0, size)))
    return found


def read_part(unfinished: Unfinished, start: int, stop: int) -> bytes:
    """Bytes of an unfinished upload."""
    buffer = bytearray(stop - start)
    unfinished.read_ranges([ByteRange(start, stop)], [memoryview(buffer)])
    return bytes(buffer)


def read_counter(storage: Storage, has_gaps: bool) -> tuple[bytes, str]:
    end = time.monotonic() + 60
    while True:
        try:
            return storage.read_whole("counter", 1000)
        except errors.NotFoundError:
            if not has_gaps or time.monotonic() > end:
                raise


def count_up(storage: Storage, name: str, times: int, has_gaps: bool = False) -> int:
    """Add one to the file `counter`, `times` times; returns the number of conflicts.

    With `has_gaps` the file may be missing for a moment.
    """
    conflicts = done = 0
    while done < times:
        data, tag = read_counter(storage, has_gaps)
        # All contents must differ.
        text = f"{int(data.split()[0]) + 1} {name} {secrets.token_hex(4)}"
        try:
            storage.put("counter", text.encode(), expected=tag)
            done += 1
        except errors.ConflictError:
            conflicts += 1
    return conflicts


class ReadContract:
    """Subclasses have a fixture `storage`, and a fixture `add` that puts a file into it.

    All files are added before the first read: a revision of the Hub stays at its commit.
    """

    def test_files_are_read_in_ranges_and_as_a_whole(self, storage: Storage, add: Add) -> None:
        """Ranges in any order and size; a range beyond the end is an error."""
        add(PATH, DATA)
        add("records/empty", b"")
        assert (storage.size(PATH), storage.size("records/empty")) == (len(DATA), 0)
        assert (get(storage, PATH), get(storage, "records/empty")) == (DATA, b"")
        assert get(storage, PATH, 99_999, 100_000) == DATA[-1:]
        ranges = [ByteRange(*pair) for pair in [(70, 90), (0, 1), (0, 100_000), (5, 5), (80, 99)]]
        arrays = [np.full(item.length, 7, np.uint8) for item in ranges]
        storage.read_ranges(PATH, ranges, [array.data for array in arrays])
        for item, array in zip(ranges, arrays, strict=True):
            assert array.tobytes() == DATA[item.start : item.stop]
        out = np.empty((3, 5), "<u4")
        storage.read_ranges(PATH, [ByteRange(8, 68)], [out.data])
        assert out.tobytes() == DATA[8:68]
        storage.read_ranges(PATH, [], [])
        for start in (99_999, 100_000):
            with pytest.raises(errors.StorageError, match=r"00000-ab\.seqrec"):
                get(storage, PATH, start, 100_001)
        with pytest.raises(ValueError, match="buffer"):  # wrong arguments
            storage.read_ranges(PATH, [ByteRange(0, 10)], [memoryview(bytearray(11))])
        data, digest = storage.read_whole(PATH, len(DATA))
        assert data == DATA
        assert storage.read_whole(PATH, len(DATA) + 1) == (DATA, digest)
        assert storage.read_whole("records/empty", 0)[0] == b""
        with pytest.raises(errors.StorageError, match=r"00000-ab\.seqrec") as caught:
            storage.read_whole(PATH, len(DATA) - 1)
        assert not isinstance(caught.value, errors.NotFoundError)

    def test_paths_without_a_file_and_unclean_ones(self, storage: Storage) -> None:
        reads: list[Callable[[str], object]] = [
            storage.size,
            lambda path: get(storage, path, 0, 4),
            lambda path: storage.read_whole(path, 100),
        ]
        for operation in reads:
            with pytest.raises(errors.NotFoundError, match="nothing") as caught:
                operation("records/nothing")
            assert isinstance(caught.value, FileNotFoundError)
        others = [storage.files, storage.unfinished, storage.create, storage.remove]
        for operation in (*reads, *others, lambda path: storage.put(path, b"x", expected=None)):
            for path in UNCLEAN:
                with pytest.raises(errors.LocationError):
                    operation(path)
        assert storage.url in repr(storage)
        assert storage.local_path(PATH) in (None, f"{storage.url}/{PATH}")

    def test_names_of_any_script(self, storage: Storage, add: Add) -> None:
        for number, name in enumerate(NAMES):
            add(f"records/{name}", b"%d" % number)
        for number, name in enumerate(NAMES):
            assert get(storage, f"records/{name}") == b"%d" % number
        with suppress(errors.LocationError):  # a web server has no listings
            assert {each.name for each in entries_of(storage, "records")} == {*NAMES}

    def test_listed_entries_equal_the_size_and_identity_of_each_file(
        self, storage: Storage, add: Add
    ) -> None:
        add(PATH, DATA)
        add("records/01-cd.seqrec", b"x")
        listed = {}
        with suppress(errors.LocationError):  # a web server has no listings
            listed = {each.name: each for each in entries_of(storage, "records")}
        for name, each in listed.items():
            assert (each.size, each.identity) == identity_of(storage, f"records/{name}")
            assert not each.is_folder
        assert list(listed) in ([], ["00000-ab.seqrec", "01-cd.seqrec"])

    def test_a_closed_storage_and_a_pickled_copy_read_the_same(
        self, storage: Storage, add: Add
    ) -> None:
        add(PATH, DATA)
        get(storage, PATH)
        copy = pickle.loads(pickle.dumps(storage))
        storage.close()
        storage.close()
        assert get(storage, PATH) == get(copy, PATH) == DATA
        assert copy.url == storage.url
        copy.close()

    def test_many_threads_read_at_once(self, storage: Storage, add: Add) -> None:
        for i in range(4):
            add(f"records/{i}", DATA[i:])

        def read(i: int) -> bool:
            file, start = i % 4, (i * 997) % 50_000
            if i % 15 == 0:
                storage.close()
            got = get(storage, f"records/{file}", start, start + 1000)
            return got == DATA[file + start : file + start + 1000]

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(read, range(60)))


class StorageContract(ReadContract):
    """Subclasses have `make`, which returns an empty storage in a folder, or a fixture `storage`.

    `is_atomic`: exactly one of several concurrent writers succeeds; `is_shared`: other processes
    see the same files; `has_gaps`: a file is missing for a moment while it is replaced.
    """

    is_atomic = True
    has_gaps = False
    is_shared = True

    @staticmethod
    def make(folder: Path, /) -> Storage:
        raise NotImplementedError

    @pytest.fixture
    def storage(self, tmp_path: Path) -> Iterator[Storage]:
        storage = self.make(tmp_path / "set")
        yield storage
        storage.close()

    @pytest.fixture
    def add(self, storage: Storage) -> Add:
        return lambda path, data: put(storage, path, data)

    # Small files, put on condition of the existing content

    def test_put_replaces_the_expected_content_only(self, storage: Storage) -> None:
        """Or created if no file is expected; a copy sees it at once."""
        copy = pickle.loads(pickle.dumps(storage))
        storage.put("index/a", b"one", expected=None)
        data, first = copy.read_whole("index/a", 9)  # a tag read by another storage is valid
        assert get(storage, "index/a") == get(copy, "index/a") == data == b"one"
        with pytest.raises(errors.ConflictError, match="index/a"):
            storage.put("index/a", b"two", expected=None)
        storage.put("index/a", b"newer", expected=first)
        data, second = storage.read_whole("index/a", 9)
        assert get(storage, "index/a") == get(copy, "index/a") == data == b"newer"
        assert second != first
        with pytest.raises(errors.ConflictError, match="index/a"):
            storage.put("index/a", b"three", expected=first)
        assert copy.read_whole("index/a", 9) == (b"newer", second)
        assert names(storage, "index") == ["index/a"]
        storage.remove("index/a")
        with pytest.raises(errors.ConflictError):
            storage.put("index/a", b"three", expected=second)
        with pytest.raises(errors.NotFoundError):
            storage.read_whole("index/a", 9)
        storage.put("index/a", b"four", expected=None)
        assert get(storage, "index/a") == b"four"
        copy.close()

    def test_concurrent_puts_of_threads_lose_no_update(self, storage: Storage) -> None:
        if not self.is_atomic:
            pytest.skip("it has no conditional writes")
        copies = [pickle.loads(pickle.dumps(storage)) for _ in range(4)]
        start = threading.Barrier(len(copies))

        def create(number: int) -> bool:
            start.wait()
            try:
                copies[number].put("counter", b"0 of %d" % number, expected=None)
            except errors.ConflictError:
                return False
            return True

        with ThreadPoolExecutor(len(copies)) as pool:
            won = list(pool.map(create, range(len(copies))))
            assert sum(won) == 1, "exactly one succeeds"
            assert get(storage, "counter") == b"0 of %d" % won.index(True)
            list(pool.map(count_up, copies, "abcd", [5] * 4, [self.has_gaps] * 4))
        assert read_counter(storage, self.has_gaps)[0].split()[0] == b"20"
        for copy in copies:
            copy.close()

    def test_concurrent_puts_of_processes_lose_no_update(
        self, storage: Storage, other_process: Callable[..., Any]
    ) -> None:
        if not (self.is_atomic and self.is_shared):
            pytest.skip("it has no conditional writes, or is of one process")
        storage.put("counter", b"0", expected=None)
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(other_process, count_up, storage, "there", 6, self.has_gaps)
            count_up(storage, "here", 6, self.has_gaps)
            other.result(100)
        assert read_counter(storage, self.has_gaps)[0].split()[0] == b"12"

    # Files written front to back

    def test_an_upload_is_committed_once_or_leaves_nothing(self, storage: Storage) -> None:
        upload = storage.create(PATH)
        upload.write(DATA)
        assert names(storage, "records") == []
        with pytest.raises(errors.NotFoundError):
            storage.size(PATH)
        upload.commit()
        upload.abort()  # does nothing any more
        assert names(storage, "records") == [PATH]
        upload = storage.create(PATH)
        upload.write(b"new")
        with pytest.raises(errors.DestinationError):
            upload.commit()
        upload.abort()
        assert get(storage, PATH) == DATA
        upload = storage.create("records/other")
        upload.write(DATA)
        upload.checkpoint(b"note")
        upload.abort()
        upload.abort()
        for action in (partial(upload.write, b"more"), upload.commit):
            with pytest.raises(errors.StorageError):
                action()
        assert names(storage, "records") == [PATH]
        assert storage.unfinished("records") == []

    def test_files_of_a_folder_are_listed_in_order(self, storage: Storage) -> None:
        before = time.time()
        paths = ("records/b", "records/a", "records/sub/c", "records/.hidden", "other/d", "e")
        for i, name in enumerate(paths):
            put(storage, name, b"x" * i)
        found = storage.files("records")
        assert [(file.path, file.size) for file in found] == [("records/a", 1), ("records/b", 0)]
        assert all(abs(file.modified - before) < 100 for file in found)
        storage.remove("records/a")
        assert names(storage, "records") == ["records/b"]
        with pytest.raises(errors.NotFoundError):
            storage.size("records/a")
        assert storage.files("nothing") == []
        storage.remove("nothing/at-all")
        assert storage.unfinished("nothing") == []

    def test_a_rewound_upload_contains_the_following_writes(self, storage: Storage) -> None:
        for offset in (0, 4, 13):
            upload = storage.create(f"records/{offset}")
            upload.write(b"keep and drop")
            for wrong in (14, -1):
                with pytest.raises(ValueError, match="cannot rewind 13 bytes"):
                    upload.rewind(wrong)
            upload.rewind(offset)
            assert upload.tell() == offset
            upload.write(b"!")
            upload.commit()
            assert get(storage, f"records/{offset}") == b"keep and drop"[:offset] + b"!"

    # Unfinished uploads

    def test_an_interrupted_upload_is_read_by_another_process(
        self, storage: Storage, other_process: Callable[..., Any]
    ) -> None:
        skip_if_lost(storage)
        put(storage, "records/whole", b"x")
        uploads = [storage.create(path) for path in (PATH, "records/removed")]
        for upload in uploads:
            upload.write(b"first")
            upload.checkpoint(b"note 1")
            upload.write(b"second")
            upload.checkpoint(b"note 2")
            upload.write(b"lost")
        storage.close()
        del upload, uploads
        both = [(5, b"note 1"), (11, b"note 2")]
        expected = [(path, both, b"firstsecond") for path in (PATH, "records/removed")]
        assert unfinished_uploads(storage) == expected
        if self.is_shared:
            assert other_process(unfinished_uploads, storage) == expected
        assert names(storage, "records") == ["records/whole"]
        found = storage.unfinished("records")[0]
        assert abs(found.modified - time.time()) < 100
        found.remove()
        assert unfinished_uploads(storage) == expected[1:]
        storage.remove("records/removed")
        assert storage.unfinished("records") == []
        assert names(storage, "records") == ["records/whole"]

    def test_a_running_upload_is_readable_and_continues(self, storage: Storage) -> None:
        skip_if_lost(storage)
        copy = pickle.loads(pickle.dumps(storage))
        upload = storage.create(PATH)
        kept, data = list[tuple[int, bytes]](), b""

        def is_seen() -> bool:
            return unfinished_uploads(copy) == [(PATH, kept, data)]

        for step, text in enumerate((b"first", b"second", b"other", b"longer than all before")):
            if step > 1:
                upload.rewind(5)
                kept, data = kept[:1], data[:5]
            upload.write(text)
            data += text
            kept.append((len(data), b"note %d" % step))
            upload.checkpoint(kept[-1][1])
            wait_for(is_seen)
        upload.commit()
        assert get(copy, PATH) == b"firstlonger than all before"
        assert copy.unfinished("records") == []
        copy.close()

    def test_an_interrupted_upload_leaves_nothing_where_uploads_are_lost(
        self, storage: Storage
    ) -> None:
        if upload_limits_of(storage) is None:
            pytest.skip("unfinished uploads are kept")
        upload = storage.create(PATH)
        upload.write(DATA)
        upload.checkpoint(b"note")
        assert storage.unfinished("records") == []
        storage.close()
        for action in (partial(upload.write, b"more"), partial(upload.rewind, 0), upload.commit):
            with pytest.raises(errors.StorageError, match="the upload is closed"):
                action()
        assert names(storage, "records") == []
        put(storage, PATH, DATA)
        assert get(storage, PATH) == DATA

    def test_concurrent_uploads_to_one_folder_are_committed(self, storage: Storage) -> None:
        paths = [f"records/{i}" for i in range(4)]

        def write(path: str) -> None:
            upload = storage.create(path)
            for start in range(0, len(DATA), 20_000):
                upload.write(DATA[start : start + 20_000])
                upload.checkpoint(path.encode())
            upload.commit()

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(write, paths))
        assert names(storage, "records") == paths
        assert all(get(storage, path) == DATA for path in paths)
        assert storage.unfinished("records") == []
