"""SeqRecordRecorder: recorded data, calls that do not block, data left by a kill."""

from __future__ import annotations

import gc
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import EncodedImage, FeatureSpec, Schema, SeqRecordRecorder, SeqRecordWriter
from seqrecord.errors import (
    DestinationError,
    FormatError,
    FrameError,
    QueueFullError,
    SchemaError,
    StorageError,
)
from seqrecord.store.storage.base import Storage
from seqrecord.store.storage.local import LocalStorage
from seqrecord.store.storage.opening import open_storage
from tests.kit.datasets import (
    EPISODES,
    append,
    encoded,
    frame,
    lengths_of,
    small_schema,
    write_episodes,
    write_small,
)
from tests.kit.faults import CreateGate, Failure, FaultyStorage, Operation
from tests.kit.processes import own_threads, wait_for
from tests.kit.tiny import read_all, same_frames

NBYTES = 1 << 20
LARGE = Schema([FeatureSpec("x", np.dtype(np.float32), (NBYTES // 4,))])


def large(number: int) -> dict[str, Any]:
    """A frame of 1 MiB."""
    return {"x": np.full(NBYTES // 4, number, np.float32)}


@pytest.fixture
def gate() -> Iterator[CreateGate]:
    gate = CreateGate()
    yield gate
    gate.opened.set()


@pytest.fixture
def gated(tmp_path: Path, gate: CreateGate) -> FaultyStorage:
    """A storage that blocks until the gate opens."""
    return FaultyStorage(LocalStorage(tmp_path / "d"), gate)


def recorder_threads() -> list[threading.Thread]:
    return own_threads("seqrecord-rec")


def check_recorded(folder: Path, count: int) -> None:
    """Episode `a` has frames with the numbers 0 to `count` - 1."""
    with seqrecord.open(folder) as dataset:
        [*numbers] = dataset.episodes["a"].read(range(count), features=["x"])["x"]
        assert len(dataset.episodes["a"]) == count
    assert [float(np.ravel(x)[-1]) for x in numbers] == [*range(count)]


def test_recorded_and_written_datasets_are_equal(tmp_path: Path) -> None:
    written = write_small(tmp_path / "written")
    with SeqRecordRecorder(
        tmp_path / "recorded",
        schema=small_schema(),
        chunk_frames=4,
        max_file_size=30_000,
        flush_seconds=60,
    ) as recorder:
        for key in EPISODES:
            write_episodes(recorder, {key: written[key]}, metadata={key: {"place": key}})
    assert recorder_threads() == []
    assert {
        k: e.metadata["place"] for k, e in seqrecord.open(tmp_path / "recorded").episodes.items()
    } == {key: key for key in EPISODES}
    assert same_frames(read_all(tmp_path / "written"), read_all(tmp_path / "recorded"))


def test_feature_properties_and_rates_are_kept(tmp_path: Path) -> None:
    with SeqRecordRecorder(
        tmp_path, features={"x": {"unit": "m", "kind": "state"}}, fps=30, statistics=False
    ) as recorder:
        for key, fps in (("a", None), ("b", 12.5)):
            write_episodes(recorder, {key: [{"x": np.zeros(3)}]}, rates={key: fps})
        with pytest.raises(SchemaError):
            recorder.episode("c", fps=-1)
    with seqrecord.open(tmp_path) as dataset:
        assert (dataset.features["x"].unit, dataset.features["x"].kind) == ("m", "state")
        assert [episode.fps for episode in dataset.episodes.values()] == [30, 12.5]
        assert not dataset.statistics


class Loop:
    """A control loop whose clock only its steps of `seconds` advance, one per `append`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed, self.seconds, start = 0.0, 0.1, time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: start + self.passed)

    def record(self, recorder: Any, key: str, frames: int = 20, **more: Any) -> None:
        with recorder.episode(key) as episode:
            for number in range(frames):
                episode.append({"x": np.full(3, number, np.float32), **more})
                self.passed += self.seconds


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    return Loop(monkeypatch)


def test_a_loop_slower_than_its_fps_is_reported(
    tmp_path: Path, loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    schema = Schema([FeatureSpec("x", np.dtype("<f4"), (3,))])
    cases: list[dict[str, Any]] = [{}, {"timestamps": False}, {"schema": schema}]
    for number, options in enumerate(cases):
        path = tmp_path / f"{number}"
        with SeqRecordRecorder(path, fps=10, **options) as recorder:
            for key, seconds in (("even", 0.1), ("slow", 0.15), ("replay", 1e-4)):
                loop.seconds = seconds
                loop.record(recorder, key)
            loop.seconds = 0.2
            loop.record(recorder, "one", 1)
            episode = recorder.episode("failed")
            for _ in range(9):
                episode.append({"x": np.zeros(3, np.float32)})
                loop.passed += 0.2
            episode.discard()
        message, *others = caplog.messages
        assert len(others) == (number == 0)
        assert all("fps ignored for 2 episodes" in text for text in others)
        assert re.search("episode slow was recorded at 6.6.* frames per .* its fps is 10", message)
        caplog.clear()
        with seqrecord.open(path) as dataset:
            fps = [episode.fps for episode in dataset.episodes.values()]
            assert fps == ([10, None, None, 10] if number == 0 else [10] * 4)
            metadata = {key: episode.metadata for key, episode in dataset.episodes.items()}
            rate = pytest.approx(1 / 0.15, rel=0.01)
            assert metadata == {"even": {}, "slow": {"measured_fps": rate}, "replay": {}, "one": {}}
            summary = seqrecord.summarize(path)
        assert re.search(r"measured fps +6.\d+ in 1 episode\n", str(summary))
        assert summary.to_json()["measured_fps"] == (rate, rate)


def test_frames_get_a_timestamp_unless_they_have_one(tmp_path: Path, loop: Loop) -> None:
    def names(path: Path, **options: Any) -> list[str]:
        mode, more = options.pop("mode", "create"), options.pop("frame", {})
        with SeqRecordRecorder(path, mode=mode, **options) as recorder:
            loop.record(recorder, f"{mode}{options}", 3, **more)
        return list(seqrecord.open(path).features)

    own = np.float64(5)
    schema = Schema([FeatureSpec("x", np.dtype("<f4"), (3,))])
    assert names(tmp_path / "a") == ["x", "timestamp"]
    assert names(tmp_path / "a", mode="append") == ["x", "timestamp"]
    with seqrecord.open(tmp_path / "a") as dataset:
        spec = dataset.features["timestamp"]
        assert (str(spec), spec.kind, spec.unit) == ("timestamp: float64 []", "timestamp", "s")
        times = [time for e in dataset.episodes.values() for time in e[:]["timestamp"]]
        assert (np.diff(times) > 0.09).all()
    assert names(tmp_path / "b", timestamps=False) == ["x"]
    assert names(tmp_path / "b", mode="append") == ["x"]  # the dataset has no such feature
    assert names(tmp_path / "c", schema=schema) == ["x"]
    assert names(tmp_path / "d", frame={"timestamp": own}) == ["x", "timestamp"]
    assert names(tmp_path / "d", mode="append", frame={"timestamp": own}) == ["x", "timestamp"]
    assert names(tmp_path / "e", frame={"log_time": own}) == ["x", "log_time"]
    clock = {"t": {"kind": "timestamp"}}
    assert names(tmp_path / "f", features=clock, frame={"t": own}) == ["x", "t"]
    with seqrecord.open(tmp_path / "d") as dataset:
        assert dataset.features["timestamp"].kind is None
        assert dataset.episodes["create{}"][:]["timestamp"].tolist() == [5] * 3


def png(height: int, width: int) -> EncodedImage:
    return EncodedImage(encoded(np.zeros((height, width, 3), np.uint8)))


BAD: list[dict[str, Any]] = [
    *({"x": x} for x in (np.zeros(3, np.float32), np.zeros(4), "abc", bytes(24))),
    {},
    {"x": np.zeros(3), "z": 1},
    {"x": EncodedImage(b"no image")},
    *({"caption": text} for text in (b"abc", np.zeros(3, np.uint8), "half \ud800 a pair")),
    *({"blob": blob} for blob in ("abc", np.zeros((2, 2), np.uint8))),
    *({"photo": photo} for photo in (EncodedImage(b"no image"), png(5, 6))),
]


def test_a_refused_frame_does_not_end_the_episode(tmp_path: Path) -> None:
    """The first frame defines the features."""
    with SeqRecordRecorder(tmp_path) as recorder, recorder.episode("a") as episode:
        for number, kind in enumerate((bytes, bytearray, memoryview)):
            frame = {"x": np.full(3, float(number)), "caption": "é", "blob": kind(b"12")}
            episode.append({**frame, "flags": np.array([True]), "photo": png(4, 6)})
            for bad in BAD:
                with pytest.raises(FrameError, match=f"episode: a.*frame: {number + 1}"):
                    episode.append(bad)
        episode.append({"x": np.full(3, 3.0), "blob": b""})
    check_recorded(tmp_path, 4)
    with seqrecord.open(tmp_path) as dataset:
        assert set(dataset.features) == {"x", "caption", "blob", "flags", "photo", "timestamp"}
        assert [dataset.episodes["a"][i]["blob"] for i in range(4)] == [b"12"] * 3 + [b""]


def test_append_does_not_block(tmp_path: Path, gate: CreateGate, gated: Storage) -> None:
    """Frames arrive while the thread is blocked; arrays may be reused at once."""
    array = np.zeros(100)
    schema = Schema([FeatureSpec("x", np.dtype(np.float64), (100,))])
    with SeqRecordRecorder(gated, schema=schema, chunk_frames=1) as recorder:
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
    check_recorded(tmp_path / "d", 50)


def test_buffers_may_be_reused_at_once(tmp_path: Path) -> None:
    """Frames are encoded later: the features are not known before the first flush."""
    image = encoded(np.full((4, 6, 3), 7, np.uint8))
    photo: Any = bytearray(image)
    blob, x = bytearray(b"12"), np.ones(3)
    with SeqRecordRecorder(tmp_path) as recorder, recorder.episode("a") as episode:
        episode.append({"photo": EncodedImage(photo), "blob": blob, "x": x})
        photo[:], blob[:], x[:] = bytes(len(image)), b"34", 2
    with seqrecord.open(tmp_path) as dataset:
        found = dataset.episodes["a"][0]
    assert (found["photo"] == 7).all()
    assert (found["blob"], found["x"].tolist()) == (b"12", [1, 1, 1])


def test_metadata_is_as_it_was_at_the_call(
    tmp_path: Path, gate: CreateGate, gated: Storage
) -> None:
    """The thread begins an episode later, after the frames before it."""
    entries: dict[str, Any] = {"objects": ["cup"]}
    schema = Schema([FeatureSpec("x", np.dtype(np.int64), ())])
    with SeqRecordRecorder(gated, schema=schema, chunk_frames=1) as recorder:
        append(recorder.episode("a"), [{"x": 0}]).close(wait=False)
        assert gate.reached.wait(60)
        episode = recorder.episode("b", metadata=entries)
        entries["objects"].append("plate")  # of the next one
        gate.opened.set()
        append(episode, [{"x": 1}]).close()
    with seqrecord.open(tmp_path / "d") as dataset:
        assert dataset.episodes["b"].metadata == {"objects": ["cup"]}


def test_a_full_queue(tmp_path: Path, gate: CreateGate, gated: Storage) -> None:
    recorder = SeqRecordRecorder(gated, schema=LARGE, queue_size="4.5MiB", chunk_frames=1)
    with recorder, recorder.episode("a") as episode:
        append(episode, [large(number) for number in range(4)])
        for number in range(4, 10):
            with pytest.raises(QueueFullError, match=r"not recorded.*queue_size"):
                episode.append(large(number))
        assert gate.reached.wait(60)
        stats = recorder.stats()
        assert (stats.recorded_frames, stats.queued_frames) == (4, 3)
        assert 4 * NBYTES <= stats.queued_bytes <= 4.5 * NBYTES, "with the frame that is written"
        gate.opened.set()
        wait_for(lambda: recorder.stats().queued_bytes == 0)
        episode.append(large(4))  # written frames free memory
    check_recorded(tmp_path / "d", 5)


def test_frames_are_flushed_after_half_of_the_time(tmp_path: Path, loop: Loop) -> None:
    """The other half is for the flush itself."""
    recorder = SeqRecordRecorder(tmp_path, flush_seconds=60)
    with recorder, recorder.episode("a") as episode:
        for at, durable in ((0, 0), (29, 0), (31, 3), (60, 3), (91, 5)):
            loop.passed = at
            episode.append({"x": np.zeros(3)})
            count = episode.num_frames
            wait_for(lambda count=count: recorder.stats().written_frames == count)  # type: ignore[misc]
            wait_for(lambda least=durable: recorder.stats().durable_frames >= least)  # type: ignore[misc]
            assert recorder.stats().durable_frames == durable


def test_late_frames_are_flushed_together(
    tmp_path: Path, loop: Loop, gate: CreateGate, gated: Storage
) -> None:
    """A flush per frame would make a late thread later still."""
    recorder = SeqRecordRecorder(gated, schema=LARGE, chunk_frames=4, flush_seconds=1)
    with recorder, recorder.episode("a") as episode:
        append(episode, [large(number) for number in range(8)])
        assert gate.reached.wait(60)
        loop.passed = 100
        gate.opened.set()
    check_recorded(tmp_path / "d", 8)
    with seqrecord.open(tmp_path / "d") as dataset:
        assert dataset.contents.index.groups[0].num_chunks.tolist() == [2]


def test_a_failed_write_is_raised_and_complete_episodes_are_kept(tmp_path: Path) -> None:
    burning = threading.Event()

    def fault(operation: Operation, path: str, number: int) -> Failure:
        is_due = operation == "write" and burning.is_set()
        return StorageError("the disk burns", file=path) if is_due else None

    storage = FaultyStorage(LocalStorage(tmp_path), fault)
    recorder = SeqRecordRecorder(storage, codecs="raw", chunk_frames=1)
    write_episodes(recorder, {"a": 3})
    burning.set()
    episode = recorder.episode("b")
    episode.append({"x": np.zeros(50, np.uint8)})
    with pytest.raises(DestinationError, match=r"the disk burns.*resume"):
        episode.close()
    for call in (lambda: recorder.episode("c"), recorder.close):
        with pytest.raises(DestinationError, match="the disk burns"):
            call()
    assert recorder_threads() == []
    assert lengths_of(tmp_path) == {}
    with SeqRecordRecorder(tmp_path, codecs="raw", mode="resume") as recorder:
        with pytest.raises(DestinationError, match="exists already"):
            recorder.episode("a")
        write_episodes(recorder, {"b": 1})
    assert lengths_of(tmp_path) == {"a": 3, "b": 1}


def test_an_error_in_the_loop_keeps_the_recorded_frames(tmp_path: Path) -> None:
    def loop() -> None:
        with SeqRecordRecorder(tmp_path) as recorder, recorder.episode("a") as episode:
            episode.append({"x": np.zeros(3)})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        loop()
    check_recorded(tmp_path, 1)
    assert recorder_threads() == []


def test_calls_in_the_wrong_order(tmp_path: Path) -> None:
    with SeqRecordRecorder(tmp_path / "d") as recorder:
        recorder.episode("b").close()
        first = recorder.episode("a")
        with pytest.raises(DestinationError, match="episode a has not ended"):
            recorder.episode("b")
        first.append({"x": np.zeros(3)})
        first.close()
        first.close()  # again, without effect
        with pytest.raises(DestinationError, match="the episode has ended"):
            first.append({"x": np.zeros(3)})
        with pytest.raises(DestinationError, match="exists already"):
            recorder.episode("a")
        for metadata in (5, [1], "ab", {"x": {1}}):
            with pytest.raises(FormatError, match=r"metadata .*episode: b"):
                recorder.episode("b", metadata=metadata)  # type: ignore[arg-type]
        recorder.episode("b").append({"x": np.zeros(3)})  # free after an episode without frames
    for call in (recorder.close, lambda: recorder.episode("z"), first.discard):
        with pytest.raises(DestinationError, match="is closed"):
            call()
    recorder.abort()  # without effect
    assert list(seqrecord.open(tmp_path / "d").episodes) == ["a", "b"]


@pytest.mark.parametrize("wait", [True, False])
def test_a_discarded_episode_is_recorded_again(tmp_path: Path, wait: bool) -> None:
    takes = []
    schema = Schema([FeatureSpec("x", np.dtype(np.int64), ())])
    with SeqRecordRecorder(tmp_path, schema=schema, flush_seconds=0.01) as recorder:
        for take in range(3):
            takes.append(recorder.episode("a", metadata={"take": take}))
            with takes[-1] as episode:
                append(episode, [{"x": number} for number in range(20 + take)])
                if take < 2:
                    episode.discard(wait=wait)
                    with pytest.raises(DestinationError, match="has ended"):
                        episode.append({"x": 0})
        with pytest.raises(DestinationError, match="has ended"):
            takes[-1].discard()
        stats = recorder.stats()
        recorder.episode("b").discard()
    assert (stats.recorded_frames, stats.discarded_frames) == (22, 41)
    assert (stats.written_frames, stats.durable_frames) == (22, 22)
    with seqrecord.open(tmp_path) as dataset:
        assert list(dataset.episodes) == ["a"]
        assert dataset.episodes["a"].metadata == {"take": 2}
    check_recorded(tmp_path, 22)


def test_discard_does_not_block(tmp_path: Path, gate: CreateGate, gated: Storage) -> None:
    with SeqRecordRecorder(gated, codecs="raw", chunk_frames=1) as recorder:
        episode = append(recorder.episode("a"), [{"x": number + 7} for number in range(50)])
        assert gate.reached.wait(60)
        episode.discard()
        stats = recorder.stats()
        assert stats.queued_frames == 0
        assert stats.queued_bytes < 3000, "the frame that is written"
        with recorder.episode("a") as episode:
            episode.append({"x": 0})
            gate.opened.set()
    check_recorded(tmp_path / "d", 1)


def test_wrong_arguments(tmp_path: Path, memory_url: str) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"queue_size": "many"}, "queue_size"),
        ({"flush_seconds": 0}, "invalid flush_seconds"),
        ({"flush_seconds": float("nan")}, "invalid flush_seconds"),
        ({"flush_seconds": "1"}, "invalid flush_seconds"),
        ({"flush_seconds": None}, "invalid flush_seconds"),
        ({"mode": "update"}, "unknown mode"),
    ]
    for arguments, message in wrong:
        with pytest.raises(DestinationError, match=message):
            SeqRecordRecorder(tmp_path / "d", **arguments)
    with pytest.raises(SchemaError, match="invalid schema"):
        SeqRecordRecorder(tmp_path / "d", schema={"x": "float32"})  # type: ignore[arg-type]
    for url in ("s3://bucket/demos", "az://container/demos", "memory://demos", "hf://datasets/a/b"):
        with pytest.raises(DestinationError, match="`seqrecord merge FOLDER -o ") as caught:
            SeqRecordRecorder(url)
        assert "demos" in str(caught.value) or "hf://" in str(caught.value)
    with pytest.raises(DestinationError, match="writes to a local disk"):
        SeqRecordRecorder(open_storage(memory_url))
    assert recorder_threads() == []


@pytest.mark.parametrize("end", [SeqRecordRecorder.abort, lambda recorder: None])
def test_an_unclosed_recorder_leaves_no_thread(
    tmp_path: Path, end: Callable[[SeqRecordRecorder], None]
) -> None:
    recorder = SeqRecordRecorder(tmp_path / "d")
    episode = append(recorder.episode("a"), [{"x": np.zeros(3)}])
    episode.close()
    threads = recorder_threads()
    assert len(threads) == 1
    end(recorder)
    del recorder, episode
    gc.collect()
    for thread in threads:
        thread.join(60)
    assert recorder_threads() == []
    SeqRecordWriter(tmp_path / "d", mode="resume").close()
    check_recorded(tmp_path / "d", 1)


EPISODE_FRAMES = 40


@pytest.mark.parametrize("mode", ["create", pytest.param("resume", marks=pytest.mark.slow)])
def test_a_kill_keeps_complete_episodes_and_flushed_frames(tmp_path: Path, mode: Any) -> None:
    """A copy of the folder simulates a kill at that moment."""

    def check(folder: Path, safe: int) -> None:
        """A resume finds the complete episodes, and the durable frames of the next one."""
        SeqRecordWriter(folder, mode="resume").close()
        found = lengths_of(folder)
        assert list(found) == [*complete, f"{number}"]
        assert all(found[str(ended)] == EPISODE_FRAMES for ended in range(number))
        assert found[str(number)] >= safe
        with seqrecord.open(folder) as dataset:
            for key, episode in dataset.episodes.items():
                assert episode.metadata == ({"truncated": True} if key == str(number) else {})
        assert seqrecord.verify(folder, deep=True).ok

    complete: list[str] = []
    if mode == "resume":
        writer = SeqRecordWriter(tmp_path / "d")
        write_episodes(writer, {"first": 1})
        writer.abort()
        complete.append("first")
    recorder = SeqRecordRecorder(tmp_path / "d", flush_seconds=0.01, mode=mode)
    for number in range(3):
        episode = recorder.episode(str(number))
        before = EPISODE_FRAMES * number
        for at in range(EPISODE_FRAMES):
            episode.append(frame(str(number), at))
            if at in (5, 30):
                wait_for(lambda least=before: recorder.stats().durable_frames > least)  # type: ignore[misc]
                safe = recorder.stats().durable_frames - before
                killed = shutil.copytree(tmp_path / "d", tmp_path / f"{number} {at}")
                check(killed, safe)
        episode.close()
        complete.append(str(number))
    recorder.close()


_IMPORTS = """
import sys, time
import numpy as np
from seqrecord import SeqRecordRecorder

recorder = SeqRecordRecorder(sys.argv[1], codecs={"front": sys.argv[2]})
loaded = set(sys.modules)
with recorder, recorder.episode("e") as episode:
    for number in range(40):
        episode.append({"front": np.full((32, 32, 3), number, np.uint8), "task": "x"})
    time.sleep(1.5)  # a flush encodes the frames
    late = {name.partition(".")[0] for name in set(sys.modules) - loaded}
assert not late & {"av", "PIL"}, late
"""


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["av1", "png"])
def test_codecs_are_imported_before_the_loop(tmp_path: Path, codec: str) -> None:
    """An import stops the loop's thread, so that a frame comes late and the fps is lost."""
    command = [sys.executable, "-c", _IMPORTS, str(tmp_path / "a"), codec]
    assert subprocess.run(command, check=False).returncode == 0
