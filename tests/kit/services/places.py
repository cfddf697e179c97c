"""Empty folders of object stores and web servers, for tests that run on each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from seqrecord.cloud.objects.storage import ObjectStorage
from seqrecord.cloud.retrying import Retrier, RetryingStorage
from seqrecord.cloud.whole import WholeFileStorage
from seqrecord.store.storage.base import Storage, StorageWrapper, UploadLimits
from seqrecord.store.storage.opening import open_storage
from seqrecord.store.storage.parallel import ParallelStorage
from tests.kit.services import Azurite, Moto
from tests.kit.services.gcs_stub import GcsStub
from tests.kit.services.web_server import WebFolder

_FOLDER = "data/set"

CLOUDS: tuple[Any, ...] = (
    pytest.param("azurite", marks=pytest.mark.service),
    pytest.param("s3", marks=pytest.mark.service),
    "gs",
)
"""Kinds of writable places, as parameters."""

PLACES = (*CLOUDS, "http")


@dataclass(frozen=True)
class Place:
    """A folder of a store with the address `host`.

    `at(host)` returns its URL and storage options, through a proxy at `host`; `put` adds a file;
    `names` returns all objects in its bucket, also outside the folder.
    """

    kind: str
    host: str
    at: Callable[[str], tuple[str, dict[str, Any]]]
    put: Callable[[str, bytes], None]
    names: Callable[[], list[str]]

    def copy(self, folder: Path) -> None:
        """Add all files of a local folder."""
        for file in folder.rglob("*"):
            if file.is_file():
                self.put(file.relative_to(folder).as_posix(), file.read_bytes())

    @property
    def url(self) -> str:
        return self.at(self.host)[0]

    @property
    def options(self) -> dict[str, Any]:
        return self.at(self.host)[1]

    def open(self, host: str = "", **more: Any) -> Storage:
        """Open it as a storage, through a proxy at `host`."""
        url, options = self.at(host or self.host)
        return open_storage(url, {**options, **more})

    def hasty(self, host: str = "", **more: Any) -> Storage:
        """The same as `open`, `with_short_waits`."""
        return with_short_waits(self.open(host, **more))


def as_remote(storage: Storage, deadline: float | None = None, **settings: int) -> Storage:
    """Treat a storage as a remote one: with concurrent requests, repeated for `deadline` seconds.

    Without a `deadline` no request is repeated. `settings` are those of `ParallelStorage`.
    """
    if deadline is not None:
        storage = RetryingStorage(storage, retrier=Retrier(deadline))
    return ParallelStorage(storage, **settings)


def with_short_waits(storage: Storage) -> Storage:
    """Shorten a storage's waits, and let it divide short files; returns it.

    Failed requests are repeated soon, and each flush ends a record file. Pieces of uploads have a
    fiftieth of the default size.
    """
    for each in _layers(storage):
        if isinstance(each, (RetryingStorage, WholeFileStorage)):
            each.retrier.first_wait = 0.01
        if isinstance(each, WholeFileStorage):
            each.upload_limits = UploadLimits(flush_seconds=0.0)
        if isinstance(each, ObjectStorage):
            each.piece_bytes = 5 << 16
    return storage


def with_deadline(storage: Storage, seconds: float) -> Storage:
    """Let a storage stop its retries after some seconds; returns it.

    Time-outs of attempts stay a quarter of the `deadline` passed to `open`: on a busy machine, a
    short one would end all attempts before any response.
    """
    for each in _layers(storage):
        if isinstance(each, (RetryingStorage, WholeFileStorage)):
            each.retrier.deadline = seconds
    return storage


def _layers(storage: Storage) -> Iterator[Storage]:
    yield storage
    while isinstance(storage, StorageWrapper):
        storage = storage.inner
        yield storage


@contextmanager
def make_place(kind: str, fixture: Callable[[str], Any], folder: Path) -> Iterator[Place]:
    """An empty folder of `azurite`, `s3`, `gs` or `http`; `fixture(name)` returns a fixture."""
    pytest.importorskip("obstore", reason="pip install obstore")
    if kind == "azurite":
        yield _azurite(fixture("azurite"))
    elif kind == "s3":
        pytest.importorskip("botocore", reason="pip install boto3")
        yield _s3(fixture("moto"))
    elif kind == "gs":
        yield _gs(fixture("gcs"))
    else:
        with WebFolder(folder / "web") as server:
            yield _http(server)


def _azurite(azurite: Azurite) -> Place:
    container = azurite.new_container()

    def at(host: str) -> tuple[str, dict[str, Any]]:
        endpoint = f"http://{host}/{azurite.account}"
        options = {"connection_string": azurite.connection_string_at(endpoint)}
        return f"az://{container}/{_FOLDER}", options

    def put(path: str, data: bytes) -> None:
        azurite.put(container, f"{_FOLDER}/{path}", data)

    def names() -> list[str]:
        with azurite.client() as client:
            blobs = client.get_container_client(container).list_blobs()
            return sorted(blob.name for blob in blobs)

    return Place("azurite", azurite.host, at, put, names)


def _s3(moto: Moto) -> Place:
    bucket = moto.new_bucket()

    def names() -> list[str]:
        found = moto.client().list_objects_v2(Bucket=bucket).get("Contents", ())
        return sorted(item["Key"] for item in found)

    return Place(
        "s3",
        moto.host,
        lambda host: (f"s3://{bucket}/{_FOLDER}", moto.options(f"http://{host}")),
        lambda path, data: moto.put(bucket, f"{_FOLDER}/{path}", data),
        names,
    )


def _gs(gcs: GcsStub) -> Place:
    bucket = gcs.new_bucket()

    def put(path: str, data: bytes) -> None:
        gcs.put(bucket, f"{_FOLDER}/{path}", data)

    return Place(
        "gs",
        gcs.host,
        lambda host: (f"gs://{bucket}/{_FOLDER}", gcs.options(f"http://{host}")),
        put,
        lambda: gcs.names(bucket),
    )


def _http(server: WebFolder) -> Place:
    root = server.folder / _FOLDER

    def put(path: str, data: bytes) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)

    def names() -> list[str]:
        files = [path for path in server.folder.rglob("*") if path.is_file()]
        return sorted(path.relative_to(server.folder).as_posix() for path in files)

    return Place("http", server.host, lambda host: (f"http://{host}/{_FOLDER}", {}), put, names)
