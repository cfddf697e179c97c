"""What every storage must do: a suite that the tests of each inherit."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from seqrecord.errors import DestinationError, LocationError, NotFoundError, StorageError
from seqrecord.ranges import ByteRange
from seqrecord.storage import Storage

PATH = "records/00000-ab.seqrec"
DATA = np.random.default_rng(0).bytes(100_000)


def put(storage: Storage, path: str, data: bytes, *, replace: bool = False) -> None:
    upload = storage.create(path, replace=replace)
    for start in range(0, len(data), 30_000):
        upload.write(data[start : start + 30_000])
    assert upload.tell() == len(data)
    upload.commit()


def get(storage: Storage, path: str, start: int = 0, stop: int | None = None) -> bytes:
    item = ByteRange(start, storage.size(path) if stop is None else stop)
    buffer = bytearray(item.length)
    storage.read_ranges(path, [item], [memoryview(buffer)])
    return bytes(buffer)


class StorageContract:
    """Inherit it and give a fixture `storage`: an empty one."""

    def test_a_committed_file_reads_back(self, storage: Storage) -> None:
        put(storage, PATH, DATA)
        assert storage.size(PATH) == len(DATA)
        assert get(storage, PATH) == DATA
        assert get(storage, PATH, 99_999, 100_000) == DATA[-1:]

    def test_many_ranges_in_any_order_fill_their_buffers(self, storage: Storage) -> None:
        put(storage, PATH, DATA)
        ranges = [ByteRange(*pair) for pair in [(70, 90), (0, 1), (0, 100_000), (5, 5), (80, 99)]]
        arrays = [np.full(item.length, 7, np.uint8) for item in ranges]
        storage.read_ranges(PATH, ranges, [array.data for array in arrays])
        for item, array in zip(ranges, arrays, strict=True):
            assert array.tobytes() == DATA[item.start : item.stop]

    def test_buffers_of_other_items_than_bytes_are_filled(self, storage: Storage) -> None:
        put(storage, PATH, DATA)
        out = np.empty((3, 5), "<u4")
        storage.read_ranges(PATH, [ByteRange(8, 68)], [out.data])
        assert out.tobytes() == DATA[8:68]

    def test_no_ranges_read_nothing(self, storage: Storage) -> None:
        put(storage, PATH, b"x")
        storage.read_ranges(PATH, [], [])

    @pytest.mark.parametrize("item", [ByteRange(99_999, 100_001), ByteRange(100_000, 100_001)])
    def test_a_range_beyond_the_end_is_an_error(self, storage: Storage, item: ByteRange) -> None:
        put(storage, PATH, DATA)
        with pytest.raises(StorageError, match=r"00000-ab\.seqrec"):
            get(storage, PATH, *item)

    def test_a_buffer_of_another_length_is_a_callers_mistake(self, storage: Storage) -> None:
        put(storage, PATH, DATA)
        with pytest.raises(ValueError, match="buffer"):
            storage.read_ranges(PATH, [ByteRange(0, 10)], [memoryview(bytearray(11))])

    def test_an_empty_file(self, storage: Storage) -> None:
        put(storage, PATH, b"")
        assert storage.size(PATH) == 0
        assert get(storage, PATH) == b""

    def test_what_is_not_there_is_not_found(self, storage: Storage) -> None:
        with pytest.raises(NotFoundError, match="nothing"):
            storage.size("records/nothing")
        with pytest.raises(NotFoundError, match="nothing"):
            get(storage, "records/nothing", 0, 4)
        with pytest.raises(NotFoundError):
            storage.reopen("records/nothing")
        storage.remove("records/nothing")
        assert storage.list_files("records") == []
        assert storage.interrupted("records") == []

    @pytest.mark.parametrize("path", ["../a", "/a", "a//b", "a/./b", "a/..", "", "C:/a", "a\\b"])
    def test_an_unclean_path_is_refused(self, storage: Storage, path: str) -> None:
        for operation in (storage.size, storage.create, storage.remove, storage.list_files):
            with pytest.raises(LocationError):
                operation(path)
        with pytest.raises(LocationError):
            get(storage, path, 0, 1)

    def test_nothing_is_visible_before_commit(self, storage: Storage) -> None:
        upload = storage.create(PATH)
        upload.write(DATA)
        assert storage.list_files("records") == []
        with pytest.raises(NotFoundError):
            storage.size(PATH)
        upload.commit()
        assert storage.list_files("records") == [PATH]

    def test_abort_leaves_nothing(self, storage: Storage) -> None:
        upload = storage.create(PATH)
        upload.write(DATA)
        upload.abort()
        upload.abort()
        assert storage.list_files("records") == []
        assert storage.interrupted("records") == []
        with pytest.raises(StorageError):
            upload.write(b"more")
        with pytest.raises(StorageError):
            upload.commit()
        assert storage.list_files("records") == []

    def test_abort_after_commit_does_nothing(self, storage: Storage) -> None:
        upload = storage.create(PATH)
        upload.write(DATA)
        upload.commit()
        upload.abort()
        assert get(storage, PATH) == DATA

    def test_a_file_is_not_replaced_unasked(self, storage: Storage) -> None:
        put(storage, PATH, b"old")
        upload = storage.create(PATH)
        upload.write(b"new")
        with pytest.raises(DestinationError):
            upload.commit()
        upload.abort()
        assert get(storage, PATH) == b"old"
        assert storage.interrupted("records") == []

    def test_a_replaced_file_is_seen_at_once(self, storage: Storage) -> None:
        put(storage, "manifest.json", b"old", replace=True)
        copy = pickle.loads(pickle.dumps(storage))
        assert get(storage, "manifest.json") == get(copy, "manifest.json") == b"old"
        put(storage, "manifest.json", b"newer", replace=True)
        assert get(storage, "manifest.json") == get(copy, "manifest.json") == b"newer"
        copy.close()

    def test_files_of_a_folder_are_listed_in_order(self, storage: Storage) -> None:
        for name in ("records/b", "records/a", "records/sub/c", "other/d", "e"):
            put(storage, name, b"x")
        assert storage.list_files("records") == ["records/a", "records/b"]
        storage.remove("records/a")
        assert storage.list_files("records") == ["records/b"]
        with pytest.raises(NotFoundError):
            storage.size("records/a")

    def test_a_rewound_upload_holds_what_follows(self, storage: Storage) -> None:
        upload = storage.create(PATH)
        upload.write(b"keep and drop")
        if upload.rewind(4):
            assert upload.tell() == 4
            upload.write(b"!")
            upload.commit()
            assert get(storage, PATH) == b"keep!"
        else:
            assert upload.tell() == 13
            upload.commit()
            assert get(storage, PATH) == b"keep and drop"

    def test_an_interrupted_upload_goes_on_or_is_gone(self, storage: Storage) -> None:
        upload = storage.create(PATH)
        upload.write(b"first")
        upload.checkpoint(b"note 1")
        upload.write(b"second")
        upload.checkpoint(b"note 2")
        upload.write(b"lost")
        del upload
        storage.close()
        assert storage.list_files("records") == []
        for path in storage.interrupted("records"):
            assert path == PATH
            cut = storage.reopen(path)
            assert cut.checkpoints == [(5, b"note 1"), (11, b"note 2")]
            assert get(storage, cut.readable, 0, 11) == b"firstsecond"
            assert cut.upload.rewind(11)
            cut.upload.write(b" end")
            cut.upload.commit()
            assert get(storage, PATH) == b"firstsecond end"
        assert storage.interrupted("records") == []

    def test_close_then_use_again(self, storage: Storage) -> None:
        put(storage, PATH, DATA)
        get(storage, PATH)
        storage.close()
        storage.close()
        assert get(storage, PATH) == DATA

    def test_a_pickled_copy_reads_the_same(self, storage: Storage) -> None:
        put(storage, PATH, DATA)
        get(storage, PATH)
        copy = pickle.loads(pickle.dumps(storage))
        assert copy.url == storage.url
        assert get(copy, PATH) == DATA
        copy.close()

    def test_many_threads_read_at_once(self, storage: Storage) -> None:
        for i in range(8):
            put(storage, f"records/{i}", DATA[i:])

        def read(i: int) -> bool:
            file, start = i % 8, (i * 997) % 50_000
            if i % 50 == 0:
                storage.close()
            got = get(storage, f"records/{file}", start, start + 1000)
            return got == DATA[file + start : file + start + 1000]

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(read, range(400)))

    def test_a_lock_can_be_taken_again_after_release(self, storage: Storage) -> None:
        storage.lock().release()
        lock = storage.lock()
        lock.release()
        lock.release()

    def test_it_says_where_it_is(self, storage: Storage) -> None:
        assert storage.url in repr(storage)
        path = storage.local_path(PATH)
        assert path is None or path == f"{storage.url}/{PATH}"
