"""Trimmed episodes: every reader, copy and edit has the frames of a slice, and no others."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import ClipError, Seconds, SeqRecordMapDataset, SeqRecordPipe, SeqRecordWriter, edit
from seqrecord.edit import rewrite_files, trim_episodes
from seqrecord.loader.clips.layouts import missing_frames
from tests.kit import command_line
from tests.kit.datasets import write_dataset
from tests.kit.tiny import Frames, copy_dataset, read_all, same_frames

_LENGTHS = {"a": 37, "b": 70, "c": 5}


def _frame(key: str, i: int) -> dict[str, Any]:
    rng = np.random.default_rng([ord(key), i])
    frame: dict[str, Any] = {
        "image": np.full((16, 16, 3), (7 * i) % 251, np.uint8),
        "pose": rng.random(7),
        "time": np.float64(i / 10 + (i % 3) / 100),
        "points": rng.random((1 + i % 4, 3), np.float32),
        "task": f"task {i // 8}",
        "depth": rng.random((4, 5), np.float32),
    }
    if i % 5 == 3:
        del frame["depth"], frame["points"]
    return frame


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Groups of video, of raw and encoded arrays with gaps, and of texts; several record files."""
    path = tmp_path_factory.mktemp("trim") / "whole"
    write_dataset(
        path,
        {key: [_frame(key, i) for i in range(length)] for key, length in _LENGTHS.items()},
        metadata={key: {"of": key} for key in _LENGTHS},
        fps=10,
        codecs={"image": "h264:gop=8", "depth": "raw", "pose": "raw"},
        features={"time": {"kind": "timestamp", "unit": "s"}, "points": {"shape": (None, 3)}},
        max_file_size=20_000,
    )
    return path


def _copy(whole: Path, folder: Path) -> Path:
    return copy_dataset(whole, folder / "records")


def _sliced(frames: Frames, key: str, some: slice) -> Frames:
    return {**frames, key: frames[key][some]}


