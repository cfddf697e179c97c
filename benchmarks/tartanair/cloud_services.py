"""Services of the object store benchmark: Azurite and moto, lines to them, and other readers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

from benchmarks.tartanair.backends import BACKENDS, place_of, require
from benchmarks.tartanair.cloud_line import Line
from benchmarks.timing import files_of
from seqrecord.store.checksum import crc32c
from seqrecord.store.format.index import NO_SPLIT, GroupIndex, Index
from seqrecord.store.format.manifest import IndexFile, Manifest, RecordFile
from seqrecord.store.format.rows import GAP_ROW
from seqrecord.store.schema import FeatureSpec, Schema
from tests.kit.services import Azurite, Moto, Mount, need_mount
from tests.kit.services.fault_proxy import FaultProxy

__all__ = [
    "FAR",
    "MOUNT",
    "NARROW",
    "READERS",
    "SERVICES",
    "Service",
    "cpu_seconds",
    "make_index",
    "readers",
    "serve",
    "start",
]

SERVICES = ("azurite", "moto")
MOUNT = "mount"
READERS = (MOUNT, *BACKENDS)
"""Other readers of Azurite's objects."""
NARROW: dict[str, Any] = {"bytes_per_second": 125e6}
FAR: dict[str, Any] = {"seconds_away": 0.06, "connection_bytes_per_second": 80e6}

_CHUNKS, _CHUNK_FRAMES = 160, 32  # per episode of the generated index
_UPLOADS = 2


class _Azurite:
    """A container of Azurite, accessed at `host` or through a line or proxy."""

    def __init__(self, service: Azurite) -> None:
        self.service, self.container = service, service.new_container()
        self.host = service.host

    def location(self, prefix: str) -> str:
        return f"az://{self.container}/{prefix}"

    def options(self, host: str) -> dict[str, Any]:
        """Storage options of the package."""
        endpoint = f"http://{host}/{self.service.account}"
        return {"connection_string": self.service.connection_string_at(endpoint)}

    def store(self, host: str) -> dict[str, Any]:
        """Arguments of obstore's store: see `cloud_rows.client`."""
        return {
            "kind": "azure",
            "bucket": self.container,
            "account_name": self.service.account,
            "account_key": self.service.key,
            "endpoint": f"http://{host}/{self.service.account}",
        }

    def upload(self, source: Path, prefix: str) -> None:
        with self.service.client() as client:
            for path, name in _files(source, prefix):
                blob = client.get_blob_client(self.container, name)
                with path.open("rb") as file:
                    blob.upload_blob(file, overwrite=True, max_concurrency=_UPLOADS)

    def remove(self, prefix: str) -> None:
        with self.service.client() as client:
            container = client.get_container_client(self.container)
            for name in list(container.list_blob_names(name_starts_with=f"{prefix}/")):
                container.delete_blob(name)


class _Moto:
    """A bucket of moto."""

    def __init__(self, service: Moto) -> None:
        self.service, self.bucket = service, service.new_bucket()
        self.host = service.host

    def location(self, prefix: str) -> str:
        return f"s3://{self.bucket}/{prefix}"

    def options(self, host: str) -> dict[str, Any]:
        # s3fs's names, accepted by obstore's reader too.
        keys = {"key": self.service.key, "secret": self.service.secret}
        return {**keys, "endpoint_url": f"http://{host}"}

    def store(self, host: str) -> dict[str, Any]:
        return {"kind": "s3", "bucket": self.bucket, **self.service.options(f"http://{host}")}

    def upload(self, source: Path, prefix: str) -> None:
        for path, name in _files(source, prefix):
            self.service.put(self.bucket, name, path.read_bytes())

    def remove(self, prefix: str) -> None:
        client = self.service.client()
        pages = client.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket, Prefix=f"{prefix}/"
        )
        for name in [item["Key"] for page in pages for item in page.get("Contents", ())]:
            client.delete_object(Bucket=self.bucket, Key=name)


Cloud = _Azurite | _Moto


@dataclass(frozen=True)
class Service:
    """A service, and the hosts of its lines by row. `proxy` counts requests.

    Our client reads, unless another `backend` or a `mount` does. A mount reads from the service
    itself, without a line.
    """

    cloud: Cloud
    hosts: dict[str, str]
    proxy: FaultProxy
    backend: str = ""
    mount: Path | None = None

    def host(self, row: str) -> str:
        return self.hosts.get(row, self.cloud.host)

    def place(self, prefix: str, row: str = "") -> dict[str, Any]:
        """Location and options of a folder, arguments of `cloud_rows`."""
        if self.mount:
            return {"location": str(self.mount / prefix), "options": None}
        return place_of(self.cloud, prefix, self.host(row), self.backend)


