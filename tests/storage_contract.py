"""What every storage must do: a suite that the tests of each inherit."""

from __future__ import annotations

import pickle
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqrecord import errors
from seqrecord.storage import Storage, StorageWrapper, entries_of, identity_of
from seqrecord.storage.ranges import ByteRange
from seqrecord.storage.uploads import UploadTiming
from seqrecord.storage.whole import WholeFileStorage
from tests.services.process import wait_for

PATH = "records/00000-ab.seqrec"
DATA = np.random.default_rng(0).bytes(100_000)

Add = Callable[[str, bytes], None]


def put(storage: Storage, path: str, data: bytes) -> None:
    upload = storage.create(path)
    for start in range(0, len(data), 30_000):
        upload.write(data[start : start + 30_000])
    assert upload.tell() == len(data)
    upload.commit()


def get(storage: Storage, path: str, start: int = 0, stop: int | None = None) -> bytes:
    item = ByteRange(start, storage.size(path) if stop is None else stop)
    buffer = bytearray(item.length)
    storage.read_ranges(path, [item], [memoryview(buffer)])
    return bytes(buffer)


def names(storage: Storage, folder: str) -> list[str]:
    return [file.path for file in storage.files(folder)]


def left(storage: Storage, folder: str = "records") -> list[tuple[str, Any, bytes]]:
    """Of each unfinished upload: its path, its checkpoints, and the bytes below the last."""
    found = []
    for each in storage.unfinished(folder):
        checkpoints = each.checkpoints()
        buffer = bytearray(checkpoints[-1][0] if checkpoints else 0)
        each.read_ranges([ByteRange(0, len(buffer))], [memoryview(buffer)])
        found.append((each.path, checkpoints, bytes(buffer)))
    return found


def read_counter(storage: Storage, has_gaps: bool) -> tuple[bytes, str]:
    end = time.monotonic() + 60
    while True:
        try:
            return storage.read_whole("counter", 1000)
        except errors.NotFoundError:
            if not has_gaps or time.monotonic() > end:
                raise


def count_up(storage: Storage, name: str, times: int, has_gaps: bool = False) -> int:
    """Add one to the file `counter` so many times; how often another was there first.

    `has_gaps` says that it may not be there for a moment.
    """
    conflicts = done = 0
    while done < times:
        data, tag = read_counter(storage, has_gaps)
        # No two files may ever hold the same bytes.
        text = f"{int(data.split()[0]) + 1} {name} {secrets.token_hex(4)}"
        try:
            storage.put("counter", text.encode(), expected=tag)
            done += 1
        except errors.ConflictError:
            conflicts += 1
    return conflicts


