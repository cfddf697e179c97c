"""Uploads spooled to a local file, with a dictionary as the store."""

from __future__ import annotations

import gc
import random
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product

import pytest

from seqrecord import errors
from seqrecord.cloud import uploads
from seqrecord.storage import Unfinished
from seqrecord.store.checksum import crc32c
from seqrecord.store.storage.base import FileInfo
from seqrecord.store.storage.ranges import ByteRange, unwanted_if
from tests.kit.processes import own_threads, run_code, wait_for
from tests.store.storage_contract import read_part

PATH = "records/00000-ab.seqrec"
DATA = random.Random(1).randbytes(100_000)


class Store:
    """Stored objects by path; `on_put`, `on_send` and `on_remove` are called first."""

    url = "mem://x"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.on_put: Callable[[], None] = lambda: None
        self.on_send: Callable[[], None] = lambda: None
        self.on_remove: Callable[[str], None] = lambda path: None
        self.clock = 0.0
        self.save_seconds, self.part_bytes, self.whole_seconds = 4.0, 8 << 20, 60.0

    def upload(self, path: str) -> uploads.SpooledUpload:
        timing = uploads.UploadTiming(self.save_seconds, self.part_bytes, self.whole_seconds)
        return uploads.SpooledUpload(path, self, timing)

    @property
    def parts(self) -> list[str]:
        return sorted(path for path in list(self.objects) if path.startswith("parts/"))

    def unfinished(self) -> list[Unfinished]:
        return uploads.unfinished_uploads("records", self)

    def send(self, path: str, content: uploads.Content) -> None:
        self.on_send()
        if path in self.objects:
            raise errors.DestinationError("the file exists already", file=path)
        pieces = (content.read(at, at + 700) for at in range(0, content.size, 700))
        self.objects[path] = b"".join(pieces)

    def put_part(self, path: str, data: bytes) -> None:
        self.on_put()
        self.objects[path] = data

    def listed(self, folder: str, *, deep: bool) -> list[FileInfo]:
        self.clock += 1
        return [
            FileInfo(path, len(data), self.clock)
            for path, data in list(self.objects.items())  # another thread may change them
            if path.startswith(f"{folder}/")
        ]

    def read_whole(self, path: str, limit: int) -> tuple[bytes, str]:
        if path not in self.objects:
            raise errors.NotFoundError("no such file", file=path)
        return self.objects[path], ""

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        for item, buffer in zip(ranges, buffers, strict=True):
            buffer[:] = self.objects[path][item.start : item.stop]

    def remove_part(self, path: str) -> None:
        self.on_remove(path)
        self.objects.pop(path, None)


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    store = Store()
    store.save_seconds = getattr(request, "param", 4.0)
    yield store
    assert threads() == []


def saving(seconds: float) -> pytest.MarkDecorator:
    """Mark a test whose store saves uploads after so many seconds: 0 is at once."""
    return pytest.mark.parametrize("store", [seconds], indirect=True)


def begun(store: Store, *notes: bytes) -> uploads.SpooledUpload:
    """An upload of `DATA` with these checkpoints."""
    upload = store.upload(PATH)
    upload.write(DATA)
    for note in notes:
        upload.checkpoint(note)
    return upload


def fail(path: str = PATH) -> None:
    raise errors.TransientError("as asked", file=path)


