"""Pipes and map-style datasets in torch's loaders; `seqrecord.collate` of any values."""

from __future__ import annotations

import gc
import itertools
import pickle
import tracemalloc
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterDataPipe, default_collate
from torchdata.nodes import Batcher, Loader, Mapper

import seqrecord
from seqrecord import (
    ClipError,
    EngineOptions,
    SeqRecordIterableDataset,
    SeqRecordMapDataset,
    SeqRecordNode,
    SeqRecordPipe,
)
from tests.kit.clip_data import (
    LARGE,
    all_names,
    begun,
    check_clip,
    digest,
    digests,
    effective_arguments,
    names,
    no_leaks,
    possible_clips,
    write_numbered,
)

# torch warns about more workers than cores, and about a call by torchdata.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]
CLIP: dict[str, Any] = {"clip_len": 3, "engine": EngineOptions(shuffle_buffer=16), "seed": 2}
BATCH: dict[str, Any] = {**CLIP, "batch_size": 4}


def only_id(frame: dict[str, Any]) -> dict[str, Any]:
    return {"id": frame["id"]}


# ---- SeqRecordPipe


@pytest.mark.parametrize("shuffle", [True, False])
def test_shuffle_of_the_loader_overrides_the_pipe(path: Path, shuffle: bool) -> None:
    settings = effective_arguments({**CLIP, "shuffle": not shuffle})
    pipe = SeqRecordPipe(path, **settings, features=["id"])
    loader = DataLoader(pipe, batch_size=None, shuffle=shuffle)
    clips = all_names(loader)
    canonical = possible_clips(["id"], 3)
    assert sorted(clips) == canonical
    assert (clips != canonical) is shuffle


def test_an_abandoned_loader_frees_its_resources(path: Path) -> None:
    with no_leaks():
        loader = DataLoader(SeqRecordPipe(path, **BATCH), batch_size=None, num_workers=2)
        iterator = begun(loader)
        del iterator
        assert len(list(loader)) == len(loader)
        del loader


def test_an_error_in_a_worker(path: Path) -> None:
    def transform(frame: dict[str, Any]) -> dict[str, Any]:
        if frame["id"].tolist() == [3, 5]:
            raise ZeroDivisionError("mine")
        return {"id": frame["id"]}

    pipe = SeqRecordPipe(path, **BATCH, frame_transform=transform)
    iterator: Any = iter(DataLoader(pipe, batch_size=None, num_workers=1))
    with pytest.raises(ZeroDivisionError, match=r"(?s)in transform.*mine"):
        list(iterator)
    iterator._shutdown_workers()  # on garbage collection, torch waits 5 s per worker


def test_length(path: Path) -> None:
    sizes: list[dict[str, Any]] = [{}, {"batch_size": 1}, {"batch_size": 7}]
    dataset = seqrecord.open(path)
    for settings in [*sizes, {"batch_size": 7, "last_batch": "drop"}]:
        settings |= {**CLIP, "features": ["id"]}
        for kind in (SeqRecordPipe, SeqRecordIterableDataset):
            data = kind(dataset, **settings)
            assert len(list(data)) == len(data)
            for workers in range(4):
                loader: Any = DataLoader(data, batch_size=None, num_workers=workers)
                ranks = max(1, workers)  # shards of workers, without starting them
                parts = [kind(dataset, **settings, rank=(i, ranks)) for i in range(ranks)]
                assert len(loader) == sum(map(len, parts))


class Trainer:
    """A loop with a batch in a local variable and a `self`, which `find_loader` inspects."""

    def fit(self, loader: Any, ask: Callable[[], object]) -> int:
        dropped: list[Any] = []
        for batch in loader:
            assert all(tensor() is None for tensor in dropped), "a batch is kept alive"
            ask()
            dropped.append(weakref.ref(batch["image"]))
            del batch
        return len(dropped)


@pytest.mark.parametrize("workers", [0, 2])
def test_queries_in_a_loop_do_not_keep_batches(path: Path, workers: int) -> None:
    # Before Python 3.13, reading a running frame's local variables keeps references to them.
    pipe: Any = SeqRecordPipe(path, **BATCH)
    other: Any = SeqRecordPipe(path, **BATCH, features=["id"])
    chain = other.sharding_filter()
    loader = DataLoader(pipe, batch_size=None, num_workers=workers)

    def ask() -> None:
        len(loader), len(pipe), len(chain), pipe.num_clips, repr(pipe)
        next(iter(chain))
        next(iter(DataLoader(other, batch_size=None)))
        if not workers:
            pipe.state_dict()

    assert Trainer().fit(loader, ask) == len(loader)


