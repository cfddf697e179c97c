"""Writers killed between any two requests leave the old dataset or the new, and what had ended."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import NotFoundError, convert
from tests.fault_proxy import FaultProxy
from tests.killed_writer import SETTINGS, Killer, Writers
from tests.made_source import MadeSource, made_frame
from tests.places import CLOUDS, Place
from tests.services.process import wait_for
from tests.storage_contract import DATA, PATH, left

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
@pytest.mark.parametrize(
    ("place", "after"),
    [("azurite", False), ("s3", True), ("gs", False), ("gs", True)],
    indirect=["place"],
)
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
