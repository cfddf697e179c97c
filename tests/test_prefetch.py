"""Batches of any loader arrive on a device unchanged, in time and with the right state."""

from __future__ import annotations

import dataclasses
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from seqrecord import ClipError, SeqRecordIterableDataset, StateError, prefetch_to_device
from seqrecord.engine.device.prefetch import DevicePrefetcher
from seqrecord.engine.device.streams import SideStream
from tests.clip_data import make_loader, no_leaks
from tests.resume_contract import check_resume
from tests.side_streams import (
    NO_GPU,
    STREAMS,
    LateStream,
    OutrunStream,
    late_streams,
    make_stream,
    on_host,
)


@pytest.fixture(params=STREAMS)
def stream(request: pytest.FixtureRequest) -> SideStream:
    return make_stream(request.param)


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass(frozen=True)
class Sample:
    image: torch.Tensor
    name: str


def nested_item() -> dict[str, Any]:
    image = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).reshape(2, 3, 4, 5)
    return {
        "image": image.to(memory_format=torch.channels_last),
        "strided": torch.arange(20)[::3],
        "transposed": torch.arange(6, dtype=torch.int16).reshape(2, 3).t(),
        "expanded": torch.ones(1, 2).expand(3, 2),
        "scalar": torch.tensor(7, dtype=torch.uint8),
        "empty": torch.empty(0, 3, dtype=torch.bfloat16),
        "bool": torch.tensor([True, False]),
        "uint16": torch.tensor([1, 65_535], dtype=torch.uint16),
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "list": [torch.ones(2), "text", None, (torch.zeros(1), 3)],
        "pair": Pair(torch.ones(1), "second"),
        "sample": Sample(torch.ones(3), "name"),
        "ordered": OrderedDict(b=torch.ones(1), a=torch.zeros(1)),
        "default": defaultdict(list, x=torch.tensor([1 + 2j])),
        "sparse": torch.eye(3).to_sparse(),
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }


def test_all_kinds_of_values_arrive(stream: SideStream) -> None:
    item = nested_item()
    (got,) = DevicePrefetcher([item], stream, 2)
    assert list(got) == list(item)
    for name, tensor in item.items():
        if not isinstance(tensor, torch.Tensor):
            assert type(got[name]) is type(tensor)
        else:  # a moved parameter is a plain tensor
            assert type(got[name]) in (type(tensor), torch.Tensor)
            assert got[name].device == stream.device
            assert got[name].dtype == tensor.dtype
            assert torch.equal(got[name].cpu().to_dense(), tensor.to_dense())
    assert got["image"].stride() == item["image"].stride()
    assert got["transposed"].stride() == (1, 3)
    assert not got["conjugate"].is_conj()
    assert got["list"][1:3] == ["text", None]
    assert got["list"][3][0].device == stream.device
    assert got["list"][3][1] == 3
    assert got["pair"].second == "second"
    assert got["sample"].name == "name"
    assert got["sample"].image.tolist() == [1, 1, 1]
    assert list(got["ordered"]) == ["b", "a"]
    assert got["default"]["missing"] == []
    assert "missing" not in item["default"]


class Counting:
    """A loader that overwrites unreferenced batches and counts requested ones."""

    def __init__(self, count: int, fails_at: int | None = None) -> None:
        self.count, self.fails_at, self.asked = count, fails_at, 0
        self.made: list[weakref.ref[torch.Tensor]] = []

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(self.count):
            self.asked = number + 1
            if number == self.fails_at:
                raise OSError("no more")
            tensor = torch.full((50,), number)
            self.made.append(weakref.ref(tensor))
            yield {"number": number, "x": tensor, "y": [tensor * 2]}
            del tensor

    def __len__(self) -> int:
        return self.count


@pytest.mark.parametrize("depth", [1, 3])
def test_batches_arrive_in_order_and_stay_unchanged(stream: SideStream, depth: int) -> None:
    loader = Counting(12)
    prefetcher = DevicePrefetcher(loader, stream, depth)
    assert len(prefetcher) == 12
    received = []
    for number, batch in enumerate(prefetcher):
        assert loader.asked == min(number + depth, 12)
        received.append(batch)
        if isinstance(stream, LateStream):  # tensors are registered before their batch is yielded
            assert len(stream.given) == number + 1
            assert [id(t) for t in stream.given[-1]] == [id(batch["x"]), id(batch["y"][0])]
    for number, batch in enumerate(received):
        assert batch["number"] == number
        assert batch["x"].tolist() == [number] * 50
        assert batch["y"][0].tolist() == [2 * number] * 50
    if stream.device.type == "cpu":
        assert not any(ref() is not None for ref in loader.made), "sources are let go"


@pytest.mark.parametrize("depth", [1, 5])
def test_transfers_wait_for_the_device(depth: int) -> None:
    """A batch is moved only after the device reached the third-last taken batch."""
    waited: list[int] = []
    for number, _ in enumerate(DevicePrefetcher(Counting(12), OutrunStream(waited), depth)):
        most = max(0, number - 2) if number + depth <= 12 else len(waited)
        assert waited == list(range(most))
    assert len(waited) == 12 - depth - 2