def _check(path: Path, expected: Frames, step: str) -> None:
    """All readers return these frames, also of an index that is built from record files."""
    with seqrecord.open(path) as dataset:
        assert [*dataset.episodes] == [*expected], step
        for key, episode in dataset.episodes.items():
            frames = expected[key]
            assert len(episode) == len(frames)
            some = (0, len(frames) // 2, -1)
            single, wanted = [episode[i] for i in some], [frames[i] for i in some]
            assert same_frames({key: single}, {key: wanted}), step
            for name in dataset.features:
                there = [name in frame for frame in frames]
                assert episode.present(name).tolist() == there, (step, name)
                numbers = [*np.flatnonzero(there)][::-1]
                found = episode.read(numbers, features=[name])[name]
                for got, number in zip(found, numbers, strict=True):
                    assert np.array_equal(got, frames[number][name]), (step, name, number)
        lacking = {
            (number, i, name)
            for number, key in enumerate(dataset.episodes)
            for i, frame in enumerate(expected[key])
            for name in dataset.features.keys() - frame.keys()
        }
        for each in seqrecord.summarize(dataset).features:
            count = sum(name == each.spec.name for _, _, name in lacking)
            assert each.num_missing == count, (step, each)
        missing = missing_frames(dataset.contents)
        spans = zip(missing.episode, missing.start, missing.stop, strict=True)
        gaps = {(e, i) for e, start, stop in spans for i in range(start, stop)}
        assert gaps == {(number, i) for number, i, _ in lacking}, step
        fingerprint = dataset.fingerprint
    assert seqrecord.reindex(path).fingerprint == fingerprint, step
    (path / "manifest.json").unlink()
    assert seqrecord.reindex(path).fingerprint == fingerprint, step
    assert same_frames(read_all(path), expected), step
    report = seqrecord.verify(path, deep=True)
    assert not report.problems, (step, report.problems)


def _check_clips(path: Path, expected: Frames, **options: Any) -> None:
    settings = {"clip_len": 3, "stride": 2, "features": ["image", "pose"], **options}
    step = settings.get("dilation", 1)
    wanted = {
        (key, start): [frames[start + step * i] for i in range(3)]
        for key, frames in expected.items()
        for start in range(0, len(frames) - 2 * step, 2)
    }
    found: dict[tuple[str, int], Any] = {}
    for clip in SeqRecordPipe(path, memory_limit="64MiB", seed=1, **settings):
        found[clip["episode"], int(clip["start"])] = clip
    random_access = SeqRecordMapDataset(path, **settings)
    assert len(random_access) == len(wanted)
    clips = [random_access[i] for i in range(len(wanted))]
    for got in (found, {(c["episode"], int(c["start"])): c for c in clips}):
        assert got.keys() == wanted.keys()
        for place, frames in wanted.items():
            for name in settings["features"]:
                assert np.array_equal(got[place][name], np.stack([f[name] for f in frames])), place


def test_a_trimmed_episode_has_the_frames_of_a_slice(whole: Path, tmp_path: Path) -> None:
    path, frames = _copy(whole, tmp_path), read_all(whole)
    assert trim_episodes(path, None, slice(None)) == []
    assert trim_episodes(path, ["b"], slice(30, -10), dry_run=True) == ["b"]
    assert same_frames(read_all(path), frames)
    files = sorted((path / "records").glob("*.seqrec"))
    before = [file.read_bytes() for file in files]
    for key, some in (("b", slice(30, -10)), ("a", slice(None, 20)), ("b", slice(3, 41))):
        assert trim_episodes(path, [key], some) == [key]
        frames = _sliced(frames, key, some)
        _check(path, frames, f"{key} {some}")
    _check_clips(path, frames)
    assert [file.read_bytes() for file in files] == before
    _check_clips(path, frames, dilation=3)


def test_windows_and_statistics_cover_the_remaining_frames(
    whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = _copy(whole, tmp_path)
    seqrecord.add_statistics(path)
    command_line.run("edit", "trim", path, "b", "--frames", "41:-7")
    assert "statistics removed" in caplog.text
    with seqrecord.open(path) as dataset:
        assert not dataset.statistics
    seqrecord.add_statistics(path)
    frames = _sliced(read_all(whole), "b", slice(41, -7))
    rest = [frame["pose"] for some in frames.values() for frame in some]
    with seqrecord.open(path) as dataset:
        assert dataset.statistics["pose"].mean == pytest.approx(np.mean(rest, axis=0))
    window = Seconds([-0.21, 0.0], timestamps="time", out_of_range="pad", tolerance=0.2)
    pipe = SeqRecordPipe(path, features=["pose"], episodes=["b"], windows={"pose": window})
    clips = {int(clip["start"]): clip for clip in pipe}
    times = np.array([frame["time"] for frame in frames["b"]])
    assert len(clips) > len(times) - 5
    for start, clip in clips.items():
        nearest = int(np.abs(times - (times[start] - 0.21)).argmin())
        assert np.array_equal(clip["pose"][0], frames["b"][nearest]["pose"])


def test_copies_and_rewritten_files(whole: Path, tmp_path: Path) -> None:
    """Chunks with remaining frames are copied, without decoding, and nothing else."""
    path, frames = _copy(whole, tmp_path), read_all(whole)
    for key, some in (("b", slice(37, 60)), ("a", slice(9, None))):
        trim_episodes(path, [key], some)
        frames = _sliced(frames, key, some)
    edit.merge_datasets([path], tmp_path / "merged")
    seqrecord.convert(seqrecord.open_source(path), tmp_path / "converted", workers=1)
    for copied in ("merged", "converted"):
        _check(tmp_path / copied, frames, copied)
    _check_clips(tmp_path / "merged", frames)
    again = edit.merge_datasets([tmp_path / "merged"], tmp_path / "again")
    assert again.num_frames == sum(map(len, frames.values()))
    assert same_frames(read_all(tmp_path / "again"), frames)
    freed = rewrite_files(path, min_unused=0.01)
    assert freed.freed_bytes > 0
    edit.clean(path, older_than=-1)
    _check(path, frames, "rewritten")
    _check_clips(path, frames)
    assert not rewrite_files(path, min_unused=0.5).rewritten
    trim_episodes(path, ["b"], slice(2, -2))
    _check(path, _sliced(frames, "b", slice(2, -2)), "rewritten and trimmed again")


def test_other_edits_of_a_trimmed_dataset(whole: Path, tmp_path: Path) -> None:
    path, frames = _copy(whole, tmp_path), read_all(whole)
    trim_episodes(path, ["b"], slice(37, 60))
    frames = _sliced(frames, "b", slice(37, 60))
    edit.rename_episodes(path, {"b": "x"})
    frames = {"x" if key == "b" else key: some for key, some in frames.items()}
    edit.add_feature(path, "number", lambda episode: np.arange(len(episode)), kind="state")
    for some in frames.values():
        for i, frame in enumerate(some):
            frame["number"] = np.array(i)
    _check(path, frames, "added")
    trim_episodes(path, ["x"], slice(-8, None))
    frames = _sliced(frames, "x", slice(-8, None))
    edit.drop_features(path, ["image"])
    for frame in (frame for some in frames.values() for frame in some):
        del frame["image"]
    _check(path, frames, "dropped")
    rewrite_files(path, min_unused=0.01)
    edit.clean(path, older_than=-1)
    _check(path, frames, "rewritten")
    write_dataset(path, {"new": frames["c"]}, rates={"new": 10}, mode="append")
    _check(path, {**frames, "new": frames["c"]}, "appended")


def test_slices_that_are_refused(whole: Path) -> None:
    for some, message in (
        (slice(5, 5), "no frame"),
        (slice(90, None), "no frame"),
        (slice(None, -90), "no frame"),
        (slice(0, 9, 2), "a step"),
    ):
        with pytest.raises(ClipError, match=message) as caught:
            trim_episodes(whole, ["b"], some)
        assert caught.value.episode == "b"
    for frames in ((5, 9), 5, "5:9", None, slice("a", None), slice(0, 9.5), slice(0, 9, 0)):
        with pytest.raises(ClipError, match="no slice of integers"):
            trim_episodes(whole, ["b"], frames)  # type: ignore[arg-type]
    for text in ("30", "a:b", "1:2:3", ""):
        result = command_line.run("edit", "trim", whole, "b", "--frames", text, code=2)
        assert "START:STOP" in result.output


def test_any_slices_of_any_chunks(tmp_path: Path, thorough: bool) -> None:
    rng = random.Random(0)
    groups = {"x": {"group": 0}, "y": {"group": 1}}
    for case in range(12 if thorough else 3):
        path, frames = tmp_path / str(case), {}
        size = rng.choice([500, 1 << 20])
        with SeqRecordWriter(path, features=groups, codecs="raw", max_file_size=size) as writer:
            for key in "ab":
                count = rng.randint(1, 40)
                frames[key] = [{"x": np.array(i, "<i4"), "y": np.array(-i)} for i in range(count)]
                if rng.random() < 0.5:
                    for frame in rng.sample(frames[key][1:], (count - 1) // 2):
                        del frame["y"]
                with writer.episode(key) as episode:
                    for frame in frames[key]:
                        episode.append(frame)
                        if rng.random() < 0.2:
                            episode.flush()
        for _ in range(3):
            key, some = rng.choice("ab"), slice(rng.randint(-20, 8), rng.choice([None, -1, -3, 30]))
            if frames[key][some]:
                trim_episodes(path, [key], some)
                frames = _sliced(frames, key, some)
                if rng.random() < 0.5:
                    rewrite_files(path, min_unused=0.01)
                    edit.clean(path, older_than=-1)
                _check(path, frames, f"{case} {key} {some}")


def test_versions_and_states(whole: Path, tmp_path: Path) -> None:
    """An earlier version has all frames; trims of equal length make different states."""
    path, frames = _copy(whole, tmp_path), read_all(whole)
    identities = []
    for some in (slice(1, -1), slice(1, None), slice(None, -1)):
        trim_episodes(path, ["b"], some)
        with seqrecord.open(path) as dataset:
            identities.append(dataset.contents.identity(np.arange(3)))
    [first] = (v.id for v in edit.list_versions(path) if v.num_frames == 112)
    with seqrecord.open(path, version=first) as dataset:
        assert len(dataset.episodes["b"]) == 70
    assert same_frames(read_all(path, version=first), frames)
    other = copy_dataset(whole, tmp_path / "other")
    trim_episodes(other, ["b"], slice(0, -2))
    with seqrecord.open(other) as dataset:
        identities.append(dataset.contents.identity(np.arange(3)))
    assert len({str(each) for each in identities}) == 4


def test_identity_covers_missing_frames(tmp_path: Path) -> None:
    """Also of equal pages; other episodes have no effect."""
    value, found = np.zeros(2, np.float32), list[str]()
    for number, lacking in enumerate([{"b": 0}, {"b": 2}, {"a": 3, "b": 0}]):
        episodes = {
            key: [{"x": value} | ({} if i == frame else {"y": value}) for i in range(4)]
            for key, frame in lacking.items()
        }
        write_dataset(tmp_path / str(number), episodes, codecs="raw")
        with seqrecord.open(tmp_path / str(number)) as dataset:
            row = np.array([dataset.contents.index.positions["b"]])
            found.append(dataset.contents.identity(row)["digest"])
    assert found[0] == found[2] != found[1]
