"""Merges killed at any step: another run ends right, sources stay, and nothing half is visible."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import NotFoundError, SeqRecordWriter
from seqrecord.edit import clean, delete_episodes, merge_datasets, rename_episodes, split_episodes
from seqrecord.errors import DestinationError
from tests.killed_at import killed_at
from tests.test_edits import check, content, write
from tests.test_merge import state

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

Content = dict[str, tuple[dict[str, Any], list[float]]]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path, Path]]:
    """Two datasets of one schema, and one of another."""
    folder = tmp_path_factory.mktemp("sources")
    a, b, c = (folder / name for name in "abc")
    write(a, range(4))
    write(b, range(4, 7))
    with SeqRecordWriter(c, codecs="fast", record_bytes=2000) as writer:
        for number in range(6, 10):
            with writer.episode(f"e{number}", metadata={"number": number, "of": "a"}) as episode:
                for i in range(3):
                    frame = np.random.default_rng(number).random(1000).astype("<f4")
                    frame[0] = 10 * number + i
                    episode.append({"x": frame})
    delete_episodes(a, "e1")
    rename_episodes(a, {"e2": "two"})
    split_episodes(a, ["two"], "val")
    split_episodes(b, ["e5"], "val")
    before = [state(path) for path in (a, b, c)]
    yield a, b, c
    assert [state(path) for path in (a, b, c)] == before


def readable(path: Path) -> Content | None:
    try:
        return content(path)
    except NotFoundError:
        return None


@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", ["link", "copy"])
def test_killed_at_some_steps(
    sources: tuple[Path, Path, Path], tmp_path: Path, how: str, thorough: bool
) -> None:
    parts = sources[:2]
    expected = {**content(parts[0]), **content(parts[1])}
    merge = partial(merge_datasets, parts, link=how == "link")
    made, step, killed = tmp_path / "made", 0, True
    while killed:
        killed = killed_at(step, partial(merge, made))
        found = readable(made)
        assert found in (None, expected)
        assert killed or found == expected
        if found is None:
            if step % 3 == 0 and list((made / "records").glob("*.seqrec")):
                # Nothing is made of it by mistake; and if it is, nothing deleted comes back.
                half = shutil.copytree(made, tmp_path / "half")
                with pytest.raises(DestinationError, match=r"of a merge are there.*got: \S*merge$"):
                    seqrecord.reindex(half)
                [note] = (half / "records").glob("*.merge")
                note.unlink()
                seqrecord.reindex(half)
                for key, item in content(half).items():
                    assert expected[key][1] == item[1]
                shutil.rmtree(half)
            if step % 2:
                killed_at(step // 2, partial(merge, made))  # and once more
            if readable(made) is None:
                merge(made)
        assert content(made) == expected
        with seqrecord.open(made) as dataset:
            keys = np.array(list(dataset.episodes.keys()))
            assert set(keys[dataset.find_episodes(None, "val")]) == {"e5", "two"}
        with SeqRecordWriter(made, codecs="raw", mode="resume"):
            pass
        assert content(made) == expected
        clean(made, older_than=0)
        assert not [p.name for p in (made / "records").iterdir() if p.suffix != ".seqrec"]
        check(made, expected)
        with pytest.raises(DestinationError, match="not empty"):
            merge(made)
        shutil.rmtree(made)
        step += 5 if thorough else 41
    assert step > 40


def test_what_is_not_of_these_is_refused(sources: tuple[Path, Path, Path], tmp_path: Path) -> None:
    a, b, c = sources
    made = tmp_path / "made"
    left = made / "records" / f"00000-{'a' * 32}.seqrec.partial"
    for name in (left.name, left.stem, "other.txt"):
        left.parent.mkdir(parents=True)
        (left.parent / name).write_bytes(b"of another writer")
        for dry_run in (True, False):
            with pytest.raises(DestinationError, match=rf"not empty.*{'a' * 32}|not empty.*other"):
                merge_datasets([a, b], made, dry_run=dry_run)
        assert [path.name for path in left.parent.iterdir()] == [name]
        shutil.rmtree(made)
    # A whole record file of another dataset, and one of these of another length.
    for part, cut in ((c, 0), (a, 1)):
        left.parent.mkdir(parents=True)
        record = min((part / "records").glob("*.seqrec"))
        (left.parent / record.name).write_bytes(record.read_bytes()[cut:])
        with pytest.raises(DestinationError, match=rf"not empty.*{record.name}"):
            merge_datasets([a, b], made)
        shutil.rmtree(made)


def at_link(monkeypatch: pytest.MonkeyPatch, number: int, act: Callable[[], object]) -> None:
    """Do something before the `number`-th hard link from now on, from 1."""
    link, calls = os.link, 0

    def counted(*args: Any, **options: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == number:
            act()
        link(*args, **options)

    monkeypatch.setattr(os, "link", counted)


def test_a_merge_that_is_interrupted_takes_nothing_away(
    sources: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, _ = sources
    made = tmp_path / "made"

    def stop() -> None:
        raise KeyboardInterrupt

    left = set[Path]()
    for _ in range(2):
        at_link(monkeypatch, 3, stop)
        with pytest.raises(KeyboardInterrupt):
            merge_datasets([a, b], made)
        monkeypatch.undo()
        there = set((made / "records").iterdir())
        assert len(there - left) == 3  # two record files, and a note
        assert left < there
        left = there
    merge_datasets([a, b], made)
    assert left < set((made / "records").iterdir())
    check(made, {**content(a), **content(b)})


def test_a_record_file_that_is_gone_before_the_commit(
    sources: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, _ = sources
    made = tmp_path / "made"

    def remove() -> None:
        min((made / "records").glob("*.seqrec")).unlink()

    at_link(monkeypatch, 2, remove)
    with pytest.raises(DestinationError, match=r"gone since the merge began.*\.seqrec"):
        merge_datasets([a, b], made)
    monkeypatch.undo()
    merge_datasets([a, b], made)
    check(made, {**content(a), **content(b)})
