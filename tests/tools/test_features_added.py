"""Features added to a dataset, replaced, renamed and dropped; readers before and after."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import Episode, NotFoundError, SeqRecordError, SeqRecordWriter, edit
from seqrecord.errors import ClipError, ConflictError, FrameError, SchemaError, SourceError
from seqrecord.store.reading.index_building import build_index
from seqrecord.store.storage.local import LocalStorage
from tests.kit.command_line import run
from tests.kit.datasets import (
    Frame,
    check_rebuilt,
    columns,
    record_files,
    write_dataset,
    write_episodes,
)
from tests.kit.faults import FaultyStorage

Model = dict[str, list[dict[str, list[float]]]]
"""Frames of each episode: feature name to the first numbers of its array."""

WIDTHS = {"x": 1100, "y": 4, "s": 1}  # `x` is a group of its own
LENGTHS = {"e0": 3, "e1": 5, "e2": 1}


def write(path: Path, lengths: dict[str, int], names: list[str], **settings: Any) -> Model:
    """Write about two episodes a record file; returns their frames."""
    made = {
        key: [{name: [hash_of(key, name, i)] for name in names} for i in range(length)]
        for key, length in lengths.items()
    }
    frames = {key: list(map(arrays_of, each)) for key, each in made.items()}
    metadata = {key: {"key": key} for key in lengths}
    settings = {"codecs": "raw", "max_file_size": 20_000, **settings}
    write_dataset(path, frames, metadata=metadata, **settings)
    return made


def arrays_of(numbers: Mapping[str, Any]) -> Frame:
    """A frame with these numbers, each an array of equal values."""
    return {name: np.full(WIDTHS.get(name, 4), value, "<f4") for name, value in numbers.items()}


def hash_of(key: str, name: str, frame: int) -> float:
    return float(sum(map(ord, key + name)) * 10 + frame)


def content(path: Path) -> Model:
    with seqrecord.open(path) as dataset:
        assert set(dataset.features) == set(dataset.select(None).features)
        return {
            key: [
                {name: np.unique(array).tolist() for name, array in episode[i].items()}
                for i in range(len(episode))
            ]
            for key, episode in dataset.episodes.items()
        }


def check(path: Path, expected: Model) -> None:
    """The dataset equals `expected`, also after its index and manifest are rebuilt."""
    check_rebuilt(path, content, expected)


def some(name: str, scale: float = 1.0) -> Callable[[Episode], list[Any]]:
    """Values of a feature, missing in every third frame."""

    def values(episode: Episode) -> list[Any]:
        return [
            None if i % 3 == 2 else np.full(4, scale * hash_of(episode.key, name, i), "<f4")
            for i in range(len(episode))
        ]

    return values


def with_feature(model: Model, name: str, scale: float = 1.0) -> Model:
    return {
        key: [
            frame if i % 3 == 2 else {**frame, name: [scale * hash_of(key, name, i)]}
            for i, frame in enumerate(frames)
        ]
        for key, frames in model.items()
    }


def without(model: Model, name: str) -> Model:
    return {
        key: [{n: v for n, v in frame.items() if n != name} for frame in frames]
        for key, frames in model.items()
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Model]:
    path = tmp_path_factory.mktemp("made") / "records"
    return path, write(path, LENGTHS, ["x", "y", "s"])


@pytest.fixture
def dataset(made: tuple[Path, Model], tmp_path: Path) -> tuple[Path, Model]:
    return shutil.copytree(made[0], tmp_path / "records"), made[1]


def test_adding_a_feature_keeps_the_record_files(dataset: tuple[Path, Model]) -> None:
    path, model = dataset
    before = {file: file.read_bytes() for file in (path / "records").iterdir()}
    assert edit.add_feature(path, "z", some("z"), kind="depth", unit="m", dry_run=True).name == "z"
    assert content(path) == model
    with seqrecord.open(path) as old:
        spec = edit.add_feature(path, "z", some("z"), kind="depth", unit="m")
        assert (spec.dtype.str, spec.shape, spec.kind, spec.unit) == ("<f4", (4,), "depth", "m")
        assert {file: file.read_bytes() for file in before} == before
        with seqrecord.open(path) as new:
            assert new.features["z"].group == old.contents.index.schema.num_groups
            assert old.statistics
            assert new.statistics
            assert new.statistics["z"].count.tolist() == [7] * 4
            assert new.statistics["z"].max[0] == hash_of("e2", "z", 0)
            assert new.statistics["x"].count.tolist() == old.statistics["x"].count.tolist()
        assert old.episodes["e1"][3].keys() == {"x", "y", "s"}  # opened before
    check(path, with_feature(model, "z"))
    loader = seqrecord.SeqRecordIterableDataset(
        path, clip_len=2, features=["x", "z"], shuffle=False
    )
    clips = [(clip["episode"], clip["start"], clip["z"][:, 0].tolist()) for clip in loader]
    assert clips == [
        (key, start, [hash_of(key, "z", start + i) for i in range(2)])
        for key, start in (("e0", 0), ("e1", 0), ("e1", 3))
    ]


def test_dropped_features_and_their_files_are_removed(dataset: tuple[Path, Model]) -> None:
    path, model = dataset
    edit.add_feature(path, "z", some("z"))
    files = {*record_files(path)}
    assert edit.drop_features(path, "y", dry_run=True) == ["y"]
    assert edit.drop_features(path, ["y", "z"]) == ["y", "z"]
    unused = files - {*record_files(path)}
    assert len(unused) == 1  # the file of `z`
    with seqrecord.open(path) as reader:
        assert list(reader.features) == ["x", "s"]
        assert list(reader.statistics) == ["x", "s"]
        with pytest.raises(SchemaError, match=r"no such feature.*some of x, s"):
            reader.select(["~1"])
    assert unused <= {path / file for file in edit.clean(path, older_than=0)}
    model = without(model, "y")
    check(path, model)
    # A new feature of the same name, and new episodes with it.
    edit.add_feature(path, "y", some("y", 2.0))
    model = with_feature(model, "y", 2.0)
    check(path, model)
    model |= write(path, {"new": 2}, ["x", "s", "y"], mode="append")
    check(path, model)
    with pytest.raises(SchemaError, match="no feature would be left"):
        edit.drop_features(path, ["x", "s", "y"])
    edit.drop_features(path, ["x", "s"])
    edit.clean(path, older_than=0)
    check(path, without(without(model, "x"), "s"))


def test_a_writer_opened_before_an_edit_conflicts_and_resumes(dataset: tuple[Path, Model]) -> None:
    path, model = dataset
    writer = SeqRecordWriter(path, codecs="raw", mode="append")
    late = [{name: [float(i)] for name in ("x", "y", "s")} for i in range(70)]
    write_episodes(writer, {"late": map(arrays_of, late)})
    edit.add_feature(path, "z", some("z"))
    edit.drop_features(path, "y")
    with pytest.raises(ConflictError):
        writer.close()
    assert content(path) == without(with_feature(model, "z"), "y")
    SeqRecordWriter(path, codecs="raw", mode="resume").close()
    model = {**with_feature(model, "z"), "late": late}
    model = without(model, "y")
    check(path, model)
    edit.add_feature(path, "w", some("w"))  # its record files list `z`, which the episode lacks
    model = with_feature(model, "w")
    check(path, model)
    edit.drop_features(path, ["x", "s"])
    edit.clean(path, older_than=0)
    check(path, without(without(model, "x"), "s"))


def test_files_of_a_killed_add_are_ignored(
    dataset: tuple[Path, Model], caplog: pytest.LogCaptureFixture
) -> None:
    path, model = dataset
    manifest = path / "manifest.json"
    before = manifest.read_bytes()
    edit.add_feature(path, "z", some("z"))
    manifest.write_bytes(before)  # killed before the commit
    SeqRecordWriter(path, codecs="raw", mode="resume").close()
    assert "left by an interrupted `edit add`" in caplog.text
    seqrecord.reindex(path)
    assert content(path) == model


def test_values_of_another_dataset(dataset: tuple[Path, Model], tmp_path: Path) -> None:
    path, model = dataset
    other = tmp_path / "other"
    shutil.copytree(path, other)
    edit.add_feature(other, "z", some("z"), kind="depth", codec="fast")
    with seqrecord.open(other) as source:
        stored = source.features["z"]
    command = ["edit", "add", path, "w", "--from", other, "--feature", "z"]
    assert run(*command, "--dry-run").output == f"{path}: w: float32 [4] would be added\n"
    assert content(path) == model
    assert run(*command).output == f"{path}: w: float32 [4] added\n"
    with seqrecord.open(path) as reader:
        spec = reader.features["w"]
        assert (spec.codec, spec.kind) == (stored.codec, "depth")
    expected = {
        key: [
            {**plain, "w": frame["z"]} if "z" in frame else plain
            for plain, frame in zip(model[key], frames, strict=True)
        ]
        for key, frames in with_feature(model, "z").items()
    }
    check(path, expected)
    assert run("edit", "drop", path, "w", "s").output == f"{path}: w, s dropped\n"
    check(path, without(model, "s"))
    edit.delete_episodes(other, ["e1"])
    with seqrecord.open(other) as source, pytest.raises(NotFoundError, match=r"lacks.*e1"):
        edit.add_feature(path, "v", edit.values_of_dataset(source, "z"))
    write(tmp_path / "longer", {**LENGTHS, "e1": 6}, ["x"])
    with (
        seqrecord.open(tmp_path / "longer") as source,
        pytest.raises(ClipError, match=r"different number of frames.*e1.*expected: 5.*got: 6"),
    ):
        edit.add_feature(path, "v", edit.values_of_dataset(source, "x"), dry_run=True)


def test_values_of_files(dataset: tuple[Path, Model], tmp_path: Path) -> None:
    path, model = dataset
    arrays = {
        key: np.stack([np.full((2, 2), hash_of(key, "f", i)) for i in range(length)])
        for key, length in LENGTHS.items()
    }
    folder = tmp_path / "arrays"
    folder.mkdir()
    np.save(folder / "e0.npy", arrays["e0"])
    np.savez(folder / "e1.npz", only=arrays["e1"])
    with pytest.raises(NotFoundError, match=r"no array for an episode.*e2\.npy"):
        edit.add_feature(path, "f", edit.values_of_files(folder, "f"))
    np.savez(folder / "e2.npz", f=arrays["e2"], g=np.zeros(3))
    np.savez(tmp_path / "all.npz", e0=arrays["e0"], e1=arrays["e1"], e2=arrays["e2"])
    edit.add_feature(path, "f", edit.values_of_files(folder, "f"))
    command = ["edit", "add", path, "g", "--files", tmp_path / "all.npz", "--unit", "m"]
    assert run(*command).output == f"{path}: g: float64 [2, 2] added\n"
    expected = {
        key: [
            {**frame, "f": [hash_of(key, "f", i)], "g": [hash_of(key, "f", i)]}
            for i, frame in enumerate(frames)
        ]
        for key, frames in model.items()
    }
    check(path, expected)
    np.save(folder / "e2.npy", np.array([None]), allow_pickle=True)
    with pytest.raises(SourceError, match=r"pickled objects, which are never loaded.*e2"):
        edit.add_feature(path, "h", edit.values_of_files(folder, "h"))
    np.save(folder / "e2.npy", np.zeros(()))
    with pytest.raises(FrameError, match=r"number of values differs.*e2.*got: one value"):
        edit.add_feature(path, "h", edit.values_of_files(folder, "h"), dry_run=True)
    with pytest.raises(SourceError, match=r"expected: e0; got: f, g"):
        edit.add_feature(path, "h", edit.values_of_files(folder / "e2.npz", "h"))
    for words in (
        ["add", str(path), "h"],
        ["add", str(path), "h", "--files", "x", "--feature", "y"],
    ):
        run("edit", *words, code=2)


def test_failed_edits_change_nothing(dataset: tuple[Path, Model], tmp_path: Path) -> None:
    path, model = dataset
    before = sorted(file for file in path.rglob("*"))
    text = (path / "manifest.json").read_bytes()

    def numbers(more: int) -> Callable[[Episode], Iterator[float]]:
        return lambda episode: iter([0.5] * (len(episode) + more * (episode.key == "e1")))

    def shapes(episode: Episode) -> list[Any]:
        return [np.zeros(2 + (episode.key == "e1" and i == 2)) for i in range(len(episode))]

    wrong: list[tuple[str, Any, type[SeqRecordError], str]] = [
        ("x", some("x"), SchemaError, r"feature exists already.*feature: x"),
        ("~3", some("x"), SchemaError, "invalid feature name"),
        ("z", lambda episode: [None] * len(episode), SchemaError, "no frame has a value"),
        ("z", lambda _: np.zeros(2), FrameError, r"number of values.*e0.*expected: 3.*got: 2"),
        ("z", numbers(-1), FrameError, r"number of values differs.*e1.*expected: 5"),
        ("z", numbers(1), FrameError, r"number of values differs.*e1.*expected: 5"),
        ("z", shapes, FrameError, r"e1.*frame: 2"),
    ]
    for name, values, error, message in wrong:
        with pytest.raises(error, match=message):
            edit.add_feature(path, name, values)
    with pytest.raises(SchemaError, match=r"no such feature.*nothing"):
        edit.drop_features(path, ["x", "nothing"])
    with pytest.raises(NotFoundError, match="no dataset"):
        edit.drop_features(tmp_path / "nowhere", ["x"])
    assert (path / "manifest.json").read_bytes() == text
    assert sorted(file for file in path.rglob("*")) == before
    assert content(path) == model


def test_time_spans_follow_added_and_dropped_timestamps(tmp_path: Path) -> None:
    path = tmp_path / "records"
    described = {"t": {"kind": "timestamp"}, "u": {"kind": "timestamp"}}
    write_dataset(
        path, {"e": [{"t": float(i), "u": float(7 * i)} for i in range(5)]}, features=described
    )

    def least() -> list[float]:
        seqrecord.reindex(path)
        with seqrecord.open(path) as dataset:
            time_spans = dataset.contents.index.time_spans
            assert time_spans is not None
            assert (
                time_spans.min_growth[0, :, 1].tolist() == time_spans.max_growth[0, :, 1].tolist()
            )
            return [float(x) for x in time_spans.min_growth[0, :, 1]]  # between neighbouring frames

    assert least() == [2.0, 14.0]
    edit.drop_features(path, "t")
    assert least() == [14.0]
    edit.add_feature(path, "t", lambda e: np.arange(len(e)) * 3.0, kind="timestamp")
    assert least() == [14.0, 6.0]
    edit.drop_features(path, "u")
    edit.add_feature(path, "v", lambda e: np.arange(len(e)) * 4.0, kind="timestamp")
    assert least() == [6.0, 8.0]
    edit.drop_features(path, ["t"])
    assert least() == [8.0]
    assert not seqrecord.verify(path).problems


def test_time_spans_outlive_a_dropped_feature(tmp_path: Path) -> None:
    """The last record file has only its last chunk, and the episode's time spans."""
    path = tmp_path / "records"
    described: dict[str, Any] = {"x": {"group": 0}, "y": {"group": 1}}
    described["t"] = {"group": 0, "kind": "timestamp"}
    frames = {
        key: columns(x=np.zeros((n, 1100), "<f4"), t=np.arange(n) * 1.0, y=np.arange(n))
        for key, n in {"e0": 3, "e1": 5}.items()
    }
    write_dataset(path, frames, features=described, codecs="raw", max_file_size=20_000)
    assert len(record_files(path)) == 2
    edit.add_feature(path, "label", lambda episode: np.arange(len(episode)))
    edit.drop_features(path, "y")
    for _ in range(2):
        with seqrecord.open(path) as dataset:
            time_spans = dataset.contents.index.time_spans
            assert time_spans is not None
            assert time_spans.min_growth[:, 0, 1].tolist() == [2.0, 2.0]
        assert not seqrecord.verify(path).problems
        edit.clean(path, older_than=-1)
        seqrecord.reindex(path)


