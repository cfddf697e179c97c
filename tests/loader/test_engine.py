"""The engine: correct clips in every order, and no leaks on any exit."""

from __future__ import annotations

import gc
import mmap
import os
import re
import signal
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import seqrecord
from seqrecord import ClipError, SeqRecordIterableDataset, SeqRecordPipe
from seqrecord.errors import ChecksumError, MemoryLimitError
from seqrecord.store.storage.base import Storage, StorageWrapper
from seqrecord.store.storage.local import LocalStorage
from seqrecord.store.storage.opening import StorageLike
from tests.kit.clip_data import (
    LARGE,
    SMALL,
    STRAIGHT,
    all_names,
    begun,
    check_clip,
    digest,
    digests,
    effective_arguments,
    expected_frame,
    make_loader,
    names,
    no_leaks,
    possible_clips,
    write_numbered,
)
from tests.kit.datasets import damage, nth_chunk, nth_page
from tests.kit.faults import CountingStorage, FaultyStorage
from tests.kit.processes import in_fork, own_threads
from tests.loader.resume_contract import check_resume

FEATURES = ["image", "flow", "note", "id"]
FIXED = ["image", "flow", "id"]  # features of a fixed shape

TWO_GROUPS = {"image": 0, "flow": 1, "note": 1, "id": 1}
KINDS: dict[str, dict[str, Any]] = {
    "small": {},
    "raw": {"codecs": "raw", "flush_at": [5, 6]},
    "large": {"codecs": "raw", "shape": LARGE},
    "straight": {"codecs": "raw", "shape": STRAIGHT},  # pages are read straight into rows
    "straight compressed": {"codecs": "fast", "shape": STRAIGHT},
    "two groups": {"codecs": "raw", "groups": TWO_GROUPS},
    "uneven chunks": {
        "groups": {"image": 0, "flow": 1, "note": 0, "id": 1},
        "codecs": "balanced",
        "flush_at": [2, 8, 9, 30],
    },
    "long chunks": {  # of 32 frames, and of whole episodes; images are read straight into place
        "groups": {"image": 0, "flow": 1, "note": 2, "id": 1},
        "codecs": {"image": "raw", "flow": "balanced", "note": "raw", "id": "raw"},
        "chunk_frames": None,
        "shape": LARGE,
    },
    "long and uneven": {
        "groups": {"image": 1, "flow": 0, "note": 0, "id": 2},
        "chunk_frames": None,
        "flush_at": [11, 25],
    },
}
HEAVY = {"large", "straight compressed"}
_SLOW = pytest.mark.slow
LIMITS: dict[Any, list[int]] = {  # by the shape of images
    None: [4_000, 30_000, 200_000, 4 << 20],
    LARGE: [2 << 20, 16 << 20],
    STRAIGHT: [64 << 20, 1 << 30],
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The dataset of a kind, written on first use."""
    folder = tmp_path_factory.mktemp("kinds")

    def path_of(kind: str) -> Path:
        path = folder / kind
        return path if path.exists() else write_numbered(path, **KINDS[kind])

    return path_of


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=_SLOW) if kind in HEAVY else kind for kind in KINDS]
)
@settings(max_examples=settings().max_examples // 2)
@given(data=st.data())
def test_every_clip_is_right(
    written: Callable[[str], Path], kind: str, data: st.DataObject
) -> None:
    """In two epochs, and by number."""
    clip_len, dilation = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 3))
    apart = (clip_len - 1) * dilation + 1
    strides = st.just(apart)
    stride = data.draw(strides if "straight" in kind else st.integers(1, 9) | strides)
    features = data.draw(st.lists(st.sampled_from(FEATURES), min_size=1, unique=True))
    clips: Any = {"clip_len": clip_len, "stride": stride, "dilation": dilation}
    options = {
        "batch_size": data.draw(st.none() | st.integers(1, 7)),
        "shuffle": data.draw(st.booleans()),
        "engine": seqrecord.EngineOptions(
            shuffle_buffer=data.draw(st.sampled_from([1, 5, 64])),
            num_cursors=data.draw(st.none() | st.integers(1, 9)),
            num_threads=data.draw(st.integers(1, 3)),
        ),
        "memory_limit": data.draw(st.sampled_from(LIMITS[KINDS[kind].get("shape")])),
        "seed": data.draw(st.integers(0, 9)),
        "device": data.draw(st.sampled_from([None, "cpu"])),
    }
    storage: Storage = LocalStorage(written(kind))
    if data.draw(st.booleans()):  # a wrapped storage has no local files: chunks are read ahead
        storage = StorageWrapper(storage)
    expected = possible_clips(features, clip_len, stride, dilation)
    with seqrecord.open(storage, features=features, verify=data.draw(st.booleans())) as dataset:
        try:
            pipe = SeqRecordPipe(dataset, **clips, **effective_arguments(options))
        except MemoryLimitError:
            return
        for _ in range(data.draw(st.integers(1, 2))):
            found = [
                name for batch in pipe for name in check_clip(batch, features, clip_len, dilation)
            ]
            assert (sorted(found) if options["shuffle"] else found) == expected
            stats = pipe.stats()
            assert (stats["clips"], stats["batches"]) == (len(expected), len(pipe))
        numbers = data.draw(st.lists(st.integers(0, len(expected) - 1), max_size=3))
        by_number = seqrecord.SeqRecordMapDataset(dataset, **clips)
        found = [check_clip(by_number[i], features, clip_len, dilation)[0] for i in numbers]
        assert found == [expected[i] for i in numbers]


@pytest.mark.parametrize(
    ("kind", "shuffle"), [("raw", True), ("straight", False), ("straight compressed", True)]
)
def test_frames_of_sparse_clips_are_read_once(
    written: Callable[[str], Path], kind: str, shuffle: bool
) -> None:
    """Counts the bytes of the chunks' pages exactly."""
    features = ["image", "id"]
    clips = {"clip_len": 4, "stride": 4, "batch_size": 3, "features": features}
    pipe = make_loader(written(kind), **clips, shuffle=shuffle)
    expected = possible_clips(features, 4, 4)
    assert sorted(name for batch in pipe for name in check_clip(batch, features, 4)) == expected
    stats, index = pipe.stats(), pipe.dataset.contents.index
    assert stats["frames_decoded"] == len(expected) * 4
    assert stats["loads"] > 0 < stats["fetch_seconds"]
    assert (stats["decode_seconds"] == 0) == (kind != "straight compressed"), "not the short way"
    if kind != "raw":  # its chunks end elsewhere
        pages = [
            nth_page(pipe.dataset, name, index.positions[key], start // 4)
            for key, start in expected
            for name in features
        ]
        assert stats["bytes_read"] == sum(page.stop - page.start for page in pages)


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("uneven chunks", {"stride": 3, "features": FIXED}),
        ("long and uneven", {}),
        ("small", {"stride": 2, "clip_len": 2, "last_batch": "drop"}),
    ],
)
def test_resumes_anywhere(
    written: Callable[[str], Path], kind: str, more: dict[str, Any], thorough: bool
) -> None:
    check_resume(
        lambda: make_loader(written(kind), **more),
        num_epochs=2,
        positions=range if thorough else lambda count: range(2, count, 8),
    )


