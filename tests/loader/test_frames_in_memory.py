"""Small features stay in memory: epochs are unchanged, and each frame is read once.

Includes windows, shards and interrupted epochs.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import seqrecord
from seqrecord import (
    EngineOptions,
    SeqRecordIterableDataset,
    SeqRecordMapDataset,
    SeqRecordPipe,
)
from seqrecord.errors import ChecksumError, MemoryLimitError
from seqrecord.samples import every
from seqrecord.store.storage.local import LocalStorage
from tests.kit.clip_data import (
    LENGTHS,
    check_clip,
    digests,
    effective_arguments,
    possible_clips,
    resumed,
    write_numbered,
)
from tests.kit.datasets import damage, written_once
from tests.kit.faults import CountingStorage

FEATURES = ["image", "id"]
CLIPS: dict[str, Any] = {"clip_len": 3, "features": FEATURES, "batch_size": 4, "seed": 5}
FRAME = 6 * 8 * 3 + 16  # bytes


TWO_GROUPS = {"image": 0, "id": 0, "flow": 1, "note": 1}


path = written_once(write_numbered, codecs="raw", groups=TWO_GROUPS)


apart = written_once(
    write_numbered, codecs="raw", groups={"image": 0, "id": 1, "flow": 2, "note": 2}
)
"""Each feature in its own group."""


encoded = written_once(write_numbered, codecs="balanced", groups=TWO_GROUPS)


def least_limit(try_limit: Callable[[int], object]) -> int:
    """Approximately the lowest memory limit without a `MemoryLimitError`."""
    low, high = 0, 1 << 20
    while high - low > 256:
        limit = (low + high) // 2
        try:
            try_limit(limit)
            high = limit
        except MemoryLimitError:
            low = limit
    return high


def check_epoch(loader: Any, *, length: int = 3) -> None:
    """The epoch has every clip once, with the right frames."""
    clips = [clip for batch in loader for clip in check_clip(batch, FEATURES, length)]
    assert sorted(clips) == sorted(possible_clips(FEATURES, length))


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": False, "stride": 3},
        {"clip_len": 1, "samples": every(4, rotate=True)},
        {"order": "sequences", "batch_size": 3},
        {"rank": (1, 3), "num_cursors": 2},
        {"samples": {"episode": ["set/3", "set/0", "set/3"], "start": [30, 2, 9]}},
        {"clip_transform": lambda clip, _: {"last": clip["image"][-1]}},
    ],
    ids=lambda options: ",".join(options),
)
def test_resident_frames_do_not_change_epochs(apart: Path, options: dict[str, Any]) -> None:
    """Compared with a loader that resumes from there with the lowest memory limit."""
    if options.get("shuffle", True) and "order" not in options:
        options = {"num_cursors": 2, "shuffle_buffer": 6, **options}

    def make(limit: int | None = None) -> Any:
        return SeqRecordPipe(
            apart, **effective_arguments({**CLIPS, **options, "memory_limit": limit})
        )

    pipe = make()
    state = pipe.state_dict()
    found = [digests(pipe) for _ in range(2)]
    del pipe
    other = resumed(make(least_limit(lambda limit: resumed(make(limit), state))), state)
    assert [digests(other) for _ in range(2)] == found


@pytest.mark.parametrize(
    ("dataset", "device", "remote"),
    [
        ("path", None, False),
        ("apart", "cpu", True),
        ("encoded", None, True),
        pytest.param("encoded", "cpu", False, marks=pytest.mark.slow),
        pytest.param("apart", None, False, marks=pytest.mark.slow),
    ],
)
def test_chunk_of_many_cursors_is_read_once(
    dataset: str, device: str | None, remote: bool, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(dataset)
    storage: Any = CountingStorage(LocalStorage(path)) if remote else path
    options: dict[str, Any] = {**CLIPS, "engine": EngineOptions(num_cursors=30, shuffle_buffer=60)}
    pipe = SeqRecordPipe(storage, **effective_arguments(options), device=device)
    groups = seqrecord.open(path, features=FEATURES).contents.index.groups
    pages = sum(
        int(group.page_length[:, group.schema.position(name)].sum())
        for group in groups
        for name in FEATURES
        if name in group.schema
    )
    for most in (pages, 0, 0):
        check_epoch(pipe)
        stats = pipe.stats()
        assert stats["frames_decoded"] == (sum(LENGTHS) if most else 0)
        assert most <= stats["bytes_read"] <= 2 * most  # padding and checksums of pages
        assert device or stats["peak_buffer_bytes"] <= FRAME * sum(LENGTHS)


@pytest.mark.parametrize("rank", [None, (1, 2)], ids=str)
def test_a_permuted_epoch_reads_each_page_once(
    tmp_path: Path, rank: tuple[int, int] | None
) -> None:
    """Although each of its steps has clips of all chunks."""
    with seqrecord.SeqRecordWriter(tmp_path, codecs="raw") as writer:
        for number in range(4):
            with writer.episode(f"{number}") as episode:
                for i in range(300):
                    episode.append({"state": np.full(14, i, np.float32), "id": i})
    pipe = SeqRecordPipe(tmp_path, clip_len=4, batch_size=32, rank=rank)
    for _ in pipe:
        pass
    [group] = seqrecord.open(tmp_path).contents.index.groups
    stats = pipe.stats()
    assert stats["num_interleaved"] > 512, "not permuted, or a single step"
    assert stats["bytes_read"] == group.page_length.sum()
    assert stats["loads"] == len(group.page_length)


def test_chunks_unread_in_an_epoch_are_read_in_the_next(path: Path) -> None:
    pipe = SeqRecordPipe(path, **CLIPS, shuffle=False)
    assert len(list(islice(pipe, 1))) == 1
    for most in (sum(LENGTHS), 0):
        for batch in pipe:
            check_clip(batch, FEATURES, 3)
        assert pipe.stats()["frames_decoded"] <= most


@pytest.mark.parametrize(
    ("options", "shuffles"),
    [
        ({"engine": EngineOptions(num_cursors=5)}, (True, False)),
        ({"shuffle": False}, (False, True)),
    ],
    ids=str,
)
def test_chain_shuffled_by_torch_in_some_epochs(
    path: Path, options: dict[str, Any], shuffles: tuple[bool, ...]
) -> None:
    """Resident frames of one kind of epoch are valid in another kind."""
    pipe: Any = SeqRecordPipe(path, **effective_arguments({**CLIPS, "batch_size": None, **options}))
    chain = pipe.shuffle(buffer_size=10).batch(4).collate(seqrecord.collate)
    for _ in range(2):
        for shuffle in shuffles:
            check_epoch(DataLoader(chain, batch_size=None, shuffle=shuffle))
        check_epoch(DataLoader(pipe, batch_size=4, collate_fn=seqrecord.collate))
        check_epoch(chain)


def test_epoch_continues_after_another_process(path: Path) -> None:
    stream = SeqRecordIterableDataset(path, **CLIPS)
    whole = digests(stream)
    for count in (0, 1, len(whole) // 2):
        first = SeqRecordIterableDataset(path, **CLIPS)
        assert digests(islice(first, count)) == whole[:count]
        for other in (SeqRecordIterableDataset(path, **CLIPS), stream):
            assert digests(resumed(other, first.state_dict())) == whole[count:]
        assert stream.stats()["bytes_read"] == 0  # all frames are resident


def test_memory_is_freed_with_the_loader(path: Path) -> None:
    gc.collect()
    tracemalloc.start()
    try:
        pipe = SeqRecordPipe(path, **CLIPS)
        list(pipe)
        peak = tracemalloc.get_traced_memory()[0]
        assert peak > FRAME * sum(LENGTHS)
        del pipe
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < peak - FRAME * sum(LENGTHS) * 0.9
    finally:
        tracemalloc.stop()


def test_file_changed_after_reading(tmp_path: Path) -> None:
    """Checked frames stay; a new reader finds the damage."""
    path = write_numbered(tmp_path / "records", codecs="raw", groups=TWO_GROUPS)
    pipe = SeqRecordPipe(path, **CLIPS)
    damage(path, "image", 0, 0)
    for _ in range(2):  # a failed load marks nothing as read
        with pytest.raises(ChecksumError) as caught:
            list(pipe)
        assert (caught.value.episode or "").startswith("set/0 ")
    damage(path, "image", 0, 0)  # a second time, which restores the bytes
    check_epoch(pipe)
    for file in sorted((path / "records").iterdir()):
        data = file.read_bytes()
        file.write_bytes(bytes([*data[:256], *(255 - byte for byte in data[256:])]))
    check_epoch(pipe)
    with pytest.raises(ChecksumError):
        list(SeqRecordPipe(path, **CLIPS))


@pytest.mark.parametrize(
    ("clips", "frames_per_episode"),
    [
        ({"clip_len": 1, "stride": 7}, [-(-length // 7) for length in LENGTHS]),
        ({"windows": {"image": [0, 2], "id": [0]}, "stride": 40}, [2] * len(LENGTHS)),
        ({"samples": {"episode": ["set/3", "set/3"], "frames": [[1, 30], [30, 9]]}}, [0, 0, 0, 3]),
    ],
    ids=["stride", "windows", "lists"],
)
def test_map_style_has_rows_for_used_frames_alone(
    clips: dict[str, Any], frames_per_episode: list[int], path: Path
) -> None:
    """Of images, which come last: they are larger."""
    room = sum(frames_per_episode) * (FRAME + 2)
    features = {"features": FEATURES, **clips}
    kept = SeqRecordMapDataset(path, **features, memory_limit=room)
    uncached = SeqRecordMapDataset(path, **features, memory_limit=0)
    assert sorted(kept.stats()["features_resident"]) == sorted(FEATURES)
    numbers = range(len(kept))
    for _ in range(2):
        assert digests(kept.__getitems__(numbers)) == digests(uncached.__getitems__(numbers))
    short_of_a_byte = SeqRecordMapDataset(path, **features, memory_limit=room - 1)
    assert short_of_a_byte.stats()["features_resident"] == ["id"]


@pytest.mark.parametrize("style", ["map", "pipe"])
def test_a_frame_without_a_row_is_never_another_frame(
    style: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a function returned other samples than when rows were counted."""
    place = "map_clips" if style == "map" else "view_order"
    of_all = f"seqrecord.loader.pipes.{place}.frame_rows"
    frame_rows = resolve_name(of_all)

    def without_last(view: Any, frames: Any) -> Any:
        return frame_rows(view, [some._replace(stop=some.stop - 1) for some in frames])

    monkeypatch.setattr(of_all, without_last)

    def read() -> None:
        if style == "map":
            SeqRecordMapDataset(path, clip_len=3, features=FEATURES)[-1]
        else:
            list(SeqRecordPipe(path, **CLIPS))

    with pytest.raises(AssertionError, match="a clip has a frame without a row"):
        read()