class ReadContract:
    """Inherit it and give a fixture `storage`, and `add`, which puts a file into it."""

    def test_ranges_fill_their_buffers(self, storage: Storage, add: Add) -> None:
        """In any order, of any items; a range beyond the end is an error."""
        add(PATH, DATA)
        assert storage.size(PATH) == len(DATA)
        assert get(storage, PATH) == DATA
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
        with pytest.raises(ValueError, match="buffer"):  # a caller's mistake
            storage.read_ranges(PATH, [ByteRange(0, 10)], [memoryview(bytearray(11))])

    def test_an_empty_file(self, storage: Storage, add: Add) -> None:
        add(PATH, b"")
        assert storage.size(PATH) == 0
        assert get(storage, PATH) == b""
        assert storage.read_whole(PATH, 0)[0] == b""

    def test_what_is_not_there_is_not_found(self, storage: Storage) -> None:
        for operation in (
            storage.size,
            lambda path: get(storage, path, 0, 4),
            lambda path: storage.read_whole(path, 100),
        ):
            with pytest.raises(errors.NotFoundError, match="nothing") as caught:
                operation("records/nothing")
            assert isinstance(caught.value, FileNotFoundError)

    def test_an_unclean_path_is_refused(self, storage: Storage) -> None:
        for operation in (
            storage.size,
            storage.files,
            storage.unfinished,
            storage.create,
            storage.remove,
            lambda path: storage.read_whole(path, 10),
            lambda path: storage.put(path, b"x", expected=None),
            lambda path: get(storage, path, 0, 1),
        ):
            for path in ("../a", "/a", "a//b", "a/./b", "a/..", "", "C:/a", "a\\b"):
                with pytest.raises(errors.LocationError):
                    operation(path)

    def test_a_small_file_is_read_whole_and_has_a_digest(self, storage: Storage, add: Add) -> None:
        add("manifest.json", DATA)
        data, digest = storage.read_whole("manifest.json", len(DATA))
        assert data == DATA
        assert storage.read_whole("manifest.json", len(DATA) + 1) == (DATA, digest)
        with pytest.raises(errors.StorageError, match=r"manifest\.json") as caught:
            storage.read_whole("manifest.json", len(DATA) - 1)
        assert not isinstance(caught.value, errors.NotFoundError)

    def test_a_listing_tells_of_each_file_what_the_file_tells(
        self, storage: Storage, add: Add
    ) -> None:
        add(PATH, DATA)
        add("records/01-cd.seqrec", b"x")
        told = {}
        with suppress(errors.LocationError):  # a web server lists nothing
            told = {each.name: each for each in entries_of(storage, "records")}
        for name, each in told.items():
            size, identity = identity_of(storage, f"records/{name}")
            assert (each.size, each.identity) == (size, identity)
            assert not each.is_folder
        assert list(told) in ([], ["00000-ab.seqrec", "01-cd.seqrec"])

    def test_close_then_use_again(self, storage: Storage, add: Add) -> None:
        add(PATH, DATA)
        get(storage, PATH)
        storage.close()
        storage.close()
        assert get(storage, PATH) == DATA

    def test_a_pickled_copy_reads_the_same(self, storage: Storage, add: Add) -> None:
        add(PATH, DATA)
        get(storage, PATH)
        copy = pickle.loads(pickle.dumps(storage))
        assert copy.url == storage.url
        assert get(copy, PATH) == DATA
        copy.close()

    def test_many_threads_read_at_once(self, storage: Storage, add: Add) -> None:
        for i in range(8):
            add(f"records/{i}", DATA[i:])

        def read(i: int) -> bool:
            file, start = i % 8, (i * 997) % 50_000
            if i % 25 == 0:
                storage.close()
            got = get(storage, f"records/{file}", start, start + 1000)
            return got == DATA[file + start : file + start + 1000]

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(read, range(100)))

    def test_it_says_where_it_is(self, storage: Storage) -> None:
        assert storage.url in repr(storage)
        path = storage.local_path(PATH)
        assert path is None or path == f"{storage.url}/{PATH}"


