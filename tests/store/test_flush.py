"""Flushing: flushed frames form an episode, whatever happens later.

The metadata of an episode mark it as truncated if its writer was stopped in it.
"""

from __future__ import annotations

import itertools
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import SeqRecordWriter, reindex
from seqrecord.errors import ConflictError, DestinationError, FrameError, StorageError
from seqrecord.store.format.text import MAX_METADATA_LENGTH, is_truncated, mark_truncated
from seqrecord.store.storage.base import Upload
from seqrecord.store.storage.local import LocalStorage
from tests.kit.datasets import append, columns, flip, record_files, resume, write_episodes
from tests.kit.faults import FailAt, FaultyStorage, abandon, abandonable
from tests.kit.processes import join_commits
from tests.kit.tiny import footers_of, read_all, same_frames

SETTINGS: dict[str, Any] = {"codecs": "raw", "chunk_frames": 8}
SMALL_CHUNKS: dict[str, Any] = {"codecs": "raw", "chunk_frames": 4}
METADATA = {"robot": "arm"}
CUT = {"robot": "arm", "truncated": True}


# `image`, in one group, and `state` and `note` in another; every third frame has no note.
FRAMES = columns(
    image=[np.full((64, 64), number, "u1") for number in range(60)],
    state=[np.full(3, number, "<f4") for number in range(60)],
    note=[None if number % 3 == 2 else f"frame {number}" for number in range(60)],
)


def lengths(root: Path) -> dict[str, int]:
    """Frame count of each episode, after a check of every frame."""
    found = read_all(root)
    assert same_frames(found, {key: FRAMES[: len(frames)] for key, frames in found.items()})
    assert not seqrecord.verify(root).problems
    return {key: len(frames) for key, frames in found.items()}


def check_rebuilt(root: Path, expected: dict[str, int]) -> None:
    """So it is, and so when the index is built anew."""
    assert lengths(root) == expected
    reindex(root)
    assert lengths(root) == expected


def metadata_of(root: Path, key: str = "a") -> object:
    return seqrecord.open(root).episodes[key].metadata


def test_a_flush_ends_the_chunks_that_are_open(tmp_path: Path) -> None:
    with SeqRecordWriter(tmp_path, **SETTINGS) as writer, writer.episode("a") as episode:
        episode.flush()  # of no frames
        append(episode, FRAMES[:3])
        episode.flush()
        episode.flush()  # nothing has come since
        append(episode, FRAMES[3:14])
        episode.flush()
        append(episode, FRAMES[14:24])
    with seqrecord.open(tmp_path) as dataset:
        for group in dataset.contents.index.groups:
            assert group.num_frames.tolist() == [3, 8, 3, 8, 2]
    check_rebuilt(tmp_path, {"a": 24})


def test_flushing_changes_no_frame_and_not_the_number_of_episodes(tmp_path: Path) -> None:
    with SeqRecordWriter(tmp_path, max_file_size=20_000) as writer:
        for key in ("a", "b"):
            with writer.episode(key, metadata=CUT) as episode:
                append(episode, FRAMES[:2])
                has_schema = [writer.schema is not None]
                episode.flush()  # takes the features from the frames so far
                has_schema.append(writer.schema is not None)
                assert has_schema == [key == "b", True]
                append(episode, FRAMES[2:30], flush_every=7)
    before = (tmp_path / "manifest.json").read_text()
    check_rebuilt(tmp_path, {"a": 30, "b": 30})
    assert seqrecord.open(tmp_path).fingerprint in before
    assert metadata_of(tmp_path) == CUT, "a truncated original stays marked"


# By steps: `f` for a frame, `F` for a flush, `E` for the end of the episode.
STOPS: dict[str, tuple[int, Any] | None] = {
    "fffFE": (3, METADATA),
    "fffE": (3, METADATA),
    "fFffFffE": (5, METADATA),
    "fFfFfFE": (3, METADATA),
    "fffffffFE": (7, METADATA),
    "fffF": (3, CUT),
    "fFfffF": (4, CUT),
    "ffffffFff": (6, CUT),
    "fffffffFffffffF": (13, CUT),
    "fff": None,
}


