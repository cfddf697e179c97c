"""Flushes on storages that lose the open record file in a kill, such as object stores.

The storage writes whole files into a local folder. A kill leaves the files that are there.
"""

from __future__ import annotations

import itertools
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import SeqRecordWriter, convert, reindex
from seqrecord.cloud.remote import FsspecStorage
from seqrecord.edit import clean, delete_episodes, rename_episodes, rewrite_files
from seqrecord.errors import ConflictError, DestinationError, TransientError
from seqrecord.store.storage.base import Storage
from tests.kit.datasets import append, columns, resume, write_episodes
from tests.kit.faults import CountingStorage, FaultyStorage
from tests.kit.made_source import MadeSource
from tests.kit.tiny import read_all

Content = dict[str, tuple[int, Any]]

FRAMES = columns(
    image=[np.full((64, 64), number, "u1") for number in range(60)],
    state=[np.full(3, number, "<f4") for number in range(60)],
)
METADATA = {"robot": "arm"}
CUT = {"robot": "arm", "truncated": True}
DONE = {"robot": "leg", "success": True}


class Place:
    """A folder that is written like an object store; `now` is the time of its clock."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder, 0.0

    def open(self, **limits: Any) -> FsspecStorage:
        storage = FsspecStorage("local", str(self.folder), shown="store://set")
        storage.upload_limits = replace(storage.upload_limits, clock=lambda: self.now, **limits)
        return storage

    def writer(self, storage: Storage | None = None, **options: Any) -> SeqRecordWriter:
        settings = {"codecs": "raw", "chunk_frames": 4, **options}
        return SeqRecordWriter(storage or self.open(), **settings)

    @property
    def sizes(self) -> list[int]:
        return [path.stat().st_size for path in self.folder.glob("records/*.seqrec")]

    def after_a_kill(self, *, is_rebuilt: bool = False) -> Content:
        """Content of a resumed copy; if `is_rebuilt`, the same when the index is built anew."""
        copy = self.folder.with_name("copy")
        shutil.rmtree(copy, ignore_errors=True)
        while self.folder.exists() and not copy.exists():
            try:
                shutil.copytree(self.folder, copy)
            except shutil.Error:  # the thread that ends files renames one meanwhile
                shutil.rmtree(copy)
        try:
            resume(copy)
        except DestinationError:  # there is no episode
            return {}
        return rebuilt_content(copy) if is_rebuilt else content(copy)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "set")


def content(folder: Path) -> Content:
    """Length and metadata of each episode, after a check of every frame and the files."""
    found = read_all(folder)
    for frames in found.values():
        np.testing.assert_equal(frames, FRAMES[: len(frames)])
    assert not seqrecord.verify(folder, deep=True).problems
    with seqrecord.open(folder) as dataset:
        return {key: (len(found[key]), item.metadata) for key, item in dataset.episodes.items()}


def rebuilt_content(folder: Path) -> Content:
    """The same when the index is built anew, from the files of the manifest and without it."""
    expected = content(folder)
    for is_lost in (False, True):
        if is_lost:
            (folder / "manifest.json").unlink()
        reindex(folder)
        assert content(folder) == expected
    return expected


# When a flush ends the file


def test_a_flush_ends_the_file_after_a_minute(place: Place) -> None:
    storage = CountingStorage(place.open())
    with place.writer(storage) as writer, writer.episode("a", metadata=METADATA) as episode:
        assert episode.flush(), "there is nothing to lose"
        kept: Content = {}
        for number, seconds in enumerate((0, 59.9, 0.1, 59, 1), 1):
            append(episode, FRAMES[number - 1 : number])
            place.now += seconds
            before, files = storage.counters(), len(place.sizes)
            is_stored = episode.flush()
            assert is_stored == (seconds in (0.1, 1))
            assert is_stored or storage.counters() == before, "no request"
            assert len(place.sizes) == files + is_stored
            kept = {"a": (number, CUT)} if is_stored else kept
            assert place.after_a_kill() == kept
    assert rebuilt_content(place.folder) == {"a": (5, METADATA)}


def test_a_flush_ends_a_large_file(place: Place) -> None:
    with (
        place.writer(place.open(flush_bytes=10 * 4096)) as writer,
        writer.episode("a") as episode,
    ):
        results = []
        for number in range(30):
            append(episode, FRAMES[number : number + 1])
            results.append(episode.flush())
    assert results == [number % 10 == 9 for number in range(30)]
    assert rebuilt_content(place.folder) == {"a": (30, {})}


def test_a_file_ends_at_the_storages_size_or_the_users(place: Place) -> None:
    for number, (options, count) in enumerate(
        [({}, 4), ({"max_file_size": 1 << 20}, 1), ({"max_file_size": 5 * 4096}, 6)]
    ):
        part = Place(place.folder / str(number))
        with part.writer(part.open(file_bytes=10 * 4096), **options) as writer:
            write_episodes(writer, {"a": FRAMES[:20], "b": FRAMES[:20]})
        assert len(part.sizes) == count
        assert content(part.folder) == {"a": (20, {}), "b": (20, {})}
    limits = FsspecStorage("local", "x", shown="x").upload_limits
    assert (limits.file_bytes, limits.flush_bytes) == (256 << 20, 64 << 20)
    assert limits.flush_seconds == 60


def test_many_flushes_make_at_most_an_object_a_minute(place: Place, thorough: bool) -> None:
    count = 10_000 if thorough else 100
    with place.writer(statistics=False) as writer, writer.episode("a") as episode:
        stored = 0
        for number in range(count):
            place.now += 0.5 if thorough else 20
            episode.append({"state": np.full(3, number, "f4")})
            stored += episode.flush()
            assert len(place.sizes) == stored
    minutes = place.now / 60
    assert minutes - 1 <= stored <= minutes
    with seqrecord.open(place.folder) as dataset:
        assert dataset.episodes["a"][:]["state"][:, 0].tolist() == [*range(count)]


# Kills, and the writer's end

# By steps of two episodes: `f` appends a frame; `F` flushes after a minute, `n` flushes before; `E`
# ends the episode, `M` with other metadata, `D` discards it and `A` aborts it; `|` begins the next.
# After a kill, and after the writer's `close` (of which an open episode is aborted):
STEPS: dict[str, tuple[Content, Content]] = {
    "fff": ({}, {}),
    "fffn": ({}, {"a": (3, CUT)}),
    "fffE": ({}, {"a": (3, METADATA)}),
    "fffnE": ({}, {"a": (3, METADATA)}),
    "fffF": ({"a": (3, CUT)}, {"a": (3, CUT)}),
    "fffFA": ({"a": (3, CUT)}, {"a": (3, CUT)}),
    "fffFnfA": ({"a": (3, CUT)}, {"a": (3, CUT)}),
    "fffFfnffA": ({"a": (3, CUT)}, {"a": (4, CUT)}),
    "fffFE": ({"a": (3, CUT)}, {"a": (3, METADATA)}),
    "fffFM": ({"a": (3, CUT)}, {"a": (3, DONE)}),
    "fFfFffffffFM": ({"a": (8, CUT)}, {"a": (8, DONE)}),
    "fFffE": ({"a": (1, CUT)}, {"a": (3, METADATA)}),
    "fFffnM": ({"a": (1, CUT)}, {"a": (3, DONE)}),
    "fFE|fE": ({"a": (1, CUT)}, {"a": (1, METADATA), "b": (1, METADATA)}),
    "fffE|F": ({"a": (3, METADATA)}, {"a": (3, METADATA)}),
    "fffFE|fF": (
        {"a": (3, METADATA), "b": (1, CUT)},
        {"a": (3, METADATA), "b": (1, CUT)},
    ),
    "fffFM|ffnA": ({"a": (3, CUT)}, {"a": (3, DONE), "b": (2, CUT)}),
    "fffD": ({}, {}),
    "fffnD": ({}, {}),
    "fffFD": ({}, {}),
    "fffFffnffD|fE": ({}, {"b": (1, METADATA)}),
    "fE|fFD": ({"a": (1, METADATA)}, {"a": (1, METADATA)}),
    "fE|fFfFfFD": ({"a": (1, METADATA)}, {"a": (1, METADATA)}),
    "fE|fffffffffFffffffffnffffD": ({"a": (1, METADATA)}, {"a": (1, METADATA)}),
}


@pytest.mark.parametrize("max_file_size", [None, 20_000, 1])
def test_kills_and_ends(place: Place, max_file_size: int | None, thorough: bool) -> None:
    """Small files end while an episode is open, too: then a kill may keep more."""
    for steps, (killed, ended) in itertools.islice(
        STEPS.items(), 0 if thorough else 7, None, 1 if thorough else 9
    ):
        part = Place(place.folder / steps / "set")
        writer = part.writer(max_file_size=max_file_size)
        lengths: dict[str, int] = {}
        safe: dict[str, int] = {}  # at the last flush that returned `True`
        episode: Any = None
        for key, of_episode in zip("abc", steps.split("|"), strict=False):
            episode = writer.episode(key, metadata=METADATA)
            for before, step in itertools.pairwise(f" {of_episode}"):
                if step == "f":
                    episode.append(FRAMES[episode.num_frames])
                elif step in "Fn":
                    part.now += 60 * (step == "F")
                    is_stored = episode.flush()
                    assert is_stored == ("F" in (before, step)) or max_file_size
                    safe = {**lengths, key: episode.num_frames} if is_stored else safe
                elif step in "EM":
                    episode.close(DONE if step == "M" else None)
                    lengths[key] = episode.num_frames
                else:
                    (episode.discard if step == "D" else episode.abort)()
                    if step == "D":
                        safe.pop(key, None)
        found = part.after_a_kill(is_rebuilt=thorough)
        episode.abort()
        if max_file_size is None:
            assert found == killed, steps
        assert all(found.get(key, (0,))[0] >= count for key, count in safe.items()), steps
        assert found.keys() <= ended.keys(), steps
        if ended:
            writer.close()
            assert rebuilt_content(part.folder) == ended, steps
        else:
            with pytest.raises(DestinationError, match="no episode was written"):
                writer.close()


@pytest.mark.parametrize(
    ("begun", "ended"),
    [
        ({}, {"truncated": False}),
        ({"truncated": False}, {}),
        ({"truncated": "at 5 s", "robot": "leg"}, {"robot": "arm"}),
        ({"truncated": True}, {"success": False}),
    ],
)
def test_metadata_of_the_user_may_have_truncated(
    place: Place, begun: dict[str, Any], ended: dict[str, Any]
) -> None:
    """As a simulator does. The end, not the flush of the same frames, decides."""
    with place.writer() as writer:
        episode = append(writer.episode("a", metadata=begun), FRAMES[:3])
        place.now += 60
        assert episode.flush()
        assert place.after_a_kill() == {"a": (3, {**begun, "truncated": True})}
        episode.close(ended)
    assert rebuilt_content(place.folder) == {"a": (3, {**begun, **ended})}


def test_an_error_stores_all_that_had_ended(place: Place) -> None:
    writer = place.writer()
    write_episodes(writer, {"a": FRAMES[:5]})
    episode = append(writer.episode("b"), FRAMES[:7])
    assert not episode.flush()
    append(episode, FRAMES[7:9])
    with pytest.raises(KeyError), writer:
        raise KeyError
    assert place.after_a_kill() == {"a": (5, {}), "b": (7, {"truncated": True})}


def test_a_failed_upload_loses_episodes_that_were_not_stored(place: Place) -> None:
    """Later calls raise `DestinationError`, which names the loss."""
    storage = FaultyStorage(
        place.open(), lambda operation, path, number: _failure(operation == "commit" and number > 0)
    )
    writer = place.writer(storage)
    write_episodes(writer, {"a": FRAMES[:5]})
    episode = append(writer.episode("b"), FRAMES[:3])
    place.now += 60
    assert episode.flush()
    episode.close()
    episode = append(writer.episode("c"), FRAMES[:3])
    place.now += 60
    with pytest.raises(TransientError):
        episode.flush()
    for call in (writer.close, lambda: writer.episode("d")):
        with pytest.raises(DestinationError, match=r"stored record files are kept|is closed"):
            call()
    assert place.after_a_kill() == {"a": (5, {}), "b": (3, {"truncated": True})}


def _failure(fails: bool) -> Exception | None:
    return TransientError("as asked") if fails else None


@pytest.mark.parametrize("key", ["b", "x"])
def test_a_discarded_episode_stays_away_after_edits(place: Place, key: str) -> None:
    """Its frames are in a file of the dataset, and a second file marks it. Its key is free."""
    with place.writer() as writer:
        write_episodes(writer, {"a": FRAMES[:3]})
        episode = append(writer.episode(key), FRAMES[:9])
        place.now += 60
        assert episode.flush()
        episode.discard()
        write_episodes(writer, {"b": FRAMES[:2], "c": FRAMES[:20]})
    expected: Content = {"a": (3, {}), "b": (2, {}), "c": (20, {})}
    assert content(place.folder) == expected
    where: Any = place.folder
    clean(where, older_than=-1e9)
    reindex(where)
    assert content(place.folder) == expected
    with SeqRecordWriter(where, mode="append") as appending:
        write_episodes(appending, {"d": FRAMES[:1]})
    rename_episodes(where, {"b": "new"})
    delete_episodes(where, "c")
    rewrite_files(where, min_unused=0.01)
    clean(where, older_than=-1e9)
    expected = {"a": (3, {}), "new": (2, {}), "d": (1, {})}
    assert content(place.folder) == expected
    reindex(where)
    assert content(place.folder) == expected
    delete_episodes(where, "a")
    rewrite_files(where, min_unused=0.01)
    clean(where, older_than=-1e9)
    reindex(where)
    assert content(place.folder).keys() == {"new", "d"}


def test_an_episode_that_another_writer_committed_stays_in_the_dataset(place: Place) -> None:
    writer = place.writer()
    episode = append(writer.episode("a"), FRAMES[:9])
    place.now += 60
    assert episode.flush()
    assert resume(place.folder) == {"a"}
    append(episode, FRAMES[9:12])
    place.now += 60
    assert episode.flush()
    episode.discard()
    write_episodes(writer, {"b": FRAMES[:3]})
    with pytest.raises(ConflictError):
        writer.close()
    expected: Content = {"a": (9, {"truncated": True}), "b": (3, {})}
    for _ in range(2):
        resume(place.folder)
        assert content(place.folder) == expected
    clean(place.folder, older_than=-1e9)
    reindex(place.folder)
    assert content(place.folder) == expected


def test_clean_removes_files_of_a_killed_writer_only_if_they_are_old(place: Place) -> None:
    with place.writer() as writer:
        write_episodes(writer, {"a": FRAMES[:5]})
    killed = place.writer(mode="append")
    episode = append(killed.episode("b"), FRAMES[:3])
    place.now += 60
    assert episode.flush()
    append(episode, FRAMES[3:5])
    assert len(place.sizes) == 2
    assert clean(place.folder, older_than=3600) == []
    assert place.after_a_kill().keys() == {"a", "b"}
    [removed] = clean(place.folder, older_than=-1e9)
    assert len(place.sizes) == 1
    assert removed.endswith(".seqrec")
    with pytest.raises(DestinationError):  # its file is gone
        killed.close()
    assert place.after_a_kill() == {"a": (5, {})}


def test_a_conversion_writes_files_of_the_storages_size(place: Place) -> None:
    source = MadeSource((9, 3, 14))
    for size in (None, "1GiB"):
        part = Place(place.folder / str(size))
        storage = part.open(file_bytes=1)
        convert(source, storage, workers=1, chunk_frames=5, max_file_size=size)
        assert (len(part.sizes) == 1) == (size is not None)
        assert read_all(part.folder).keys() == {info.key for info in source.episodes()}
