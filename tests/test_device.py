"""Streams, staging and the arena of a device: what is there when it is needed, and not before.

Tests run on every kind of stream that there is here, see `side_streams`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seqrecord import ClipError, prefetch_to_device
from seqrecord.arena import Arena
from seqrecord.device.arena import DeviceArena
from seqrecord.device.batches import DeviceBatches
from seqrecord.device.staging import Block, Staging
from seqrecord.device.streams import CudaStream, Mark, SideStream, find_device
from seqrecord.frames import ArraySpec
from tests.side_streams import STREAMS, LateStream, make_stream


@pytest.fixture(params=STREAMS)
def stream(request: pytest.FixtureRequest) -> SideStream:
    return make_stream(request.param)


# ---- the stream that the others are tested with


def test_a_late_stream_shows_what_is_not_waited_for() -> None:
    stream = LateStream()
    source, target = torch.arange(3), torch.zeros(3, dtype=torch.int64)
    with stream.use():
        target.copy_(source, non_blocking=True)
        copied = target.clone()
    source += 1  # too early
    assert target.tolist() == [0, 0, 0]
    stream.mark().wait()
    assert target.tolist() == copied.tolist() == [1, 2, 3]


@pytest.mark.parametrize("device", ["nowhere", "cpu:x", 1.5])
def test_no_such_device(device: Any) -> None:
    with pytest.raises(ClipError, match="not a device"):
        find_device(device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_no_gpu() -> None:
    with pytest.raises(ClipError, match=r"finds no such device here; expected: cpu; got: cuda:0"):
        prefetch_to_device([], "cuda:0")


class FakeCuda:
    """Notes what is asked of streams and events, in order."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.current = self.Stream("current")

    def Stream(self, name: Any) -> Any:  # noqa: N802
        calls = self.calls

        class Stream:
            def wait_event(self, event: Any) -> None:
                calls.append(f"{name} waits for {event}")

            def __str__(self) -> str:
                return str(name)

        return Stream()

    def Event(self, *, enable_timing: bool, blocking: bool) -> Any:  # noqa: N802
        assert enable_timing
        assert blocking, "a thread must not spin"
        calls = self.calls

        class Event:
            def record(self, stream: Any) -> None:
                self.number = sum(call.startswith("mark") for call in calls)
                calls.append(f"mark {self.number} in {stream}")

            def synchronize(self) -> None:
                calls.append(f"thread waits for {self}")

            def query(self) -> bool:
                return True

            def elapsed_time(self, end: Any) -> float:
                return float(1000 * (end.number - self.number))

            def __str__(self) -> str:
                return str(self.number)

        return Event()

    def stream(self, stream: Any) -> Any:
        self.calls.append(f"in {stream}:")
        return nullcontext()

    def set_device(self, device: Any) -> None:
        self.calls.append(f"thread has {device}")

    def device(self, device: Any) -> Any:
        assert str(device) == "cuda:1"
        return nullcontext()

    def current_stream(self, device: Any) -> Any:
        assert str(device) == "cuda:1"
        return self.current

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 2

    def current_device(self) -> int:
        return 1


def test_what_cuda_is_asked_for() -> None:
    cuda = FakeCuda()
    stream = CudaStream(find_device("cuda", cuda), cuda)
    assert stream.device == torch.device("cuda:1")
    assert find_device("cuda:0", cuda) == torch.device("cuda:0")
    with pytest.raises(ClipError, match="finds no such device here; expected: at most cuda:1"):
        find_device("cuda:2", cuda)

    class Tensor:
        def record_stream(self, stream: Any) -> None:
            cuda.calls.append(f"memory waits for {stream}")

    tensors: Any = [Tensor(), Tensor()]
    begin = stream.mark()
    with stream.use():
        cuda.calls.append("work")
    end = stream.mark()
    before = stream.hand_over(end, tensors)
    before.wait()
    assert cuda.calls == [
        "mark 0 in cuda:1",  # whose time is known
        "thread waits for 0",
        "mark 1 in cuda:1",
        "in cuda:1:",
        "work",
        "mark 2 in cuda:1",
        "mark 3 in current",
        "current waits for 2",
        "memory waits for current",
        "memory waits for current",
        "thread waits for 3",
    ]
    assert end.is_reached
    assert end.seconds_since(begin) == 1
    assert end.time - begin.time == pytest.approx(1)


