"""Loaders: checks of settings, filters, reports of skipped clips, and costs."""

from __future__ import annotations

import io
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tqdm import tqdm

import seqrecord
from seqrecord import ClipError, SeqRecordPipe, SeqRecordWriter
from seqrecord.errors import SchemaError
from seqrecord.samples import every, skip_last
from tests.kit.clip_data import LENGTHS, begun, check_clip, names, possible_clips, write_numbered
from tests.kit.faults import CountingStorage
from tests.kit.processes import be_worker


def test_invalid_settings_are_errors_at_once(path: Path) -> None:
    """In addition to `test_options`."""
    values = [np.array("text"), np.array([None]), np.datetime64("2024-01-01"), np.zeros(2, ">f4")]
    wrong: list[dict[str, Any]] = [
        {"clip_len": 41},
        {"episodes": "nothing/*"},
        {"episodes": ["set/0", "set/99"]},
        {"episodes": lambda one: one["number"] > 9},
        {"frame_transform": lambda frame: frame["image"]},
        {"frame_transform": lambda frame: {"episode": frame["id"]}},
        *({"frame_transform": lambda _, x=x: {"x": x}} for x in values),
    ]
    for settings in wrong:
        with pytest.raises(ClipError):
            SeqRecordPipe(path, **{"clip_len": 3, **settings})
    for features in ([], ["nothing"], ["image", "image"]):
        with pytest.raises(SchemaError):
            SeqRecordPipe(path, clip_len=3, features=features)
    for number in (-1, 4, np.int64(-2)):
        with pytest.raises(ClipError, match="unknown episode") as caught:
            SeqRecordPipe(path, clip_len=2, episodes=[0, number])
        assert caught.value.expected == "numbers of 0 to 3"
        assert str(int(number)) in str(caught.value.got)


def test_every_storable_dtype_becomes_a_tensor(tmp_path: Path) -> None:
    sized = [f"<{kind}" for kind in ("i2", "i4", "i8", "u2", "u4", "u8", "f2", "f4", "f8")]
    dtypes = ["?", "i1", "u1", *sized, "<c8", "<c16"]
    names = {dtype: f"x{dtype.strip('<?') or 'bool'}" for dtype in dtypes}
    path = tmp_path / "records"
    with SeqRecordWriter(path) as writer, writer.episode("e") as episode:
        for i in range(3):
            episode.append({names[dtype]: np.full(2, i, dtype) for dtype in dtypes})
    (batch,) = SeqRecordPipe(path, clip_len=2, batch_size=2, shuffle=False)
    for dtype in dtypes:
        array = batch[names[dtype]].numpy()
        expected = np.array([[[0, 0], [1, 1]], [[1, 1], [2, 2]]], dtype)
        assert array.dtype == expected.dtype
        assert array.tolist() == expected.tolist()


def test_episode_filters(path: Path) -> None:
    chosen: list[tuple[Any, set[int]]] = [
        ("set/[03]", {0, 3}),
        (["set/1"], {1}),
        (["set/3", "set/0"], {0, 3}),
        (lambda metadata: metadata["number"] % 2 == 1, {1, 3}),
        (None, {0, 1, 2, 3}),
        ([3, 0, 3], {0, 3}),
        (np.array([1], np.uint8), {1}),
        (range(1, 3), {1, 2}),
    ]
    for episodes, numbers in chosen:
        pipe = SeqRecordPipe(path, clip_len=2, features=["id"], episodes=episodes)
        assert {clip["episode"] for clip in pipe} == {f"set/{number}" for number in numbers}
    dataset = seqrecord.open(path, features=["id", "image"])  # its selection of features is used
    for features in (None, ["image"]):
        for clip in SeqRecordPipe(dataset, clip_len=2, features=features):
            check_clip(clip, features or ["id", "image"], 2)


def test_no_clip_starts_in_the_last_frames(path: Path) -> None:
    """All rotated phases together contain the remaining starts."""
    for drop in (1, 5):
        samples = [every(3, rotate=True), skip_last(drop)]
        pipe = SeqRecordPipe(path, clip_len=2, features=["id"], samples=samples)
        assert sorted(name for _ in range(3) for clip in pipe for name in names(clip)) == [
            (f"set/{number}", start)
            for number, length in enumerate(LENGTHS)
            for start in range(length - drop)
        ]