def run(code: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Run code in another process, with a store for uploads."""
    code = f"import sys\nfrom tests.cloud.test_spooled import PATH, Store, uploads\n{code}"
    return run_code(code, status=status)


threads = partial(own_threads, "seqrecord-upload")


def saved(store: Store, size: int) -> bool:
    """Whether the parts have this many bytes."""
    return any(unfinished.checkpoints()[-1][0] == size for unfinished in store.unfinished())


# Threads


@saving(0.0)
def test_a_thread_runs_from_the_first_checkpoint_to_the_end(store: Store) -> None:
    for end in ("commit", "abort", "abandon", "drop"):
        upload = begun(store)
        assert threads() == []
        upload.checkpoint(b"one")
        assert len(threads()) == 1
        wait_for(lambda: saved(store, len(DATA)))
        if end != "drop":
            getattr(upload, end)()
        del upload
        gc.collect()
        assert threads() == []
        assert bool(store.parts) == (end in ("abandon", "drop"))
        assert (PATH in store.objects) == (end == "commit")
        store.objects.clear()


def test_the_thread_ends_with_the_interpreter() -> None:
    lines = ["store = Store()", "store.save_seconds = 1e6", "upload = store.upload(PATH)"]
    run("\n".join([*lines, "upload.write(b'x')", "upload.checkpoint(b'one')"]))


# Parts


@saving(1e6)
def test_frequent_checkpoints_share_a_part(store: Store) -> None:
    upload = store.upload(PATH)
    for i in range(10):
        upload.write(b"x")
        upload.checkpoint(b"%d" % i)
    upload.write(b"not kept")
    assert store.parts == []
    upload.abandon()
    assert store.parts == [f"parts/{PATH}/00000"]
    (unfinished,) = store.unfinished()
    assert unfinished.path == PATH
    assert unfinished.checkpoints() == [(i + 1, b"%d" % i) for i in range(10)]
    assert read_part(unfinished, 0, 10) == b"x" * 10
    with pytest.raises(errors.StorageError, match="ended early"):
        read_part(unfinished, 0, 11)
    part = uploads.encode_part(5, b"data", [(7, b"note"), (9, b"")])  # as documented
    head = struct.pack("<IQQI", 1, 5, 9, 2)
    body = head + struct.pack("<QI", 7, 4) + b"note" + struct.pack("<QI", 9, 0) + b"data"
    assert part == b"SEQPART\0" + struct.pack("<I", crc32c(body)) + body


def test_random_uploads_are_read_as_written(store: Store) -> None:
    store.part_bytes = 1000
    for seed in range(60):
        draw = random.Random(seed)
        store.save_seconds = draw.choice([0.0, 0.001, 1e6])
        upload, data = store.upload(PATH), bytearray()
        notes: list[tuple[int, bytes]] = []
        for number in range(draw.randrange(1, 30)):
            if draw.random() < 0.2 and data:
                offset = draw.randrange(len(data) + 1)
                upload.rewind(offset)
                del data[offset:]
                notes = [note for note in notes if note[0] <= offset]
            piece = draw.randbytes(draw.randrange(3000))
            upload.write(piece)
            data += piece
            if draw.random() < 0.6:
                notes.append((len(data), b"%d" % number))
                upload.checkpoint(notes[-1][1])
        upload.abandon()
        found = store.unfinished()
        if notes:
            assert found[0].checkpoints() == notes
            assert read_part(found[0], 0, notes[-1][0]) == data[: notes[-1][0]]
            found[0].remove()
        assert store.objects == {}


@saving(1e6)
def test_parts_after_a_missing_or_damaged_one_are_ignored(store: Store) -> None:
    store.part_bytes = 1000
    upload = store.upload(PATH)
    for i in range(3):
        upload.write(DATA[i * 1000 : (i + 1) * 1000])
        upload.checkpoint(b"%d" % i)
    upload.abandon()
    whole = store.objects
    damages: dict[str, Callable[[bytes], bytes]] = {
        "missing": lambda part: part,
        "cut": lambda part: part[:-1],
        "changed": lambda part: part[:50] + bytes([part[50] ^ 1]) + part[51:],
        "longer": lambda part: part + b"x",
        "empty": lambda part: b"",
        "other": lambda part: b"SEQPART\1" + part[8:],
    }
    for damage, number in product(damages, range(3)):
        path = f"parts/{PATH}/{number:05d}"
        store.objects = whole | {path: damages[damage](whole[path])}
        if damage == "missing":
            del store.objects[path]
        store.objects[f"parts/{PATH}/notes.txt"] = b"of another program"
        store.objects["parts/records/loose"] = b"of another program"
        (unfinished,) = store.unfinished()
        assert unfinished.checkpoints() == [((i + 1) * 1000, b"%d" % i) for i in range(number)]
        if number:
            assert read_part(unfinished, 0, number * 1000) == DATA[: number * 1000]
        unfinished.remove()
        assert store.unfinished() == []


@saving(0.0)
def test_parts_are_saved_while_the_file_is_sent(store: Store) -> None:
    upload = store.upload(PATH)
    sending, putting = threading.Event(), threading.Event()

    def on_put() -> None:
        putting.set()
        assert sending.wait(60)

    def on_send() -> None:
        sending.set()
        wait_for(lambda: saved(store, 200))

    store.on_put, store.on_send = on_put, on_send
    for _ in range(2):
        upload.write(bytes(100))
        upload.checkpoint(b"note")
    assert putting.wait(60)
    upload.commit()  # sends after both checkpoints are saved
    assert list(store.objects) == [PATH]


@saving(0.0)
@pytest.mark.parametrize("is_stuck", [False, True])
def test_no_part_is_put_while_the_whole_file_is_sent(store: Store, is_stuck: bool) -> None:
    """Unless sending is stuck."""
    store.whole_seconds = 0.05 if is_stuck else store.whole_seconds
    upload, putting = begun(store), threading.Event()
    store.on_put = putting.set

    def on_send() -> None:
        upload.checkpoint(b"one")
        assert putting.wait(60 if is_stuck else 0.2) == is_stuck

    store.on_send = on_send
    upload.commit()
    assert store.objects == {PATH: DATA}
    assert putting.is_set() == is_stuck


# Failures


@saving(0.0)
def test_an_error_of_the_thread_is_raised_by_the_next_call(store: Store) -> None:
    store.on_put = fail
    for name, arguments in (
        *(("write", [b"x"]), ("checkpoint", [b"two"]), ("rewind", [0]), ("commit", [])),
    ):
        upload = begun(store, b"one")
        wait_for(lambda: threads() == [])
        for _ in range(2):
            with pytest.raises(errors.TransientError, match="as asked"):
                getattr(upload, name)(*arguments)
        upload.abandon()
        assert store.objects == {}


@saving(1e6)
def test_a_failed_commit_can_be_repeated_or_abandoned(store: Store) -> None:
    for end in ("commit", "abandon", "abort"):
        store.on_send = fail
        upload = begun(store, b"one")
        with pytest.raises(errors.TransientError):
            upload.commit()
        store.on_send = lambda: None
        with unwanted_if(lambda: True), pytest.raises(errors.StorageError, match="no longer need"):
            upload.commit()
        getattr(upload, end)()
        assert (PATH in store.objects) == (end == "commit")
        assert bool(store.parts) == (end == "abandon")
        store.objects.clear()


@saving(0.0)
def test_parts_that_cannot_be_removed_do_not_fail_a_commit(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    store.on_remove = fail
    upload = begun(store, b"one")
    wait_for(lambda: saved(store, len(DATA)))
    upload.commit()
    assert store.objects[PATH] == DATA
    assert "cannot remove" in caplog.text


def test_the_error_of_a_full_temporary_folder_names_tmpdir() -> None:
    done = run(
        "import resource, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "uploads.SpooledUpload(PATH, Store()).write(bytes(2000))\n",
        status=1,
    )
    for text in ("StorageError", "TMPDIR", PATH):
        assert text in done.stderr


@saving(0.0)
def test_is_durable_unless_a_kill_loses_a_checkpoint(store: Store) -> None:
    putting = threading.Event()

    def wait() -> None:
        assert putting.wait(60)

    store.on_put = wait
    upload = begun(store)
    durable = [upload.is_durable]  # no checkpoint yet
    upload.checkpoint(b"one")
    assert [*durable, upload.is_durable] == [True, False]
    putting.set()
    wait_for(lambda: upload.is_durable)
    (unfinished,) = store.unfinished()
    assert unfinished.checkpoints() == [(len(DATA), b"one")]
    putting.clear()
    upload.rewind(0)
    assert not upload.is_durable
    putting.set()
    wait_for(lambda: upload.is_durable)
    assert [u.checkpoints() for u in store.unfinished()] in ([], [[]])
    upload.abort()
