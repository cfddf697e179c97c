"""Pipes with a device return the same batches as without, and copy each frame once."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import seqrecord
from seqrecord import HorizontalFlip, SeqRecordPipe
from seqrecord.samples import every
from tests.cuda.side_streams import (
    NO_GPU,
    STREAMS,
    LateStream,
    OutrunStream,
    late_streams,
    on_host,
    streams_of,
)
from tests.kit.clip_data import (
    begun,
    check_clip,
    digests,
    make_loader,
    no_leaks,
    possible_clips,
    write_numbered,
)
from tests.kit.processes import own_threads
from tests.loader.resume_contract import check_resume

FIXED = ["image", "flow", "id"]
FRAME_NBYTES = 6 * 8 * 3 + 4 * 2 * 4 + 2 * 8


@pytest.fixture(params=STREAMS)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param != "late":
        yield request.param
        return
    with late_streams() as made:
        yield "cpu"
    assert not any(stream.stalls for stream in made)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"batch_size": None, "features": FIXED, "shuffle": False},
        {"clip_len": 2, "stride": 3, "dilation": 2, "batch_size": 7},
        {"memory_limit": 60_000, "num_threads": 3},
        {"features": ["note"], "batch_size": 64},
        {"frame_transform": lambda frame: {"id": frame["id"], "tail": frame["image"][1:, 0]}},
        {"clip_transform": {"image": [seqrecord.RandomCrop((4, 5)), HorizontalFlip(0.5)]}},
    ],
)
@pytest.mark.parametrize("kind", ["path", pytest.param("large", marks=pytest.mark.slow)])
def test_batches_equal_the_host_batches(
    kind: str, device: str, settings: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(kind)
    if kind == "large" and "memory_limit" in settings:
        settings = {**settings, "memory_limit": 6_000_000}
    plain, moved = make_loader(path, **settings), make_loader(path, **settings, device=device)
    for _ in range(2):
        expected = digests(plain)
        # All batches stay alive: none may change later or lack work queued on the stream.
        batches = list(moved)
        for batch in batches:
            of_host = {"episode", "start", "image_crop", "image_flipped"}
            for name in batch.keys() - of_host:
                tensor = batch[name]
                while not isinstance(tensor, torch.Tensor):
                    tensor = tensor[0]
                assert tensor.device.type == device
        assert digests(map(on_host, batches)) == expected
        assert moved.stats()["frames_decoded"] == plain.stats()["frames_decoded"]
    assert moved.stats()["peak_buffer_bytes"] <= settings.get("memory_limit", 1 << 30)


def test_one_stream_allocates_every_tensor_of_a_batch(path: Path) -> None:
    """Torch reuses memory only within a stream: epochs of different sizes share one."""
    batches: list[Any] = []
    with late_streams() as made:
        pipe = make_loader(path, samples=every(7, rotate=True), features=FIXED, device="cpu")
        for _ in range(3):
            batches = list(pipe)
    (stream,) = made
    for batch, tensors in zip(batches, stream.given[-len(batches) :], strict=True):
        assert {id(batch[name]) for name in FIXED} <= {id(tensor) for tensor in tensors}


def test_every_thread_that_uses_the_device_is_bound_to_it(path: Path) -> None:
    """An unbound thread creates a context on the first GPU, for every rank of a machine."""
    bound, used = set[int](), set[str]()

    class Bound(LateStream):
        def bind_thread(self) -> None:
            bound.add(threading.get_ident())

        def use(self) -> Any:
            self._check()
            return super().use()

        def mark(self) -> Any:
            self._check()
            return super().mark()

        def _check(self) -> None:
            thread = threading.current_thread()
            used.add(thread.name.partition("_")[0])
            if thread.name.startswith("seqrecord"):
                assert thread.ident in bound, thread.name

    pipe = make_loader(path, device="cpu")
    with streams_of("cpu", lambda _: Bound()):
        for _ in range(2):
            assert len(list(pipe)) == len(pipe)
            bound.clear()  # threads of the next epoch may have the same ids
    assert len([name for name in used if name.startswith("seqrecord")]) >= 2
    assert threading.get_ident() not in bound, "the user's thread keeps its device"


def test_batches_of_several_groups_and_windows(tmp_path: Path, device: str) -> None:
    groups = {"image": 0, "flow": 1, "note": 1, "id": 2}
    path = write_numbered(tmp_path / "records", groups=groups, flush_at=[5, 11])
    windows: Any = {"image": [-1, 0], "note": [2], "id": range(4), "flow": [0, -3, 2]}
    several: list[Any] = [{}, {"rank": (1, 2), "stride": 3}]
    for more in several:
        settings: Any = {"windows": windows, "pad": "edge", "batch_size": 5, **more}
        expected = digests(SeqRecordPipe(path, **settings))
        batches = list(SeqRecordPipe(path, **settings, device=device))
        assert digests(map(on_host, batches)) == expected


def test_torchs_default_device_does_not_change_batches_of_workers(path: Path) -> None:
    """`torch.set_default_device("cuda")` is common; here "meta" stands for it."""
    expected = digests(make_loader(path))
    from_workers = iter(DataLoader(make_loader(path), batch_size=None, num_workers=1))
    with torch.device("meta"):
        received = list(from_workers)
    assert digests(received) == expected


def test_flows_are_scaled_as_on_the_host(tmp_path: Path) -> None:
    options: dict[str, Any] = {"clip_len": 2, "batch_size": 4}
    options["clip_transform"] = [seqrecord.Resize((7, 11)), HorizontalFlip(0.5)]
    numbers = np.random.default_rng(0).integers(-100, 100, (9, 6, 8, 2))
    for dtype in ("<f2", "<f4", "<i2", "<i4"):
        path = tmp_path / dtype[1:]
        with seqrecord.SeqRecordWriter(path) as writer, writer.episode("a") as episode:
            for flow in (numbers * (1_000_003 if dtype == "<i4" else 1)).astype(dtype):
                episode.append({"flow": flow})
        expected = [batch["flow"] for batch in SeqRecordPipe(path, **options)]
        with late_streams() as made:
            found = [batch["flow"] for batch in SeqRecordPipe(path, **options, device="cpu")]
        assert all(map(torch.equal, found, expected))
        assert not any(stream.stalls for stream in made)


def test_an_iteration_may_begin_in_inference_mode(path: Path, device: str) -> None:
    """As in Lightning's validation; the engine's threads are not in inference mode."""
    plain, moved = make_loader(path), make_loader(path, device=device)
    with torch.inference_mode():
        batches = list(moved)
    assert digests(map(on_host, batches)) == digests(plain)
    assert digests(map(on_host, moved)) == digests(plain)


def test_waiting_for_the_device_counts_as_waiting_for_the_consumer(path: Path) -> None:
    """A batch starts only after the device has reached the last but one that was taken."""

    class Slow(list[int]):
        def append(self, number: int) -> None:
            time.sleep(0.02)
            super().append(number)

    waited, pipe = Slow(), make_loader(path, device="cpu", features=["image"])
    with streams_of("cpu", lambda _: OutrunStream(waited)):
        count = len(list(pipe))
    assert waited == [*range(len(waited))]
    assert len(waited) >= count - 4  # two batches wait for the consumer, which has two
    assert pipe.stats()["waiting_for_consumer_seconds"] > 0.019 * len(waited)


def test_each_frame_is_copied_to_the_device_once(path: Path, device: str) -> None:
    pipe = make_loader(path, shuffle=False, features=FIXED, device=device)
    for batch in pipe:
        check_clip(on_host(batch), FIXED, 3)
    stats = pipe.stats()
    clips = possible_clips(FIXED, 3)
    frames = {(key, start + i) for key, start in clips for i in range(3)}
    assert stats["frames_decoded"] == len(frames)
    rows = 8 * 3 * len(clips)  # the arena rows of each clip
    assert stats["device_bytes"] - rows <= 1.05 * len(frames) * FRAME_NBYTES
    assert stats["device_bytes"] - rows >= len(frames) * FRAME_NBYTES
    assert make_loader(path).stats()["device_bytes"] == 0


def test_resuming(path: Path, device: str) -> None:
    class OnHost(seqrecord.SeqRecordIterableDataset):
        def __iter__(self) -> Any:
            return map(on_host, super().__iter__())

    check_resume(
        lambda: make_loader(path, OnHost, device=device, batch_size=16),
        num_epochs=2,
        positions=lambda n: (n // 2,),
    )
    # A state of one device loads on another.
    plain, moved = (make_loader(path, OnHost, device=to) for to in (None, device))
    iterator = begun(moved, 5)
    plain.load_state_dict(moved.state_dict())
    assert digests(plain) == digests(iterator)


def test_leaving_early(path: Path, device: str) -> None:
    fail = threading.Event()

    def transform(frame: dict[str, Any]) -> dict[str, Any]:
        if fail.is_set():
            raise ZeroDivisionError
        return {"id": frame["id"]}

    pipe = make_loader(path, device=device, frame_transform=transform)
    list(pipe)  # opens the files
    with no_leaks():
        for _ in pipe:
            break
        assert not own_threads("seqrecord")
    fail.set()
    with no_leaks():  # by an error
        with pytest.raises(ZeroDivisionError):
            list(pipe)
        assert pipe.stats()["device_bytes"] == 0, "a load that fails stores nothing"
        fail.clear()
        assert len(list(pipe)) == len(pipe)


def test_copies_are_in_the_trace(path: Path, device: str, tmp_path: Path) -> None:
    pipe = make_loader(path, device=device, trace=tmp_path / "epoch.json")
    list(pipe)
    events = json.loads((tmp_path / "epoch.json").read_text())
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    copies = [e for e in events if e["name"] == "device copy"]
    assert 0 < len(copies) <= pipe.stats()["loads"]  # small ones are copied together
    assert {tracks[e["tid"]].split(" ")[-1] for e in copies} == {"copies"}
    rows = 8 * 3 * pipe.stats()["clips"]
    assert sum(e["args"]["bytes"] for e in copies) == pipe.stats()["device_bytes"] - rows
    first = min(e["ts"] for e in events if e["ph"] == "X")
    assert all(e["ts"] >= first and e["dur"] >= 0 for e in copies)


def test_workers_refuse_a_device_other_than_the_cpu(path: Path) -> None:
    def first(device: str) -> Any:
        pipe = make_loader(path, device=device)
        iterator: Any = iter(DataLoader(pipe, batch_size=None, num_workers=1))
        try:
            return next(iterator)
        finally:
            iterator._shutdown_workers()  # left to the garbage collector, torch waits 5 s

    with pytest.raises(seqrecord.ClipError, match="cannot deliver tensors on a device"):
        first("meta")
    first("cpu")


@NO_GPU
def test_an_unsynchronized_consumer_gets_correct_batches(path: Path) -> None:
    """Memory of dropped batches must not be reused before the device has read them."""
    plain = make_loader(path, features=["image"])
    expected = [int(batch["image"].sum()) for batch in plain]
    sums = []
    for batch in make_loader(path, features=["image"], device="cuda"):
        torch.cuda._sleep(5_000_000)  # type: ignore[no-untyped-call] # the host runs far ahead
        sums.append(batch["image"].sum())
        del batch
    assert [int(s) for s in sums] == expected
