"""Faults on the way to each cloud, in all that is asked of it: what passes, and what does not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import convert, errors
from tests.fault_proxy import FaultProxy, Request, Scripted, Seeded
from tests.made_source import MadeSource, made_frame
from tests.obstore_runtime import obstore_is
from tests.places import CLOUDS, PLACES, Place, giving_up
from tests.storage_contract import DATA, PATH, get, left
from tests.tiny import read_all

pytestmark = pytest.mark.slow  # even with the services that need nothing installed

KINDS = ("reset", "lost", "cut", "short", "500", "503", "429", "busy")
LARGE = np.random.default_rng(3).bytes(11 << 16)  # a hastened storage sends it in pieces
SETTINGS: dict[str, Any] = {"chunk_frames": 4, "max_file_size": 30_000}
SOURCE = MadeSource((9, 3, 1, 6))

clouds = pytest.mark.parametrize("place", CLOUDS, indirect=True)


@pytest.fixture(autouse=True)
def through_obstore() -> Iterator[None]:
    with obstore_is(used=True):
        yield


# One fault, then another, in each thing that is asked of a service


@clouds
@pytest.mark.parametrize("kind", ["stall", *KINDS])
def test_every_operation_survives_two_faults(place: Place, kind: str) -> None:
    kinds = [kind] * (1 if kind == "stall" else 2)
    with FaultProxy(place.host, retry_after=0) as proxy:
        storage = place.hasty(proxy.host, deadline=6)  # what hangs is given up after 1.5 s
        giving_up(storage, 60)

        def faulty(operation: Callable[[], Any]) -> Any:
            before = proxy.faults[kind]
            proxy.fault = Scripted(kinds)
            found = operation()
            proxy.fault = None
            assert proxy.faults[kind] > before
            return found

        faulty(lambda: storage.put("manifest.json", b"one", expected=None))
        data, tag = faulty(lambda: storage.read_whole("manifest.json", 100))
        assert data == b"one"
        faulty(lambda: storage.put("manifest.json", b"two", expected=tag))
        with pytest.raises(errors.ConflictError):
            faulty(lambda: storage.put("manifest.json", b"three", expected=tag))
        assert faulty(lambda: get(storage, "manifest.json", 0, 3)) == b"two"
        upload = storage.create(PATH)
        upload.write(DATA)
        faulty(upload.commit)
        assert get(storage, PATH) == DATA
        assert [file.path for file in faulty(lambda: storage.files("records"))] == [PATH]
        faulty(lambda: storage.remove(PATH))
        assert storage.files("records") == []
        storage.close()


@clouds
@pytest.mark.parametrize("kind", ["reset", "lost", "cut", "busy"])
def test_uploads_survive_a_fault_of_any_request(place: Place, kind: str) -> None:
    """Of a file in pieces: of its beginning, of a piece, of its end; and of what is kept of one."""
    with FaultProxy(place.host, retry_after=0) as proxy:
        storage = place.hasty(proxy.host)
        for which in range(4 if place.kind == "azurite" else 5):  # there nothing begins it
            upload = storage.create(PATH)
            upload.write(LARGE)
            kinds = [None] * which + [kind]
            proxy.fault = Scripted(kinds, lambda request: request.method != "HEAD")
            upload.commit()
            proxy.fault = None
            assert proxy.faults[kind] == which + 1
            assert get(storage, PATH) == LARGE
            assert storage.unfinished("records") == []
            storage.remove(PATH)
        proxy.fault = Scripted([kind, kind])
        upload = storage.create(PATH)
        upload.write(b"first")
        upload.checkpoint(b"one")
        storage.close()
        assert kind == "cut" or proxy.faults[kind] == which + 3
    other = place.open()
    assert left(other) == [(PATH, [(5, b"one")], b"first")]
    other.close()


@pytest.mark.parametrize("place", PLACES, indirect=True)
@pytest.mark.parametrize("kind", ["busy", "stall", "shifted", "429"])
def test_what_is_read_is_right_or_read_again(place: Place, kind: str) -> None:
    place.put(PATH, LARGE)
    kinds = [kind] * (1 if kind == "stall" else 2)
    with FaultProxy(place.host, Scripted(kinds), retry_after=0) as proxy:
        storage = giving_up(place.hasty(proxy.host, deadline=6), 60)
        assert get(storage, PATH, 5, 3 << 17) == LARGE[5 : 3 << 17]
        assert proxy.faults[kind] == len(kinds)
        storage.close()


@clouds
@pytest.mark.parametrize("seed", range(2))
def test_a_dataset_through_a_bad_network(place: Place, seed: int) -> None:
    kinds = ("reset", "lost", "cut", "short", "500", "503", "429", "busy")
    fault = Seeded(seed, 0.15, kinds, methods=("GET", "HEAD", "PUT", "POST", "DELETE"))
    with FaultProxy(place.host, fault, retry_after=0) as proxy:
        storage = place.hasty(proxy.host, deadline=60)
        convert(MadeSource(SOURCE.lengths[:2]), storage, workers=1, **SETTINGS)
        convert(SOURCE, storage, mode="append", workers=1, **SETTINGS)
        assert len(proxy.faults) > 1
        found = read_all(storage)
        for info in SOURCE.episodes():
            images = [made_frame(info.key, number)["image"] for number in range(info.num_frames)]
            np.testing.assert_equal([frame["image"] for frame in found[info.key]], images)
        storage.close()
    assert seqrecord.verify(place.url, deep=True, storage_options=place.options).ok


# What will not pass


def _is_list(request: Request) -> bool:
    _, _, query = request.path.partition("?")
    return request.method == "GET" and ("comp=list" in query or "list-type" in query)


@clouds
def test_a_listing_that_is_forbidden(place: Place) -> None:
    with FaultProxy(place.host, lambda request: "403" if _is_list(request) else None) as proxy:
        storage = place.open(proxy.host)
        for action in (storage.files, storage.unfinished):
            with pytest.raises(errors.AccessError, match="access is refused") as caught:
                action("records")
            assert place.url in str(caught.value)
        url, options = place.at(proxy.host)
        with pytest.raises(errors.AccessError) as caught:
            convert(SOURCE, url, workers=1, storage_options=options, **SETTINGS)
        assert place.url in str(caught.value)
        assert proxy.requests < 20
        storage.close()
    assert place.names() == []


@clouds
def test_a_service_that_is_gone_is_a_deadline(place: Place) -> None:
    storage = place.open("127.0.0.1:1", deadline=0.3)
    upload = storage.create(PATH)
    upload.write(DATA)
    for action in (
        lambda: storage.put("a", b"x", expected=None),
        lambda: storage.read_whole("a", 9),
        lambda: storage.files("records"),
        lambda: storage.remove("a"),
        upload.commit,
    ):
        with pytest.raises(errors.DeadlineError) as caught:
            action()
        assert place.url in str(caught.value)
    storage.close()


# What may not be listed


@pytest.mark.parametrize("place", PLACES, indirect=True)
def test_a_dataset_that_cannot_be_listed_is_verified(place: Place, small: Path) -> None:
    place.copy(small)
    with FaultProxy(place.host, lambda request: "403" if _is_list(request) else None) as proxy:
        url, options = place.at(proxy.host)
        report = seqrecord.verify(url, deep=True, storage_options=options)
        assert report.ok
        assert any("cannot list other files" in note for note in report.notes)


# Objects that are not what they were


def _record_files(folder: Path) -> list[str]:
    return sorted(f"records/{path.name}" for path in (folder / "records").glob("*.seqrec"))


def _read(episodes: Iterable[seqrecord.Episode]) -> None:
    for episode in episodes:
        for number in range(len(episode)):
            episode[number]


@pytest.mark.parametrize("place", PLACES, indirect=True)
def test_an_object_shorter_than_its_claim(place: Place, small: Path) -> None:
    place.copy(small)
    path = _record_files(small)[-1]
    data = (small / path).read_bytes()
    place.put(path, data[: len(data) // 2])
    with pytest.raises(errors.StorageError, match=path.rpartition("/")[2]) as caught:
        read_all(place.url, storage_options={**place.options, "deadline": 5})
    assert not isinstance(caught.value, (errors.TransientError, errors.NotFoundError))
    assert not seqrecord.verify(place.url, storage_options=place.options).ok


@pytest.mark.parametrize("place", PLACES, indirect=True)
def test_an_object_that_is_replaced_in_the_middle_of_an_epoch(place: Place, small: Path) -> None:
    place.copy(small)
    with seqrecord.open(place.url, storage_options=place.options) as dataset:
        episodes = list(dataset.episodes.values())
        for episode in episodes:
            episode[0]
        for path in _record_files(small):
            place.put(path, (small / path).read_bytes()[::-1])
        with pytest.raises(errors.StorageError, match="replaced while it was read") as caught:
            _read(episodes)
    assert not isinstance(caught.value, errors.TransientError)
    assert place.url in str(caught.value)
