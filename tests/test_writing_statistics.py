"""Statistics of a dataset: what a writer keeps, what is computed, who merges them, the command."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import SeqRecordWriter, add_statistics, convert, errors, open_source
from seqrecord.checksum import crc32c
from seqrecord.statistics import Statistics
from seqrecord.types import StatisticsProgress
from tests import command_line
from tests.datasets import EPISODES, small_frames, small_schema, write_small
from tests.made_source import MadeSource
from tests.tiny import change_manifest


def statistics_of(folder: Path) -> Statistics:
    with seqrecord.open(folder) as reader:
        assert reader.statistics
        return reader.statistics


def computed(folder: Path) -> Statistics:
    with seqrecord.open(folder) as reader:
        return reader.compute_statistics()


def file_of(folder: Path) -> Path:
    with seqrecord.open(folder) as reader:
        assert reader.contents.manifest.statistics is not None
        return folder / reader.contents.manifest.statistics.path


def write(folder: Path, keys: str, **arguments: Any) -> None:
    with SeqRecordWriter(folder, **arguments) as writer:
        for key in keys:
            with writer.episode(key) as episode:
                for number in range(10):
                    episode.append({"x": np.full(3, ord(key) + number, np.float32)})


def assert_alike(one: Statistics, two: Statistics) -> None:
    """The same but for rounding and for what quantiles may differ by."""
    assert (one.num_frames, list(one)) == (two.num_frames, list(two))
    for name in one:
        for column in ("num_frames", "count", "num_drawn", "num_nan", "num_infinite", "min", "max"):
            np.testing.assert_array_equal(
                getattr(one[name], column), getattr(two[name], column), f"{name} {column}"
            )
        shares = [0.01, 0.5, 0.99]
        if one[name].rank_error == two[name].rank_error == 0:
            np.testing.assert_array_equal(one[name].quantile(shares), two[name].quantile(shares))
        np.testing.assert_allclose(one[name].mean, two[name].mean, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(one[name].std, two[name].std, rtol=1e-9, atol=1e-12)


def test_a_writer_keeps_what_its_frames_are_like_and_encoded_ones_come_later(
    tmp_path: Path,
) -> None:
    write_small(tmp_path / "d")
    got, expected = statistics_of(tmp_path / "d"), computed(tmp_path / "d")
    assert set(expected) - set(got) == {"photo"}  # it is kept as PNG, and nothing decodes it here
    assert got.num_frames == sum(EPISODES.values())
    assert_alike(got, Statistics(expected.num_frames, {n: expected[n] for n in got}))
    assert "no statistics of photo; use --recompute" in run(tmp_path / "d").stderr
    assert run(tmp_path / "d", "--recompute").stderr == ""
    photo = statistics_of(tmp_path / "d")["photo"]
    frames = [f for i, n in enumerate(EPISODES.values()) for f in small_frames(i, n)]
    assert photo.num_frames == len(frames)
    assert photo.mean == pytest.approx(np.mean([f["photo"] for f in frames], (0, 1, 2)), abs=3)


def test_an_append_merges_and_one_of_nothing_keeps_them(tmp_path: Path) -> None:
    write(tmp_path / "d", "ab")
    old = file_of(tmp_path / "d")
    write(tmp_path / "d", "cd", mode="append")
    write(tmp_path / "whole", "abcd")
    assert_alike(statistics_of(tmp_path / "d"), statistics_of(tmp_path / "whole"))
    assert old.exists()  # for readers that have just read the manifest before
    write(tmp_path / "d", "e", mode="append")
    assert not old.exists()
    assert file_of(tmp_path / "d").exists()
    before = statistics_of(tmp_path / "d").to_json()
    write(tmp_path / "d", "", mode="append")
    write(tmp_path / "d", "", mode="append", statistics=False)
    assert statistics_of(tmp_path / "d").to_json() == before


@pytest.mark.parametrize(("first", "second"), [(False, True), (True, False)])
def test_where_some_frames_have_none_there_are_none(
    tmp_path: Path, first: bool, second: bool
) -> None:
    write(tmp_path / "d", "ab", statistics=first)
    write(tmp_path / "d", "cd", mode="append", statistics=second)
    with seqrecord.open(tmp_path / "d") as reader:
        assert not reader.statistics
    made = add_statistics(tmp_path / "d")
    assert made.num_frames == 40
    write(tmp_path / "whole", "abcd")
    assert_alike(statistics_of(tmp_path / "d"), statistics_of(tmp_path / "whole"))
    write(tmp_path / "d", "e", mode="append")  # from now on they are kept again
    assert statistics_of(tmp_path / "d").num_frames == 50


def test_a_resume_that_finds_episodes_has_none(tmp_path: Path) -> None:
    writer = SeqRecordWriter(tmp_path / "d")
    with writer.episode("a") as episode:
        episode.append({"x": np.zeros(3)})
    writer.abort()
    with SeqRecordWriter(tmp_path / "d", mode="resume") as writer, writer.episode("b") as episode:
        episode.append({"x": np.ones(3)})
    with seqrecord.open(tmp_path / "d") as reader:
        assert list(reader.episodes) == ["a", "b"]
        assert not reader.statistics


def test_an_episode_that_was_given_up_is_not_in_them(tmp_path: Path) -> None:
    with SeqRecordWriter(tmp_path / "d") as writer:
        with writer.episode("a") as episode:
            episode.append({"x": np.zeros(3)})
        episode = writer.episode("b")
        episode.append({"x": np.full(3, 100.0)})
        with pytest.raises(errors.FrameError):
            episode.append({"x": np.full(4, 100.0)})
        with writer.episode("c") as episode:
            episode.append({"x": np.ones(3)})
    got = statistics_of(tmp_path / "d")
    assert got["x"].max.tolist() == [1, 1, 1]
    assert_alike(got, computed(tmp_path / "d"))


def test_what_was_flushed_is_in_them(tmp_path: Path) -> None:
    with SeqRecordWriter(tmp_path / "d") as writer:
        episode = writer.episode("a")
        episode.append({"x": np.zeros(3)})
        episode.flush()
        episode.append({"x": np.full(3, 100.0)})
        with pytest.raises(errors.FrameError):
            episode.append({"x": np.full(4, 100.0)})
        with writer.episode("c") as episode:
            for number in range(5):
                episode.append({"x": np.full(3, float(number))})
                if number % 2:
                    episode.flush()
    got = statistics_of(tmp_path / "d")
    assert got.num_frames == 6
    assert got["x"].max.tolist() == [4, 4, 4]
    assert_alike(got, computed(tmp_path / "d"))


def test_conversions_merge_those_of_their_workers(tmp_path: Path) -> None:
    source = MadeSource()
    convert(source, tmp_path / "one", workers=1, max_file_size=30_000)
    convert(source, tmp_path / "two", workers=2, max_file_size=30_000)
    assert_alike(statistics_of(tmp_path / "one"), statistics_of(tmp_path / "two"))
    assert_alike(statistics_of(tmp_path / "one"), computed(tmp_path / "two"))
    convert(source, tmp_path / "none", workers=1, statistics=False)
    with seqrecord.open(tmp_path / "none") as reader:
        assert not reader.statistics


def test_a_reindex_keeps_them_while_the_frames_are_the_same(tmp_path: Path) -> None:
    write(tmp_path / "d", "ab")
    before = statistics_of(tmp_path / "d").to_json()
    seqrecord.reindex(tmp_path / "d")
    assert statistics_of(tmp_path / "d").to_json() == before
    (tmp_path / "d" / "manifest.json").unlink()
    seqrecord.reindex(tmp_path / "d")
    with seqrecord.open(tmp_path / "d") as reader:
        assert not reader.statistics


@pytest.mark.parametrize("damage", ["cut", "flipped", "gone"])
def test_a_damaged_file_is_refused(tmp_path: Path, damage: str) -> None:
    write(tmp_path / "d", "ab")
    path = file_of(tmp_path / "d")
    data = bytearray(path.read_bytes())
    error: type[Exception] = errors.FormatError
    if damage == "cut":
        path.write_bytes(data[:-1])
    elif damage == "flipped":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        error = errors.ChecksumError
    else:
        path.unlink()
        error = errors.NotFoundError
    with seqrecord.open(tmp_path / "d") as reader, pytest.raises(error, match=path.name):
        _ = reader.statistics


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        (b'"version": 1', b'"version": 7', "bad version"),
        (b'"num_frames": 20', b'"num_frames": 19', "bad num_frames"),
        (b'"x": {', b'"y": {', "feature: y"),
        (b'"nan": 0', b'"nan": X', "not valid JSON"),
        (b'"nan": 0', b'"nan":-1', "a bad nan"),
    ],
)
def test_a_file_that_breaks_a_rule_is_refused(
    tmp_path: Path, old: bytes, new: bytes, match: str
) -> None:
    write(tmp_path / "d", "ab")
    path = file_of(tmp_path / "d")
    data = path.read_bytes()
    assert old in data
    data = data.replace(old, new, 1)
    path.write_bytes(data)
    crc = f"{crc32c(data):08x}"
    change_manifest(tmp_path / "d", lambda value: value["statistics"].update(crc32c=crc))
    with seqrecord.open(tmp_path / "d") as reader, pytest.raises(errors.FormatError, match=match):
        _ = reader.statistics


def test_there_is_no_dataset_to_compute_them_for(tmp_path: Path) -> None:
    with pytest.raises(errors.NotFoundError, match="no dataset"):
        add_statistics(tmp_path)


# Computed


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("statistics") / "small"
    write_small(path)
    return path


@pytest.mark.parametrize("num_threads", [1, 3])
def test_those_computed_are_those_of_the_frames(
    small: Path, tmp_path: Path, num_threads: int
) -> None:
    told: list[StatisticsProgress] = []
    with seqrecord.open(small) as reader:
        got = reader.compute_statistics(num_threads=num_threads, progress=told.append)
    convert(open_source(small), tmp_path / "d", codecs={"photo": "balanced"}, workers=1)
    kept = statistics_of(tmp_path / "d")  # of which a writer got all frames
    assert_alike(got, Statistics(kept.num_frames, {name: kept[name] for name in got}))
    assert got.num_frames == sum(EPISODES.values())
    assert set(got) == set(small_schema())
    assert got["flow"].num_frames == got.num_frames - len(EPISODES)  # their last frame lacks it
    frames = [progress.frames for progress in told]
    assert frames == sorted(frames)
    assert frames[-1] == told[0].total_frames == got.num_frames  # whatever features they have


def test_those_of_chosen_features(small: Path) -> None:
    with seqrecord.open(small, features=["step", "pose"]) as reader:
        got = reader.compute_statistics()
        steps = np.concatenate([reader.episodes[key][:]["step"] for key in EPISODES])
    assert list(got) == ["step", "pose"]
    assert got["step"].mean == pytest.approx(steps.mean())
    assert got["step"].max == steps.max()


def test_those_of_some_frames(tmp_path: Path) -> None:
    """Spans of 8 frames, for a frame takes 4 MiB."""
    with seqrecord.SeqRecordWriter(tmp_path / "d", codecs="fast") as writer:
        for key in ("a", "b"):
            with writer.episode(key) as episode:
                for number in range(32):
                    episode.append({"x": np.full((1024, 1024), number, np.float32)})
    with seqrecord.open(tmp_path / "d") as reader:
        whole = reader.compute_statistics()
        some = reader.compute_statistics(max_frames=16)
        one = reader.compute_statistics(max_frames=1)
    assert (whole.num_frames, some.num_frames, one.num_frames) == (64, 64, 64)
    assert [s["x"].num_frames for s in (whole, some, one)] == [64, 24, 8]
    assert some["x"].min.tolist() == [0]
    assert some["x"].max.tolist() == [23]  # frames 0 to 7 and 16 to 23 of a, 8 to 15 of b
    assert whole["x"].max.tolist() == [31]


@pytest.mark.parametrize("wrong", [{"max_frames": 0}, {"num_threads": 0}])
def test_wrong_arguments_are_refused(small: Path, wrong: dict[str, Any]) -> None:
    with seqrecord.open(small) as reader, pytest.raises(errors.ClipError, match="at least 1"):
        reader.compute_statistics(**wrong)


# Of a split, after a transform, of a mix


def doubled(frame: dict[str, Any]) -> dict[str, Any]:
    return {"x": frame["x"] * 2, "sum": np.float64(frame["x"].sum())}


@pytest.mark.parametrize("transform", [None, doubled])
def test_those_of_a_split_and_after_a_transform(tmp_path: Path, transform: Any) -> None:
    write(tmp_path / "d", "abc")
    seqrecord.edit.split_episodes(tmp_path / "d", ["a", "c"], "train")
    rows = np.concatenate([np.arange(10) + ord(key) for key in "ac"]) * (2 if transform else 1)
    options = {"split": "train", "frame_transform": transform}
    dataset = seqrecord.open(tmp_path / "d")
    loader = seqrecord.SeqRecordIterableDataset(dataset, clip_len=4, **options)
    for found in (
        dataset.compute_statistics(**options),
        dataset.compute_statistics(episodes=[0, 2], frame_transform=transform),
        loader.compute_statistics(num_threads=1),
        seqrecord.SeqRecordMix({"one": loader}, batch_size=1).compute_statistics()["one"],
    ):
        assert (found.num_frames, found["x"].num_frames) == (20, 20)
        assert list(found) == (["x", "sum"] if transform else ["x"])
        np.testing.assert_allclose(found["x"].mean, [rows.mean()] * 3)
        np.testing.assert_allclose(found["x"].std, [rows.std()] * 3)
    table = run(tmp_path / "d", "--split", "train").stdout
    assert table == f"{dataset.compute_statistics(split='train')}\n"
    assert statistics_of(tmp_path / "d").num_frames == 30  # which are stored


def test_a_transform_skips_frames_that_lack_a_feature(small: Path) -> None:
    with seqrecord.open(small, features=["flow", "step"]) as reader:
        got = reader.compute_statistics(frame_transform=lambda frame: frame)
        flow = Statistics(got.num_frames, {"flow": computed(small)["flow"]})
        assert_alike(Statistics(got.num_frames, {"flow": got["flow"]}), flow)
    assert got["step"].num_frames == got["flow"].num_frames == got.num_frames - len(EPISODES)


def test_errors_of_a_transform_name_the_frame(tmp_path: Path) -> None:
    write(tmp_path / "d", "ab")
    dataset = seqrecord.open(tmp_path / "d")
    with pytest.raises(errors.ClipError) as caught:
        dataset.compute_statistics(
            frame_transform=lambda frame: {"x": frame["x"][: 3 - (frame["x"][0] == ord("b"))]}
        )
    assert (caught.value.episode, caught.value.frame) == ("a", 1)
    with pytest.raises(errors.ClipError, match="unknown split"):
        dataset.compute_statistics(split="nope")


# `seqrecord stats`


run = partial(command_line.run, "stats", "--quiet")


@pytest.fixture
def lacking(tmp_path: Path) -> Path:
    with SeqRecordWriter(tmp_path / "d", statistics=False) as writer:
        for key in ("a", "b"):
            with writer.episode(key) as episode:
                for number in range(100):
                    action = np.array([number, np.nan, -1], np.float32)
                    episode.append({"action": action, "flag": np.bool_(number == 3)})
    return tmp_path / "d"


def kept(folder: Path) -> bool:
    with seqrecord.open(folder) as reader:
        return bool(reader.statistics)


def test_a_dataset_that_has_none_gets_them(lacking: Path) -> None:
    assert not kept(lacking)
    lines = run(lacking).stdout.splitlines()
    head = "feature mean std min 1% 50% 99% max NaN infinite numbers frames"
    assert lines[0].split() == head.split()
    assert " ".join(lines[1].split()) == "action[0] 49.5 28.866 0 0 49 98 99 0 0 200 200"
    assert lines[2].split() == ["action[1]", *["nan"] * 7, "200", "0", "0", "200"]
    assert " ".join(lines[4].split()) == "flag 0.01 0.099499 0 0 0 0 1 0 0 200 200"
    assert len(lines) == 5
    assert kept(lacking)
    assert run(lacking).stdout.splitlines() == lines


def test_the_table_says_what_was_looked_at(tmp_path: Path) -> None:
    """Of large frames everything is counted, and quantiles are of some pixels."""
    depth = np.full((40, 40), 5, np.float32)
    depth[:10] = np.nan
    with SeqRecordWriter(tmp_path / "d") as writer, writer.episode("a") as episode:
        for _ in range(2):
            episode.append({"depth": depth, "x": np.float32(1)})
    _, line, _, note = run(tmp_path / "d").stdout.splitlines()
    assert line.split() == ["depth", "5", "0", *["5"] * 5, "800", "0", "2,400", "2"]
    found = json.loads(run(tmp_path / "d", "--json").stdout)["depth"]
    [drawn] = found["num_drawn"]
    assert 150 < drawn <= 256
    assert note == f"quantiles of depth: of a random sample of {drawn} numbers"


@pytest.mark.parametrize(("command", "keys"), [("delete", "ab"), ("keep", "aa")])
def test_an_edit_that_ends_them_says_so(
    tmp_path: Path, command: str, keys: str, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "d", "ab")
    for number in range(2):
        caplog.clear()
        write(tmp_path / "d", "xy"[number], mode="append", statistics=not number)
        command_line.run("edit", command, tmp_path / "d", keys[number])
        assert ("`seqrecord stats" in caplog.text) == (number == 0)


def test_those_of_other_numbers_are_not_merged(tmp_path: Path) -> None:
    for name, value in (("six", np.zeros(6)), ("seven", np.zeros(7)), ("f4", np.ones(6, "f4"))):
        with SeqRecordWriter(tmp_path / name) as writer, writer.episode("a") as episode:
            episode.append({"x": value, name: value})
    six, seven, single = (statistics_of(tmp_path / name) for name in ("six", "seven", "f4"))
    with pytest.raises(errors.SchemaError) as caught:
        six["x"].merged(seven["x"])
    assert (caught.value.expected, caught.value.got) == ("6 channels", "7 channels")
    assert list(six.merged(seven)) == []
    both = six.merged(single)["x"]  # of two dtypes
    assert both.mean.tolist() == [0.5] * 6
    assert [sketch.dtype for sketch in both.sketches] == [np.float64] * 6


def test_a_dry_run_and_json(lacking: Path) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in lacking.rglob("*"))
    table = run(lacking, "--dry-run").stdout
    assert sorted((path, path.stat().st_mtime_ns) for path in lacking.rglob("*")) == before
    assert run(lacking).stdout == table
    found = json.loads(run(lacking, "--json").stdout)
    assert found["action"]["mean"] == [49.5, None, -1]
    assert found["action"]["q99"] == [98, None, -1]
    assert found["action"]["num_nan"] == [0, 200, 0]
    assert (found["flag"]["num_frames"], found["flag"]["rank_error"]) == (200, 0)


def test_of_some_frames_and_anew(lacking: Path) -> None:
    run(lacking, "--max-frames", 100, "--threads", 2)
    with seqrecord.open(lacking) as reader:
        assert reader.statistics
        assert reader.statistics["flag"].num_frames < 200
    run(lacking, "--recompute")
    with seqrecord.open(lacking) as reader:
        assert reader.statistics
        assert reader.statistics["flag"].num_frames == 200


def test_a_conversion_may_decode_what_it_keeps_encoded(tmp_path: Path) -> None:
    write_small(tmp_path / "d")
    for statistics, missing in (
        ("auto", ["photo"]),
        ("all", []),
        ("none", list(small_schema())),
    ):
        dst = tmp_path / statistics
        command = ("write", "--src", tmp_path / "d", "--dst", dst)
        command_line.run(*command, "--statistics", statistics)
        with seqrecord.open(dst) as reader:
            assert reader.statistics.missing(reader.features) == missing
    before = statistics_of(tmp_path / "all")
    assert before["photo"].count.tolist() == computed(tmp_path / "d")["photo"].count.tolist()
    version = file_of(tmp_path / "all")
    assert_alike(add_statistics(tmp_path / "all", only_lacking=True), before)
    assert file_of(tmp_path / "all") == version  # nothing is written where nothing lacks