def test_repr(path: Path) -> None:
    pipe: Any = SeqRecordPipe(path, clip_len=3, features=["id", "note"])
    text = f"SeqRecordPipe({str(path)!r}, 67 clips; mixed from 2 places of an epoch\n"
    text += "  id: int64 [3, 2]\n  note: uint8 [3, ?])"
    assert repr(pipe) == str(pipe) == text
    for kind in (SeqRecordNode, SeqRecordIterableDataset, SeqRecordMapDataset):
        assert f"{kind.__name__}(" in repr(kind(path, clip_len=3))
    assert isinstance(pipe, IterDataPipe)
    assert torch.utils.data.IterableDataset in SeqRecordIterableDataset.__mro__
    assert isinstance(repr(pipe.shuffle()), str)


def run(loader: Any) -> list[Any]:
    if isinstance(loader, SeqRecordNode):
        loader.reset()
    return digests(loader)


@pytest.mark.parametrize("running", [False, True])
def test_all_loaders_yield_the_same_batches_and_can_be_pickled(path: Path, running: bool) -> None:
    kinds: list[Any] = [SeqRecordPipe, SeqRecordIterableDataset, SeqRecordNode]
    runs = []
    for kind in kinds:
        loader = kind(path, **BATCH, frame_transform=only_id)
        iterator = begun(loader, int(running))
        copy = pickle.loads(pickle.dumps(loader))
        assert copy.state_dict() == loader.state_dict()
        assert (len(copy), repr(copy)) == (len(loader), repr(loader))
        runs.append(run(loader))
        assert run(copy) == runs[-1]
        del iterator
    assert runs[0] == runs[1] == runs[2]
    dataset = SeqRecordMapDataset(path, clip_len=3, frame_transform=only_id)
    assert digest(pickle.loads(pickle.dumps(dataset))[5]) == digest(dataset[5])


# ---- SeqRecordMapDataset


def test_dataset_transforms_frames(path: Path) -> None:
    dataset = SeqRecordMapDataset(path, clip_len=3, frame_transform=only_id)
    pipe = SeqRecordPipe(path, clip_len=3, frame_transform=only_id, shuffle=False)
    assert [digest(dataset[i]) for i in range(len(dataset))] == digests(pipe)
    notes = SeqRecordMapDataset(
        path, clip_len=3, frame_transform=lambda frame: {"note": frame["note"]}
    )
    with pytest.raises(ClipError, match="another dtype or shape"):
        [notes[i] for i in range(9)]


FEATURES = ["image", "note", "id"]
CLIPS: dict[str, Any] = {"clip_len": 3, "seed": 1, "features": FEATURES}


def address(batch: dict[str, Any], feature: str = "image") -> int:
    return int(batch[feature].untyped_storage().data_ptr())


# ---- collated values


def test_collated_batches_contain_the_clips_of_a_pipe(path: Path) -> None:
    """Any collection of clips is accepted; the order depends on `batch_size`."""
    for kind in (list, deque):
        pipe: Any = SeqRecordPipe(path, **CLIPS)
        batches = pipe.batch(4, wrapper_class=kind).collate(seqrecord.collate)
        found = [name for batch in batches for name in check_clip(batch, FEATURES, 3)]
        assert sorted(found) == possible_clips(FEATURES, 3)
        assert found == [name for clip in SeqRecordPipe(path, **CLIPS) for name in names(clip)]


def test_values_equal_default_collate() -> None:
    clips = [
        {
            "image": torch.full((2, 3), i, dtype=torch.uint8),
            "array": np.full((2,), i, np.float32),
            "scalar": np.float64(i),
            "number": i / 2,
            "start": i,
            "flag": i > 1,
            "nested": {"pose": torch.full((7,), i)},
            "nothing": torch.empty(0, 3),
            "one": torch.tensor(i),
            "half": torch.full((3,), i, dtype=torch.bfloat16),
            "strided": torch.arange(12).reshape(3, 4).T[:, i],
            "grid": torch.arange(12).reshape(3, 4).T,
        }
        for i in range(3)
    ]
    numbers: list[list[Any]] = [[3, -(2**63)], [True, False], [True, 2], [1, 2.5], [2.5, 1]]
    numbers += [[2.5, 2**63 + 1], [np.bool_(True), np.bool_(False)], [np.ones(2, np.float16)] * 2]
    for items in (clips, *([{"x": value} for value in values] for values in numbers)):
        batch, expected = seqrecord.collate(items), default_collate(items)
        assert batch.keys() == expected.keys()
        for name in batch.keys() - {"nested"}:
            assert batch[name].dtype == expected[name].dtype, name
            assert torch.equal(batch[name], expected[name]), name
    assert torch.equal(seqrecord.collate(clips)["nested"]["pose"], torch.arange(3).repeat(7, 1).T)