class ContextCuda:
    """Enough of `torch.cuda` to know on which devices it makes a context.

    As CUDA 12 does it: a thread begins with device 0, and a call makes a context on the device
    that is current. `device` puts back the one before without touching it, `stream` touches it.
    """

    def __init__(self) -> None:
        self.contexts: set[int] = set()
        self._thread = threading.local()

    @property
    def now(self) -> int:
        return getattr(self._thread, "device", 0)

    def touch(self, *_: Any) -> Any:
        self.contexts.add(self.now)
        return self

    def set_device(self, device: torch.device) -> None:
        self._thread.device = device.index
        self.touch()

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        before, self._thread.device = self.now, device.index
        yield
        self._thread.device = before

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before = self.now
        self.set_device(torch.device("cuda", 1))
        yield
        self.set_device(torch.device("cuda", before))

    def Stream(self, device: torch.device) -> Any:  # noqa: N802 - torch's name
        with self.device(device):
            return self.touch()

    def Event(self, **_: Any) -> Any:  # noqa: N802 - torch's name
        return self.touch()

    def current_stream(self, device: torch.device) -> Any:
        return self

    def elapsed_time(self, other: Any) -> float:
        self.touch()
        return 1.0

    record = synchronize = query = wait_event = record_stream = touch


@pytest.mark.parametrize("is_ours", [True, False])
def test_no_context_is_made_on_another_gpu(is_ours: bool) -> None:
    """In a thread of ours, and in one of the user's, whose current device stays what it was."""
    cuda = ContextCuda()

    def work() -> int:
        stream = CudaStream(torch.device("cuda:1"), cuda)
        if is_ours:
            stream.bind_thread()
        stream.set_clock()
        first = stream.mark()
        with stream.use():
            cuda.touch()  # an allocation
        last = stream.mark()
        before = stream.hand_over(last, [cuda])  # type: ignore[list-item]
        before.wait()
        assert last.is_reached
        assert last.time
        assert last.seconds_since(first)
        return cuda.now

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(work).result() == (1 if is_ours else 0)
    assert cuda.contexts == {1}


# ---- staging


def test_a_block_is_written_to_again_only_when_it_was_copied(stream: SideStream) -> None:
    staging = Staging(stream)
    targets, addresses = [], set()
    for number in range(9):
        with staging.take([8]) as block:
            piece, array = block.array((2,), np.dtype("<i4"))
            array[:] = number
            addresses.add(array.ctypes.data)
            with stream.use():
                target = torch.empty(8, dtype=torch.uint8, device=stream.device)
                target.copy_(piece, non_blocking=True)
            targets.append(target)
    stream.mark().wait()
    assert [t.cpu().view(torch.int32).tolist() for t in targets] == [[n, n] for n in range(9)]
    assert len(addresses) <= 3


def test_blocks_grow() -> None:
    staging = Staging(make_stream("cpu"))
    with staging.take([10]) as small:
        pass
    with staging.take([5]) as again:
        assert again is small
    with staging.take([1000]) as large:
        assert large.nbytes >= 1000
    with staging.take([10]) as kept:
        assert kept is large


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["u1", "<f8", "?", "<u2"]))))
def test_pieces_of_a_block_do_not_overlap(wanted: list[tuple[int, str]]) -> None:
    dtypes = [np.dtype(name) for _, name in wanted]
    counts = [count for count, _ in wanted]
    sizes = [count * dtype.itemsize for count, dtype in zip(counts, dtypes, strict=True)]
    block = Block(Block.room(sizes), pin=False)
    made = [block.array((count,), dtype) for count, dtype in zip(counts, dtypes, strict=True)]
    for number, (_, array) in enumerate(made):
        array[:] = number
    for number, (memory, array) in enumerate(made):
        assert array.dtype == dtypes[number]
        assert array.tolist() == [dtypes[number].type(number)] * counts[number]
        assert memory.numpy().tobytes() == array.tobytes()


# ---- the arena

SPECS = {
    "image": ArraySpec(np.dtype("u1"), (3, 5)),  # 15 bytes: words of one
    "flow": ArraySpec(np.dtype("<f4"), (2, 3)),  # 24: words of eight
    "short": ArraySpec(np.dtype("<u2"), (3,)),
    "flag": ArraySpec(np.dtype("?"), ()),
    "note": ArraySpec(np.dtype("u1"), (None,)),
    "empty": ArraySpec(np.dtype("<f4"), (0, 2)),
    "step": ArraySpec(np.dtype("<i8"), ()),
}
NUM_ROWS, CLIP_LEN = 12, 2


def frame(number: int) -> dict[str, Any]:
    """A frame whose arrays are like no other's."""
    rng = np.random.default_rng(number)
    frame = {}
    for name, spec in SPECS.items():
        shape: Any = spec.shape if spec.is_fixed else (1 + number % 3,)
        frame[name] = rng.integers(0, 200, shape).astype(spec.dtype)
    return frame