@pytest.mark.parametrize(
    ("max_file_size", "stop"),
    [(1 << 30, abandon), (12_000, abandon), (1 << 30, SeqRecordWriter.abort)],
)
def test_a_writer_that_stops(
    tmp_path: Path, max_file_size: int, stop: Callable[[SeqRecordWriter], None], thorough: bool
) -> None:
    settings: dict[str, Any] = {"codecs": "raw", "chunk_frames": 2, "max_file_size": max_file_size}
    for steps, expected in itertools.islice(STOPS.items(), 0, None, 1 if thorough else 3):
        folder = tmp_path / steps
        writer = abandonable(folder, **settings)
        episode = writer.episode("a", metadata=METADATA)
        for number, step in enumerate(steps):
            if step == "f":
                episode.append(FRAMES[steps[:number].count("f")])
            else:
                (episode.flush if step == "F" else episode.close)()
        stop(writer)
        with SeqRecordWriter(folder, mode="resume", **settings) as writer:
            write_episodes(writer, {"z": FRAMES[:1]})
        check_rebuilt(folder, {"z": 1} if expected is None else {"a": expected[0], "z": 1})
        assert expected is None or metadata_of(folder) == expected[1]


@pytest.mark.parametrize(
    ("max_file_size", "error"),
    [
        *((1, "bad frame"), (20_000, "abort"), (1 << 30, "raised")),
        *(
            pytest.param(size, error, marks=pytest.mark.slow)
            for size, error in ((1, "abort"), (1, "raised"), (20_000, "bad frame"))
        ),
    ],
)
def test_an_error_keeps_flushed_frames(tmp_path: Path, max_file_size: int, error: str) -> None:
    with SeqRecordWriter(tmp_path, **SETTINGS, max_file_size=max_file_size) as writer:
        episode = writer.episode("a", metadata=METADATA)
        append(episode, FRAMES[:11])
        episode.flush()
        append(episode, FRAMES[11:20])
        if error == "bad frame":
            with pytest.raises(FrameError):
                episode.append({"state": np.zeros(4)})
        elif error == "abort":
            episode.abort()
        else:
            with pytest.raises(KeyError), episode:
                raise KeyError
        assert writer.completed_episodes == {"a"}
        with pytest.raises(DestinationError, match="exists already"):
            writer.episode("a")
        write_episodes(writer, {"b": FRAMES[:9]})
    length = lengths(tmp_path)["a"]
    assert length == 11 if max_file_size == 1 << 30 else 11 <= length <= 20
    assert metadata_of(tmp_path) == CUT
    check_rebuilt(tmp_path, {"a": length, "b": 9})


def test_a_writer_whose_flushed_part_another_has_committed_loses_nothing(tmp_path: Path) -> None:
    """The second commits the first one's flushed frames; a resume adds the remaining frames."""
    first = SeqRecordWriter(tmp_path, **SETTINGS)
    episode = first.episode("a")
    append(episode, FRAMES[:11])
    episode.flush()
    assert resume(tmp_path) == {"a"}
    assert lengths(tmp_path) == {"a": 11}
    append(episode, FRAMES[11:30])
    episode.close()
    with pytest.raises(ConflictError):
        first.close()
    assert lengths(tmp_path) == {"a": 11}
    assert resume(tmp_path) == {"a"}
    check_rebuilt(tmp_path, {"a": 30})


