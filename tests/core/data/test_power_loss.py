"""Durability of written datasets: power lost at any moment of writing."""

from __future__ import annotations

import itertools
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from seqrecord.edit import clean
from tests.kit.datasets import append, keys_of, numbered, write_episodes
from tests.kit.faults import abandon
from tests.kit.faults import small_writer as writer
from tests.kit.power_loss import Call, Disk, Record, State, write_state

PATH = "new/set"


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """A write, an append killed after an episode, and its resume, with the commits."""
    top = tmp_path_factory.mktemp("recorded")
    record, folder = Record(top), top / PATH
    with record.recording():
        first = writer(folder, "create")
        write_episodes(first, "a")
        given_up = append(first.episode("given up"), numbered("g", 3))
        given_up.abort()
        write_episodes(first, "bc")
        first.close()
        record.mark("abc")
        killed = writer(folder, "append")
        write_episodes(killed, "de")
        abandon(killed)
        resumed = writer(folder, "resume")
        assert resumed.completed_episodes == set("abcde")
        write_episodes(resumed, "f")
        resumed.close()
        record.mark("abcdef")
        more = writer(folder, "append")
        more.close()
        record.mark("abcdef")
    assert keys_of(folder, verify=False) == "abcdef"
    # The record is complete: replaying it gives the same files.
    disk = Disk()
    for call in record.calls:
        disk.apply(call)
    state = disk.after_loss("all", "all", random.Random(0))
    written = {path.relative_to(top).as_posix(): path for path in top.rglob("*")}
    assert state == {path: p.read_bytes() if p.is_file() else None for path, p in written.items()}
    return record


# Power losses


def losses(calls: list[Call]) -> Iterator[tuple[int, State, str, str]]:
    """Every cut of the record, with each possible state after a power loss, without duplicates.

    Also yields the keys of the last committed dataset and of the next one.
    """
    marks = [(number, call.path) for number, call in enumerate(calls) if call.kind == "mark"]
    seen = set[Any]()
    for number, state in Disk.losses(calls):
        before = [keys for at, keys in marks if at < number]
        after = [keys for at, keys in marks if at >= number]
        last, following = (before or [""])[-1], (after or before)[0 if after else -1]
        key = (last, following, *sorted(state.items(), key=lambda item: item[0]))
        if key not in seen:
            seen.add(key)
            yield number, state, last, following


def first_invalid(
    calls: list[Call], scratch: Path, each: Callable[[Path, str], None], step: int = 1
) -> str:
    """Describe the first loss that leaves neither dataset; call `each` for the other losses.

    Tries every `step`-th loss.
    """
    folder, count = scratch / "top", 0
    for number, state, last, following in itertools.islice(losses(calls), 0, None, step):
        write_state(state, folder)
        try:
            keys = keys_of(folder / PATH, verify=False)
        except Exception as error:
            keys = repr(error)
        if keys not in (last, following):
            shutil.rmtree(folder)
            return f"cut {number} of {len(calls)}: {keys!r}, not {last!r} or {following!r}"
        each(folder / PATH, keys)
        shutil.rmtree(folder)
        count += 1
    assert count > 200 // step
    return ""


def test_committed_datasets_are_complete_after_any_power_loss(
    tmp_path: Path, record: Record, thorough: bool
) -> None:
    resumes = 0

    def resume(folder: Path, keys: str) -> None:
        nonlocal resumes
        resumes += 1
        if resumes % 4:
            return
        with writer(folder, "resume") as resumed:
            assert resumed.completed_episodes >= set(keys)
            write_episodes(resumed, sorted({*"abcdef"} - resumed.completed_episodes))
        assert sorted(keys_of(folder)) == sorted("abcdef")
        clean(folder, older_than=0)
        assert sorted(keys_of(folder)) == sorted("abcdef")
        assert not [p for p in folder.rglob("*") if p.name.endswith((".partial", ".notes"))]

    assert first_invalid(record.calls, tmp_path, resume, 2 if thorough else 17) == ""


@pytest.mark.parametrize(
    "missing",
    [
        r"sync .*seqrec\.partial",
        *(
            pytest.param(missing, marks=pytest.mark.slow)
            for missing in (
                *(r"sync .*arrow\.partial", r"sync .*manifest\.json\.\w+\.next/\w+"),
                *(f"sync folder{each}" for each in ("", " new", " new/set")),
                *(f"sync folder new/set/{each}" for each in ("records", "index")),
            )
        ),
    ],
)
def test_without_one_kind_of_sync_a_dataset_is_lost(
    tmp_path: Path, record: Record, missing: str, thorough: bool
) -> None:
    """Shows that the test above can fail."""

    def is_missing(call: Call) -> bool:
        return re.fullmatch(missing, f"{call.kind} {call.path}".removesuffix(" .")) is not None

    calls = [call for call in record.calls if not is_missing(call)]
    assert len(calls) < len(record.calls)
    assert first_invalid(calls, tmp_path, lambda folder, keys: None, 1 if thorough else 5) != ""
