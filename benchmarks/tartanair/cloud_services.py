"""What the benchmark of storages reads from: Azurite, a mount of it, and what lies in them."""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.tartanair.timing import drop_page_cache
from seqrecord.checksum import crc32c
from seqrecord.format.rows import GAP_ROW
from seqrecord.index import Index
from seqrecord.manifest import IndexFile, Manifest, RecordFile, commit_manifest
from seqrecord.ranges import ByteRange
from seqrecord.schema import FeatureSpec, Schema
from seqrecord.storage import LocalStorage, Storage, StorageWrapper, open_storage
from seqrecord.storage.parallel import ParallelStorage
from seqrecord.storage.retrying import RetryingStorage
from tests.blobfile_pool import blobfile_options
from tests.fault_proxy import FaultProxy
from tests.services import Azurite, Mount
from tests.storage_doubles import Throttled

__all__ = ["INDEX", "RECORDS", "Places", "bare", "make_index", "serve"]

RECORDS, INDEX = "records", "index"  # folders of the container
EMULATED = "devstoreaccount1"  # the account of an emulator


_CHUNKS, _CHUNK_FRAMES = 160, 32  # of an episode of the made index
_UPLOADS = 2


@dataclass(frozen=True)
class Places:
    """Where the benchmark's data can be read from, for its processes; `proxied` is the container
    behind a proxy that counts requests."""

    local: str
    index: str
    mount: str
    container: str
    connection_string: str
    proxied: str

    @classmethod
    def load(cls, folder: Path) -> Places:
        return cls(**json.loads(_saved(folder).read_text()))

    def open(
        self,
        place: str,
        what: str = RECORDS,
        *,
        far: bool = False,
        narrow: bool = False,
        counted: bool = False,
    ) -> Storage:
        """The storage of a place; `far`, as if 60 ms away with 80 MB/s a stream; `narrow`, as if
        behind a line of 1 Gbit/s for all streams together."""
        storage = open_storage(*self.location(place, what, counted=counted))
        if far:
            slower: Storage = Throttled(bare(storage), latency=0.06, bytes_per_second=80e6)
        elif narrow:
            slower = Line(bare(storage), bytes_per_second=125e6)
        else:
            return storage
        return ParallelStorage(RetryingStorage(slower))

    def location(
        self, place: str, what: str = RECORDS, *, counted: bool = False
    ) -> tuple[str, dict[str, Any] | None]:
        """Location and storage options of a place: `local`, `mount`, or a client for Azure."""
        if place == "local":
            return (self.local if what == RECORDS else self.index), None
        if place == "mount":
            return f"{self.mount}/{what}", None
        string = self.proxied if counted else self.connection_string
        options = {"backend": place, "connection_string": string}
        path = f"{self.container}/{what}"
        if place == "blobfile":  # whose URLs begin with the account
            host = re.search(r"BlobEndpoint=http://([^/;]+)", string)
            key = re.search(r"AccountKey=([^;]+)", string)
            assert host is not None
            assert key is not None
            return f"blobfile+az://{EMULATED}/{path}", blobfile_options(host[1], key[1])
        return f"az://{path}", options

    def forget(self, place: str) -> None:
        """Let nothing of the mount lie in this machine's page cache. The local disk's stays."""
        if place == "mount":
            drop_page_cache(Path(self.mount))


class Line(StorageWrapper):
    """All reads share one line, which carries so many bytes a second."""

    def __init__(self, inner: Storage, *, bytes_per_second: float) -> None:
        super().__init__(inner)
        self._rate = bytes_per_second
        self._lock = threading.Lock()
        self._free = 0.0  # when the line is, on `monotonic`

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        with self._lock:
            begin = max(self._free, time.monotonic())
            self._free = due = begin + sum(item.length for item in ranges) / self._rate
        super().read_ranges(path, ranges, buffers)
        time.sleep(max(0.0, due - time.monotonic()))