def test_groups_and_variable_shapes_do_not_change_the_order(
    written: Callable[[str], Path], tmp_path: Path
) -> None:
    # Several groups, where the leading group has the chunks that all features had.
    groups = {"image": 0, "flow": 1, "note": 1, "id": 2}
    several = write_numbered(tmp_path / "several", groups=groups)
    one, two = (make_loader(path, features=FIXED) for path in (written("small"), several))
    assert digests(one) == digests(two)
    # With a feature of variable shape.
    found = []
    for features in (FIXED, [*FIXED, "note"]):
        pipe = make_loader(written("straight"), clip_len=4, stride=4, features=features)
        found.append(digests({name: b[name] for name in (*FIXED, "start")} for b in pipe))
    assert found[0] == found[1]


@pytest.mark.parametrize(("batch_size", "stride"), [(None, 1), (4, 1), (3, 3)])
def test_no_batch_changes_while_it_is_referenced(
    path: Path, batch_size: int | None, stride: int
) -> None:
    pipe = make_loader(path, batch_size=batch_size, stride=stride, memory_limit="1MiB")
    clips = list(pipe)
    for clip in clips:
        check_clip(clip, FEATURES, 3)
    addresses = {clip["image"].data_ptr() for clip in clips}
    assert len(addresses) == len(clips) == len(pipe)
    assert not any(address % mmap.PAGESIZE for address in addresses)


KEEPERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "the tensor": lambda tensor: tensor,
    "a slice": lambda tensor: tensor[1:, 0],
    "a single number": lambda tensor: tensor[0, 0, 0],
    "another shape": lambda tensor: tensor.reshape(-1),
    "another dtype": lambda tensor: tensor.view(torch.uint8),
    "a NumPy array": lambda tensor: tensor.numpy(),
    "a slice of a NumPy array": lambda tensor: tensor[1:].numpy()[:, ::2],
    "a tensor of a NumPy array": lambda tensor: torch.from_numpy(tensor.numpy()),
    "its storage": lambda tensor: tensor.untyped_storage(),
    "a memoryview": lambda tensor: tensor.numpy().data,
    "detached": lambda tensor: tensor.detach(),
    "an autograd result's saved input": lambda tensor: tensor * torch.ones(2, requires_grad=True),
}


@pytest.mark.parametrize("keep", KEEPERS.values(), ids=KEEPERS)
def test_a_buffer_is_filled_again_only_when_nothing_is_on_its_memory(
    path: Path, keep: Callable[[torch.Tensor], Any]
) -> None:
    batches = iter(make_loader(path, features=["flow"]))
    first = next(batches)["flow"]
    address = first.data_ptr()
    kept = keep(first)
    del first
    assert address not in {next(batches)["flow"].data_ptr() for _ in range(6)}
    del kept
    flows = [batch["flow"] for batch in batches]  # so that all buffers are in use
    assert address in {flow.data_ptr() for flow in flows}


def test_the_next_epoch_takes_over_the_memory(path: Path) -> None:
    pipe = make_loader(path)
    first, second = ({batch["image"].data_ptr() for batch in pipe} for _ in range(2))
    assert first & second
    # Two in the channel, two with the consumer, at most, in either epoch.
    assert len(first | second) <= 4


def test_batches_do_not_keep_the_pipe_alive(path: Path) -> None:
    pipe = make_loader(path)
    kept = [batch for _, batch in zip(range(2), pipe, strict=False)]
    gone = weakref.ref(pipe)
    del pipe
    gc.collect()
    assert gone() is None
    for batch in kept:
        check_clip(batch, FEATURES, 3)


@pytest.mark.parametrize(("threads", "shuffle_buffer"), [(1, None), (2, 16), (5, None)])
def test_a_large_batch_is_copied_by_several_threads(
    large: Path, threads: int, shuffle_buffer: int | None
) -> None:
    """At once, or while it fills."""
    features = ["image", "id", "note"]
    settings = {"batch_size": 50, "num_threads": threads, "shuffle_buffer": shuffle_buffer}
    first, last = make_loader(large, clip_len=6, features=features, **settings)
    assert first["image"].nbytes > 4 << 20
    clips = [*check_clip(first, features, 6), *check_clip(last, features, 6)]
    assert len(last["start"]) < 50
    assert sorted(clips) == sorted(possible_clips(features, 6))


# ---- exits


