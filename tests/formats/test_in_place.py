"""Originals read in place: random, changed and malicious ones."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
import weakref
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import seqrecord
from seqrecord import SeqRecordMapDataset, SeqRecordPipe, errors, open_source
from seqrecord.errors import SourceError
from tests.formats.cases import upload
from tests.formats.in_place_cases import KINDS, assert_same, check, frames_of
from tests.kit.command_line import run
from tests.kit.lerobot_data import LISTED, ROWS, at, column, edit_info, rewrite
from tests.kit.lerobot_video_data import CAMERAS, unpack
from tests.kit.processes import without_collector
from tests.kit.video_file_data import HAS_TABLES, pictures, write_video

pytestmark = pytest.mark.usefixtures("home")


def test_a_feature_is_dropped_whose_pages_refer(tmp_path: Path) -> None:
    source = open_source(write_video(tmp_path / "a.mp4", pictures(40)))
    seqrecord.convert(source, tmp_path / "index", workers=1, in_place=True)
    seqrecord.edit.drop_features(tmp_path / "index", ["image"])
    seqrecord.edit.rewrite_files(tmp_path / "index", min_unused=0.01)
    with seqrecord.open(tmp_path / "index") as dataset:
        assert len(dataset.episodes["a"][:]["timestamp"]) == 40
    assert seqrecord.summarize(tmp_path / "index").external_bytes == 0


_CAMERA, _WRIST = CAMERAS
_FROM = f"videos/{_CAMERA}/from_timestamp"


def test_a_dataset_in_place_is_freed_with_its_last_reference(tmp_path: Path) -> None:
    """Its open videos, too."""
    with without_collector():
        dataset = seqrecord.open(unpack(tmp_path, "lerobot_video_v3"))
        assert len(next(iter(dataset.episodes.values()))[:][_CAMERA])
        chunks = weakref.ref(dataset.contents.chunks)
        assert chunks() is not None
        del dataset
        assert chunks() is None


def _features(root: Path, without: str = "") -> dict[str, Any]:
    features = json.loads((root / "meta/info.json").read_text())["features"]
    return {name: feature for name, feature in features.items() if name != without}


def _change_rows(root: Path) -> None:
    rewrite(root / ROWS, column("observation.state", at(0, [7.0, 7.0])))
    edit_info(root, note=7)


_TWO = {"total_episodes": 2, "total_frames": 9, "splits": {"train": "0:2"}}


def _drop_episode(root: Path) -> None:
    """Without the last episode, of 7 rows."""
    for name, count in ((LISTED, 1), (ROWS, 7)):
        table = pq.read_table(root / name)
        pq.write_table(table.slice(0, len(table) - count), root / name)
    edit_info(root, **_TWO)


def _unlist_episode(root: Path) -> dict[Path, bytes]:
    """Of a dataset of v2.1, whose files do not change; those in `meta` as they were."""
    paths = [root / f"meta/{name}" for name in ("episodes.jsonl", "info.json")]
    before = {path: path.read_bytes() for path in paths}
    paths[0].write_bytes(b"\n".join(before[paths[0]].splitlines()[:-1]))
    edit_info(root, **_TWO)
    return before


_CHANGES: dict[str, Callable[[Path], object]] = {
    "rows": _change_rows,
    "a text": lambda root: rewrite(
        root / "meta/tasks.parquet", column("__index_level_0__", lambda _: ["other"])
    ),
    "an episode": _drop_episode,
    "metadata": lambda root: rewrite(root / LISTED, column("tasks", lambda _: [["new"]] * 3)),
    "frames": lambda root: rewrite(root / LISTED, column(_FROM, lambda _: [0.4, 0.0, 0.9])),
    "the rate": lambda root: edit_info(root, fps=20),
    "a feature": lambda root: edit_info(root, features=_features(root, _WRIST)),
}


@pytest.mark.parametrize("change", _CHANGES)
@pytest.mark.parametrize("place", ["folder", pytest.param("url", marks=pytest.mark.slow)])
def test_an_index_is_rebuilt_when_a_copied_file_changes(
    change: str, place: str, tmp_path: Path, memory_url: str
) -> None:
    """The video files are unchanged. Frames, metadata and rates equal a conversion's."""
    root = unpack(tmp_path, "lerobot_video_v3")
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    original = upload(root, memory_url) if place == "url" else root
    seqrecord.open(original).close()
    _CHANGES[change](root)
    if place == "url":
        for path, data in before.items():
            if path.read_bytes() == data:
                path.unlink()
        upload(root, memory_url)
    seqrecord.convert(open_source(original), tmp_path / "packed", workers=1)
    with seqrecord.open(original) as one, seqrecord.open(tmp_path / "packed") as other:
        assert_same(frames_of(one), frames_of(other))
        for key in other.episodes:
            assert one.episodes[key].metadata == other.episodes[key].metadata
            assert one.episodes[key].fps == other.episodes[key].fps