def test_non_dense_pinned_tensors_are_staged(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = LateStream()
    with stream.use():
        pinned = torch.arange(60, dtype=torch.int32).reshape(3, 4, 5).pin_memory()
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: stream.kind(tensor) == "pinned")
    item = [pinned, pinned.permute(2, 0, 1), pinned[:, ::2], pinned[0, 0].expand(2, 5)]
    expected = [each.tolist() for each in item]
    prefetcher = DevicePrefetcher([item], stream, 2)
    (got,) = prefetcher
    assert [each.tolist() for each in got] == expected
    assert not stream.stalls


def test_error_is_raised_after_earlier_batches(stream: SideStream) -> None:
    loader, batches = Counting(9, fails_at=3), list[Any]()
    with pytest.raises(OSError, match="no more"):
        batches.extend(DevicePrefetcher(loader, stream, 3))
    assert [batch["number"] for batch in batches] == [0, 1, 2]
    assert loader.asked == 4


def test_loader_without_length_or_state() -> None:
    prefetcher = prefetch_to_device(iter([torch.ones(1)]), "cpu")
    with pytest.raises(TypeError, match="no length"):
        len(prefetcher)
    with pytest.raises(
        StateError,
        match=r"the loader has no state_dict; .*StatefulDataLoader\(SeqRecordIterableDataset",
    ):
        prefetcher.state_dict()
    with pytest.raises(StateError, match="the loader has no load_state_dict"):
        prefetcher.load_state_dict({})
    assert [t.tolist() for t in prefetcher] == [[1]]
    with pytest.raises(ClipError, match="depth is too small"):
        prefetch_to_device([], "cpu", depth=0)


class OnHost(DevicePrefetcher[Any]):
    """A prefetcher with comparable batches."""

    def __iter__(self) -> Iterator[Any]:
        return map(on_host, super().__iter__())


FEW: dict[str, Any] = {"batch_size": 16, "features": ["image", "id"]}


def test_resumes_a_stream(path: Path, stream: SideStream) -> None:
    check_resume(
        lambda: OnHost(make_loader(path, SeqRecordIterableDataset, **FEW), stream, 2),
        num_epochs=2,
        positions=lambda n: (2, n // 2, n - 1),
    )


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_resumes_a_stateful_loader(path: Path, workers: int) -> None:
    def make() -> OnHost:
        stream = make_loader(path, SeqRecordIterableDataset, **FEW)
        loader: Any = StatefulDataLoader(
            stream, batch_size=None, num_workers=workers, persistent_workers=workers > 0
        )
        return OnHost(loader, make_stream("cpu"), 3)

    def set_epoch(prefetcher: Any, number: int) -> None:
        prefetcher.loader.dataset.set_epoch(number)

    check_resume(make, num_epochs=2, positions=lambda n: (n // 2,), set_epoch=set_epoch)


def test_state_is_of_the_last_yielded_batch(path: Path) -> None:
    prefetcher = prefetch_to_device(make_loader(path, SeqRecordIterableDataset), "cpu", depth=4)
    list(prefetcher)  # opens the files
    assert prefetcher.state_dict()["batch"] == 0
    with no_leaks():  # an interrupted epoch
        for number, _ in zip(range(1, 6), prefetcher, strict=False):
            assert prefetcher.state_dict()["batch"] == number
    assert prefetcher.state_dict()["batch"] == 5
    assert len(list(prefetcher)) == len(prefetcher)  # the next epoch
    assert prefetcher.state_dict()["epoch"] == 3


def test_inference_mode_may_end_between_two_iterations(stream: SideStream) -> None:
    prefetcher = DevicePrefetcher([torch.arange(50, dtype=torch.uint8)] * 4, stream, 2)
    with torch.inference_mode():
        assert [int(t[49]) for t in prefetcher] == [49] * 4
    assert [int(t[49]) for t in prefetcher] == [49] * 4


def test_epochs_share_one_stream() -> None:
    """A new stream would allocate new memory and leave the old stream's unused."""
    for _ in range(2):
        with late_streams() as made:
            for _ in range(3):
                list(prefetch_to_device([torch.ones(1)], "cpu"))
        assert len(made) == 1


@NO_GPU
def test_pinned_tensors_are_copied_directly() -> None:
    batches = [torch.full((1 << 20,), n, dtype=torch.int32).pin_memory() for n in range(6)]
    sums = [batch.sum() for batch in prefetch_to_device(batches, "cuda")]
    assert [int(s) for s in sums] == [n << 20 for n in range(6)]


@NO_GPU
def test_consumer_without_synchronization_gets_right_values() -> None:
    """Memory of batches that the device has yet to read must not be reused."""
    batches = (torch.full((1 << 20,), n, dtype=torch.int64) for n in range(40))
    sums = []
    for batch in prefetch_to_device(batches, "cuda"):
        torch.cuda._sleep(5_000_000)  # type: ignore[no-untyped-call] # the host runs far ahead
        sums.append(batch.sum())
        del batch
    assert [int(s) for s in sums] == [n << 20 for n in range(40)]
