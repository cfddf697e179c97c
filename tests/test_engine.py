"""Every clip is right, in every order, and nothing is left on any way out."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import seqrecord
from seqrecord import (
    ChecksumError,
    ClipError,
    Dataset,
    MemoryLimitError,
    SeqRecordPipe,
    SeqRecordStream,
)
from seqrecord.engine import loading
from seqrecord.ranges import ByteRange
from seqrecord.storage import LocalStorage, StorageLike, StorageWrapper
from tests.clip_data import check, digest, leaves_nothing, names, possible_clips, write_numbered
from tests.storage_doubles import CountingStorage

FEATURES = ["image", "flow", "note", "id"]
BATCH: dict[str, Any] = {"clip_len": 3, "batch_size": 4, "shuffle_buffer": 16}
FIXED = ["image", "flow", "id"]  # features of a fixed shape


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_numbered(tmp_path_factory.mktemp("engine") / "records")


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_every_clip_is_right(path: Path, data: st.DataObject) -> None:
    clip_len, dilation = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 3))
    stride = data.draw(st.integers(1, 9))
    features = data.draw(st.lists(st.sampled_from(FEATURES), min_size=1, unique=True))
    batch_size = data.draw(st.none() | st.integers(1, 7))
    # What is wrapped has no local files, so chunks are read ahead.
    locations: list[StorageLike] = [path, StorageWrapper(LocalStorage(path))]
    location = data.draw(st.sampled_from(locations))
    try:
        pipe = SeqRecordPipe(
            location,
            clip_len=clip_len,
            stride=stride,
            dilation=dilation,
            features=features,
            batch_size=batch_size,
            shuffle=data.draw(st.booleans()),
            shuffle_buffer=data.draw(st.sampled_from([1, 5, 64])),
            open_episodes=data.draw(st.none() | st.integers(1, 9)),
            memory_limit=data.draw(st.sampled_from([4_000, 20_000, 1 << 20])),
            num_threads=data.draw(st.integers(1, 3)),
            seed=data.draw(st.integers(0, 9)),
        )
    except MemoryLimitError:
        return
    expected = possible_clips(features, clip_len, stride, dilation)
    for least in (0, 1 << 20):  # bytes of raw pages that are read straight into their rows
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(loading, "_LEAST_STRAIGHT", least)
            clips = [name for batch in pipe for name in check(batch, features, clip_len, dilation)]
        assert sorted(clips) == sorted(expected)
        stats = pipe.stats()
        assert stats["clips"] == len(expected)
        assert stats["batches"] == len(pipe)


def test_unshuffled_clips_come_in_canonical_order(path: Path) -> None:
    pipe = SeqRecordPipe(path, clip_len=4, stride=2, shuffle=False, batch_size=3)
    clips = [name for batch in pipe for name in names(batch)]
    assert clips == possible_clips(FEATURES, 4, 2)


@pytest.mark.parametrize("batch_size", [None, 4])
def test_no_batch_changes_while_it_is_held(path: Path, batch_size: int | None) -> None:
    pipe = SeqRecordPipe(path, clip_len=3, batch_size=batch_size, memory_limit="1MiB")
    held = list(pipe)
    for clip in held:
        check(clip, FEATURES, 3)
    addresses = {clip["image"].data_ptr() for clip in held}
    assert len(addresses) == len(held) == len(pipe)


def test_buffers_are_reused_when_batches_are_dropped(path: Path) -> None:
    addresses = {batch["image"].data_ptr() for batch in SeqRecordPipe(path, **BATCH)}
    assert len(addresses) <= 4  # two in the channel, two with the consumer
    kept: list[Any] = []
    before = b""
    for number, batch in enumerate(SeqRecordPipe(path, **BATCH)):
        if number == 2:  # a view is enough to keep the batch as it is
            kept = [batch["image"][1:, 0].view(torch.int8).numpy()]
            before = kept[0].tobytes()
    assert kept[0].tobytes() == before


# ---- ways out


def test_leaving_early(path: Path) -> None:
    pipe = SeqRecordPipe(path, **BATCH)
    list(pipe)  # opens the files
    with leaves_nothing():
        for _ in pipe:
            break
        assert not [t for t in threading.enumerate() if t.name.startswith("seqrecord")]
        iterator = iter(pipe)
        next(iterator)
        del iterator
    assert len([name for batch in pipe for name in names(batch)]) == pipe.clips.num_clips


def test_dropping_everything(path: Path) -> None:
    with leaves_nothing():
        pipe = SeqRecordPipe(path, **BATCH)
        iterator = iter(pipe)
        next(iterator)
        del pipe
        next(iterator)
        del iterator


def consume_badly(pipe: SeqRecordPipe) -> None:
    for _ in pipe:
        raise ZeroDivisionError


def test_an_exception_in_the_consumer(path: Path) -> None:
    pipe = SeqRecordPipe(path, **BATCH)
    list(pipe)
    with leaves_nothing():
        with pytest.raises(ZeroDivisionError):
            consume_badly(pipe)
        # The traceback may still hold the iterator; a new iteration ends its threads.
        assert len(list(pipe)) == len(pipe)


def test_garbage_is_collected_in_any_thread(path: Path) -> None:
    pipe = SeqRecordPipe(path, **BATCH)
    list(pipe)
    with leaves_nothing():
        cycle: list[Any] = [iter(pipe)]
        next(cycle[0])
        cycle.append(cycle)
        del cycle
        thread = threading.Thread(target=gc.collect)
        thread.start()
        thread.join()
    assert len(list(pipe)) == len(pipe)


def test_collecting_garbage_does_not_wait_for_ever(path: Path) -> None:
    # The collector may run where a lock is held that the engine's threads wait for.
    lock, reached = threading.Lock(), threading.Event()

    def transform(frame: dict[str, Any]) -> dict[str, Any]:
        reached.set()
        with lock:
            return {"id": frame["id"]}

    pipe = SeqRecordPipe(path, **BATCH, frame_transform=transform)
    iterator = iter(pipe)
    next(iterator)
    with lock:
        reached.clear()
        del iterator
    list(pipe)


class OtherError(Exception):
    pass


def fails_at(bad: Sequence[int]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def my_transform(frame: dict[str, Any]) -> dict[str, Any]:
        if frame["id"].tolist() == list(bad):
            raise OtherError("cannot transform this")
        return {"id": frame["id"], "sum": frame["image"].sum(dtype=np.int64)}

    return my_transform


def test_an_error_in_frame_transform(path: Path) -> None:
    dataset = seqrecord.open(path)
    list(SeqRecordPipe(dataset, **BATCH))  # opens the files
    pipe = SeqRecordPipe(dataset, **BATCH, shuffle=False, frame_transform=fails_at([3, 17]))
    list_of: list[Any] = []
    with leaves_nothing(), pytest.raises(OtherError, match="cannot transform") as caught:
        list_of.extend(pipe)
    assert any(entry.name == "my_transform" for entry in caught.traceback)
    told = " ".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert "frame_transform of episode set/3, frame 17, " in told
    assert f"{path}/records/" in told
    assert ".seqrec" in told
    first = [name for name in possible_clips(FEATURES, 3) if name < ("set/3", 0)]
    assert len(list_of) >= len(first) // 4  # what came before is delivered
    assert pipe.state_dict()["batch"] == len(list_of)
    with pytest.raises(OtherError):
        list(pipe)


def test_frames_that_are_not_alike(path: Path) -> None:
    def transform(frame: dict[str, Any]) -> dict[str, Any]:
        return {"note": frame["note"]}

    with pytest.raises(ClipError, match=r"another dtype or shape .* file: .*seqrec; episode: set/"):
        list(SeqRecordPipe(path, **BATCH, frame_transform=transform))


def test_frame_transform_makes_clips(path: Path) -> None:
    def transform(frame: dict[str, Any]) -> dict[str, Any]:
        note = np.zeros(5, np.uint16)
        note[: len(frame["note"])] = frame["note"]
        return {"note": note, "mean": frame["image"].mean(dtype="f8"), "id": frame["id"]}

    pipe = SeqRecordPipe(path, **BATCH, frame_transform=transform)
    dataset = seqrecord.open(path)
    for batch in pipe:
        assert list(batch) == ["note", "mean", "id", "episode", "start"]
        assert batch["note"].dtype == torch.uint16
        for i, (key, start) in enumerate(names(batch)):
            for k in range(3):
                made = transform(dict(dataset.episodes[key][start + k]))
                assert batch["note"][i, k].numpy().tolist() == made["note"].tolist()
                assert batch["mean"][i, k].item() == made["mean"]


class Wrapper:
    """A storage that does something at every read; see `tests.storage_doubles` for more."""

    def __init__(self, inner: Any, at_read: Callable[[int], None]) -> None:
        self._inner, self._at_read, self._count = inner, at_read, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        self._count += 1
        self._at_read(self._count)
        self._inner.read_ranges(path, ranges, buffers)


def wrapped(path: Path, at_read: Callable[[int], None]) -> Dataset:
    dataset = seqrecord.open(path)
    storage: Any = Wrapper(dataset.storage, at_read)
    return Dataset(storage, dataset.manifest, dataset.index)


def test_an_error_in_the_storage(path: Path) -> None:
    def fail(number: int) -> None:
        if number == 9:
            raise OSError("the disk is gone")

    with leaves_nothing():
        pipe = SeqRecordPipe(wrapped(path, fail), **BATCH)
        with pytest.raises(OSError, match="the disk is gone") as caught:
            list(pipe)
        assert any(entry.name == "fail" for entry in caught.traceback)
        told = " ".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
        assert "a chunk of episode set/" in told
        assert ".seqrec" in told
        assert len(list(pipe)) == len(pipe)  # it has recovered: so has the pipe
        del caught, pipe


def test_a_broken_page(tmp_path: Path) -> None:
    path = write_numbered(tmp_path / "records", codecs="raw")
    dataset = seqrecord.open(path)
    index = dataset.index
    row = int(index.first_chunk[3]) + 2
    file = path / dataset.manifest.record_files[int(index.file[row])].path
    data = bytearray(file.read_bytes())
    data[int(index.offset[row]) + 5] ^= 1
    file.write_bytes(data)
    with leaves_nothing():
        with pytest.raises(ChecksumError) as caught:
            list(SeqRecordPipe(path, **BATCH))
        assert caught.value.file == str(file)
        assert caught.value.episode == "set/3 (frames 8 to 11)"
        assert caught.value.feature == "image"
        del caught


def test_ctrl_c(path: Path) -> None:
    def at_read(number: int) -> None:
        if number == 9:
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01 if number < 9 else 0.05)

    with leaves_nothing():
        pipe = SeqRecordPipe(wrapped(path, at_read), **BATCH)
        with pytest.raises(KeyboardInterrupt) as caught:
            list(pipe)
        del caught
        assert len(list(pipe)) == len(pipe)
        del pipe


EXIT = """
import sys, time
from seqrecord import SeqRecordPipe

