"""Durability of written datasets: power lost at any moment of writing."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from seqrecord.edit import clean
from tests.kit.datasets import append, keys_of, numbered, write_episodes
from tests.kit.faults import abandon
from tests.kit.faults import small_writer as writer
from tests.kit.power_loss import Call, Disk, Record, first_invalid

PATH = "new/set"


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """A write, an append killed after an episode, and its resume, with the commits."""
    with Record(tmp_path_factory.mktemp("recorded")).recording() as record:
        folder = record.top / PATH
        with writer(folder, "create") as first:
            write_episodes(first, "a")
            append(first.episode("given up"), numbered("g", 3)).abort()
            write_episodes(first, "bc")
        record.mark("abc")
        killed = writer(folder, "append")
        write_episodes(killed, "de")
        abandon(killed)
        with writer(folder, "resume") as resumed:
            assert resumed.completed_episodes == set("abcde")
            write_episodes(resumed, "f")
        record.mark("abcdef")
        writer(folder, "append").close()
        record.mark("abcdef")
    return record


def test_the_record_is_complete(record: Record) -> None:
    """Replaying it gives the same files."""
    disk, top = Disk(), record.top
    assert keys_of(top / PATH, verify=False) == "abcdef"
    for call in record.calls:
        disk.apply(call)
    state = disk.after_loss("all", "all", random.Random(0))
    written = {path.relative_to(top).as_posix(): path for path in top.rglob("*")}
    assert state == {path: p.read_bytes() if p.is_file() else None for path, p in written.items()}


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

    assert first_invalid(record.calls, PATH, tmp_path / "top", resume, 2 if thorough else 17) == ""


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
    assert first_invalid(calls, PATH, tmp_path / "top", step=1 if thorough else 5) != ""