def test_a_commit_builds_its_index_once(tmp_path: Path) -> None:
    """Although record files with dropped features only name its episodes."""
    path, num_builds = tmp_path / "records", 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal num_builds
        num_builds += event == "call" and frame.f_code is build_index.__code__

    write_dataset(path, {key: columns(x=range(5)) for key in "ab"}, fps=10)
    edit.add_feature(path, "y", lambda episode: np.arange(len(episode)))
    sys.setprofile(count)
    try:
        edit.drop_features(path, "y")
        seqrecord.reindex(path)
    finally:
        sys.setprofile(None)
    assert num_builds == 2
    assert [*seqrecord.open(path).features] == ["x"]
    assert not seqrecord.verify(path).problems


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_values_of_a_renamed_and_trimmed_episode(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, codec: str
) -> None:
    """Errors, notes and statistics have its key and frames, not those of its record file."""
    path = tmp_path / "records"
    write_dataset(path, {key: columns(x=np.arange(12.0)) for key in "ab"}, fps=10)
    edit.rename_episodes(path, {"a": "b", "b": "a"})
    edit.trim_episodes(path, "a", slice(4, None))
    seqrecord.add_statistics(path)
    codecs: Any = {"state": [] if codec == "raw" else [{"id": codec, "level": 1}]}

    def wrong(episode: Episode) -> list[Any]:
        return [np.zeros(3 + (episode.key == "a" and i == 1)) for i in range(len(episode))]

    def state(episode: Episode) -> list[Any]:
        return [np.full(3, np.nan if episode.key == "a" and i == 2 else 1.0) for i in range(8)]

    def time(episode: Episode) -> Any:
        numbers = np.arange(len(episode))
        return numbers / 10 + (numbers >= 5) * (episode.key == "a")

    with pytest.raises(FrameError) as caught:
        edit.add_feature(path, "state", wrong, codec=codecs)
    assert (caught.value.episode, caught.value.frame) == ("a", 1)
    edit.trim_episodes(path, "b", slice(8))
    seqrecord.add_statistics(path)
    edit.add_feature(path, "state", state, codec=codecs, kind="state")
    with seqrecord.open(path) as dataset:
        for statistics in (dataset.statistics, dataset.compute_statistics()):
            [place] = statistics["state"].non_finite
            assert (place.episode, place.frame, place.count) == ("a", 2, 3)
    caplog.clear()
    edit.add_feature(path, "time", time, kind="timestamp", unit="s")
    assert "episode a, frame 5: 1.5 s after the first" in caplog.text


