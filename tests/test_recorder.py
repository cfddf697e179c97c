"""SeqRecordRecorder: what it records, what does not wait for what, and what a kill leaves."""

from __future__ import annotations

import gc
import io
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import seqrecord
from seqrecord import EncodedImage, FeatureSpec, Schema, SeqRecordRecorder, SeqRecordWriter, errors
from seqrecord.storage import LocalStorage, Storage, open_storage
from tests.command_line import run
from tests.datasets import EPISODES, small_schema, write_small
from tests.own_threads import own_threads
from tests.services.process import wait_for
from tests.storage_doubles import Failure, FaultyStorage, Gate, Operation
from tests.tiny import read_all, same_frames

NBYTES = 1 << 20
LARGE = Schema([FeatureSpec("x", np.dtype(np.float32), (NBYTES // 4,))])


def large(number: int) -> dict[str, Any]:
    """A frame of 1 MiB."""
    return {"x": np.full(NBYTES // 4, number, np.float32)}


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


@pytest.fixture
def gated(tmp_path: Path, gate: Gate) -> FaultyStorage:
    """A storage that takes nothing until the gate is opened."""
    return FaultyStorage(LocalStorage(tmp_path / "d"), gate)


def recorder_threads() -> list[threading.Thread]:
    return own_threads("seqrecord-rec", "seqrecord-spill")


def test_it_records_what_a_writer_writes(tmp_path: Path) -> None:
    written = write_small(tmp_path / "written")
    with SeqRecordRecorder(
        tmp_path / "recorded",
        schema=small_schema(),
        chunk_frames=4,
        max_file_size=30_000,
        flush_seconds=60,
    ) as recorder:
        for number, key in enumerate(EPISODES):
            metadata = {"difficulty": key.split("/")[1], "number": number, "place": "Ürümqi"}
            with recorder.episode(key, metadata=metadata) as episode:
                for frame in written[key]:
                    assert episode.append(frame)
    assert recorder_threads() == []
    one, two = seqrecord.open(tmp_path / "written"), seqrecord.open(tmp_path / "recorded")
    with one, two:
        for key, recorded in two.episodes.items():
            assert recorded.metadata == one.episodes[key].metadata
    assert same_frames(read_all(tmp_path / "written"), read_all(tmp_path / "recorded"))


def test_what_features_are_and_rates_are_kept(tmp_path: Path) -> None:
    with SeqRecordRecorder(
        tmp_path / "d", features={"x": {"unit": "m", "kind": "state"}}, fps=30, statistics=False
    ) as recorder:
        for key, fps in (("a", None), ("b", 12.5)):
            with recorder.episode(key, fps=fps) as episode:
                episode.append({"x": np.zeros(3)})
        with pytest.raises(errors.SchemaError):
            recorder.episode("c", fps=-1)
    with seqrecord.open(tmp_path / "d") as dataset:
        assert (dataset.features["x"].unit, dataset.features["x"].kind) == ("m", "state")
        assert [episode.fps for episode in dataset.episodes.values()] == [30, 12.5]
        assert not dataset.statistics


def test_features_are_those_of_the_first_frame(tmp_path: Path) -> None:
    with SeqRecordRecorder(tmp_path / "d") as recorder, recorder.episode("a") as episode:
        episode.append({"x": np.zeros(3), "y": np.int32(1)})
        episode.append({"x": np.ones(3)})
        with pytest.raises(errors.FrameError, match=r"episode: a; frame: 2; .*got: z"):
            episode.append({"z": np.zeros(3)})
    with seqrecord.open(tmp_path / "d") as dataset:
        assert set(dataset.features) == {"x", "y"}
        assert len(dataset.episodes["a"]) == 2


def png(height: int, width: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.zeros((height, width, 3), np.uint8)).save(file, "png")
    return file.getvalue()


@pytest.mark.parametrize(
    "bad",
    [
        {"x": np.zeros(3, np.float32)},
        {"x": np.zeros(4)},
        {},
        {"x": np.zeros(3), "z": 1},
        {"x": "abc"},
        {"x": bytes(24)},
        {"x": EncodedImage(b"no image")},
        {"said": b"abc"},
        {"said": np.zeros(3, np.uint8)},
        {"said": "half \ud800 a pair"},
        {"blob": "abc"},
        {"blob": np.zeros((2, 2), np.uint8)},
        {"photo": EncodedImage(b"no image")},
        {"photo": EncodedImage(png(5, 6))},
    ],
)
def test_a_frame_that_does_not_fit_is_refused_and_the_episode_goes_on(
    tmp_path: Path, bad: dict[str, Any]
) -> None:
    with SeqRecordRecorder(tmp_path / "d") as recorder, recorder.episode("a") as episode:
        for number in range(3):
            frame: dict[str, Any] = {"x": np.full(3, float(number)), "said": "é", "blob": b"12"}
            frame |= {"flags": np.array([True]), "photo": EncodedImage(png(4, 6))}
            episode.append(frame)
            with pytest.raises(errors.FrameError, match=f"episode: a.*frame: {number + 1}"):
                episode.append(bad)
    with seqrecord.open(tmp_path / "d") as dataset:
        np.testing.assert_array_equal(dataset.episodes["a"][:]["x"][:, 0], [0, 1, 2])


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_of_any_kind_are_recorded_as_bytes(tmp_path: Path, kind: type) -> None:
    with SeqRecordRecorder(tmp_path / "d") as recorder, recorder.episode("a") as episode:
        for packet in (b"abc", b"", b"defg"):
            episode.append({"packet": kind(packet)})
    with seqrecord.open(tmp_path / "d") as dataset:
        recorded = [dataset.episodes["a"][frame]["packet"] for frame in range(3)]
    assert recorded == [b"abc", b"", b"defg"]


def test_appending_waits_for_nothing(tmp_path: Path, gate: Gate, gated: Storage) -> None:
    """The thread stands still while frames come; arrays may be filled again at once."""
    array = np.zeros(100)
    schema = Schema([FeatureSpec("x", np.dtype(np.float64), (100,))])
    with SeqRecordRecorder(gated, schema=schema, when_full="raise", chunk_frames=1) as recorder:
        with recorder.episode("a") as episode:
            for number in range(50):
                array[:] = number
                episode.append({"x": array})
            reached, before = gate.reached.wait(60), recorder.stats()
            gate.opened.set()
        after = recorder.stats()
    assert reached
    assert (before.recorded_frames, before.written_frames) == (50, 0)
    assert before.queued_frames == 49
    assert (after.durable_frames, after.queued_frames) == (50, 0)
    with seqrecord.open(tmp_path / "d") as dataset:
        np.testing.assert_array_equal(dataset.episodes["a"][:]["x"][:, 0], np.arange(50))


def test_more_than_the_queue_holds_is_spilled(tmp_path: Path, gate: Gate, gated: Storage) -> None:
    spill = tmp_path / "spill"
    spill.mkdir()
    recorder = SeqRecordRecorder(
        gated, schema=LARGE, queue_size=8 * NBYTES, spill_folder=spill, chunk_frames=1
    )
    with recorder, recorder.episode("a") as episode:
        for number in range(40):
            # The disk is given time: how fast it is, is not the question.
            wait_for(lambda: recorder.stats().queued_bytes <= 4 * NBYTES)
            episode.append(large(number))
        stats = recorder.stats()
        assert stats.total_spilled_frames >= 30
        assert stats.queued_bytes <= 8 * NBYTES
        gate.opened.set()
    assert list(spill.iterdir()) == []
    with seqrecord.open(tmp_path / "d") as dataset:
        np.testing.assert_array_equal(dataset.episodes["a"][:]["x"][:, 5], np.arange(40))


@pytest.mark.parametrize("when_full", ["raise", "drop"])
def test_a_queue_that_is_full(tmp_path: Path, gate: Gate, gated: Storage, when_full: Any) -> None:
    recorder = SeqRecordRecorder(
        gated, schema=LARGE, queue_size=4 * NBYTES, when_full=when_full, chunk_frames=1
    )
    taken: list[bool] = []
    with recorder, recorder.episode("a") as episode:
        for number in range(10):
            try:
                taken.append(episode.append(large(number)))
            except errors.QueueFullError:
                assert when_full == "raise"
                taken.append(False)
        stats = recorder.stats()
        gate.opened.set()
        wait_for(lambda: recorder.stats().queued_bytes == 0)
        assert episode.append(large(3)), "what was written makes room"
    assert taken == [number < 3 for number in range(10)]
    assert stats.recorded_frames == 3
    assert stats.dropped_frames == (7 if when_full == "drop" else 0)
    with seqrecord.open(tmp_path / "d") as dataset:
        np.testing.assert_array_equal(dataset.episodes["a"][:]["x"][:, 5], np.arange(4))


def test_a_failure_to_write_is_raised_and_what_had_ended_is_kept(tmp_path: Path) -> None:
    burning = threading.Event()

    def fault(operation: Operation, path: str, number: int) -> Failure:
        is_due = operation == "write" and burning.is_set()
        return errors.StorageError("the disk burns", file=path) if is_due else None

    storage = FaultyStorage(LocalStorage(tmp_path / "d"), fault)
    recorder = SeqRecordRecorder(storage, codecs="raw", chunk_frames=1)
    with recorder.episode("a") as episode:
        for _ in range(3):
            episode.append({"x": np.zeros(3)})
    burning.set()
    episode = recorder.episode("b")
    episode.append({"x": np.zeros(3)})
    with pytest.raises(errors.DestinationError, match=r"the disk burns.*resume"):
        episode.close()
    with pytest.raises(errors.DestinationError, match="the disk burns"):
        recorder.episode("c")
    with pytest.raises(errors.DestinationError, match="the disk burns"):
        recorder.close()
    assert recorder_threads() == []
    with pytest.raises(errors.NotFoundError):
        seqrecord.open(tmp_path / "d")
    with SeqRecordRecorder(tmp_path / "d", codecs="raw", mode="resume") as recorder:
        with pytest.raises(errors.DestinationError, match="exists already"):
            recorder.episode("a")
        with recorder.episode("b") as episode:
            episode.append({"x": np.zeros(3)})
    with seqrecord.open(tmp_path / "d") as dataset:
        assert list(dataset.episodes) == ["a", "b"]


def test_a_loop_that_ends_by_an_error_keeps_what_was_recorded(tmp_path: Path) -> None:
    def loop() -> None:
        with SeqRecordRecorder(tmp_path / "d") as recorder, recorder.episode("a") as episode:
            episode.append({"x": np.zeros(3)})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        loop()
    with seqrecord.open(tmp_path / "d") as dataset:
        assert len(dataset.episodes["a"]) == 1
    assert recorder_threads() == []


def test_an_episode_without_frames_is_forgotten(tmp_path: Path) -> None:
    with SeqRecordRecorder(tmp_path / "d") as recorder:
        recorder.episode("a").close()
        recorder.episode("b").close()
        with recorder.episode("b") as episode:  # the key is free again
            episode.append({"x": np.zeros(3)})
        with pytest.raises(errors.DestinationError, match="exists already"):
            recorder.episode("b")
        recorder.episode("c")
    with seqrecord.open(tmp_path / "d") as dataset:
        assert list(dataset.episodes) == ["b"]


def test_calls_in_the_wrong_order(tmp_path: Path) -> None:
    with SeqRecordRecorder(tmp_path / "d") as recorder:
        first = recorder.episode("a")
        with pytest.raises(errors.DestinationError, match="episode a has not ended"):
            recorder.episode("b")
        first.append({"x": np.zeros(3)})
        first.close()
        first.close()  # it has
        with pytest.raises(errors.DestinationError, match="the episode has ended"):
            first.append({"x": np.zeros(3)})
        with pytest.raises(errors.DestinationError, match="exists already"):
            recorder.episode("a")
    for call in (recorder.close, lambda: recorder.episode("z")):
        with pytest.raises(errors.DestinationError, match="the recorder is closed"):
            call()
    recorder.abort()  # nothing to do


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"queue_size": "many"}, "queue_size"),
        ({"when_full": "wait"}, "unknown when_full"),
        ({"flush_seconds": 0}, "invalid flush_seconds"),
        ({"flush_seconds": float("nan")}, "invalid flush_seconds"),
        ({"spill_folder": "/no/such/folder"}, "cannot spill there"),
        ({"mode": "update"}, "unknown mode"),
    ],
)
def test_wrong_arguments(tmp_path: Path, arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(errors.DestinationError, match=match):
        SeqRecordRecorder(tmp_path / "d", **arguments)
    assert recorder_threads() == []


@pytest.mark.parametrize("how", ["abort", "forget"])
def test_one_that_is_not_closed_leaves_no_thread_and_no_file_of_its_own(
    tmp_path: Path, how: str
) -> None:
    spill = tmp_path / "spill"
    spill.mkdir()
    recorder = SeqRecordRecorder(tmp_path / "d", spill_folder=spill)
    with recorder.episode("a") as episode:
        episode.append({"x": np.zeros(3)})
    threads = recorder_threads()
    assert len(threads) == 2
    if how == "abort":
        recorder.abort()
    del recorder, episode
    gc.collect()
    for thread in threads:
        thread.join(60)
    assert recorder_threads() == []
    assert list(spill.iterdir()) == []
    SeqRecordWriter(tmp_path / "d", mode="resume").close()
    with seqrecord.open(tmp_path / "d") as dataset:
        assert list(dataset.episodes) == ["a"]


EPISODE_FRAMES = 40


def made_frame(episode: int, number: int) -> dict[str, Any]:
    rng = np.random.default_rng([episode, number])
    image = rng.integers(0, 256, (24, 32, 3), np.uint8)
    return {"image": image, "state": np.array([episode, number], np.float32)}


@pytest.mark.parametrize("mode", ["create", pytest.param("resume", marks=pytest.mark.slow)])
def test_a_kill_keeps_what_had_ended_and_the_open_episode_up_to_its_last_flush(
    tmp_path: Path, mode: Any
) -> None:
    """A copy of the folder is what a kill at that moment leaves."""
    if mode == "resume":
        writer = SeqRecordWriter(tmp_path / "d")
        with writer.episode("first") as written:
            written.append(made_frame(9, 0))
        writer.abort()
    recorder = SeqRecordRecorder(tmp_path / "d", flush_seconds=0.01, mode=mode)
    for number in range(3):
        episode = recorder.episode(f"{number}", metadata={"episode": number})
        for at in range(EPISODE_FRAMES):
            episode.append(made_frame(number, at))
            if at in (5, 30):
                before = EPISODE_FRAMES * number
                wait_for(lambda before=before: recorder.stats().durable_frames > before)  # type: ignore[misc]
                safe = recorder.stats().durable_frames - before
                killed = tmp_path / f"{number} {at}"
                shutil.copytree(tmp_path / "d", killed)
                check_recorded(killed, number, safe, mode)
        episode.close()
    recorder.close()


def check_recorded(folder: Path, ended: int, safe: int, mode: str) -> None:
    """A resume finds the episodes that had ended, and the frames of the next that were safe."""
    SeqRecordWriter(folder, mode="resume").close()
    with seqrecord.open(folder) as dataset:
        first = ["first"] if mode == "resume" else []
        assert list(dataset.episodes) == [*first, *map(str, range(ended + 1))]
        for number in range(ended + 1):
            episode = dataset.episodes[str(number)]
            is_whole = len(episode) == EPISODE_FRAMES
            assert is_whole if number < ended else len(episode) >= safe
            assert episode.metadata["episode"] == number
            assert episode.metadata.get("truncated", False) == (number == ended)
            for at in range(len(episode)):
                for name, array in made_frame(number, at).items():
                    np.testing.assert_array_equal(episode[at][name], array)
    assert seqrecord.verify(folder, deep=True).ok


# Where it records to


@pytest.mark.parametrize(
    "url",
    ["s3://bucket/demos", "az://container/demos", "memory://demos", "hf://datasets/a/b"],
)
def test_a_recorder_takes_no_url(url: str) -> None:
    with pytest.raises(errors.DestinationError, match="`seqrecord merge FOLDER -o ") as caught:
        SeqRecordRecorder(url)
    assert "demos" in str(caught.value) or "hf://" in str(caught.value)


def test_a_recorder_takes_no_remote_storage(memory_url: str) -> None:
    with pytest.raises(errors.DestinationError, match="writes to a local disk"):
        SeqRecordRecorder(open_storage(memory_url))


def test_a_recording_is_uploaded_by_merge(tmp_path: Path, memory_url: str) -> None:
    with SeqRecordRecorder(tmp_path / "demos") as recorder, recorder.episode("a") as episode:
        episode.append({"x": np.zeros(3)})
    run("merge", tmp_path / "demos", "-o", memory_url)
    with seqrecord.open(memory_url) as dataset:
        assert dataset.num_frames == 1
