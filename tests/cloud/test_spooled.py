"""Uploads written to a local file, with a dictionary as the store."""

from __future__ import annotations

import gc
import random
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from seqrecord import errors
from seqrecord.cloud import uploads
from seqrecord.cloud.clients import Clients
from seqrecord.cloud.remote import FsspecStorage
from seqrecord.cloud.retrying import Retrier
from seqrecord.cloud.whole import Pieces
from seqrecord.store.storage.opening import open_storage
from seqrecord.store.storage.ranges import unwanted_if
from tests.kit.processes import in_fork, run_code
from tests.store.storage_contract import get, put

PATH = "records/00000-ab.seqrec"
DATA = random.Random(1).randbytes(100_000)


class Store:
    """Stored objects by path; fails while `is_broken`. Reads content in pieces of 700 bytes.

    `reading` is set, and `go_on` awaited, before the second piece.
    """

    url = "mem://x"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.is_broken = False
        self.reading, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    def send(self, path: str, content: uploads.Content) -> None:
        if self.is_broken:
            raise errors.TransientError("as asked", file=path)
        data = b""
        while len(data) < content.size:
            data += content.read(len(data), len(data) + 700)
            self.reading.set()
            assert self.go_on.wait(60)
        self.objects[path] = data


def begun(store: Store) -> uploads.SpooledUpload:
    upload = uploads.SpooledUpload(PATH, store)
    upload.write(DATA[:1000])
    upload.write(DATA[1000:])
    return upload


def num_descriptors() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def test_every_end_closes_the_file() -> None:
    store = Store()
    gc.collect()
    before = num_descriptors()
    for end in ("commit", "abort", "abandon", "drop"):
        upload = begun(store)
        upload.checkpoint(b"ignored")
        assert num_descriptors() == before + 1
        if end != "drop":
            getattr(upload, end)()
            upload.abort()  # does nothing any more
        del upload
        gc.collect()
        assert num_descriptors() == before
        assert store.objects == ({PATH: DATA} if end == "commit" else {})
        store.objects.clear()


def test_random_uploads_are_sent_as_written() -> None:
    store = Store()
    for seed in range(40):
        draw = random.Random(seed)
        upload, data = uploads.SpooledUpload(PATH, store), bytearray()
        for _ in range(draw.randrange(1, 30)):
            if draw.random() < 0.3:
                offset = draw.randrange(len(data) + 1)
                upload.rewind(offset)
                del data[offset:]
            piece = draw.randbytes(draw.randrange(3000))
            upload.write(piece)
            data += piece
            assert upload.tell() == len(data)
        upload.commit()
        assert store.objects[PATH] == data


def test_a_failed_commit_can_be_repeated_or_abandoned() -> None:
    for end in ("commit", "abandon", "abort"):
        store = Store()
        store.is_broken = True
        upload = begun(store)
        with pytest.raises(errors.TransientError):
            upload.commit()
        store.is_broken = False
        with unwanted_if(lambda: True), pytest.raises(errors.StorageError, match="no longer need"):
            upload.commit()
        getattr(upload, end)()
        assert (PATH in store.objects) == (end == "commit")
        with pytest.raises(errors.StorageError, match="the upload is closed"):
            upload.commit()


def test_an_upload_that_is_abandoned_while_it_is_sent_stores_nothing() -> None:
    """Its descriptor may belong to another file by then."""
    store = Store()
    store.go_on.clear()
    upload, caught = begun(store), list[BaseException]()

    def send() -> None:
        try:
            upload.commit()
        except errors.StorageError as error:
            caught.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    assert store.reading.wait(60)
    upload.abandon()
    store.go_on.set()
    thread.join()
    assert "the upload is closed" in str(caught)
    assert store.objects == {}


def test_the_error_of_a_full_temporary_folder_names_tmpdir() -> None:
    done = run_code(
        "import resource, signal\n"
        "from tests.cloud.test_spooled import PATH, Store, uploads\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "uploads.SpooledUpload(PATH, Store()).write(bytes(2000))\n",
        status=1,
    )
    for text in ("StorageError", "TMPDIR", PATH):
        assert text in done.stderr


# Files of fsspec


class _LosesAnAnswer(FsspecStorage):
    """The response to the first upload of a file is lost; `stored` is the file's content."""

    stored: bytes | None = None

    def upload(self, path: str, pieces: Pieces) -> None:
        b"".join(pieces)
        if self.stored is not None:
            super().upload(path, Pieces(path, _Bytes(self.stored), 1 << 20, 100))
        self.stored = None
        raise errors.TransientError("the connection was reset", file=path)


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self.data, self.size = data, len(data)

    def read(self, start: int, stop: int) -> bytes:
        return self.data[start:stop]


def test_another_file_of_the_same_length_is_a_conflict() -> None:
    """An upload with a lost response, and another file of the same name and length."""
    root = f"lost-{uuid.uuid4().hex}"
    quick = Retrier(sleep=lambda _: None)
    storage = _LosesAnAnswer("memory", root, shown=f"memory://{root}", retrier=quick)
    for size, at in ((1, 0), (64, -1), (3 << 20, 5)):
        data = random.Random(1).randbytes(size)
        other = bytearray(data)
        other[at] ^= 1
        for path, stored in ((f"records/a{size}", data), (f"records/b{size}", bytes(other))):
            storage.stored = stored
            upload = storage.create(path)
            upload.write(data)
            if stored == data:
                upload.commit()
            else:
                with pytest.raises((errors.DestinationError, errors.TransientError)):
                    upload.commit()
                upload.abort()
            assert get(storage, path) == stored
    storage.close()


def test_a_forked_child_makes_its_own_client() -> None:
    memory = open_storage(f"memory://{uuid.uuid4().hex}")
    put(memory, PATH, DATA)
    clients = Clients(object, is_reread=False)
    mine = clients.ask("file", lambda client: client)
    assert clients.ask("file", lambda client: client) is mine
    assert in_fork(lambda: clients.ask("file", lambda client: client) is not mine)
    assert in_fork(lambda: get(memory, PATH, 0, 9) == DATA[:9])


def test_clients_of_different_locations_are_made_one_at_a_time() -> None:
    """Making a client imports packages, and a thread may see an incomplete import."""
    making, most = 0, 0

    def make() -> object:
        nonlocal making, most
        making += 1
        most = max(most, making)
        time.sleep(0.02)
        making -= 1
        return object()

    every = [Clients(make, is_reread=False) for _ in range(4)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda clients: clients.ask("file", lambda c: c), every * 2))
    assert most == 1
    assert found[:4] == found[4:]