@pytest.mark.parametrize(
    ("is_remote", "num_threads", "stride"),
    [(False, 1, 1), (False, 3, 3), (True, 3, 1)],
)
def test_leaving_early(path: Path, is_remote: bool, num_threads: int, stride: int) -> None:
    """If the storage is remote, chunks are read ahead."""
    location: StorageLike = StorageWrapper(LocalStorage(path)) if is_remote else path
    more = {"num_threads": num_threads, "memory_limit": 70_000, "stride": stride}
    pipe = make_loader(location, **more)
    list(pipe)  # opens the files
    with no_leaks():
        for _ in pipe:
            break
        assert not own_threads("seqrecord")
        iterator = begun(pipe)
        del iterator
    assert len(all_names(pipe)) == pipe.clips.num_clips


def test_dropping_everything(path: Path) -> None:
    with no_leaks():
        pipe = make_loader(path)
        iterator = begun(pipe)
        del pipe
        next(iterator)
        del iterator
    pipe = make_loader(path)
    list(pipe)
    with no_leaks():  # any thread may collect this garbage
        cycle: list[Any] = [iter(pipe)]
        next(cycle[0])
        cycle.append(cycle)
        del cycle
        thread = threading.Thread(target=gc.collect)
        thread.start()
        thread.join()
    assert len(list(pipe)) == len(pipe)