def test_a_damaged_chunk_loses_the_chunks_after_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A crashed machine may have lost any page. Frames flushed before that page are kept."""
    for damaged, length in ((0, 0), (1, 5), (2, 17)):
        folder, offsets = tmp_path / str(damaged), [64]
        episode = SeqRecordWriter(folder, **SETTINGS).episode("a")
        for start, stop in ((0, 5), (5, 17), (17, 20)):
            append(episode, FRAMES[start:stop])
            episode.flush()
            offsets += [path.stat().st_size for path in folder.glob("records/*.partial")]
        (partial,) = folder.glob("records/*.partial")
        flip(partial, offsets[damaged])
        if length:
            assert resume(folder) == {"a"}
            assert lengths(folder) == {"a": length}
            assert "incomplete" in caplog.text
        else:
            with pytest.raises(DestinationError, match="no episode"):
                resume(folder)


def test_each_note_covers_only_frames_since_the_last(tmp_path: Path) -> None:
    """Otherwise the bytes of notes grow with the square of the number of flushes."""
    writer = SeqRecordWriter(tmp_path, **SETTINGS)
    append(writer.episode("a"), FRAMES[:60], flush_every=1)
    (cut,) = LocalStorage(tmp_path).unfinished("records")
    sizes = [len(note) for _, note in cut.checkpoints()]
    assert len(sizes) == 60
    assert max(sizes) < 2 * sizes[0]
    assert resume(tmp_path) == {"a"}
    assert lengths(tmp_path) == {"a": 60}


def test_every_file_has_its_flushed_frame_count(tmp_path: Path) -> None:
    with (
        SeqRecordWriter(tmp_path, **SETTINGS, max_file_size=1) as writer,
        writer.episode("a") as episode,
    ):
        append(episode, FRAMES[:4])
        episode.flush()
        append(episode, FRAMES[4:9])
    ends = set()
    for footer in footers_of(tmp_path).values():
        (part,) = footer.episodes
        ends.add(part.num_frames)
        for rows in footer.chunks:
            last = rows["first_frame"] + rows["num_frames"]
            assert part.num_frames is None or all(last <= part.num_frames)
    assert {4, 9} <= ends


def test_the_mark() -> None:
    marked = mark_truncated('{"z":1}')
    assert marked == '{"truncated":true,"z":1}'
    assert is_truncated(marked)
    for text in ('{"z":1}', '{"truncated":false}', '{"truncated":1}', '{"truncated":"true"}'):
        assert not is_truncated(text)
    long = '{"z":"' + "a" * (MAX_METADATA_LENGTH - 8) + '"}'
    assert mark_truncated(long) == long


# Episodes that are thrown away: nothing of them is committed, whenever a kill comes


class Photographed(LocalStorage):
    """A storage that, if switched on, is copied before and after each step.

    A copy equals the files left by a kill at that moment.
    """

    def __init__(self, root: Path, copies: Path) -> None:
        super().__init__(root)
        self.folder, self.is_on, self._lock = copies, False, threading.Lock()
        self.copies: list[Path] = []

    def photograph(self) -> None:
        with self._lock:
            if self.is_on:
                self.copies.append(self.folder / str(len(self.copies)))
                shutil.copytree(self.root, self.copies[-1], ignore_dangling_symlinks=True)

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def do(*args: Any) -> Any:
            self.photograph()
            result = function(*args)
            self.photograph()
            return result

        return do

    def create(self, path: str) -> Upload:
        upload = super().create(path)
        for name in ("write", "checkpoint", "rewind", "abort"):
            setattr(upload, name, self.around(getattr(upload, name)))
        return upload

    def remove(self, path: str) -> None:
        self.around(super().remove)(path)


@pytest.mark.parametrize(
    ("max_file_size", "flush_every"),
    [
        *((1, 3), (18_000, 0), (1 << 30, 5)),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, 0), (18_000, 5))),
    ],
)
def test_a_discarded_episode_is_nowhere_whatever_the_files(
    tmp_path: Path, max_file_size: int, flush_every: int, thorough: bool
) -> None:
    """Earlier episodes stay. A kill while discarding keeps all flushed frames, or none."""
    root = tmp_path / "d"
    storage = Photographed(root, tmp_path / "copies")
    writer = SeqRecordWriter(storage, max_file_size=max_file_size, **SMALL_CHUNKS)
    write_episodes(writer, {"kept": FRAMES[:7]})
    episode = append(writer.episode("a"), FRAMES[:26], flush_every=flush_every)
    storage.is_on = True
    episode.discard()
    storage.photograph()
    storage.is_on = False
    join_commits()
    if max_file_size == 1 << 30:
        (partial,) = (root / "records").glob("*.partial")
        assert partial.stat().st_size < 8 * 4500, "its bytes are gone at once"
    with pytest.raises(DestinationError, match="has ended"):
        episode.append({})
    # Kills, then and now.
    found = []
    step = 1 if thorough else -(-len(storage.copies) // 6)
    for copy in reversed(storage.copies[::-step]):
        SeqRecordWriter(copy, mode="resume").close()
        found.append(lengths(copy))
        assert found[-1].pop("kept") == 7
        assert found[-1] == {} or found[-1]["a"] >= {0: 0, 3: 24, 5: 25}[flush_every]
    assert found[-1] == {}
    assert all(one or not other for one, other in itertools.pairwise(found)), "it came back"
    # The same key again, and the writer as if nothing had been.
    assert "a" not in writer.completed_episodes
    write_episodes(writer, {"a": FRAMES[:5]})
    with writer.episode("last") as episode:
        append(episode, FRAMES[:3], flush_every=3)
        episode.discard()
        episode.discard()  # it has been
    writer.close()
    assert {*(root / "records").iterdir()} == {*record_files(root)}
    with seqrecord.open(root) as dataset:
        assert dataset.statistics.num_frames == 12
        assert dataset.statistics["state"].max[0] == 6
    check_rebuilt(root, {"kept": 7, "a": 5})


def test_nothing_is_left_where_all_was_discarded(tmp_path: Path) -> None:
    writer = SeqRecordWriter(tmp_path, **SMALL_CHUNKS)
    for _ in range(2):
        append(writer.episode("a"), FRAMES[:9], flush_every=3).discard()
    with pytest.raises(DestinationError, match="no episode was written"):
        writer.close()
    assert not list(tmp_path.glob("records/*"))
    with SeqRecordWriter(tmp_path) as writer:  # before the first frame gives the features
        episode = writer.episode("a")
        episode.append({"other": np.zeros(3)})
        episode.discard()
        write_episodes(writer, {"a": FRAMES[:2]})
    assert lengths(tmp_path) == {"a": 2}


def test_a_file_that_cannot_be_removed_is_no_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = FaultyStorage(LocalStorage(tmp_path), FailAt("remove", path="records/"))
    writer = SeqRecordWriter(storage, max_file_size=1, **SMALL_CHUNKS)
    write_episodes(writer, {"kept": FRAMES[:3]})
    episode = append(writer.episode("a"), FRAMES[:20], flush_every=3)
    episode.discard()
    assert "cannot be removed" not in caplog.text
    writer.close()
    assert "cannot be removed" in caplog.text
    with seqrecord.open(tmp_path) as dataset:
        assert dataset.contents.manifest.removed
    assert lengths(tmp_path) == {"kept": 3}
    resume(tmp_path)  # nor is it recovered
    check_rebuilt(tmp_path, {"kept": 3})


def test_files_added_by_a_concurrent_resume_stay(tmp_path: Path) -> None:
    """A writer once removed its finished files although the manifest had named them since."""
    writer = SeqRecordWriter(tmp_path, max_file_size=1, **SMALL_CHUNKS)
    write_episodes(writer, {"kept": FRAMES[:7]})
    episode = append(writer.episode("a"), FRAMES[:26], flush_every=3)
    join_commits()
    resume(tmp_path)
    before = lengths(tmp_path)
    assert before["a"] >= 24
    episode.discard()
    write_episodes(writer, {"b": FRAMES[:3]})
    with pytest.raises(ConflictError):
        writer.close()
    assert lengths(tmp_path) == before
    resume(tmp_path)
    assert lengths(tmp_path) == {**before, "b": 3}


def test_a_storage_that_fails_breaks_the_writer(tmp_path: Path) -> None:
    writer = SeqRecordWriter(LocalStorage(tmp_path), **SMALL_CHUNKS)
    write_episodes(writer, {"kept": FRAMES[:3]})
    episode = append(writer.episode("a"), FRAMES[:9], flush_every=3)
    (notes,) = tmp_path.glob("records/*.notes")
    data = notes.read_bytes()
    notes.unlink()
    notes.mkdir()
    with pytest.raises(StorageError):
        episode.discard()
    notes.rmdir()
    notes.write_bytes(data)
    for call in (lambda: writer.episode("b"), writer.close):
        with pytest.raises(DestinationError, match="failed before"):
            call()
    resume(tmp_path)
    assert lengths(tmp_path) == {"kept": 3, "a": 9}


@pytest.mark.parametrize("flush_every", [0, 3, 9])
@pytest.mark.parametrize("max_file_size", [1, 1 << 30])
@pytest.mark.parametrize("is_killed", [False, True])
def test_entries_that_come_with_the_end_are_kept(
    tmp_path: Path, max_file_size: int, flush_every: int, is_killed: bool
) -> None:
    """Parts in earlier files, and flushes, lack them: both once counted as a contradiction."""
    writer = SeqRecordWriter(tmp_path, max_file_size=max_file_size, **SMALL_CHUNKS)
    episode = append(writer.episode("a", metadata=METADATA), FRAMES[:9], flush_every=flush_every)
    episode.close({"robot": "leg", "success": True})
    if is_killed:
        join_commits()
        assert resume(tmp_path) == {"a"}
    else:
        writer.close()
    check_rebuilt(tmp_path, {"a": 9})
    assert metadata_of(tmp_path) == {"robot": "leg", "success": True}