def test_skipped_clips_are_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_numbered(tmp_path / "records")  # not reported yet
    left_out = (
        "1 of 4 episodes, too short for a clip of 4 frames; "
        "7 of 63 clips, for frames that lack flow"
    )
    pipe = SeqRecordPipe(path, clip_len=4)
    assert caplog.messages == [f"{path}: 56 clips; left out: {left_out}"]
    seqrecord.SeqRecordIterableDataset(path, clip_len=4, batch_size=2)
    assert len(caplog.messages) == 1
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert len(pipe) == 56
    assert left_out in repr(pipe)
    assert left_out in repr(seqrecord.SeqRecordMapDataset(path, clip_len=4))
    assert pipe.stats()["episodes_too_short"] == pipe.clips.num_short_episodes == 1
    assert pipe.stats()["clips_incomplete"] == pipe.clips.num_incomplete == 7
    with pytest.raises(ClipError, match="4 of 4 episodes, too short for a clip of 41 frames"):
        SeqRecordPipe(path, clip_len=41)
    caplog.clear()
    SeqRecordPipe(path, clip_len=3, features=["id"])
    SeqRecordPipe(path, clip_len=4, episodes=["set/0"], features=["note"])
    assert caplog.messages == []
    SeqRecordPipe(path, clip_len=2, episodes=["set/0"], dilation=2)  # a different report
    assert caplog.messages == [
        f"{path}: 20 clips; left out: 1 of 21 clips, for frames that lack flow"
    ]


@pytest.mark.parametrize("who", ["rank", "worker"])
def test_skipped_clips_are_reported_by_the_first_only(
    tmp_path: Path, who: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_numbered(tmp_path / "records")  # not reported yet
    for number in (1, 0):
        if who == "rank":  # as torchrun and Lightning set it before a process group exists
            monkeypatch.setenv("LOCAL_RANK", str(number))
            monkeypatch.setenv("WORLD_SIZE", "2")
        else:
            be_worker(monkeypatch, number, 2)
        SeqRecordPipe(path, clip_len=4, rank=(0, 1))
        assert len(caplog.messages) == (number == 0)


def test_a_progress_bar_of_a_resumed_epoch(path: Path) -> None:
    pipe = SeqRecordPipe(path, clip_len=3, batch_size=4)
    begun(pipe, 5)
    state = pipe.state_dict()
    pipe.load_state_dict(state)
    bar = tqdm(pipe, initial=state["batch"], file=io.StringIO())
    assert (bar.n, bar.total) == (5, 15)
    assert len(list(bar)) == 10
    assert (bar.n, bar.total) == (15, 15)
    pipe = SeqRecordPipe(path, clip_len=3, batch_size=7, last_batch="drop")
    total = len(possible_clips(["flow"], 3))
    assert [len(names(batch)) for batch in pipe] == [7] * (total // 7)
    assert pipe.stats()["clips_dropped"] == total % 7 > 0
    assert pipe.stats()["clips"] == total - total % 7


def test_stats_agree_with_the_storage(path: Path) -> None:
    """Only bytes of the selected features are read."""
    contents, read = seqrecord.open(path).contents, []
    storage, index = CountingStorage(contents.storage), contents.index
    dataset = seqrecord.Dataset(replace(contents, storage=storage))
    chunks = index.groups[0]
    for features in (["image", "flow", "note", "id"], ["flow"]):
        pipe = SeqRecordPipe(dataset, clip_len=3, batch_size=4, features=features, shuffle=False)
        columns = [index.schema.position(name) for name in features]
        used = {
            int(chunks.first_chunk[int(key[4:])]) + (start + i) // 4
            for key, start in possible_clips(features, 3)
            for i in range(3)
        }
        # Each chunk of a clip, once.
        read.append(int(chunks.page_length[sorted(used)][:, columns].sum()))
        padding = 64 * len(columns) * len(chunks.page_length)
        for epoch in range(2):  # stats of the last iteration only
            storage.reset()
            list(pipe)
            stats = pipe.stats()
            assert 0 <= storage.bytes_read - stats["bytes_read"] <= padding
            if epoch:  # bytes are in memory
                assert stats["bytes_read"] == 0
                assert read[-1] <= stats["bytes_from_chunk_store"] <= read[-1] + padding
            else:
                assert read[-1] <= stats["bytes_read"] <= read[-1] + padding
            assert stats["clips"] == pipe.clips.num_clips
            assert stats["frames_decoded"] <= 23 + 9 + 40
            assert isinstance(stats["bottleneck"], str)
            assert all(stats[name] >= 0 for name in stats if name.endswith("seconds"))
    assert read[1] < read[0] / 2


def test_loaders_make_few_python_calls_per_frame(tmp_path: Path) -> None:
    """Python calls take the GIL from the training: 49.5 per frame of two features, with a standard
    deviation of 0.1 by the order of threads; 137 if frames are decoded one by one."""
    frame = {"image": np.ones((160, 160, 3), "u1"), "depth": np.ones((140, 140), "f4")}
    with SeqRecordWriter(tmp_path / "records", codecs="balanced", chunk_frames=16) as writer:
        for key in "ab":
            with writer.episode(key) as episode:
                for _ in range(48):
                    episode.append(frame)
    calls = Counter[str]()
    threading.setprofile(lambda _frame, event, _argument: calls.update([event]))
    try:  # counts in new threads
        pipe = SeqRecordPipe(tmp_path / "records", clip_len=16, stride=8, batch_size=2)
        assert len(list(pipe)) == 5
    finally:
        threading.setprofile(None)
    assert 0 < calls["call"] < 60 * pipe.stats()["frames_decoded"]