def test_other_values() -> None:
    """Lists of texts and of frames of variable shapes, gradients, and rows of a user's table."""
    frames = [[torch.zeros(2)], [torch.zeros(3)]]
    clips = [{"episode": f"a/{i}", "note": frames[i], "name": np.str_("b")} for i in range(2)]
    lists = {"episode": ["a/0", "a/1"], "note": frames, "name": [np.str_("b")] * 2}
    assert seqrecord.collate(clips) == lists
    weight = torch.ones(2, requires_grad=True)
    seqrecord.collate([{"x": weight * 2}, {"x": weight * 3}])["x"].sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [5, 5]
    table = torch.arange(12).reshape(4, 3)  # a batch must not share its memory
    seqrecord.collate([{"x": row} for row in table])["x"][:] = 0
    assert table.sum() == 66


def test_views_not_yet_computed_by_torch_are_resolved() -> None:
    for size in (2, 40_000):  # copied by torch, and by NumPy
        numbers = torch.arange(2 * size, dtype=torch.float32).reshape(size, 2)
        whole = torch.view_as_complex(numbers)
        values = [whole.conj(), whole, whole.conj().imag, whole.imag]
        for pair in (values[:2], values[1::-1], values[2:], values[:1] * 2, values[2:3] * 2):
            batch = seqrecord.collate([{"x": value} for value in pair])["x"]
            assert not batch.is_conj()
            assert torch.equal(batch, torch.stack([v.resolve_conj().resolve_neg() for v in pair]))


def jagged(*lengths: int) -> torch.Tensor:
    made: torch.Tensor = torch.nested.nested_tensor(
        [torch.ones(length) for length in lengths], layout=torch.jagged
    )
    return made


BAD: list[tuple[Any, list[str]]] = [
    ([], ["nothing to collate"]),
    ([torch.zeros(2)], ["nothing to collate", "Tensor"]),
    ([{"a": 1}, {"b": 1}], ["different features", "expected: a", "got: b"]),
    ([{"a": torch.zeros(2)}, {"a": torch.zeros(3)}], ["feature: a", "float32 [2]", "float32 [3]"]),
    ([{"a": torch.zeros(2)}, {"a": torch.zeros(2).long()}], ["float32 [2]", "int64 [2]"]),
    ([{"a": torch.zeros(2)}, {"a": 3}], ["expected: Tensor", "got: int"]),
    ([{"a": "x"}, {"a": 3}], ["expected: str", "got: int"]),
    ([{"a": {}}, {"a": 3}], ["expected: dict", "got: int"]),
    ([{"a": 2**63 + 1}, {"a": 5}], ["feature: a", "to 2^63 - 1", "got: [9223372036854775809, 5]"]),
    ([{"a": 5}, {"a": -(2**70)}], ["feature: a", "got: [5, -1180591620717411303424]"]),
    ([{"a": 0.5}, {"a": 1j}], ["feature: a", "numbers of one kind", "got: [0.5, 1j]"]),
    ([{"a": np.ones(2, ">f4")}] * 2, ["feature: a", "the machine's byte order", "'>f4'"]),
    ([{"a": np.ones(2, np.longdouble)}] * 2, ["feature: a", "a dtype that torch has"]),
    # Created in the test: nested tensors import torch._dynamo and sympy, 2 s and 70 MB.
    (
        lambda: [{"a": jagged(2)}, {"a": torch.ones(2)}],
        ["nested, torch.jagged", "torch.strided float32"],
    ),
    (lambda: [{"a": jagged(2)}, {"a": jagged(2).double()}], ["float32", "float64"]),
]