def bare(storage: Storage) -> Storage:
    """The innermost storage, without repeats and without parallel requests."""
    while isinstance(storage, StorageWrapper):
        storage = storage.inner
    return storage


@contextmanager
def serve(folder: Path, records: Path, index: Path) -> Iterator[FaultProxy]:
    """Start the services with these datasets, and let `Places.load(folder)` find them."""
    home = folder / "services"
    shutil.rmtree(home, ignore_errors=True)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        azurite = Azurite(home / "azurite")
        stack.callback(azurite.stop)
        container = azurite.new_container()
        for source, name in ((records, RECORDS), (index, INDEX)):
            _upload(azurite, container, source, name)
        mount = Mount(azurite, container, home / "rclone", dir_cache=300)
        stack.callback(mount.close)
        proxy = stack.enter_context(FaultProxy(azurite.host))
        proxied = azurite.connection_string_at(f"http://{proxy.host}/{azurite.account}")
        places = Places(
            local=str(records),
            index=str(index),
            mount=str(mount.path),
            container=container,
            connection_string=azurite.connection_string,
            proxied=proxied,
        )
        _saved(folder).write_text(json.dumps(asdict(places)))
        stack.callback(_saved(folder).unlink)
        yield proxy


def _saved(folder: Path) -> Path:
    return folder / "cloud-places.json"


def _upload(azurite: Azurite, container: str, source: Path, name: str) -> None:
    with azurite.client() as client:
        for path in sorted(source.rglob("*")):
            if path.is_file() and not path.name.startswith("."):
                blob = client.get_blob_client(container, f"{name}/{path.relative_to(source)}")
                with path.open("rb") as file:
                    blob.upload_blob(file, overwrite=True, max_concurrency=_UPLOADS)


def make_index(folder: Path, num_frames: int) -> None:
    """Manifest and index of a data set of at least so many frames, whose record files are none."""
    episodes = max(1, -(-num_frames // (_CHUNKS * _CHUNK_FRAMES)))
    count = episodes * _CHUNKS
    codec = ({"id": "zstd", "level": 1},)
    schema = Schema([FeatureSpec(name, np.dtype("u1"), (480, 640), codec) for name in "abcde"])
    rng = np.random.default_rng(0)
    index = Index(
        schema=schema,
        keys=pa.array([f"environment/Easy/P{i:06d}" for i in range(episodes)], pa.string()),
        metadata=pa.array(['{"difficulty":"Easy"}'] * episodes, pa.string()),
        num_frames=np.full(episodes, _CHUNKS * _CHUNK_FRAMES, np.int64),
        chunk_frames=np.full(episodes, _CHUNK_FRAMES, np.int64),
        file=np.repeat(np.arange(episodes, dtype=np.uint32), _CHUNKS),
        offset=np.tile(64 + np.arange(_CHUNKS, dtype=np.uint64) * 64 * 5000, episodes),
        page_length=rng.integers(1000, 60_000, (count, 5), np.uint32),
        page_crc32c=rng.integers(0, 2**32, (count, 5), np.uint32),
        largest_frame=np.empty((count, 0), np.uint32),
        gaps=np.empty(0, GAP_ROW),
    )
    storage = LocalStorage(folder)
    tables = {}
    for name, data in index.encode().items():
        upload = storage.create(f"index/made-{name}.arrow", replace=True)
        upload.write(memoryview(data))
        upload.commit()
        checksum = f"{crc32c(memoryview(data)):08x}"
        tables[name] = IndexFile(upload.path, data.size, checksum)
    size = 64 * 5000 * (_CHUNKS + 1)
    files = (f"{i:032x}" for i in range(episodes))
    manifest = Manifest(
        schema=schema,
        record_files=tuple(RecordFile(f"records/{i[-6:]}-made.seqrec", size, i) for i in files),
        index=tables,
        num_episodes=episodes,
        num_frames=episodes * _CHUNKS * _CHUNK_FRAMES,
        fingerprint=index.fingerprint(),
        created_by="benchmark",
    )
    commit_manifest(storage, manifest)