def _files(source: Path, prefix: str) -> list[tuple[Path, str]]:
    """A folder's files and their object names below `prefix`."""
    paths = [path for path in sorted(files_of(source)) if not path.name.startswith(".")]
    return [(path, f"{prefix}/{path.relative_to(source)}") for path in paths]


def start(name: str, folder: Path) -> Cloud:
    """Start one of `SERVICES`, with its data in `folder`, and make a container or bucket."""
    return _Azurite(Azurite(folder)) if name == "azurite" else _Moto(Moto(folder))


@contextmanager
def serve(folder: Path, names: tuple[str, ...] = SERVICES) -> Iterator[dict[str, Service]]:
    """Start services, with their data in `folder`, and lines to them."""
    with ExitStack() as stack:
        services = {}
        for name in names:
            cloud = start(name, folder / name)
            stack.callback(cloud.service.stop)
            narrow = stack.enter_context(Line(cloud.host, **NARROW))
            far = stack.enter_context(Line(cloud.host, **FAR))
            proxy = stack.enter_context(FaultProxy(cloud.host))
            hosts = {"narrow": narrow.host, "far": far.host, "count": proxy.host}
            services[name] = Service(cloud, hosts, proxy)
        yield services


@contextmanager
def readers(azurite: Service, folder: Path) -> Iterator[dict[str, Service]]:
    """`READERS` of a service whose objects are there; rclone's files are in `folder`."""
    require(need_mount)
    cloud = azurite.cloud
    assert isinstance(cloud, _Azurite)
    options = ("--dir-cache-time", "300s")  # rclone's default: nothing is written
    mount = Mount(cloud.service, cloud.container, folder, options=options)
    try:
        backends = {name: replace(azurite, backend=name) for name in BACKENDS}
        yield {MOUNT: replace(azurite, mount=mount.path), **backends}
    finally:
        mount.close()


def cpu_seconds() -> float:
    """CPU seconds so far of this process and its children, the services."""
    this = psutil.Process()
    spent = [process.cpu_times() for process in (this, *this.children(recursive=True))]
    return float(sum(times.user + times.system for times in spent))


def make_index(folder: Path, num_frames: int) -> None:
    """Write manifest and index of a dataset of at least `num_frames`, without record files."""
    episodes = max(1, -(-num_frames // (_CHUNKS * _CHUNK_FRAMES)))
    count = episodes * _CHUNKS
    codec = ({"id": "zstd", "level": 1},)
    schema = Schema([FeatureSpec(name, np.dtype("u1"), (480, 640), codec) for name in "abcde"])
    rng = np.random.default_rng(0)
    group = GroupIndex(
        schema=schema,
        features=np.arange(5),
        num_chunks=np.full(episodes, _CHUNKS, np.int64),
        first_frame=np.tile(_CHUNK_FRAMES * np.arange(_CHUNKS, dtype=np.uint32), episodes),
        num_frames=np.full(count, _CHUNK_FRAMES, np.uint32),
        file=np.repeat(np.arange(episodes, dtype=np.uint32), _CHUNKS),
        offset=np.tile(64 + np.arange(_CHUNKS, dtype=np.uint64) * 64 * 5000, episodes),
        page_length=rng.integers(1000, 60_000, (count, 5), np.uint32),
        page_crc32c=rng.integers(0, 2**32, (count, 5), np.uint32),
        page_digest=rng.integers(0, 256, (count, 5, 16), np.uint8),
        largest_frame=np.empty((count, 0), np.uint32),
        external=np.zeros(count, np.uint32),
        gaps=np.empty(0, GAP_ROW),
    )
    index = Index(
        schema=schema,
        keys=pa.array([f"environment/Easy/P{i:06d}" for i in range(episodes)], pa.string()),
        uids=rng.integers(0, 256, (episodes, 16), np.uint8),
        metadata=pa.array(['{"difficulty":"Easy"}'] * episodes, pa.string()),
        num_frames=np.full(episodes, _CHUNKS * _CHUNK_FRAMES, np.int64),
        fps=np.zeros(episodes),
        split=np.full(episodes, NO_SPLIT, np.uint16),
        groups=(group,),
    )
    (folder / "index").mkdir(parents=True)
    tables = {}
    for name, data in index.encode().items():
        path = f"index/made-{name}.arrow"
        (folder / path).write_bytes(memoryview(data))
        tables[name] = IndexFile(path, data.size, f"{crc32c(memoryview(data)):08x}")
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
    (folder / "manifest.json").write_bytes(manifest.encode())