def test_values_that_cannot_be_collated_are_refused(path: Path) -> None:
    for clips, parts in BAD:
        with pytest.raises(ClipError) as caught:
            seqrecord.collate(clips() if callable(clips) else clips)
        assert [part for part in parts if part not in str(caught.value)] == []
    loader: Any = SeqRecordPipe(path, **CLIPS, batch_size=3)
    with pytest.raises(ClipError, match="the loader has a batch_size") as caught:
        next(iter(loader.batch(2).collate(seqrecord.collate)))
    for part in ("batch_size=6 of the loader", ".batch(6).collate(", "2 batches of 3 clips"):
        assert part in str(caught.value)


# ---- memory


def test_memory_of_shuffled_clips_is_reused_unless_a_batch_is_kept(path: Path) -> None:
    pipe: Any = SeqRecordPipe(path, **CLIPS)
    batches = pipe.shuffle(buffer_size=30).batch(4).collate(seqrecord.collate)
    found, seen = [], []
    for batch in batches:
        found += check_clip(batch, FEATURES, 3)
        seen.append(address(batch))
    assert sorted(found) == possible_clips(FEATURES, 3)
    assert len(set(seen[:-1])) <= 3
    kept = [*batches, *pipe.batch(4).collate(seqrecord.collate)]
    found = [name for batch in kept for name in check_clip(batch, FEATURES, 3)]
    assert sorted(found) == sorted(2 * possible_clips(FEATURES, 3))


def test_parts_of_clips_are_copied(path: Path) -> None:
    pipe: Any = SeqRecordPipe(path, **{**CLIPS, "features": ["image"]})
    parts: list[Any] = [lambda x: x[:2], lambda x: x[..., 0], lambda x: x.float()]
    for clips, part in itertools.product(pipe.batch(4), parts):
        batch = seqrecord.collate([{**clip, "image": part(clip["image"])} for clip in clips])
        assert torch.equal(batch["image"], torch.stack([part(clip["image"]) for clip in clips]))
        assert address(batch) != address(clips[0])


def test_memory_is_freed_with_the_last_loader(tmp_path: Path) -> None:
    path = write_numbered(tmp_path / "records", shape=LARGE)
    image = 3 * 64 * 88 * 3  # bytes of a clip

    def traced() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        other = SeqRecordMapDataset(path, clip_len=2)
        before = traced()
        pipe: Any = SeqRecordPipe(path, **CLIPS)
        batches = pipe.shuffle(buffer_size=9).batch(16).collate(seqrecord.collate)
        next(iter(batches))
        del pipe, batches
        assert traced() - before > 15 * image  # for the next batch
        del other
        assert traced() - before < 5 * image
    finally:
        tracemalloc.stop()


# ---- in a DataLoader, with and without workers