def test_overwrite_replaces_a_feature(dataset: tuple[Path, Model]) -> None:
    path, model = dataset
    with pytest.raises(SchemaError, match="feature exists already"):
        edit.add_feature(path, "y", some("y"))
    edit.add_feature(path, "y", some("y", 3.0), overwrite=True)
    changed = with_feature(without(model, "y"), "y", 3.0)
    with seqrecord.open(path) as found:
        assert list(found.features) == ["x", "s", "y"]
        assert set(found.statistics) == {"x", "s", "y"}
        assert found.statistics["y"].num_frames == sum(n - n // 3 for n in LENGTHS.values())
    check(path, changed)

    def doubled(episode: Episode) -> Iterator[Any]:  # of the feature it replaces
        frames = (episode[i] for i in range(len(episode)))
        return (frame["y"] * 2 if "y" in frame else None for frame in frames)

    with pytest.raises(FrameError):
        edit.add_feature(path, "y", lambda _: [np.zeros(4)], overwrite=True)
    edit.add_feature(path, "y", doubled, overwrite=True)
    check(path, with_feature(changed, "y", 6.0))
    edit.add_feature(path, "new", some("new"), overwrite=True)  # nothing to replace


def test_statistics_of_a_replaced_feature_are_its_own(tmp_path: Path) -> None:
    """A number becomes a text, which has none."""
    path = tmp_path / "records"
    frames = [{"x": np.float32(i), "label": np.int64(i)} for i in range(4)]
    with SeqRecordWriter(path) as writer, writer.episode("a") as episode:
        for frame in frames:
            episode.append(frame)
    seqrecord.add_statistics(path)
    edit.add_feature(path, "label", lambda one: ["low"] * len(one), overwrite=True)
    with seqrecord.open(path) as dataset:
        assert {*dataset.statistics} == {"x"}
        assert dataset.episodes["a"][2]["label"] == "low"
    edit.rename_features(path, {"label": "text"})
    edit.drop_features(path, "text")


def test_a_feature_that_only_last_frames_have(tmp_path: Path) -> None:
    path = tmp_path / "records"
    write_dataset(path, {key: columns(x=range(40)) for key in "ab"})

    def success(episode: Episode) -> Iterator[Any]:
        return (np.float32(1) if i == len(episode) - 1 else None for i in range(len(episode)))

    assert edit.add_feature(path, "reward", success, kind="reward").dtype == np.float32
    with seqrecord.open(path) as dataset:
        for episode in dataset.episodes.values():
            assert episode.present("reward").nonzero()[0].tolist() == [39]


def test_a_dataset_without_room_for_a_feature(tmp_path: Path) -> None:
    """Dropped features count, until the command of the error has packed the dataset again."""
    path, new_path = tmp_path / "records", tmp_path / "new"
    frame = {**{f"f{number}": np.float32(1) for number in range(255)}, "task": "old"}
    features = {name: {"group": number} for number, name in enumerate(frame)}
    write_dataset(path, {"e": [frame]}, features=features)
    edit.drop_features(path, "f0")
    with pytest.raises(SchemaError, match=r"no room for another feature.*\(1\).*got: 256") as found:
        edit.set_text(path, None, "task", "new")
    command = found.value.message.rpartition("`seqrecord ")[2].partition("`")[0]
    run(*command.replace("DST", str(new_path)).split(), "--workers", 1)
    assert edit.set_text(new_path, None, "task", "new") == ["e"]


def test_set_text_ignores_episodes_that_are_removed_meanwhile(tmp_path: Path) -> None:
    """Between its two commits."""
    path = tmp_path / "records"
    old = {"task": "old"}
    write_dataset(path, {"a": [old], "b": [old]}, metadata={"a": old, "b": old})

    def delete(*_: object) -> None:
        if (path / "manifest.json").read_bytes() != before and len(metadata_of(path)) == 2:
            edit.delete_episodes(path, "a")

    before = (path / "manifest.json").read_bytes()
    storage: Any = FaultyStorage(LocalStorage(path), delete)
    assert edit.set_text(storage, None, "task", "new") == ["a", "b"]
    assert metadata_of(path) == {"b": {"task": "new"}}


def metadata_of(path: Path) -> dict[str, Any]:
    with seqrecord.open(path) as dataset:
        return {key: episode.metadata for key, episode in dataset.episodes.items()}


def test_set_text_relabels_frames(tmp_path: Path) -> None:
    path = tmp_path / "records"
    tasks = dict.fromkeys("ab", ["older", "old"] * 2) | {"c": ["older", "old", "older", None]}
    episodes = {key: columns(x=map(np.float32, range(4)), task=each) for key, each in tasks.items()}
    several = {"tasks": ["old"], "place": 1}
    write_dataset(path, episodes, metadata={"a": several, "b": {"task": "old"}, "c": several})

    def texts() -> dict[str, list[Any]]:
        with seqrecord.open(path) as found:
            assert list(found.statistics) == ["x"]
            return {k: [e[i].get("task") for i in range(4)] for k, e in found.episodes.items()}

    before = texts()
    assert edit.set_text(path, ["a", "c"], "task", "neu ä", dry_run=True) == ["a", "c"]
    assert texts() == before
    assert edit.set_text(path, "[ab]", "task", "old") == ["a", "b"]
    command = ["edit", "set-metadata", str(path), "c", "a", "--text", "task=neu = ä"]
    assert "2 episodes changed" in run(*command).stdout
    assert texts() == {"a": ["neu = ä"] * 4, "b": ["old"] * 4, "c": ["neu = ä"] * 4}
    assert metadata_of(path) == {
        "a": {"tasks": ["neu = ä"], "place": 1},
        "b": {"task": "old"},
        "c": {"tasks": ["neu = ä"], "place": 1},
    }
    assert edit.set_text(path, "b", "task", "later") == ["b"]
    assert metadata_of(path)["b"] == {"task": "later"}
    edit.add_feature(path, "task", lambda e: ["old"] * len(e), overwrite=True)  # contradicts
    assert edit.set_text(path, None, "task", "old", dry_run=True) == ["a", "b", "c"]
    assert edit.set_text(path, None, "task", "old") == ["a", "b", "c"]
    assert [*metadata_of(path).values()][:2] == [{"tasks": ["old"], "place": 1}, {"task": "old"}]
    edit.set_text(path, ["a", "c"], "task", "neu")
    assert edit.set_text(path, "*", "task", "old") == ["a", "c"]
    assert edit.set_text(path, "*", "task", "old") == []
    for batch in seqrecord.SeqRecordPipe(path, clip_len=4, batch_size=3, shuffle=False):
        assert batch["task"] == [["old"] * 4] * 3
    manifest = (path / "manifest.json").read_bytes()
    for name in ("x", "nothing"):
        with pytest.raises(SchemaError):
            edit.set_text(path, ["a"], name, "text")
    with pytest.raises(SchemaError) as caught:
        edit.set_metadata(path, ["a"], {"task": "new"})
    assert caught.value.feature == "task"
    for words in (["--text", "task"], ["--text", "task=a", "--set", "x=2"]):
        run(*command[:4], *words, code=2)
    assert (path / "manifest.json").read_bytes() == manifest
    assert not seqrecord.verify(path, deep=True).problems


def test_renamed_features(tmp_path: Path) -> None:
    """Readers, rebuilt indexes and later writers use the new names; two names may be swapped."""
    path, features = tmp_path / "records", {"t": {"kind": "timestamp", "unit": "s"}}
    names: dict[str, Any] = {"names": {"x": list("abcd")}, "columns": {"y": ["e"]}}
    cameras: dict[str, Any] = {"a": {"x": {"fx": 1}, "other": {"fx": 2}}, "b": {"fx": 3}}
    times = [np.float64(i + i / 8) for i in range(4)]
    values = {key: [np.full(4, hash_of(key, "x", i), "<f4") for i in range(4)] for key in "ab"}
    write_dataset(
        path,
        {key: columns(x=each, y=np.negative(each), t=times) for key, each in values.items()},
        metadata={key: {"camera": camera, **names} for key, camera in cameras.items()},
        features=features,
        codecs="raw",
    )
    seqrecord.add_statistics(path)
    expected, means = content(path), {}
    with seqrecord.open(path) as dataset:
        means = {name: one.mean.tolist() for name, one in dataset.statistics.items()}
    for names in ({"x": "image"}, {"image": "y", "y": "image"}, {"t": "time", "image": "x"}):
        assert edit.rename_features(path, names, dry_run=True)
        assert content(path) == expected
        options = [f"--feature={old}={new}" for old, new in names.items()]
        assert "renamed" in run("edit", "rename", path, *options).output
        expected = {
            key: [{names.get(n, n): v for n, v in frame.items()} for frame in frames]
            for key, frames in expected.items()
        }
        means = {names.get(name, name): mean for name, mean in means.items()}
        with seqrecord.open(path) as dataset:
            assert {n: one.mean.tolist() for n, one in dataset.statistics.items()} == means
        check(path, expected)
        seqrecord.add_statistics(path)
    with seqrecord.open(path) as dataset:
        assert dataset.episodes["a"].metadata["camera"] == {"y": {"fx": 1}, "other": {"fx": 2}}
        assert dataset.episodes["b"].metadata == {
            "camera": {"fx": 3},
            "names": {"y": list("abcd")},
            "columns": {"x": ["e"]},
        }
        window = seqrecord.Seconds([-1.125, 0.0], timestamps="time")
        clips = seqrecord.SeqRecordPipe(dataset, windows={"x": window}, shuffle=False)
        assert len([*clips]) == 6
    frame = {"y": np.ones(4, "<f4"), "x": np.zeros(4, "<f4"), "time": np.float64(0)}
    write_dataset(path, {"c": [frame]}, mode="append")
    check(path, {**expected, "c": [{"x": [0.0], "y": [1.0], "time": [0.0]}]})
    reserved = {"y": "~0"}, {"x": "~1"}  # the names that they would have if they were dropped
    for wrong in ({"gone": "z"}, {"x": "y"}, {"x": "z", "y": "z"}, {"x": "../x"}, *reserved):
        with pytest.raises(SchemaError):
            edit.rename_features(path, wrong)
    assert "only --feature" in run("edit", "rename", path, "a", "--feature=x=z", code=2).output
    assert "reserved" in run("edit", "rename", path, "--feature=y=~0", code=1).output
    assert list(seqrecord.open(path).features) == ["y", "x", "time"]
