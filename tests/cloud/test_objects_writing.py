"""Writes to object stores: uploads, interrupted uploads, conditional puts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import convert, errors
from seqrecord.cloud.clients import RUNTIME
from seqrecord.store.storage.base import Storage, identity_of
from seqrecord.store.storage.opening import open_storage
from seqrecord.store.storage.ranges import unwanted_if
from tests.kit.made_source import MadeSource
from tests.kit.processes import in_fork, wait_for
from tests.kit.services.fault_proxy import FaultProxy, ScriptedFaults, no_lists
from tests.kit.services.places import CLOUDS, Place, with_short_waits
from tests.store.storage_contract import DATA, PATH, StorageContract, get, put

# Sizes for hastened storages:
LARGE = np.random.default_rng(1).bytes(11 << 16)  # uploaded in parts
SOURCE = MadeSource((9, 3, 14, 1, 6))
SETTINGS: dict[str, Any] = {"chunk_frames": 4, "max_file_size": 30_000}


pytestmark = pytest.mark.parametrize("place", CLOUDS, indirect=True)


@pytest.fixture
def storage(place: Place) -> Iterator[Storage]:
    storage = place.hasty()
    yield storage
    storage.close()


class TestObjectStorage(StorageContract):
    @pytest.fixture
    def storage(self, storage: Storage) -> Storage:
        return storage


def test_a_bucket_without_a_path(place: Place) -> None:
    """Names of objects have no prefix."""
    storage = with_short_waits(open_storage(place.url.removesuffix("/data/set"), place.options))
    storage.put("manifest.json", b"one", expected=None)
    data, tag = storage.read_whole("manifest.json", 9)
    storage.put("manifest.json", data + b", two", expected=tag)
    for path in (PATH, "records/sub/c", "other"):
        put(storage, path, DATA)
    assert place.names() == ["manifest.json", "other", PATH, "records/sub/c"]
    assert [file.path for file in storage.files("records")] == [PATH]
    assert (storage.size(PATH), get(storage, PATH)) == (len(DATA), DATA)
    for path in (PATH, "records/sub/c", "other"):
        storage.remove(path)
    assert place.names() == ["manifest.json"]
    for path in ("records", "records/sub", "records/sub/c"):
        put(storage, path, b"")
    assert storage.files("records") == [], "placeholders of folders are not files"
    assert [file.path for file in storage.files("records/sub")] == ["records/sub/c"]
    storage.close()


# Conditional puts


def test_copies_return_the_same_tag(place: Place, storage: Storage) -> None:
    other = place.open()
    storage.put("manifest.json", b"one", expected=None)
    data, tag = other.read_whole("manifest.json", 100)
    assert (data, tag) == storage.read_whole("manifest.json", 100)
    other.put("manifest.json", b"two", expected=tag)
    assert storage.read_whole("manifest.json", 100)[0] == b"two"
    with pytest.raises(errors.StorageError, match="too large"):
        other.read_whole("manifest.json", 2)
    with pytest.raises(errors.ConflictError):
        other.put("manifest.json", b"three", expected=tag)
    other.close()
    with FaultProxy(place.host) as proxy:  # a put that conflicts with another is retried
        hasty = place.hasty(proxy.host)
        for name in ("other.json", "manifest.json"):
            expected = None if name == "other.json" else hasty.read_whole(name, 9)[1]
            proxy.fault = ScriptedFaults(["409"], lambda request: request.method == "PUT")
            hasty.put(name, b"new", expected=expected)
            assert hasty.read_whole(name, 9)[0] == b"new"
        assert proxy.faults["409"] == 2
        hasty.close()


# Uploads


def test_a_large_file_is_uploaded_in_parts(
    place: Place, storage: Storage, request: pytest.FixtureRequest
) -> None:
    upload = storage.create(PATH)
    for start in range(0, len(LARGE), 43_000):
        upload.write(LARGE[start : start + 43_000])
    assert place.names() == []
    upload.commit()
    assert get(storage, PATH) == LARGE
    again = storage.create(PATH)
    again.write(LARGE)
    with pytest.raises(errors.DestinationError, match="exists already"):
        again.commit()
    again.abort()
    other = storage.create("records/other")
    other.write(LARGE)
    with unwanted_if(lambda: True), pytest.raises(errors.StorageError, match="no longer needed"):
        other.commit()
    other.abort()
    assert place.names() == [f"data/set/{PATH}"], "interrupted uploads leave no objects"
    if place.kind == "s3":
        bucket = place.url.split("/")[2]
        found = request.getfixturevalue("moto").client().list_multipart_uploads(Bucket=bucket)
        assert "Uploads" not in found


# Failures


@pytest.mark.slow
@pytest.mark.parametrize("size", [1000, len(LARGE)])
def test_an_unreachable_server_is_a_deadline_error(place: Place, size: int) -> None:
    with FaultProxy(place.host) as proxy:
        storage = place.hasty(proxy.host, deadline=0.5)
        upload = storage.create(PATH)
        upload.write(LARGE[:size])
        proxy.close()
        with pytest.raises(errors.DeadlineError, match=r"attempts? in \d+ s") as caught:
            upload.commit()
        assert f"{place.url}/{PATH}" in str(caught.value)
        with pytest.raises(errors.DeadlineError):
            storage.put("manifest.json", b"x", expected=None)
        storage.close()


@pytest.mark.slow
def test_close_does_not_wait_for_an_unreachable_server(place: Place) -> None:
    with FaultProxy(place.host) as proxy:
        storage = place.hasty(proxy.host)
        upload = storage.create(PATH)
        proxy.close()
        upload.write(DATA)
        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(upload.commit)
            wait_for(lambda: storage.counters()["retries"] >= 2)
            started = time.monotonic()
            storage.close()
            with pytest.raises(errors.StorageError):
                sending.result()
        assert time.monotonic() - started < 60  # of 120


ACTIONS: list[Callable[[Storage], object]] = [
    lambda storage: storage.put("manifest.json", b"x", expected=None),
    lambda storage: storage.put("manifest.json", b"x", expected="0" * 64),
    lambda storage: put(storage, PATH, b"x"),
    lambda storage: put(storage, PATH, LARGE),
    lambda storage: storage.files("records"),
    lambda storage: storage.read_whole("manifest.json", 100),
    lambda storage: get(storage, PATH, 0, 5),
    lambda storage: storage.size(PATH),
]


def test_permanent_errors_are_raised_at_once(place: Place) -> None:
    """Missing buckets and refused requests; a conversion with refused lists writes no objects."""
    url = place.url.replace(place.url.split("/")[2], "no-such-bucket")
    storage = with_short_waits(open_storage(url, {**place.options, "deadline": 5}))
    for action in ACTIONS:
        with pytest.raises(errors.NotFoundError, match=rf"no such (bucket|container).*{url}"):
            action(storage)
    storage.close()
    with FaultProxy(place.host, lambda _: "403") as proxy:
        storage = place.hasty(proxy.host)
        for action in ACTIONS:
            with pytest.raises(errors.AccessError, match=r"access is refused.*check") as caught:
                action(storage)
            assert place.url in str(caught.value)
        assert storage.counters()["retries"] == 0
        storage.close()
    with FaultProxy(place.host, no_lists) as proxy:
        url, options = place.at(proxy.host)
        with pytest.raises(errors.AccessError) as caught:
            convert(SOURCE, url, workers=1, storage_options=options, **SETTINGS)
        assert place.url in str(caught.value)
        assert proxy.requests < 20
    assert place.names() == []


# Processes


# The test forks a process with threads on purpose.
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_reads_and_cannot_write(place: Place, storage: Storage) -> None:
    put(storage, "records/other", DATA)
    identity = identity_of(storage, "records/other")
    assert identity[1] is not None
    upload = storage.create(PATH)
    upload.write(DATA)

    def child() -> bool:
        assert RUNTIME.lost  # obstore would hang
        for action in (
            lambda: put(storage, "records/child", b"x"),
            lambda: storage.put("records/child", b"x", expected=None),
            lambda: storage.files("records"),
        ):
            with pytest.raises(errors.StorageError, match="spawned"):
                action()
        assert identity_of(storage, "records/other") == identity
        found = get(storage, "records/other", 5, 50)
        storage.close()  # the parent's upload continues
        return found == DATA[5:50]

    assert in_fork(child)
    upload.commit()
    assert get(storage, PATH) == DATA
    assert [file.path for file in storage.files("records")] == [PATH, "records/other"]


def test_cut_off_and_resumed(place: Place, tmp_path: Path) -> None:
    """Requests fail from one on, as after a kill; `test_service_faults.py` kills processes."""
    local = convert(SOURCE, tmp_path / "local", workers=1, **SETTINGS)
    kept = 0
    for number in (12, 30):
        with FaultProxy(place.host) as proxy:
            url, options = place.at(proxy.host)
            proxy.fault = ScriptedFaults([*[None] * number, *["403"] * 1000])
            with pytest.raises(errors.AccessError):
                convert(SOURCE, f"{url}/{number}", workers=1, storage_options=options, **SETTINGS)
        where = f"{place.url}/{number}"
        given: dict[str, Any] = {"storage_options": place.options}
        with pytest.raises(errors.NotFoundError, match="no dataset here"):
            seqrecord.open(where, **given)
        report = convert(SOURCE, where, mode="resume", workers=1, **given, **SETTINGS)
        kept += len(report.skipped)
        assert report.manifest.fingerprint == local.manifest.fingerprint
        assert seqrecord.verify(where, deep=True, **given).ok
    assert kept > 0