@pytest.mark.parametrize(("by_number", "workers"), [(False, 0), (False, 2), (True, 2)])
def test_a_loader(
    path: Path, by_number: bool, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    with no_leaks():
        data: Any = SeqRecordIterableDataset(path, **CLIPS, last_batch="keep")
        data = numbered(path, features=FEATURES) if by_number else data
        options: Any = {"collate_fn": seqrecord.collate, "shuffle": by_number or None}
        loader: Any = DataLoader(data, batch_size=4, num_workers=workers, **options)
        for epoch in range(2):
            if not by_number:
                data.set_epoch(epoch)
            found = [name for batch in loader for name in check_clip(batch, FEATURES, 3)]
            assert sorted(found) == possible_clips(FEATURES, 3)
        del loader, data
    assert caplog.messages == []
    node = Mapper(Batcher(SeqRecordNode(path, **CLIPS), 4, drop_last=False), seqrecord.collate)
    found = [name for batch in Loader(node) for name in check_clip(batch, FEATURES, 3)]
    assert sorted(found) == possible_clips(FEATURES, 3)


@pytest.mark.parametrize("shuffled", [False, True])
def test_workers_send_batches_without_a_copy(path: Path, shuffled: bool) -> None:
    from tests.loader.test_shared_memory import mapped

    chain: Any = SeqRecordPipe(path, **{**CLIPS, "features": ["image"], "last_batch": "keep"})
    if shuffled:
        chain = chain.shuffle(buffer_size=9)
    chain = chain.sharding_filter().batch(4).collate(seqrecord.collate)
    before = mapped().keys()
    loader = DataLoader(chain, batch_size=None, num_workers=2)
    kept = list(loader)
    found = [name for batch in kept for name in check_clip(batch, ["image"], 3)]
    assert sorted(found) == possible_clips(["image"], 3)
    assert mapped().keys() - before
    kept.clear()
    gc.collect()
    assert mapped().keys() <= before


# ---- map-style datasets


def numbered(path: Path, **more: Any) -> SeqRecordMapDataset:
    return SeqRecordMapDataset(path, clip_len=3, **more)


@pytest.mark.parametrize(
    "more",
    [{}, {"features": ["image", "id"]}, {"features": ["note"]}, {"dilation": 2, "stride": 2}],
    ids=["all", "fixed", "variable", "dilation"],
)
def test_clips_of_a_call_equal_clips_of_single_calls(path: Path, more: dict[str, Any]) -> None:
    dataset = numbered(path, **more)
    expected = digests(SeqRecordPipe(path, clip_len=3, shuffle=False, **more))
    assert [digest(dataset[number]) for number in range(len(dataset))] == expected
    assert digest(dataset[-1]) == expected[-1]
    rng = np.random.default_rng(0)
    every = list(range(len(dataset)))
    requests: list[Any] = [every, every[::-1], [5], [5, 5, 4, 5, 6], [-1, 0, np.int64(3)], []]
    requests += [rng.integers(0, len(dataset), 7) for _ in range(20)]
    for numbers in requests:
        found = dataset.__getitems__(numbers)
        assert digests(found) == [expected[number] for number in numbers]
    for number in (len(dataset), -len(dataset) - 1, 1 << 70):
        for get in (lambda one: dataset[one], lambda one: dataset.__getitems__([0, one])):
            with pytest.raises(IndexError):
                get(number)
            with pytest.raises(TypeError):
                get("0")


def test_a_frame_is_decoded_once_in_a_call(path: Path) -> None:
    frames: list[tuple[int, int]] = []

    def transform(frame: dict[str, Any]) -> dict[str, Any]:
        frames.append(tuple(frame["id"].tolist()))
        return {"id": frame["id"], "other": frame["id"]}

    dataset = numbered(path, features=["id"], frame_transform=transform)
    frames.clear()  # the first is looked at when the dataset is made
    dataset.__getitems__([*range(12), 3])
    assert sorted(frames) == [(0, frame) for frame in range(14)]
    windows = {"id": [0, 1], "other": [1, 2]}
    dataset = SeqRecordMapDataset(path, features=["id"], frame_transform=transform, windows=windows)
    frames.clear()
    for clip in dataset.__getitems__([*range(12), 3]):
        for name, offsets in windows.items():
            assert clip[name][:, 1].tolist() == [clip["start"] + offset for offset in offsets]
    assert sorted(frames) == [(0, frame) for frame in range(14)]


def test_clips_of_a_call_are_joined_and_their_memory_is_used_again(path: Path) -> None:
    dataset = numbered(path, features=["image", "id"])
    addresses = []
    for _ in range(6):
        clips = dataset.__getitems__([7, 3, 12, 1])
        batch = seqrecord.collate(clips)
        assert address(batch) == address(clips[0])
        check_clip(batch, ["image", "id"], 3)
        addresses.append(address(batch))
        del clips, batch
    assert len(set(addresses)) == 1
    # Changed clips are collated with their changes.
    clips = dataset.__getitems__([7, 3, 12])
    clips[1]["label"] = clips[0]["label"] = clips[2]["label"] = 5
    clips[2]["id"] = clips[2]["id"] + 1
    batch = seqrecord.collate(clips)
    assert batch["label"].tolist() == [5, 5, 5]
    assert batch["id"].tolist() == [clip["id"].tolist() for clip in clips]
    # Clips that are kept do not change.
    calls = [dataset.__getitems__([i, i + 1, i + 5]) for i in range(9)]
    kept = [clips[i % 3] for i, clips in enumerate(calls)] + [dataset[i] for i in range(9)]
    del calls
    dataset.__getitems__([30, 31, 32])
    for clip in kept:
        check_clip(clip, ["image", "id"], 3)


def test_an_error_in_a_call_names_episode_and_frame(path: Path) -> None:
    def transform(frame: dict[str, Any]) -> dict[str, Any]:
        if frame["id"].tolist() == [0, 6]:
            raise ZeroDivisionError("six")
        return {"id": frame["id"]}

    dataset = numbered(path, frame_transform=transform)
    with pytest.raises(ZeroDivisionError, match="six") as caught:
        dataset.__getitems__([0, 5, 9])
    notes = getattr(caught.value, "__notes__", caught.value.args)
    assert "set/0" in notes[0]
    assert "frame 6" in notes[0]
    found = dataset.__getitems__([0, 9])  # later calls work
    assert [clip["start"] for clip in found] == [0, 9]