def test_an_exception_in_the_consumer(path: Path) -> None:
    pipe = make_loader(path)
    list(pipe)
    with no_leaks():
        with pytest.raises(ZeroDivisionError):
            [1 // 0 for _ in pipe]
        # The traceback may still refer to the iterator; a new iteration ends its threads.
        assert len(list(pipe)) == len(pipe)


def test_garbage_collection_does_not_deadlock(path: Path) -> None:
    # The collector may run in a thread with a lock that the engine's threads need.
    lock, reached = threading.Lock(), threading.Event()

    def transform(frame: dict[str, Any]) -> dict[str, Any]:
        reached.set()
        with lock:
            return {"id": frame["id"]}

    pipe = make_loader(path, frame_transform=transform)
    iterator = begun(pipe)
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


def full_text(error: BaseException) -> str:
    """The message and notes of an error."""
    return " ".join([str(error), *getattr(error, "__notes__", [])])


def test_an_error_in_frame_transform(path: Path) -> None:
    dataset = seqrecord.open(path)
    list(make_loader(dataset))  # opens the files
    pipe = make_loader(dataset, shuffle=False, frame_transform=fails_at([3, 17]))
    delivered: list[Any] = []
    iterator = iter(pipe)
    with no_leaks(), pytest.raises(OtherError, match="cannot transform") as caught:
        delivered.extend(iterator)
    assert any(entry.name == "my_transform" for entry in caught.traceback)
    for words in ("frame_transform of episode set/3, frame 17, ", f"{path}/records/", ".seqrec"):
        assert words in full_text(caught.value)
    first = [name for name in possible_clips(FEATURES, 3) if name < ("set/3", 0)]
    assert len(delivered) >= len(first) // 4  # earlier clips are delivered
    assert pipe.state_dict()["batch"] == len(delivered)
    for _ in range(2):  # the iteration is over
        with pytest.raises(StopIteration):
            next(iterator)
    with pytest.raises(OtherError):
        list(pipe)


def test_invalid_results_of_frame_transform(path: Path) -> None:
    results: list[Any] = [None, {}, [1, 2], np.zeros(3), {1: np.zeros(3)}]
    for result in results:
        with pytest.raises(ClipError, match="does not return arrays by name"):
            make_loader(path, frame_transform=lambda _, result=result: result)
    # A single frame is wrong.
    two = np.zeros(2)
    others: list[tuple[Any, str]] = [
        ({"y": two}, "other features"),
        ({"x": two, "y": two}, "other features"),
        ({"x": np.zeros(3)}, "another dtype or shape"),
        ({"x": np.zeros(2, "f4")}, "another dtype or shape"),
        (StopIteration("of a user's function"), "raised StopIteration"),  # not the epoch's end
    ]
    for other, message in others:

        def transform(frame: dict[str, Any], other: Any = other) -> Any:
            if frame["id"].tolist() != [3, 17]:
                return {"x": np.zeros(2)}
            if isinstance(other, Exception):
                raise other
            return other

        place = r"file: .*seqrec; episode: set/3; .*frame: 17"
        with pytest.raises(ClipError, match=f"{message}.*{place}") as caught:
            list(make_loader(path, frame_transform=transform))
        assert not isinstance(other, Exception) or caught.value.__cause__ is other


@pytest.mark.parametrize(
    ("kind", "stride"), [("small", 1), ("straight", 3), ("two groups", 3), ("long and uneven", 1)]
)
def test_whole_frames_are_transformed(
    written: Callable[[str], Path], kind: str, stride: int
) -> None:
    """With the features of all groups."""

    def transform(frame: dict[str, Any]) -> dict[str, Any]:
        assert list(frame) == FEATURES
        note = np.zeros(5, np.uint16)
        note[: len(frame["note"])] = frame["note"]
        image = frame["image"]
        made = {"note": note, "mean": image.mean(dtype="f8"), "part": image[::2]}
        return {**made, "id": frame["id"], "half": 0.5}

    pipe = make_loader(written(kind), stride=stride, frame_transform=transform)
    found = []
    for batch in pipe:
        assert list(batch) == ["note", "mean", "part", "id", "half", "episode", "start"]
        assert batch["note"].dtype == torch.uint16
        for i, (key, start) in enumerate(names(batch)):
            found.append((key, start))
            for k in range(3):
                frame = expected_frame(int(key[4:]), start + k, KINDS[kind].get("shape", SMALL))
                for name, value in transform({name: frame[name] for name in FEATURES}).items():
                    assert np.array_equal(batch[name][i, k].numpy(), value)
    assert sorted(found) == sorted(possible_clips(FEATURES, 3, stride))


def wrapped(path: Path, at_read: Callable[[int], Any]) -> Storage:
    """A storage that calls `at_read` with the number of each read of a record file."""
    numbers = count(1)

    def fault(operation: str, file: str, _: int) -> Any:
        return at_read(next(numbers)) if operation == "read" and ".seqrec" in file else None

    return FaultyStorage(LocalStorage(path), fault)


def test_an_error_in_the_storage(path: Path) -> None:
    def fail(number: int) -> None:
        if number == 9:
            raise OSError("the disk is gone")

    def interrupt(number: int) -> None:
        if number == 9:
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01 if number < 9 else 0.05)

    with no_leaks():
        pipe = make_loader(wrapped(path, fail))
        with pytest.raises(OSError, match="the disk is gone") as caught:
            list(pipe)
        assert any(entry.name == "fail" for entry in caught.traceback)
        assert "a chunk of episode set/" in full_text(caught.value)
        assert ".seqrec" in full_text(caught.value)
        assert len(list(pipe)) == len(pipe)  # storage and pipe have recovered
        del caught, pipe
    with no_leaks():  # Ctrl-C
        pipe = make_loader(wrapped(path, interrupt))
        with pytest.raises(KeyboardInterrupt):
            list(pipe)
        assert len(list(pipe)) == len(pipe)
        del pipe


