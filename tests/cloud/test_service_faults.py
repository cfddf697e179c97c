"""Network faults in every kind of request to each cloud service."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import convert, errors
from tests.kit.clip_data import digests
from tests.kit.datasets import columns, noise, write_dataset
from tests.kit.made_source import MadeSource, made_frame
from tests.kit.processes import own_threads, wait_for
from tests.kit.services.fault_proxy import FaultProxy, RandomFaults, ScriptedFaults, no_lists
from tests.kit.services.places import CLOUDS, PLACES, Place, with_deadline
from tests.kit.tiny import read_all
from tests.store.killed_writer import SETTINGS, Killer, Writers
from tests.store.storage_contract import DATA, PATH, get

pytestmark = pytest.mark.slow  # also with services that need no installation

KINDS = ("reset", "lost", "cut", "short", "500", "503", "429", "busy")
LARGE = np.random.default_rng(3).bytes(11 << 16)  # a storage of `Place.hasty` sends it in pieces
SOURCE = MadeSource((9, 3, 1, 6))

clouds = pytest.mark.parametrize("place", CLOUDS, indirect=True)


# One or two faults in each operation


@clouds
@pytest.mark.parametrize("kind", ["stall", *KINDS])
def test_every_operation_survives_two_faults(place: Place, kind: str) -> None:
    kinds = [kind] * (1 if kind == "stall" else 2)
    with FaultProxy(place.host, retry_after=0) as proxy:
        storage = place.hasty(proxy.host, deadline=6)  # hanging requests are given up after 1.5 s
        with_deadline(storage, 60)

        def faulty(operation: Callable[[], Any]) -> Any:
            before = proxy.faults[kind]
            proxy.fault = ScriptedFaults(kinds)
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
    """Requests that begin an upload, send a piece, and end it."""
    with FaultProxy(place.host, retry_after=0) as proxy:
        storage = place.hasty(proxy.host)
        for which in range(4 if place.kind == "azurite" else 5):  # no begin in Azure
            upload = storage.create(PATH)
            upload.write(LARGE)
            kinds = [None] * which + [kind]
            proxy.fault = ScriptedFaults(kinds, lambda request: request.method != "HEAD")
            upload.commit()
            proxy.fault = None
            assert proxy.faults[kind] == which + 1
            assert get(storage, PATH) == LARGE
            assert storage.unfinished("records") == []
            storage.remove(PATH)
        storage.close()


@pytest.mark.parametrize("place", PLACES, indirect=True)
@pytest.mark.parametrize("kind", ["busy", "stall", "hang", "slow", "shifted", "429"])
def test_faulty_reads_are_retried(place: Place, kind: str) -> None:
    place.put(PATH, LARGE)
    kinds = [kind] * (1 if kind in ("stall", "hang", "slow") else 2)
    with FaultProxy(place.host, ScriptedFaults(kinds), retry_after=0) as proxy:
        storage = with_deadline(place.hasty(proxy.host, deadline=6), 60)
        assert get(storage, PATH, 5, 3 << 17) == LARGE[5 : 3 << 17]
        assert proxy.faults[kind] == len(kinds)
        storage.close()


@clouds
@pytest.mark.parametrize("seed", range(2))
def test_a_dataset_through_a_bad_network(place: Place, seed: int) -> None:
    kinds = ("reset", "lost", "cut", "short", "500", "503", "429", "busy")
    fault = RandomFaults(seed, 0.15, kinds, methods=("GET", "HEAD", "PUT", "POST", "DELETE"))
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


# Epochs


SMALL_MEMORY: dict[str, Any] = {
    "clip_len": 3,
    "batch_size": 2,
    "engine": seqrecord.EngineOptions(shuffle_buffer=4, num_cursors=2),
    "memory_limit": "2MiB",
    "seed": 1,
}


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset too large to be read ahead with little memory."""
    path = tmp_path_factory.mktemp("faults") / "large"
    episodes = {f"set/{n}": columns(image=noise(60, 64, 64, 3, seed=n)) for n in range(4)}
    write_dataset(path, episodes, codecs="raw", chunk_frames=4, max_file_size=1 << 20)
    return path


