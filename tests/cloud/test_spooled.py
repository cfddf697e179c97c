"""Uploads written to a local file, with a dictionary as the store."""

from __future__ import annotations

import gc
import random
import threading
from pathlib import Path

import pytest

from seqrecord import errors
from seqrecord.cloud import uploads
from seqrecord.store.storage.ranges import unwanted_if
from tests.kit.processes import run_code

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
