"""Files that pages refer to, on a disk and at a URL."""

from __future__ import annotations

import gc
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from seqrecord import open_source
from seqrecord.errors import FormatError, SourceError
from seqrecord.in_place.externals import ExternalFiles
from seqrecord.in_place.references import checksum_of_range
from seqrecord.in_place.remote import RemoteFiles, remote_files
from seqrecord.store.checksum import crc32c
from seqrecord.store.format.references import (
    ExternalFile,
    ExternalList,
    list_path,
)
from seqrecord.store.reading.home import trust
from seqrecord.store.storage.base import StorageWrapper
from seqrecord.store.storage.local import LocalStorage
from seqrecord.store.storage.opening import open_storage
from tests.formats.cases import upload
from tests.formats.test_source_contract import everything
from tests.store.test_references import FOLDER_REFERENCE


def test_no_checksum_of_a_file_that_became_shorter(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"xabcd")
    path = str(tmp_path / "a")
    assert checksum_of_range(path, 1, 5) == crc32c(b"abcd")
    with pytest.raises(SourceError, match=r"truncated file; .*expected: 5 bytes") as info:
        checksum_of_range(path, 1, 6)
    assert info.value.offset == 1


def test_a_page_that_refers_to_files_of_a_file(tmp_path: Path) -> None:
    """A file of a list cannot be a folder, whatever a page contains."""
    made = ExternalList((ExternalFile(str(tmp_path), "a", 5),))
    path = tmp_path / list_path(made.id)
    path.parent.mkdir()
    path.write_bytes(made.encode())
    trust(made.id)
    with pytest.raises(FormatError):
        ExternalFiles(LocalStorage(tmp_path)).read(
            replace(FOLDER_REFERENCE, list_id=made.id, file=0)
        )


def test_garbage_files_are_closed_during_a_lookup(memory_url: str) -> None:
    """A file in a reference cycle is closed by whichever thread collects it."""

    class CollectingPath(type(Path())):  # type: ignore[misc]
        def is_relative_to(self, *other: Any) -> bool:
            gc.collect()
            return bool(super().is_relative_to(*other))

    class Commit(StorageWrapper):
        fixed_url = "url of a commit"  # files never change

    fsspec.filesystem("memory").pipe(f"{memory_url}/file", b"content")
    files = RemoteFiles(Commit(open_storage(memory_url)))
    cycle: list[Any] = [files.open(files.root / "file")]
    assert cycle[0].read() == b"content"
    cycle.append(cycle)
    del cycle
    path = CollectingPath(files.root / "file")
    thread = threading.Thread(target=remote_files, args=(path,), daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()


def test_two_accounts_with_one_url_do_not_meet() -> None:
    options = {"account_key": "eA=="}
    one, two = (
        RemoteFiles(open_storage("az://container/set", {"account_name": name, **options}))
        for name in ("one", "two")
    )
    assert one.storage.url == two.storage.url
    assert one.root != two.root


def test_parts_of_zarr_values_and_values_that_are_not_there(
    tmp_path: Path, memory_url: str
) -> None:
    """Of a sharded array a part of each file is read; of rows 32 to 63 there is none. The store of
    remote files refuses writes."""
    zarr = pytest.importorskip("zarr")
    stores = pytest.importorskip("seqrecord.formats.sources.zarr.stores")
    group = zarr.create_group(tmp_path / "set" / "a.zarr", zarr_format=3)
    sharded = group.create_array("data/x", shape=(128,), dtype="i4", chunks=(8,), shards=(32,))
    sharded[:32], sharded[96:] = np.arange(32), np.arange(32, 64)
    group.create_array("meta/episode_ends", data=np.array([13, 40, 128]), chunks=(3,))
    url = upload(tmp_path / "set", memory_url)
    assert everything(open_source(url)) == everything(open_source(tmp_path / "set"))
    files = RemoteFiles(open_storage(url))
    found = zarr.open_group(stores.RemoteStore(files, files.root / "a.zarr"), mode="r")
    with pytest.raises(ValueError, match="read-only"):
        found["data/x"][:] = 0