def _loader(root: Path, **options: Any) -> seqrecord.SeqRecordPipe:
    return seqrecord.SeqRecordPipe(root, clip_len=2, batch_size=3, seed=5, **options)


def test_a_state_of_another_index_of_the_same_original(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resume with another user's index, with moved files, and with an index that has grown."""
    root = unpack(tmp_path, "lerobot_video_v21")
    every = _unlist_episode(root)
    with seqrecord.open(root) as one:
        for path, data in every.items():  # which grows
            path.write_bytes(data)
        with seqrecord.open(root) as other:
            assert (one.url, len(one.episodes), len(other.episodes)) == (other.url, 2, 3)
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)  # with times
    monkeypatch.setenv("SEQRECORD_HOME", str(tmp_path / "other"))
    found = _loader(copy)
    batches = iter(found)
    next(batches)
    state, rest = found.state_dict(), list(batches)
    for home, place in (("other", copy), ("home", root)):
        monkeypatch.setenv("SEQRECORD_HOME", str(tmp_path / home))
        loader = _loader(place)
        loader.load_state_dict(state)
        after = list(loader)
        assert rest
        assert [b["episode"] for b in after] == [b["episode"] for b in rest]
        assert all(torch.equal(a[_CAMERA], b[_CAMERA]) for a, b in zip(after, rest, strict=True))


def _later(root: Path, *, seconds: int = 0, data: bytes = b"") -> None:
    [video] = root.glob(f"videos/{_CAMERA}/*/*.mp4")
    changed = video.stat().st_mtime_ns + seconds * 10**9
    with video.open("ab") as file:
        file.write(data)
    os.utime(video, ns=(changed, changed))