class StorageContract(ReadContract):
    """Inherit it and give `make`, which makes an empty one in a folder, or a fixture `storage`.

    `is_atomic` says that of several writers at once one comes first, whatever they do;
    `is_shared` that another process sees the same files; `has_gaps` that a file which is being
    replaced is not there for a moment.
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

    @pytest.fixture(autouse=True)
    def kept_soon(self, storage: Storage) -> None:
        """What is worth keeping is kept at once, and not within five seconds."""
        inner = storage
        while isinstance(inner, StorageWrapper):
            inner = inner.inner
        if isinstance(inner, WholeFileStorage):
            inner.timing = UploadTiming(0.02)

    # Small files, put if what is there is as expected

    def test_a_file_is_put_in_place_of_the_expected_one(self, storage: Storage) -> None:
        """Or where none is, if none is expected."""
        storage.put("index/a", b"one", expected=None)
        data, first = storage.read_whole("index/a", 9)
        assert data == b"one"
        with pytest.raises(errors.ConflictError, match="index/a"):
            storage.put("index/a", b"two", expected=None)
        assert get(storage, "index/a") == b"one"
        storage.put("index/a", b"two", expected=first)
        data, second = storage.read_whole("index/a", 9)
        assert data == b"two"
        assert second != first
        with pytest.raises(errors.ConflictError, match="index/a"):
            storage.put("index/a", b"three", expected=first)
        assert storage.read_whole("index/a", 9) == (b"two", second)
        assert names(storage, "index") == ["index/a"]
        storage.remove("index/a")
        with pytest.raises(errors.ConflictError):
            storage.put("index/a", b"three", expected=second)
        with pytest.raises(errors.NotFoundError):
            storage.read_whole("index/a", 9)
        storage.put("index/a", b"four", expected=None)
        assert get(storage, "index/a") == b"four"

    def test_a_replaced_file_is_seen_at_once(self, storage: Storage) -> None:
        storage.put("manifest.json", b"old", expected=None)
        copy = pickle.loads(pickle.dumps(storage))
        assert get(storage, "manifest.json") == get(copy, "manifest.json") == b"old"
        tag = copy.read_whole("manifest.json", 9)[1]  # another's tag is as good
        storage.put("manifest.json", b"newer", expected=tag)
        assert get(storage, "manifest.json") == get(copy, "manifest.json") == b"newer"
        assert copy.read_whole("manifest.json", 9)[0] == b"newer"
        copy.close()

    def test_of_many_writers_of_a_new_file_one_comes_first(self, storage: Storage) -> None:
        if not self.is_atomic:
            pytest.skip("it has no conditional writes")
        copies = [pickle.loads(pickle.dumps(storage)) for _ in range(6)]
        start = threading.Barrier(len(copies))

        def create(number: int) -> bool:
            start.wait()
            try:
                copies[number].put("manifest.json", b"of %d" % number, expected=None)
            except errors.ConflictError:
                return False
            return True

        with ThreadPoolExecutor(len(copies)) as pool:
            won = list(pool.map(create, range(len(copies))))
        assert sum(won) == 1
        assert get(storage, "manifest.json") == b"of %d" % won.index(True)
        for copy in copies:
            copy.close()

    def test_threads_that_replace_a_file_lose_nothing(self, storage: Storage) -> None:
        if not self.is_atomic:
            pytest.skip("it has no conditional writes")
        storage.put("counter", b"0", expected=None)
        copies = [pickle.loads(pickle.dumps(storage)) for _ in range(3)]
        with ThreadPoolExecutor(len(copies)) as pool:
            list(pool.map(count_up, copies, "abc", [8] * 3, [self.has_gaps] * 3))
        assert read_counter(storage, self.has_gaps)[0].split()[0] == b"24"
        for copy in copies:
            copy.close()

    def test_processes_that_replace_a_file_lose_nothing(
        self, storage: Storage, other_process: Callable[..., Any]
    ) -> None:
        if not (self.is_atomic and self.is_shared):
            pytest.skip("it has no conditional writes, or is of one process")
        storage.put("counter", b"0", expected=None)
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(other_process, count_up, storage, "there", 10, self.has_gaps)
            count_up(storage, "here", 10, self.has_gaps)
            other.result(100)
        assert read_counter(storage, self.has_gaps)[0].split()[0] == b"20"

    # Files written front to back

    def test_nothing_is_visible_before_commit(self, storage: Storage) -> None:
        upload = storage.create(PATH)
        upload.write(DATA)
        assert names(storage, "records") == []
        with pytest.raises(errors.NotFoundError):
            storage.size(PATH)
        upload.commit()
        upload.abort()  # does nothing any more
        assert names(storage, "records") == [PATH]
        assert storage.unfinished("records") == []
        assert get(storage, PATH) == DATA

    def test_abort_leaves_nothing(self, storage: Storage) -> None:
        upload = storage.create(PATH)
        upload.write(DATA)
        upload.checkpoint(b"note")
        upload.abort()
        upload.abort()
        assert names(storage, "records") == []
        assert storage.unfinished("records") == []
        with pytest.raises(errors.StorageError):
            upload.write(b"more")
        with pytest.raises(errors.StorageError):
            upload.commit()
        assert names(storage, "records") == []

    def test_a_file_is_not_replaced_unasked(self, storage: Storage) -> None:
        put(storage, PATH, b"old")
        upload = storage.create(PATH)
        upload.write(b"new")
        with pytest.raises(errors.DestinationError):
            upload.commit()
        upload.abort()
        assert get(storage, PATH) == b"old"
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

    @pytest.mark.parametrize("offset", [0, 4, 13])
    def test_a_rewound_upload_holds_what_follows(self, storage: Storage, offset: int) -> None:
        upload = storage.create(PATH)
        upload.write(b"keep and drop")
        for wrong in (14, -1):
            with pytest.raises(ValueError, match="cannot rewind 13 bytes"):
                upload.rewind(wrong)
        upload.rewind(offset)
        assert upload.tell() == offset
        upload.write(b"!")
        upload.commit()
        assert get(storage, PATH) == b"keep and drop"[:offset] + b"!"

    # Uploads that have not ended

    def test_an_upload_that_was_cut_is_read_by_another_process(
        self, storage: Storage, other_process: Callable[..., Any]
    ) -> None:
        put(storage, "records/whole", b"x")
        upload = storage.create(PATH)
        upload.write(b"first")
        upload.checkpoint(b"note 1")
        upload.write(b"second")
        upload.checkpoint(b"note 2")
        upload.write(b"lost")
        storage.close()
        del upload
        expected = [(PATH, [(5, b"note 1"), (11, b"note 2")], b"firstsecond")]
        assert left(storage) == expected
        if self.is_shared:
            assert other_process(left, storage) == expected
        assert names(storage, "records") == ["records/whole"]
        (found,) = storage.unfinished("records")
        assert abs(found.modified - time.time()) < 100
        found.remove()
        assert storage.unfinished("records") == []
        assert names(storage, "records") == ["records/whole"]

    def test_an_upload_at_work_is_read_and_not_disturbed(self, storage: Storage) -> None:
        copy = pickle.loads(pickle.dumps(storage))
        upload = storage.create(PATH)
        upload.write(b"first")
        upload.checkpoint(b"note 1")
        wait_for(lambda: left(copy) == [(PATH, [(5, b"note 1")], b"first")])
        upload.write(b"second")
        upload.checkpoint(b"note 2")
        both = [(5, b"note 1"), (11, b"note 2")]
        wait_for(lambda: left(copy) == [(PATH, both, b"firstsecond")])
        upload.rewind(5)
        upload.write(b"other")
        upload.checkpoint(b"note 3")
        other = [(5, b"note 1"), (10, b"note 3")]
        wait_for(lambda: left(copy) == [(PATH, other, b"firstother")])
        upload.rewind(5)
        upload.write(b"longer than all before")
        upload.checkpoint(b"note 4")
        longer = [(5, b"note 1"), (27, b"note 4")]
        wait_for(lambda: left(copy) == [(PATH, longer, b"firstlonger than all before")])
        upload.commit()
        assert get(copy, PATH) == b"firstlonger than all before"
        assert copy.unfinished("records") == []
        copy.close()

    def test_what_is_removed_leaves_nothing_unfinished(self, storage: Storage) -> None:
        upload = storage.create(PATH)
        upload.write(b"first")
        upload.checkpoint(b"note")
        storage.close()
        assert left(storage) == [(PATH, [(5, b"note")], b"first")]
        storage.remove(PATH)
        assert storage.unfinished("records") == []
        assert storage.files("records") == []

    def test_uploads_of_one_folder_go_on_beside_each_other(self, storage: Storage) -> None:
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
