"""Writers killed between any two requests leave the old dataset or the new, and what had ended."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import NotFoundError, convert
from seqrecord.edit import clean, delete_episodes, merge_datasets, rename_episodes, rewrite_files
from seqrecord.format.manifest import read_manifest
from seqrecord.storage import open_storage
from tests.fault_proxy import FaultProxy, Request
from tests.killed_writer import SETTINGS, Killer, Writers
from tests.made_source import MadeSource, made_frame
from tests.places import CLOUDS, Place
from tests.services.process import wait_for
from tests.storage_contract import DATA, PATH, left
from tests.test_edits import write

pytestmark = [pytest.mark.service, pytest.mark.slow, pytest.mark.timeout(600)]

OLD = (2, 3)
NEW = (2, 3, 1, 4)


def keys(lengths: tuple[int, ...]) -> set[str]:
    return {info.key for info in MadeSource(lengths).episodes()}


def there(url: str, options: dict[str, Any]) -> set[str] | None:
    """Keys of a dataset's episodes, all of whose frames are right; `None` without a dataset."""
    try:
        dataset = seqrecord.open(url, storage_options=options)
    except NotFoundError:
        return None
    with dataset:
        source = MadeSource(NEW)
        for info in source.episodes():
            if info.key in dataset.episodes:
                episode = dataset.episodes[info.key]
                assert len(episode) == info.num_frames
                for number in range(len(episode)):
                    frame = made_frame(info.key, number)
                    assert np.array_equal(np.asarray(episode[number]["image"]), frame["image"])
        found = list(dataset.episodes)
        assert len(found) == len(set(found))
        return set(found)


# A kill after a request leaves nearly what a kill before the next one does. So one service sees
# the kills before every second request, and the other those before the rest; of writers that find
# something there, of whose requests many are alike, every sixth.
@pytest.mark.parametrize(("place", "after"), [("azurite", False), ("s3", True)], indirect=["place"])
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
            if mode == "resume":  # what another writer, that was killed, has left
                first = Killer(25, False).through(proxy)
                ended = set(writers.run({**job, "mode": "append"}, first)[1])
                assert ended
            killer = Killer(number, after).through(proxy)
            done, told = writers.run({**job, "mode": mode}, killer)
            ended |= set(told)
            now = there(url, straight)
            assert now in (before, keys(NEW))
            assert now == keys(NEW) or not done
            report = convert(
                MadeSource(NEW), url, mode="resume", workers=1, storage_options=straight, **SETTINGS
            )
            assert ended | (before or set()) <= set(report.skipped), number
            assert there(url, straight) == keys(NEW)
            assert seqrecord.verify(url, deep=True, storage_options=straight).ok
            number += 2 if mode == "create" else 6
    assert number > 8


@pytest.mark.parametrize("place", CLOUDS, indirect=True)
def test_what_has_ended_is_durable_within_five_seconds(place: Place) -> None:
    storage, other = place.open(), place.open()
    storage.files("records")  # its client is made
    seconds: list[float] = []
    while not seconds or (seconds[-1] >= 5 and len(seconds) < 5):  # a busy machine is late at times
        upload = storage.create(PATH)
        upload.write(DATA)
        start = time.monotonic()
        upload.checkpoint(b"one")
        wait_for(lambda: bool(other.unfinished("records")))
        seconds.append(time.monotonic() - start)
        assert left(other) == [(PATH, [(len(DATA), b"one")], DATA)]
        upload.abort()
    assert min(seconds) < 5, seconds
    storage.close()
    other.close()


# Merges, and the rewriting of record files, killed at any request that changes something

# A kill after a change leaves nearly what a kill before the next one does. So one service sees the
# kills before every second change, and the other those before the rest.
PLACES = pytest.mark.parametrize(
    ("place", "after"), [("azurite", False), ("s3", True)], indirect=["place"]
)
Content = dict[str, tuple[dict[str, Any], list[float]]]


def is_change(request: Request) -> bool:
    return request.method not in ("GET", "HEAD")