@settings(deadline=None, max_examples=60)
@given(data=st.data())
@pytest.mark.parametrize("kind", STREAMS)
def test_what_is_gathered_was_loaded(kind: str, data: st.DataObject) -> None:
    """Against a model, with rows that are loaded again and again while batches are under way."""
    stream = make_stream(kind)
    arena = DeviceArena(SPECS, NUM_ROWS, stream)
    batches = DeviceBatches(arena, CLIP_LEN)
    held: dict[int, int] = {}  # row: number of its frame
    loaded = crossed = 0
    under_way: list[tuple[Any, list[list[int]]]] = []
    for _ in range(data.draw(st.integers(1, 6))):
        for _ in range(data.draw(st.integers(1, 3))):
            first, count = data.draw(st.integers(0, NUM_ROWS - 1)), data.draw(st.integers(1, 5))
            rows = (first + np.arange(count)) % NUM_ROWS  # around the ring's end
            load, places = arena.load(rows)
            with load:
                for place, row in zip(places.tolist(), rows.tolist(), strict=True):
                    loaded += 1
                    held[row] = loaded
                    for name, array in frame(loaded).items():
                        load[name][place] = array
                nbytes = load.store()
                assert nbytes == sum(
                    array.nbytes for row in rows.tolist() for array in frame(held[row]).values()
                )
                crossed += nbytes
        if held:
            clip = st.lists(st.sampled_from(sorted(held)), min_size=CLIP_LEN, max_size=CLIP_LEN)
            clips = data.draw(st.lists(clip, min_size=1, max_size=4))
            batch = batches.begin(len(clips))
            cut = data.draw(st.integers(0, len(clips)))
            for part in (clips[:cut], clips[cut:]):
                if part:
                    assert batch.gather(np.array(part)) == 8 * CLIP_LEN * len(part)
            under_way.append((batch, [[held[row] for row in rows] for rows in clips]))
    for batch, clips in under_way:
        batch.hand_over()
        assert list(batch.features) == list(SPECS)
        for name, spec in SPECS.items():
            for i, numbers in enumerate(clips):
                for k, number in enumerate(numbers):
                    got = batch.features[name][i][k]
                    expected = frame(number)[name]
                    assert got.device == stream.device
                    assert got.cpu().numpy().dtype == spec.dtype
                    np.testing.assert_array_equal(got.cpu().numpy(), expected)
    spans = arena.copied(wait=True)
    assert sum(span.nbytes for span in spans) == crossed
    assert all(span.begin <= span.end for span in spans)
    assert arena.copied() == []


def test_an_arena_takes_what_the_hosts_takes() -> None:
    fixed = {name: spec for name, spec in SPECS.items() if spec.is_fixed}
    assert DeviceArena(SPECS, 7, make_stream("cpu")).nbytes == Arena(fixed, 7).nbytes


def test_a_load_that_fails_stores_nothing() -> None:
    stream = LateStream()
    arena = DeviceArena(SPECS, 4, stream)
    load, _ = arena.load(np.array([0, 1]))
    with pytest.raises(ZeroDivisionError), load:
        raise ZeroDivisionError
    assert arena.copied(wait=True) == []


def test_what_is_handed_over_is_all_of_a_batch() -> None:
    stream = LateStream()
    arena = DeviceArena(SPECS, 4, stream)
    load, _ = arena.load(np.arange(4))
    with load:
        for place in range(4):
            for name, array in frame(place).items():
                load[name][place] = array
        load.store()
    batch = DeviceBatches(arena, 2).begin(2)
    batch.gather(np.array([[0, 1], [2, 3]]))
    batch.hand_over()
    (tensors,) = stream.handed_over
    fixed = [name for name, spec in SPECS.items() if spec.is_fixed]
    assert {id(batch.features[name]) for name in fixed} <= {id(t) for t in tensors}
    assert len(tensors) == len(fixed) + 4  # and four notes


def test_batches_do_not_outrun_the_consumers_device() -> None:
    """A batch begins only when the device has come to the last but two that were taken."""
    waited: list[int] = []

    class Taken(Mark):
        is_reached, time = False, 0.0

        def __init__(self, number: int) -> None:
            self._number = number

        def wait(self) -> None:
            waited.append(self._number)

        def seconds_since(self, earlier: Mark) -> float:
            raise NotImplementedError

    class Stream(LateStream):
        def hand_over(self, mark: Mark, tensors: Iterable[torch.Tensor]) -> Mark:
            super().hand_over(mark, tensors)
            return Taken(len(self.handed_over) - 1)

    batches = DeviceBatches(DeviceArena(SPECS, 4, Stream()), 2)
    for number in range(6):
        batches.begin(1).hand_over()
        assert waited == list(range(max(0, number - 2)))
