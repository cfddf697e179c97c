"""What users get wrong first: the error names the file, what was expected, and what came."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import seqrecord
from seqrecord import (
    ClipError,
    FormatError,
    NotFoundError,
    SeqRecordNode,
    SeqRecordPipe,
    SeqRecordStream,
    StateError,
)
from seqrecord.errors import (
    EpisodeKeyError,
    FrameError,
    LocationError,
    SchemaError,
    StatisticsKeyError,
)


@pytest.mark.parametrize("kind", [SeqRecordPipe, SeqRecordStream, SeqRecordNode])
def test_a_stream_is_no_list(kind: Any, path: Path) -> None:
    with pytest.raises(TypeError, match=rf"{kind.__name__} streams clips.*SeqRecordDataset"):
        _ = kind(path, clip_len=3)[0]


@pytest.mark.parametrize("key", ["set/00", 0, None])
def test_a_key_that_is_not_there(key: Any, path: Path) -> None:
    episodes = seqrecord.open(path).episodes
    with pytest.raises(EpisodeKeyError) as caught:
        _ = episodes[key]
    error: EpisodeKeyError = pickle.loads(pickle.dumps(caught.value))
    assert issubclass(type(error), KeyError)
    assert error.file == str(path)
    assert error.expected == "a key of 4 episodes, as set/0, set/1, set/2"
    assert error.got == repr(key)
    assert str(error).startswith("no episode of this key; file: ")
    assert key not in episodes
    assert episodes.get(key) is None


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((), {"cliplen": 3}, r"no argument 'cliplen'; is it clip_len\?"),
        ((), {"delta_timestamps": {}}, r"no argument 'delta_timestamps'; is it windows\?"),
        ((), {"zzz": 1}, "no argument 'zzz'; there are batch_size, clip_len"),
        ((3,), {"clip_len": 3}, "only the dataset is given without a name; got 3 too"),
    ],
)
def test_arguments_that_are_not_there(
    arguments: tuple[Any, ...], options: dict[str, Any], message: str, path: Path
) -> None:
    kind: Any = SeqRecordPipe
    with pytest.raises(TypeError, match=message):
        kind(path, *arguments, **options)


def test_a_wrong_place(path: Path, tmp_path: Path) -> None:
    record = next((path / "records").glob("*.seqrec"))
    (tmp_path / "empty").mkdir()
    for place, why in [
        (record, "it is a file, and a dataset is a folder"),
        (path / "records", "the folder above it is one"),
        (tmp_path / "empty", "`seqrecord write` makes a dataset of originals"),
    ]:
        with pytest.raises(NotFoundError, match=why) as caught:
            seqrecord.open(place)
        assert caught.value.file == str(place)
    for location in (None, [path]):
        with pytest.raises(LocationError, match="expected: one path or URL; got: "):
            seqrecord.open(location)  # type: ignore[arg-type]


def test_names_that_are_not_there(path: Path) -> None:
    keys = "the keys of 4 episodes, as set/0, set/1, set/2"
    with pytest.raises(ClipError, match=f"expected: {keys}; got: set/00"):
        SeqRecordPipe(path, clip_len=3, episodes=["set/00"])
    with pytest.raises(ClipError, match=f"expected: some of {keys}; got: 'other/"):
        SeqRecordPipe(path, clip_len=3, episodes="other/*")
    with pytest.raises(SchemaError, match=f"no such feature; file: {path}; .* got: images"):
        SeqRecordPipe(path, clip_len=3, features=["images"])
    with pytest.raises(TypeError, match=r"by frames, then by feature.*got 'id'"):
        _ = seqrecord.open(path).episodes["set/0"]["id"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"episode": ["set/0"]}, "clips lacks a column: start; "),
        ({"episode": ["set/0"], "start": [0], "score": [1]}, "column that is not known: score; "),
        ({"episode": ["set/0"], "start": [0, 1]}, "clips is no table: .*length 1 but got length 2"),
    ],
)
def test_columns_of_clips(table: dict[str, Any], message: str, path: Path) -> None:
    with pytest.raises(ClipError, match=message):
        SeqRecordPipe(path, clip_len=3, clips=table)


def test_states_of_something_else(path: Path) -> None:
    pipe: Any = SeqRecordPipe(path, clip_len=3, batch_size=2)
    with pytest.raises(StateError, match=r"what state_dict\(\) of a loader has returned"):
        pipe.load_state_dict({"model": 1})
    states: list[dict[str, Any]] = [
        {"fetcher_state": {}, "dataset_state": None},
        {"_snapshot": {"_worker_snapshots": {"worker_0": {"dataset_state": None}}}},
    ]
    for state in states:
        with pytest.raises(StateError, match="StatefulDataLoader around a SeqRecordStream"):
            pipe.load_state_dict(state)


def test_frames_and_metadata_that_are_none(tmp_path: Path) -> None:
    with seqrecord.SeqRecordWriter(tmp_path / "records") as writer:
        with pytest.raises(FrameError, match=r"a frame is no dict; episode: a; .* got: ndarray"):
            writer.episode("a").append(np.zeros(3))  # type: ignore[arg-type]
        with pytest.raises(FormatError, match=r"JSON: .*float32.*; episode: b"):
            writer.episode("b", metadata={"x": np.float32(3)})
        with writer.episode("c") as episode:
            episode.append({"x": np.zeros(3)})
    assert list(seqrecord.open(tmp_path / "records").episodes) == ["c"]


def test_normalizing_what_was_permuted(tmp_path: Path) -> None:
    with seqrecord.SeqRecordWriter(tmp_path / "records") as writer, writer.episode("a") as episode:
        episode.append({"image": np.zeros((16, 24, 3), np.uint8)})
    statistics = seqrecord.open(tmp_path / "records").statistics
    image = torch.zeros(2, 16, 24, 3)
    assert statistics["image"].normalize(image).shape == image.shape
    for wrong in (image.permute(0, 3, 1, 2), image.permute(0, 3, 1, 2).numpy()):
        with pytest.raises(ValueError, match=r"\[\.\.\., 3\].*got \[2, 3, 16, 24\].*permute"):
            statistics["image"].normalize(wrong)


def test_statistics_that_are_not_there(tmp_path: Path) -> None:
    for name, kept in (("without", False), ("with", True)):
        with (
            seqrecord.SeqRecordWriter(tmp_path / name, statistics=kept) as writer,
            writer.episode("a") as episode,
        ):
            episode.append({"x": np.zeros(3), "note": "text"})
    without = tmp_path / "without"
    statistics = seqrecord.open(without).statistics
    assert not statistics
    assert "x" not in statistics
    assert statistics.get("x") is None
    with pytest.raises(StatisticsKeyError, match=f"`seqrecord stats {without}`") as caught:
        _ = statistics["x"]
    assert caught.value.file == str(without)
    with pytest.raises(StatisticsKeyError, match="of this feature; feature: note; expected: x"):
        _ = seqrecord.open(tmp_path / "with").statistics["note"]
    with pytest.raises(KeyError):
        _ = statistics["x"]
    seqrecord.add_statistics(without)
    assert seqrecord.open(without).statistics["x"].mean.tolist() == [0, 0, 0]