def slow(frame):
    time.sleep(0.01)
    return frame

pipe = SeqRecordPipe(sys.argv[1], clip_len=3, batch_size=4, features=["id"], frame_transform=slow)
iterator = iter(pipe)
next(iterator)
print("leaving", flush=True)
{}
"""


@pytest.mark.parametrize("way", ["", "sys.exit(0)", "raise ValueError('mine')", "del pipe"])
def test_the_interpreter_exits_in_the_middle(path: Path, way: str) -> None:
    command = [sys.executable, "-c", EXIT.format(way), str(path)]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=Path(__file__).parents[1], timeout=100
    )
    assert done.stdout == "leaving\n"
    if way.startswith("raise"):
        assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "ValueError: mine")
        assert done.stderr.count("Traceback") == 1
    else:
        assert (done.returncode, done.stderr) == (0, "")


def test_a_fork_while_an_iteration_runs(path: Path) -> None:
    stream = SeqRecordStream(path, **BATCH)
    iterator = iter(stream)
    first = [digest(next(iterator))]
    child = os.fork()
    if child == 0:  # nothing here may wait for threads that a fork does not have
        code = 1
        try:
            next(iterator)
        except ClipError:
            del iterator
            gc.collect()
            other = [digest(batch) for batch in stream]  # the next epoch
            code = 0 if len(other) == len(stream) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    rest = [digest(batch) for batch in iterator]
    assert first + rest == [digest(batch) for batch in SeqRecordStream(path, **BATCH)]


def test_workers_while_an_iteration_runs(path: Path) -> None:
    pipe = SeqRecordPipe(path, **BATCH)
    list(pipe)
    with leaves_nothing():
        iterator = iter(pipe)
        next(iterator)
        loader = DataLoader(SeqRecordPipe(path, **BATCH), batch_size=None, num_workers=2)
        clips = [name for batch in loader for name in names(batch)]
        assert len(clips) == len(set(clips)) == pipe.clips.num_clips
        assert len(list(iterator)) == len(pipe) - 1
        del loader, iterator


def test_chunks_are_read_before_there_is_room_for_their_frames(path: Path) -> None:
    storage = CountingStorage(LocalStorage(path))  # no local files, as far as anyone knows
    pipe = SeqRecordPipe(storage, **BATCH, memory_limit=70_000)
    storage.reset()

    def reads() -> int:
        return sum(map(len, storage.ranges.values()))

    iterator = iter(pipe)
    next(iterator)
    before = -1
    while reads() > before:  # until all wait for the consumer
        before = reads()
        time.sleep(0.2)
    assert reads() > pipe.stats()["loads"]
    list(iterator)
    assert reads() == pipe.stats()["loads"]  # none was read twice


def test_the_engine_stays_behind_a_slow_consumer(path: Path) -> None:
    reads: list[int] = []
    storage = wrapped(path, reads.append)
    pipe = SeqRecordPipe(storage, **BATCH, features=FIXED, memory_limit=12_000)
    iterator = iter(pipe)
    next(iterator)
    early = -1
    while early < len(reads):  # until it stands still
        early = len(reads)
        time.sleep(0.2)
    list(iterator)
    assert early < len(reads) / 2
    assert pipe.stats()["waiting_for_consumer_seconds"] > 0.1