@pytest.mark.parametrize(
    ("feature", "groups"), [("flow", {"image": 0}), ("image", TWO_GROUPS), ("id", TWO_GROUPS)]
)
def test_a_damaged_page_is_named(tmp_path: Path, feature: str, groups: dict[str, int]) -> None:
    path = write_numbered(tmp_path / "records", codecs="raw", groups=groups)
    page = damage(path, feature, 3, 2)
    with no_leaks():
        with pytest.raises(ChecksumError) as caught:
            list(make_loader(path))
        error = caught.value
        assert (error.file, error.feature) == (str(path / page.chunk.path), feature)
        assert error.episode == "set/3 (frames 8 to 11)"
        del caught, error
    assert list(make_loader(seqrecord.open(path, verify=False)))
    # And a truncated file.
    pipe = SeqRecordPipe(path, clip_len=3, batch_size=4, features=FIXED, shuffle=False)
    chunk = nth_chunk(pipe.dataset, 3, 2)
    with (path / chunk.path).open("r+b") as file:
        file.truncate(chunk.offset + 7)
    with pytest.raises(seqrecord.StorageError, match=re.escape(chunk.path)) as ended:
        list(pipe)
    assert ended.value.episode == "set/3 (frames 8 to 11)"


@pytest.mark.parametrize("stride", [1, 4])
def test_damage_ends_the_iteration_after_the_batches_before_it(tmp_path: Path, stride: int) -> None:
    path = write_numbered(tmp_path / "records", codecs="raw", shape=STRAIGHT)
    settings: Any = {"clip_len": 4, "stride": stride, "batch_size": 1, "shuffle": False}
    count = 9 if stride == 1 else 3
    good = digests(islice(SeqRecordPipe(path, **settings, features=FIXED), count))
    damage(path, "image", 0, 3)
    batches = iter(SeqRecordPipe(path, **settings, features=FIXED))
    assert digests(islice(batches, count)) == good
    with pytest.raises(ChecksumError) as caught:
        next(batches)
    assert caught.value.episode == "set/0 (frames 12 to 15)"


def test_a_fork_while_an_iteration_runs(path: Path) -> None:
    stream = make_loader(path, SeqRecordIterableDataset)
    iterator = iter(stream)
    first = [digest(next(iterator))]

    def in_child() -> int:  # it has none of the parent's threads to wait for
        nonlocal iterator
        with pytest.raises(ClipError):
            next(iterator)
        iterator = iter(())
        gc.collect()
        return len(digests(stream))  # the next epoch

    assert in_fork(in_child) == len(stream)
    assert first + digests(iterator) == digests(make_loader(path, SeqRecordIterableDataset))


def test_workers_while_an_iteration_runs(path: Path) -> None:
    pipe = make_loader(path)
    list(pipe)
    with no_leaks():
        iterator = begun(pipe)
        loader = DataLoader(make_loader(path), batch_size=None, num_workers=2)
        clips = all_names(loader)
        assert len(clips) == len(set(clips)) == pipe.clips.num_clips
        assert len(list(iterator)) == len(pipe) - 1
        del loader, iterator


def reads(storage: CountingStorage) -> int:
    return sum(map(len, storage.ranges.values()))


@pytest.mark.parametrize("num_threads", [1, 2])
def test_chunks_are_read_before_there_is_room_for_their_frames(
    path: Path, num_threads: int
) -> None:
    storage = CountingStorage(LocalStorage(path))  # treated as remote
    pipe = make_loader(storage, num_threads=num_threads, memory_limit=70_000)
    storage.reset()
    iterator = begun(pipe)
    deadline = time.monotonic() + 60
    while reads(storage) <= pipe.stats()["loads"]:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    list(iterator)
    assert reads(storage) == pipe.stats()["loads"]  # none was read twice


def test_the_engine_stays_behind_a_slow_consumer(path: Path) -> None:
    numbers: list[int] = []
    pipe = make_loader(wrapped(path, numbers.append), features=FIXED, memory_limit=12_000)
    num_chunks = len(pipe.dataset.contents.index.groups[0].file)
    iterator = begun(pipe)
    time.sleep(0.3)
    assert len(numbers) <= num_chunks / 2
    list(iterator)
    assert len(numbers) > num_chunks / 2
    assert pipe.stats()["waiting_for_consumer_seconds"] > 0