@clouds
def test_an_epoch_with_faults_equals_one_without(place: Place, large: Path) -> None:
    place.copy(large)
    with FaultProxy(place.host, RandomFaults(1, 0.3), retry_after=0) as proxy:
        storage = place.hasty(proxy.host)
        with seqrecord.open(storage) as dataset:
            found = digests(seqrecord.SeqRecordPipe(dataset, **SMALL_MEMORY))
        counters = storage.counters()
        with seqrecord.open(storage) as dataset:
            batches = iter(seqrecord.SeqRecordPipe(dataset, **SMALL_MEMORY))
            next(batches)
            del batches  # an abandoned epoch leaves no threads
        storage.close()
        wait_for(lambda: not own_threads("seqrecord"))
        faults = sum(proxy.faults.values())
    assert found == digests(seqrecord.SeqRecordPipe(large, **SMALL_MEMORY))
    assert faults > 10
    assert 0 < counters["retries"] <= faults


@pytest.mark.parametrize("place", PLACES, indirect=True)
def test_a_dataset_that_cannot_be_listed_is_verified(place: Place, small: Path) -> None:
    place.copy(small)
    with FaultProxy(place.host, no_lists) as proxy:
        url, options = place.at(proxy.host)
        report = seqrecord.verify(url, deep=True, storage_options=options)
        assert report.ok
        assert any("cannot list other files" in note for note in report.notes)


@pytest.mark.parametrize("place", PLACES, indirect=True)
def test_an_object_shorter_than_its_claim(place: Place, small: Path) -> None:
    place.copy(small)
    path = max(f"records/{path.name}" for path in (small / "records").glob("*.seqrec"))
    data = (small / path).read_bytes()
    place.put(path, data[: len(data) // 2])
    with pytest.raises(errors.StorageError, match=path.rpartition("/")[2]) as caught:
        read_all(place.url, storage_options={**place.options, "deadline": 5})
    assert not isinstance(caught.value, (errors.TransientError, errors.NotFoundError))
    assert not seqrecord.verify(place.url, storage_options=place.options).ok


OLD = (2, 3)
NEW = (2, 3, 1, 4)


def keys(lengths: tuple[int, ...]) -> set[str]:
    return {info.key for info in MadeSource(lengths).episodes()}


def episode_keys(url: str, options: dict[str, Any]) -> set[str] | None:
    """Keys of a dataset's episodes, after a check of all frames; `None` without a dataset."""
    try:
        found = read_all(url, storage_options=options)
    except errors.NotFoundError:
        return None
    for key, frames in found.items():
        images = [made_frame(key, number)["image"] for number in range(len(frames))]
        np.testing.assert_equal([frame["image"] for frame in frames], images)
    lengths = {info.key: info.num_frames for info in MadeSource(NEW).episodes()}
    assert {key: len(frames) for key, frames in found.items()}.items() <= lengths.items()
    return set(found)


# A kill after a request has nearly the effect of a kill before the next one. So one service gets
# kills before every second request, and the other kills after these; writers that append or
# resume, whose requests are often similar, are killed at every sixth.
@pytest.mark.parametrize(
    ("place", "after"),
    [("azurite", False), ("s3", True), ("gs", False), ("gs", True)],
    indirect=["place"],
)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["create", "append", "resume"])
def test_killed_at_every_request(place: Place, writers: Writers, mode: str, after: bool) -> None:
    root, straight = place.at(place.host)
    number, done = 0, False
    with FaultProxy(place.host) as proxy:
        options = place.at(proxy.host)[1]
        while not done:
            url = f"{root}/{number}"
            job = {"url": url, "options": options, "straight": straight, "lengths": NEW}
            before: set[str] | None = None
            ended: set[str] = set()
            if mode != "create":
                convert(MadeSource(OLD), url, workers=1, storage_options=straight, **SETTINGS)
                before = keys(OLD)
            if mode == "resume":  # files of another, killed writer
                first = Killer(25, False).through(proxy)
                ended = set(writers.run({**job, "mode": "append"}, first)[1])
                assert ended
            killer = Killer(number, after).through(proxy)
            done, reported = writers.run({**job, "mode": mode}, killer)
            ended |= set(reported)
            now = episode_keys(url, straight)
            assert now in (before, keys(NEW))
            assert now == keys(NEW) or not done
            report = convert(
                MadeSource(NEW), url, mode="resume", workers=1, storage_options=straight, **SETTINGS
            )
            assert ended | (before or set()) <= set(report.skipped), number
            assert episode_keys(url, straight) == keys(NEW)
            assert seqrecord.verify(url, deep=True, storage_options=straight).ok
            number += 2 if mode == "create" else 6
    assert number > 8