@pytest.mark.parametrize("change", ["time", "size", "rows", "frames"])
def test_a_state_of_an_original_that_has_changed(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = unpack(tmp_path, "lerobot_video_v3")
    state = _loader(root).state_dict()
    if change in _CHANGES:
        _CHANGES[change](root)
    else:
        _later(root, **({"seconds": 1} if change == "time" else {"data": b"\0\0\0\x08free"}))
    monkeypatch.setenv("SEQRECORD_HOME", str(tmp_path / "other"))  # or the change is met on reading
    with pytest.raises(errors.StateError, match="another dataset, or this one has changed"):
        _loader(root).load_state_dict(state)


def test_the_error_of_a_bad_episode_names_the_remedy(tmp_path: Path) -> None:
    root = unpack(tmp_path, "lerobot_video_v3")
    rewrite(root / LISTED, column("length", at(1, 77)))
    edit_info(root, total_frames=89)
    with pytest.raises(SourceError, match="number of rows differs") as info:
        seqrecord.open(root)
    for remedy in ("episodes=", "skip_bad_episodes=True", "-o DST --skip-bad-episodes"):
        assert remedy in info.value.message
    with pytest.raises(SourceError, match="number of rows differs") as info:
        seqrecord.convert(open_source(root), tmp_path / "all", in_place=True, workers=1)
    assert "-o DST --skip-bad-episodes" in info.value.message
    done = seqrecord.convert(
        open_source(root), tmp_path / "index", in_place=True, skip_bad_episodes=True, workers=1
    )
    assert (len(done.written), [bad.key for bad in done.bad]) == (2, ["episode_000001"])


def test_columns_that_cannot_be_read_are_left_out_and_listed(tmp_path: Path) -> None:
    root = unpack(tmp_path, "lerobot_video_v3")
    table = pq.read_table(root / ROWS)
    words = pa.array([[{"role": "user", "content": "go"}]] * len(table))
    wide = pa.array([[0.0] * 40_000] * len(table), pa.list_(pa.float32()))
    pq.write_table(table.append_column("words", words).append_column("wide", wide), root / ROWS)
    for name, dtype, shape in (("words", "language", [1]), ("wide", "float32", [40_000])):
        feature = {"dtype": dtype, "shape": shape, "names": None}
        edit_info(root, features={**_features(root), name: feature})
    every = seqrecord.open(root)
    left_out = {row.pattern: row.reason for row in every.inventories[0].left_out_data}
    for name, reason in (("words", "unsupported feature"), ("wide", "more than 64 KiB a frame")):
        assert name not in every.features
        assert reason in left_out[f"feature {name}"]
        with pytest.raises(SourceError, match=reason if name == "words" else "large features"):
            seqrecord.open(root, features=[name])
    with seqrecord.open(root, features=["observation.state"]) as dataset:
        assert (len(dataset.episodes), [*dataset.features]) == (3, ["observation.state"])
    source = open_source(root, features=["words"])
    with pytest.raises(SourceError, match="unsupported feature"):
        source.schema()
    run("write", "--src", root, "--dst", tmp_path / "packed", "--quiet")
    assert "wide" in seqrecord.open(tmp_path / "packed").features


@pytest.mark.parametrize("data", [b"", b"no video"])
def test_a_video_that_is_empty_or_no_video_is_a_bad_episode(tmp_path: Path, data: bytes) -> None:
    root = unpack(tmp_path, "lerobot_video_v21")
    (root / f"videos/chunk-000/{_CAMERA}/episode_000001.mp4").write_bytes(data)
    with pytest.raises(SourceError, match="1 selected episode cannot be read: episode_000001"):
        seqrecord.open(root)
    found = seqrecord.open(root, skip_bad_episodes=True)
    assert (len(found.episodes), [*found.bad_episodes]) == (2, ["episode_000001"])
    for kind in (SeqRecordPipe, SeqRecordMapDataset):
        make = partial(kind, root, clip_len=1)
        with pytest.raises(SourceError, match="skip_bad_episodes=True of a loader"):
            make()
        loader: Any = make(skip_bad_episodes=True)
        assert [*loader.dataset.bad_episodes] == ["episode_000001"]
        clips = loader if kind is SeqRecordPipe else [loader[i] for i in range(len(loader))]
        assert {clip["episode"] for clip in clips} == {"episode_000000", "episode_000002"}


def test_a_selection_without_bad_episodes_is_read(tmp_path: Path) -> None:
    root = unpack(tmp_path, "lerobot_video_v21")
    video = root / f"videos/chunk-000/{_CAMERA}/episode_000001.mp4"
    away = video.rename(tmp_path / "away.mp4")
    bad, good = "episode_000001", ["episode_000000", "episode_000002"]
    refused = r"1 selected episode cannot be read: episode_000001; .*episodes= .*skip_bad_episodes"
    for selection in (None, [bad], "*1", [0, 1], lambda episode: episode.num_frames < 5):
        with pytest.raises(SourceError, match=refused) as info:
            _loader(root, episodes=selection)
        assert (info.value.file, info.value.episode) == (str(video), bad)
    with pytest.raises(SourceError, match=refused):
        seqrecord.open(root)
    for selection in (good, "*[02]", lambda episode: episode.key in good):
        assert {key for b in _loader(root, episodes=selection) for key in b["episode"]} == {*good}
    tables: list[Any] = [("start", [0, 1], 2), ("frames", [[0, 2], [1, 2]], None)]
    for name, rows, clip_len in tables:
        loader: Any = partial(seqrecord.SeqRecordPipe, root, batch_size=3, clip_len=clip_len)
        table = {"episode": [bad, good[1]], name: rows}
        with pytest.raises(SourceError, match=refused):
            loader(samples=table)
        some = {column: values[1:] for column, values in table.items()}
        for clips in (
            loader(samples=some),  # the selection includes the table
            loader(samples=table, episodes=good),
            seqrecord.SeqRecordPipe(
                seqrecord.open(root, skip_bad_episodes=True),
                samples=table,
                batch_size=3,
                clip_len=clip_len,
            ),
        ):
            assert [key for b in clips for key in b["episode"]] == good[1:]
    opened: Any = seqrecord.open(root, skip_bad_episodes=True)
    for name in ("episode", "episode_index"):
        table = {name: [0, 1, 2], "start": [1, 0, 2]}
        with pytest.raises(SourceError, match=refused):
            _loader(root, samples=table)
        pipe = seqrecord.SeqRecordPipe(opened, samples=table, clip_len=2, batch_size=1)
        found = [(batch["episode"][0], batch["start"].item()) for batch in pipe]
        assert sorted(found) == [(good[0], 1), (good[1], 2)]
    skipping = _loader(opened, episodes=[bad, *good])
    assert {key for b in pickle.loads(pickle.dumps(skipping)) for key in b["episode"]} == {*good}
    with seqrecord.open(root, skip_bad_episodes=True) as dataset:
        assert [*dataset.episodes] == good
        assert str(video) in dataset.bad_episodes[bad]
        assert len(_loader(dataset).dataset.episodes) == 2  # type: ignore[arg-type]
    for features in (["observation.state"], ["observation.images.wrist", "observation.state"]):
        with seqrecord.open(root, features=features) as dataset:
            assert len(dataset.episodes[bad][:]["observation.state"]) == 4
    assert [problem.episode for problem in seqrecord.verify(root).problems] == [bad]
    assert seqrecord.summarize(root).num_episodes == 2
    failed = run("index", root, "-o", tmp_path / "index", code=1)
    assert "-o DST --skip-bad-episodes" in failed.stderr
    assert bad in run("index", root, "-o", tmp_path / "i", "--skip-bad-episodes").stderr
    with seqrecord.open(tmp_path / "i") as dataset:
        assert ([*dataset.episodes], dataset.bad_episodes) == (good, {})
    away.rename(video)
    with seqrecord.open(root) as dataset:
        assert {*dataset.episodes} == {bad, *good}


def test_segments_of_bad_episodes(tmp_path: Path) -> None:
    root = unpack(tmp_path, "lerobot_video_v21")
    (root / f"videos/chunk-000/{_CAMERA}/episode_000001.mp4").unlink()
    keys = ["episode_000001", "episode_000002"]
    spans = {"episode": keys, "start": [0, 0], "stop": [3, 3], "label": [5, 6]}
    loader: Any = partial(_loader, root, samples=seqrecord.samples.segments(spans))
    with pytest.raises(SourceError, match="1 selected episode cannot be read: episode_000001"):
        loader()
    for more in ({"skip_bad_episodes": True}, {"episodes": keys[1:]}):
        clips = [
            (key, int(start), int(label))
            for batch in loader(**more)
            for key, start, label in zip(
                batch["episode"], batch["start"], batch["label"], strict=True
            )
        ]
        assert sorted(clips) == [(keys[1], 0, 6), (keys[1], 1, 6)]


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    """Videos a to e: b is no video, d has another size."""
    root = tmp_path / "videos"
    root.mkdir()
    for place, name in enumerate("abcde"):
        write_video(root / f"{name}.mp4", pictures(9 - place)[:, : 32 if name == "d" else 48])
    (root / "b.mp4").write_bytes(b"no video")
    return root


def test_numbers_of_episodes_count_those_that_are_left_out(videos: Path) -> None:
    def found(**options: Any) -> str:
        loader = seqrecord.SeqRecordPipe(videos, clip_len=1, batch_size=1, shuffle=False, **options)
        return "".join(dict.fromkeys(key for batch in loader for key in batch["episode"]))

    def starts(numbers: list[int]) -> dict[str, list[int]]:
        return {"episode": numbers, "start": [0] * len(numbers)}

    bad = "1 selected episode cannot be read: b;"
    lengths = {"episode": [2, 4], "frames": [[1, 2], [0, 3]]}
    good: list[tuple[Any, str]] = [([0, 2], "ac"), ([4], "e"), (np.array([2, 4]), "ce")]
    for selection, expected in good:
        assert found(episodes=selection) == expected
        assert found(samples=starts([*selection])) == expected
        assert found(samples={"episode": [*selection]}) == expected
        spans = {**starts([*selection]), "stop": [3] * len(selection)}
        assert found(samples=seqrecord.samples.segments(spans)) == expected
        assert found(episodes=selection, skip_bad_episodes=True) == expected
    loader: Any = partial(seqrecord.SeqRecordPipe, videos, batch_size=2, shuffle=False)
    assert sorted(next(iter(loader(samples=lengths)))["episode"]) == ["c", "e"]
    for selection in ([1], range(3), [0, 1]):
        for options in ({"episodes": selection}, {"samples": starts([*selection])}):
            with pytest.raises(SourceError, match=bad):
                found(**options)
    assert found(episodes=range(5), skip_bad_episodes=True) == "ace"
    assert found(samples=starts([*range(5)]), skip_bad_episodes=True) == "ace"
    with pytest.raises(errors.ClipError) as caught:
        found(episodes=[2, 3])
    assert caught.value.expected == "numbers of 0 to 4, without 2 episodes left out"
    assert caught.value.got == "3"
    with pytest.raises(errors.ClipError, match=r"leaves out; .*episode: d; .*skip_bad_epis"):
        found(samples=starts([2, 3]))
    for number in (5, -1):
        with pytest.raises(errors.ClipError, match=r"unknown number.*row 1; expected: 0 to 4"):
            found(samples=starts([0, number]))
    with pytest.raises(errors.ClipError, match=r"index is ambiguous.*of unknown length"):
        found(samples={"index": [0]}, skip_bad_episodes=True)


def test_numbers_of_episodes_in_datasets_and_commands(videos: Path, tmp_path: Path) -> None:
    with seqrecord.open(videos, skip_bad_episodes=True) as dataset:
        assert dataset.find_episodes(["c", "e"]).tolist() == [2, 4]
        assert dataset.find_episodes(dataset.find_episodes("[ce]").tolist()).tolist() == [2, 4]
        assert dataset.compute_statistics(episodes=[4])["timestamp"].count == 5
        assert pickle.loads(pickle.dumps(dataset)).find_episodes([4]).tolist() == [4]
        labels = {"episode": [2, 4], "label": [7, 8]}
        more: Any = {"missing": "drop", "skip_bad_episodes": True}
        with seqrecord.open(videos, join=[labels], **more) as joined:
            assert [e[0]["label"] for e in joined.episodes.values()] == [7, 8]
            assert joined.find_episodes(None).tolist() == [2, 4]
            loader = seqrecord.SeqRecordPipe(joined, clip_len=1, batch_size=1, episodes=[4])
            assert {batch["episode"][0] for batch in loader} == {"e"}
            with pytest.raises(errors.ClipError, match="unknown episode"):
                joined.find_episodes([0])
        folders = seqrecord.export.to_files(dataset, [2], tmp_path / "files")
        assert [folder.name for folder in folders] == ["c"]
        seqrecord.export.to_lerobot(dataset, tmp_path / "lerobot", episodes=[4], fps=30)
    assert seqrecord.open(tmp_path / "lerobot").num_frames == 5


def test_a_command_exports_a_good_episode_beside_a_bad_one(videos: Path, tmp_path: Path) -> None:
    run("export", videos, "[ce]", "-o", tmp_path / "files", "--quiet")
    assert {path.name for path in (tmp_path / "files").iterdir()} == {"c", "e"}
    failed = run("export", videos, "b", "-o", tmp_path / "bad", "--quiet", code=1)
    assert "episode: b" in failed.stderr


def test_a_command_times_good_episodes_beside_a_bad_one(videos: Path, tmp_path: Path) -> None:
    """Selected by number or key, in place and joined; a bad one is refused, or left out."""
    labels = tmp_path / "labels.parquet"
    pq.write_table(pa.table({"episode": ["a", "c", "e"], "label": [0, 1, 2]}), labels)
    command = ("bench", videos, "--clip-len=1", "--batch-size=1", "--json", "--quiet")
    joined = ("--join", labels, "--loader", "skip_bad_episodes=true")
    for arguments, number in {
        ("--loader", "episodes=[2, 4]"): 12,
        ("--loader", "episodes=[c]"): 7,
        ("--loader", "samples={episode: [4, 2], start: [0, 1]}"): 2,
        ("--loader", "skip_bad_episodes=true"): 21,
        (*joined, "--loader", "episodes=[2, 4]"): 12,
        joined: 21,
    }.items():
        assert json.loads(run(*command, *arguments).stdout)["num_clips"] == number
    for arguments in ((), ("--loader", "episodes=[1]"), ("--join", labels)):
        assert "episode: b" in run(*command, *arguments, code=1).stderr


def test_numbers_of_episodes_follow_the_original(videos: Path) -> None:
    """Which file was readable first has no effect on numbers, nor where new files sort."""

    def numbers() -> dict[str, int]:
        with seqrecord.open(videos, skip_bad_episodes=True) as dataset:
            return {key: dataset.find_episodes([key]).item() for key in dataset.episodes}

    assert numbers() == {"a": 0, "c": 2, "e": 4}
    write_video(videos / "b.mp4", pictures(3))
    assert numbers() == {"a": 0, "b": 1, "c": 2, "e": 4}
    state = _loader(videos).state_dict()
    write_video(videos / "aa.mp4", pictures(4))
    assert numbers() == {"a": 0, "aa": 1, "b": 2, "c": 3, "e": 5}
    _loader(videos).load_state_dict(state)


def test_lerobots_index_counts_bad_episodes(tmp_path: Path) -> None:
    root = unpack(tmp_path, "lerobot_video_v21")  # 5, 4, 7 rows
    (root / f"videos/chunk-000/{_CAMERA}/episode_000001.mp4").unlink()
    loader: Any = partial(seqrecord.SeqRecordPipe, root, clip_len=1, batch_size=1, shuffle=False)
    clips = [(b["episode"][0], b["start"].item()) for b in loader(samples={"index": [0, 4, 9, 15]})]
    assert clips == [
        ("episode_000000", 0),
        ("episode_000000", 4),
        ("episode_000002", 0),
        ("episode_000002", 6),
    ]
    with pytest.raises(SourceError, match="1 selected episode cannot be read: episode_000001"):
        loader(samples={"index": [0, 8]})
    assert len(loader(samples={"index": [0, 8]}, skip_bad_episodes=True)) == 1
    with seqrecord.open(root, skip_bad_episodes=True, join=[{"index": [3, 9], "v": [1, 2]}]) as one:
        assert one.episodes["episode_000000"][3]["v"] == 1
        assert one.episodes["episode_000002"][0]["v"] == 2


def test_a_loop_of_links_is_named(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    write_video(tmp_path / "sub/a.mp4", pictures(3))
    for links in (
        {"back": "."},
        {"sub/up": ".."},
        {"1.mp4": "1.mp4"},
        {"one": "two", "two": "one"},
    ):
        for link, target in links.items():
            (tmp_path / link).symlink_to(target)
        with pytest.raises(SourceError, match="symbolic link leads to a folder above") as info:
            seqrecord.open(tmp_path)
        assert info.value.file in {str(tmp_path / link) for link in links}
        for link in links:
            (tmp_path / link).unlink()


def test_an_episode_without_frames(tmp_path: Path) -> None:
    root = unpack(tmp_path, "lerobot_video_v3")
    rewrite(root / LISTED, column("length", at(2, 0)))
    rewrite(root / ROWS, lambda table: table.slice(0, 9))
    edit_info(root, total_frames=9)
    for in_place in (False, True):
        with pytest.raises(SourceError, match="episode without frames") as info:
            seqrecord.convert(
                open_source(root), tmp_path / f"{in_place}", workers=1, in_place=in_place
            )
        assert info.value.episode == "episode_000002"


_READ = (
    *("a:b/2024-01-01T10:00:00", "%20/*", "file:a/ ", "ü~/-i", "a/1:2", "1:2/a"),
    *("a/Screenshot at 10.30.00\u202fPM", "a\u00a0b/\u200bc\u3000", "a/\U0001f469\u200d\U0001f680"),
)
_REFUSED = (
    *(b"a\n/b", b"a/b\n", b"a\xff/b", b"a/\xff", b"a/b\\", b"a/C:"),
    *("a/\u202eb".encode(), "a/b\u2028".encode(), b"a/b\x7f"),
)


def test_names(tmp_path: Path, home: Path) -> None:
    video = write_video(tmp_path / "a.mp4", pictures(3))
    for name in map(os.fsdecode, _REFUSED):
        path = tmp_path / f"{name}.mp4"
        path.parent.mkdir(exist_ok=True)
        video.rename(path)
        with pytest.raises((SourceError, errors.LocationError)) as info:
            seqrecord.open(path.parent)
        assert info.value.file is not None
        assert not [*home.glob("indexes/*-*")]
        path.rename(video)
    for name in _READ:
        path = tmp_path / f"{name}.mp4"
        path.parent.mkdir(exist_ok=True)
        video.rename(path)
        with seqrecord.open(path.parent) as dataset:
            assert len(dataset.episodes[path.stem][:]["image"]) == 3
        path.rename(video)


def _box(data: bytes | bytearray, *names: bytes) -> int:
    """Where the content of a box of an MP4 begins."""
    at, end = 0, len(data)
    for name in names:
        while data[at + 4 : at + 8] != name:
            at += int.from_bytes(data[at : at + 4], "big")
            assert at < end, name
        at, end = at + 8, at + int.from_bytes(data[at : at + 4], "big")
    return at


def test_tables_with_false_counts(tmp_path: Path) -> None:
    """They name 100,000 packets in a few bytes, or packets behind the end of the file."""
    path = write_video(tmp_path / "a.mp4", pictures(9), options={"g": "1", "bf": "0"})
    sound = path.read_bytes()
    table = (b"moov", b"trak", b"mdia", b"minf", b"stbl")
    sizes, chunks, times = (_box(sound, *table, n) for n in (b"stsz", b"stsc", b"stts"))
    more, behind = bytearray(sound), bytearray(sound)
    (first,) = struct.unpack_from(">I", sound, sizes + 12)
    struct.pack_into(">II", more, sizes + 4, first, 100_000)
    struct.pack_into(">I", more, chunks + 12, 100_000)
    struct.pack_into(">I", more, times + 8, 100_000)
    at = _box(sound, b"moov", b"trak", b"edts") - 4
    more[at : at + 4] = b"free"
    struct.pack_into(">I", behind, sizes + 12 + 4 * 8, 1 << 20)
    for number, data in enumerate((more, behind)):
        path.write_bytes(data)
        index = tmp_path / f"index{number}"
        with pytest.raises(SourceError) as info:
            seqrecord.convert(open_source(path), index, workers=1, in_place=True)
        assert info.value.file == str(path)
        if HAS_TABLES:  # else the packets are read, which end with the file
            assert str(info.value.expected).startswith(("at most", "at least")), info.value


def test_damaged_packets_are_attributed_to_the_original(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", pictures(9), options={"g": "3", "bf": "0"})
    with seqrecord.open(path) as dataset:
        data, before = path.read_bytes(), path.stat()
        path.write_bytes(data[:48] + os.urandom(len(data) - 48))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        with pytest.raises((errors.CodecError, errors.FormatError)) as info:
            dataset.episodes["a"][:]
    assert (info.value.file, info.value.feature) == (str(path), "image")
    assert info.value.offset is not None
    assert info.value.offset >= 48


def test_a_home_that_cannot_be_written_or_of_which_a_part_is_gone(
    tmp_path: Path, home: Path
) -> None:
    path = write_video(tmp_path / "a.mp4", pictures(3))
    for place in ("", "indexes", "trusted"):
        (home / place).parent.mkdir(exist_ok=True)
        (home / place).write_text("no folder")
        with pytest.raises(errors.StorageError) as info:
            seqrecord.open(path)
        assert str(info.value.file).startswith(str(home))
        (home / place).unlink()
    for part in ("none", "trusted", "*/*/records", "*/*/index", "*/*/externals", "*/*"):
        for folder in home.glob(part):
            shutil.rmtree(folder) if folder.is_dir() else folder.unlink()
        urls = set()
        for _ in range(2):
            with seqrecord.open(path) as dataset:
                assert len(dataset.episodes["a"][:]["image"]) == 3
                urls.add(dataset.url)
        assert len(urls) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_random_originals(kind: str, tmp_path: Path, *, thorough: bool) -> None:
    numbers = range(10) if thorough else [4]  # which comes to loaders, edits and exports
    ends = Counter(
        check(tmp_path / str(i), i, kind=kind, is_long=thorough and i < 2) for i in numbers
    )
    assert ends["same"] > ends["refused"]