def content(url: str, options: dict[str, Any]) -> Content | None:
    """Metadata and values of each episode, `None` where there is no dataset."""
    try:
        dataset = seqrecord.open(url, storage_options=options)
    except NotFoundError:
        return None
    with dataset:
        return {
            key: (dict(episode.metadata), episode[:]["x"][:, 0].tolist())
            for key, episode in dataset.episodes.items()
        }


def state(url: str, options: dict[str, Any]) -> list[Any]:
    """All that is there, and when it was changed."""
    storage = open_storage(url, options)
    try:
        folders = ("records", "index", "edits")
        files = [file for folder in folders for file in storage.files(folder)]
        return [*files, read_manifest(storage)]
    finally:
        storage.close()


@PLACES
def test_merges_killed_at_every_other_change(
    place: Place, writers: Writers, after: bool, tmp_path: Path
) -> None:
    root, straight = place.at(place.host)
    a, b = write(tmp_path / "a", range(4)), tmp_path / "b"
    write(b, range(4, 7))
    delete_episodes(a, "e1")
    rename_episodes(a, {"e2": "two"})
    sources = [f"{root}/a", f"{root}/b"]
    for part, url in zip((a, b), sources, strict=True):
        merge_datasets([part], url, storage_options=straight)
    before = [state(url, straight) for url in sources]
    expected = {
        key: item for url in sources for key, item in (content(url, straight) or {}).items()
    }
    number, done = 0, False
    with FaultProxy(place.host) as proxy:
        options = place.at(proxy.host)[1]
        while not done:
            url = f"{root}/made{number}"
            killer = Killer(number, after, is_change).through(proxy)
            job = {"sources": sources, "url": url, "options": options}
            done = writers.run(job, killer)[0]
            found = content(url, straight)
            assert found in (None, expected)
            assert found == expected or not done
            if found is None:
                merge_datasets(sources, url, storage_options=straight)
            assert content(url, straight) == expected
            clean(url, older_than=0, storage_options=straight)
            seqrecord.reindex(url, storage_options=straight)
            assert content(url, straight) == expected
            assert seqrecord.verify(url, deep=True, storage_options=straight).ok
            number += 2
    assert number > 8
    assert [state(url, straight) for url in sources] == before


@PLACES
def test_rewriting_killed_at_every_other_change(
    place: Place, writers: Writers, after: bool, tmp_path: Path
) -> None:
    root, straight = place.at(place.host)
    base = write(tmp_path / "base", range(6))
    delete_episodes(base, ["e0", "e3"])
    number, done = 0, False
    with FaultProxy(place.host) as proxy:
        options = place.at(proxy.host)[1]
        while not done:
            url = f"{root}/{number}"
            merge_datasets([base], url, storage_options=straight)
            expected, before = content(url, straight), state(url, straight)
            with seqrecord.open(url, storage_options=straight) as old:
                killer = Killer(number, after, is_change).through(proxy)
                done = writers.run({"url": url, "options": options}, killer)[0]
                assert old.episodes["e5"][2]["x"][0] == 52
            assert content(url, straight) == expected
            now = state(url, straight)
            assert {file.path for file in before[:-1] if "records/" in file.path} <= {
                file.path for file in now[:-1]
            }
            seqrecord.reindex(url, storage_options=straight)
            assert content(url, straight) == expected
            report = rewrite_files(url, least_dead=0.01, storage_options=straight)
            assert len(report.rewritten) in ((0,) if done else (0, 2))
            clean(url, older_than=0, storage_options=straight)
            assert content(url, straight) == expected
            with seqrecord.open(url, storage_options=straight) as dataset:
                names = {file.path for file in read_manifest(dataset.contents.storage).record_files}
            storage = open_storage(url, straight)
            assert {file.path for file in storage.files("records")} == names
            assert len(names) == 2
            storage.close()
            assert seqrecord.verify(url, deep=True, storage_options=straight).ok
            number += 2
    assert number > 5
