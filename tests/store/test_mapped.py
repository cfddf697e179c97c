"""Large local or remote index files take no memory, and large datasets open fast."""

from __future__ import annotations

import itertools
import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqrecord import FormatError, NotFoundError, StorageError
from seqrecord.store.checksum import crc32c
from seqrecord.store.format.index import Index
from seqrecord.store.reading.metadata import MapSizes, map_file
from seqrecord.store.storage.base import Storage, StorageWrapper
from seqrecord.store.storage.local import LocalStorage
from tests.kit.datasets import write_small
from tests.kit.faults import CountingStorage
from tests.kit.processes import run_code, run_python
from tests.kit.tiny import loaded
from tests.store.big_index import write_big_index
from tests.store.storage_contract import PATH, put

DATA = np.random.default_rng(2).bytes(100_000)


@pytest.fixture
def local(tmp_path: Path) -> LocalStorage:
    storage = LocalStorage(tmp_path / "dataset")
    put(storage, PATH, DATA)
    return storage


SMALL = MapSizes(small=1000, block=30_000, piece=30_000)


@pytest.mark.parametrize("is_remote", [False, True])
def test_bytes_and_checksum_of_mapped_files(local: LocalStorage, is_remote: bool) -> None:
    storage: Storage = StorageWrapper(local) if is_remote else local
    for size, checksum in itertools.product((0, 1, 1000, 1001, 60_000, 100_000), (True, False)):
        found = map_file(storage, PATH, size, checksum=checksum, sizes=SMALL)
        for _ in range(2):
            assert found.data.tobytes() == DATA[:size]
            found.release()
        assert found.data.readonly
        assert found.crc32c == (crc32c(DATA[:size]) if checksum else None)
    with pytest.raises(NotFoundError, match="nothing"):
        map_file(storage, "records/nothing", len(DATA), checksum=True, sizes=SMALL)
    for size in (50_000, 1000):  # a truncated file
        os.truncate(local.root / PATH, size // 2)
        with pytest.raises(StorageError, match=r"ended early.*/dataset/"):
            map_file(storage, PATH, size, checksum=True, sizes=SMALL)


def test_a_copy_is_read_once_and_leaves_no_file(
    local: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without disk space for it, the bytes are kept in memory."""
    before = list(tmp_path.iterdir())
    for folder in (tmp_path, tmp_path / "nowhere"):
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        storage = CountingStorage(local)
        found = map_file(storage, PATH, len(DATA), checksum=True, sizes=SMALL)
        assert storage.bytes_read == len(DATA)
        assert list(tmp_path.iterdir()) == before
        assert (found.data.tobytes(), found.crc32c) == (DATA, crc32c(DATA))


def test_errors_in_any_block_are_found(tmp_path: Path) -> None:
    write_big_index(tmp_path, episodes=40, frames=33, chunk_frames=4)
    manifest, index = loaded(tmp_path)
    sizes = [file.size for file in manifest.record_files]

    def decode(tables: Any) -> Index:
        return Index.decode(manifest.schema, tables, sizes, block_pages=35)  # 7 chunks of 5 pages

    index = decode(index.encode())
    (group,) = index.groups
    assert len(group.file) == 40 * 9
    present = group.present(8, 2)
    assert present is not None
    assert present.tolist() == [False]
    for row, name, value, message in (
        (100, "file", 10_000, "no record file"),
        (200, "offset", 65, "wrong offset"),
        (300, "offset", 1 << 40, "outside"),
        (359, "page_length", 3, "wrong length"),
        (250, "first_frame", 1 << 20, "does not follow"),
        (251, "num_frames", 65537, "impossible number of frames"),
    ):
        column = getattr(group, name).copy()
        column[row] = value
        tables = replace(index, groups=(replace(group, **{name: column}),)).encode()
        with pytest.raises(FormatError, match=message) as caught:
            decode(tables)
        assert (caught.value.got, caught.value.file) == (f"row {row}", "chunks0")


# Files truncated while in use

_CUT = """
import os, pickle, sys
import seqrecord

root, kind = sys.argv[1:]
dataset = seqrecord.open(root)
pipe = seqrecord.SeqRecordPipe(root, clip_len=2, shuffle=False)
if kind == "index":
    paths = [file.path for file in dataset.contents.manifest.index.values()]
else:
    paths = [file.path for file in dataset.contents.manifest.record_files]
for path in paths:
    os.truncate(os.path.join(root, path), 0)
for use in (lambda: list(pipe), lambda: pickle.loads(pickle.dumps(dataset)).episodes.keys()):
    try:
        use()
        print("fine")
    except seqrecord.SeqRecordError as error:
        print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        # A copy for another process builds a damaged index anew from the record files.
        pytest.param("index", ["fine", "fine"], marks=pytest.mark.slow),
        ("records", ["StorageError the file ended early", "fine"]),
    ],
)
def test_a_truncated_file_of_an_open_dataset_is_an_error(
    tmp_path: Path, kind: str, expected: list[str]
) -> None:
    write_small(tmp_path / "dataset")
    ran = run_code(_CUT, tmp_path / "dataset", kind)  # a status of -7 is SIGBUS
    for line, beginning in zip(ran.stdout.splitlines(), expected, strict=True):
        assert line.startswith(beginning)
        assert beginning == "fine" or str(tmp_path) in line


# 100 million frames

_OPEN = """
import json, sys, time
import pyarrow.compute
import seqrecord
from seqrecord.store.storage.local import LocalStorage
from seqrecord.store.storage.base import StorageWrapper

def status(name):
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) / 1024

location, kind = sys.argv[1:]
if kind == "remote":
    location = StorageWrapper(LocalStorage(location))
before, seconds = status("VmRSS"), []
open("/proc/self/clear_refs", "w").write("5")  # the peak counts from here
for _ in range(3):
    # CPU time of all threads: a busy machine makes a process wait, not work.
    begin = time.process_time()
    dataset = seqrecord.open(location)
    seconds.append(time.process_time() - begin)
    assert dataset.num_frames == 100_000_000
    dataset.close()
    del dataset
peak = status("VmHWM") - before
print(json.dumps({"seconds": min(seconds), "megabytes": peak}))
"""


@pytest.mark.slow
def test_a_hundred_million_frames_open_at_once(tmp_path: Path) -> None:
    manifest = write_big_index(tmp_path, episodes=100_000, frames=1000, chunk_frames=16)
    assert sum(file.size for file in manifest.index.values()) > 300_000_000
    for kind in ("local", "remote"):
        found = json.loads(run_python("-c", _OPEN, tmp_path, kind).stdout)
        assert found["megabytes"] <= 200, found
        # Remote, on a busy machine: mean 1.0 s, standard deviation 0.25 s.
        assert found["seconds"] <= 3, found
