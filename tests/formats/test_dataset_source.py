"""A dataset as the source of `convert`: copied contents, and pages passed on undecoded."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from PIL import Image

import seqrecord
from seqrecord import EncodedImage, FeatureSpec, Schema, convert, edit, open_source
from seqrecord.errors import FormatError, NotFoundError, SchemaError, SourceError
from seqrecord.sources import EpisodeInfo, Gop, format_names, undistorted
from tests.kit.command_line import run
from tests.kit.datasets import chunk_lengths, columns, encoded, noise, write_dataset, write_small
from tests.kit.made_source import MadeSource
from tests.kit.services.web_server import WebFolder
from tests.kit.video_data import HEIGHT, WIDTH, moving
from tests.loader.clip_model import write_all
from tests.tools.test_export import datasets, frames_of
from tests.video.gops import config_of, gops_of

PNG = ({"id": "seqrecord.image", "format": "png"},)


def assert_same(path: Path | str, again: Path | str) -> None:
    with seqrecord.open(path) as one, seqrecord.open(again) as two:
        assert frames_of(two) == frames_of(one)
        for name, spec in one.features.items():
            other = two.features[name]
            assert (other.kind, other.unit, other.value) == (spec.kind, spec.unit, spec.value)
    assert not seqrecord.verify(again, deep=True).problems


def write(path: Path, episodes: dict[str, list[dict[str, Any]]], **options: Any) -> Path:
    write_dataset(path, episodes, **options)
    return path


def pages_of(path: Path, feature: str) -> list[bytes]:
    """The bytes of a feature's pages, episode by episode."""
    with seqrecord.open(path, features=[feature]) as dataset:
        reader, [group] = dataset.contents.chunks, {s.group for s in dataset.features.values()}
        rows = range(len(dataset.contents.index.groups[group].first_frame))
        pages = [page for row in rows for page in reader.pages(reader.chunk_at(group, row))]
        return [bytes(reader.read([page])[0]) for page in pages if page.num_present]


def blobs_of(path: Path, feature: str) -> list[bytes]:
    """The encoded images of a feature."""
    with seqrecord.open(path, features=[feature]) as dataset:
        source = open_source(dataset.contents.storage, features=[feature])
        found = [frame for info in source.episodes() for frame in source.frames(info)]
    images = [frame[feature] for frame in found if frame]
    return [image.data for image in images if isinstance(image, EncodedImage)]


@pytest.mark.parametrize("write", [write_small, write_all])
def test_every_kind_of_feature(tmp_path: Path, write: Any) -> None:
    """In worker threads, each with a pickled copy of the source."""
    write(tmp_path / "a")
    with ThreadPoolExecutor(2) as executor:
        report = convert(open_source(tmp_path / "a"), tmp_path / "b", executor=executor)
    assert_same(tmp_path / "a", tmp_path / "b")
    with seqrecord.open(tmp_path / "a") as one, seqrecord.open(tmp_path / "b") as two:
        assert report.written == tuple(one.episodes)
        assert two.features == one.features  # groups and codecs too


@given(made=datasets())
def test_any_dataset(made: tuple[Schema, dict[str, Any]]) -> None:
    schema, episodes = made
    with TemporaryDirectory() as folder:
        a, b = Path(folder, "a"), Path(folder, "b")
        written = {key: frames for key, (_, frames) in episodes.items()}
        metadata = {key: entries for key, (entries, _) in episodes.items()}
        write_dataset(a, written, metadata=metadata, fps=12.5, schema=schema, chunk_frames=2)
        convert(open_source(a), b, workers=1)
        with seqrecord.open(a) as one, seqrecord.open(b) as two:
            assert frames_of(two) == frames_of(one)
        for name in (spec.name for spec in schema.values() if spec.codec):
            assert blobs_of(b, name) == blobs_of(a, name) != []


def features_of(path: Path) -> Any:
    return seqrecord.open(path).features


def test_codecs_are_kept_unless_overridden(tmp_path: Path) -> None:
    codecs = {"image_left": "raw", "depth_left": "small", "pose": "fast"}
    write_small(tmp_path / "a", codecs=codecs)
    before, source = features_of(tmp_path / "a"), ("write", "--src", tmp_path / "a")
    assert not before["image_left"].codec
    run(*source, "--workers", 1)
    assert features_of(tmp_path / "a-records") == before
    run(*source, "--dst", tmp_path / "b", "--codec", "depth_left=raw")
    after = features_of(tmp_path / "b")
    assert not after["depth_left"].codec
    for name in before.keys() - {"depth_left"}:
        assert after[name].codec == before[name].codec
    assert_same(tmp_path / "a", tmp_path / "b")
    run(*source, "--dst", tmp_path / "c", "--codec", "raw")
    assert [n for n, spec in features_of(tmp_path / "c").items() if spec.codec] == ["photo"]  # PNG
    run(*source, "--dst", tmp_path / "d", "--codec", "photo=balanced")
    assert blobs_of(tmp_path / "d", "photo") == []
    assert_same(tmp_path / "a", tmp_path / "d")


def video_schema(name: str = "h264") -> Schema:
    image = FeatureSpec(
        "image", np.dtype("u1"), (HEIGHT, WIDTH, 3), codec=(config_of(name).to_json(),)
    )
    return Schema([image, FeatureSpec("x", np.dtype("<f4"), ())])


def write_video(path: Path, *, whole: bool = True) -> None:
    """H.264 in three episodes; the first has a packet that does not decode."""
    gops = gops_of("h264", moving(28), 12)
    broken = Gop((gops[0].packets[0], b"\0\0\0\1\x65" + b"\x55" * 50), (0, 1))
    x = np.arange(300, dtype=np.float32)
    images = [None if i in (0, 7, 8, 20, 27) else image for i, image in enumerate(moving(28))]
    episodes = {
        "kept": columns(image=gops if whole else [*gops, broken])
        + columns(x=x[: 28 if whole else 30]),
        "gaps": columns(image=images, x=[None if i == 3 else x[i] for i in range(28)]),
        "none": columns(x=x),
    }
    if not whole:
        episodes["kept"] += columns(image=[broken]) + columns(x=x[28:30])
    write_dataset(path, episodes, rates={"kept": 30}, schema=video_schema())


@pytest.mark.parametrize("whole", [True, False])
def test_packets_are_passed_on_undecoded(tmp_path: Path, whole: bool) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    write_video(a, whole=whole)
    run("write", "--src", a, "--dst", b, "--workers", 1)
    assert pages_of(b, "image") == pages_of(a, "image")
    if whole:
        assert_same(a, b)
    else:  # decoding would have failed
        assert seqrecord.verify(b, deep=True).problems
    with seqrecord.open(a) as one, seqrecord.open(b) as two:
        assert two.features == one.features
        for key in one.episodes:
            for name in ("image", "x"):
                present = two.episodes[key].present(name)
                assert present.tolist() == one.episodes[key].present(name).tolist()


@pytest.mark.parametrize("joined", [True, False])
def test_video_beside_undistorted_images(tmp_path: Path, joined: bool) -> None:
    """It is decoded; its own camera has no distortion."""
    camera = {"fx": 9.0, "fy": 9.0, "cx": 3.5, "cy": 2.5, "width": 8, "height": 6}
    lens = {"distortion_model": "opencv", "distortion_coefficients": [-0.2, 0.0, 0.0, 0.0]}
    gops = gops_of("h264", moving(28), 12)
    episodes = {key: columns(image=gops) + columns(front=noise(28, 6, 8, 3)) for key in "ab"}
    schema = Schema([video_schema()["image"], FeatureSpec("front", np.dtype("u1"), (6, 8, 3))])
    metadata = {key: {"camera": {"front": {**camera, **lens}, "image": camera}} for key in episodes}
    write_dataset(tmp_path / "a", episodes, metadata=metadata, schema=schema)
    join = [{"episode": ["a", "b"], "label": [1.0, 2.0]}] if joined else []
    source = undistorted(open_source(tmp_path / "a", join=join))
    convert(source, tmp_path / "b", workers=1)
    with seqrecord.open(tmp_path / "a") as one, seqrecord.open(tmp_path / "b") as two:
        for key in episodes:
            before, after = one.episodes[key][0:28], two.episodes[key][0:28]
            np.testing.assert_array_equal(after["image"], before["image"], strict=True)
            assert not np.array_equal(after["front"], before["front"])


def test_chunks_are_copied_unless_their_length_changes(tmp_path: Path) -> None:
    schema = Schema(
        [
            FeatureSpec("x", np.dtype("<f4"), (2000,)),
            FeatureSpec("y", np.dtype("<f4"), (2000,)),
            FeatureSpec("text", np.dtype("u1"), (None,), value="text", group=1),
        ]
    )
    a, b, c, d = (tmp_path / name for name in "abcd")
    episodes: dict[str, Any] = {
        key: [
            {"y": np.ones(2000, "<f4"), "text": key}
            | ({"x": np.full(2000, i, "<f4")} if i % 2 else {})
            for i in range(7)
        ]
        for key in "pq"
    }
    write(a, episodes, schema=schema, codecs={"x": "raw", "y": "small"}, chunk_frames=3)
    convert(open_source(a), b, workers=1)
    assert chunk_lengths(b) == chunk_lengths(a) == [[3, 3, 1, 3, 3, 1]] * 2
    convert(open_source(a, features=["y", "text"]), c, workers=1)
    assert chunk_lengths(c) == chunk_lengths(a)
    for path, names in ((b, ["x", "y", "text"]), (c, ["y", "text"])):
        for name in names:
            assert pages_of(path, name) == pages_of(a, name)
    convert(open_source(a), d, workers=1, chunk_frames=5)
    assert chunk_lengths(d) == [[5, 2, 5, 2]] * 2
    for path in (b, d):
        assert_same(a, path)


def test_timestamps_of_copied_chunks(tmp_path: Path) -> None:
    """Their time spans are collected, and a contradicted frame rate is ignored."""
    frames: Any = [{"t": np.float64(i / 30 + i % 3 / 1000), "n": i} for i in range(20)]
    a = write(tmp_path / "a", {"e": frames})
    b = write(tmp_path / "b", {"e": frames}, features={"t": {"kind": "timestamp", "unit": "s"}})
    options: dict[str, Any] = {"kinds": {"t": "timestamp"}, "units": {"t": "s"}}
    report = convert(open_source(a), tmp_path / "c", workers=1, fps=10, **options)
    assert any("fps ignored for" in note for note in report.inventory.notes)
    with seqrecord.open(b) as one, seqrecord.open(tmp_path / "c") as two:
        assert two.episodes["e"].fps is None
        want, got = (dataset.contents.index.time_spans for dataset in (one, two))
        assert want is not None
        assert got is not None
        np.testing.assert_equal(
            (got.min_growth, got.max_growth), (want.min_growth, want.max_growth)
        )


def test_rates_without_the_timestamps(tmp_path: Path) -> None:
    """An fps is compared with timestamps that are not selected, also by workers."""
    steps = {"kept": 0.1, "lost": 0.15}
    episodes: Any = {
        key: [{"t": np.float64(i * step), "n": i} for i in range(9)] for key, step in steps.items()
    }
    stamped = {"t": {"kind": "timestamp", "unit": "s"}}
    a = write(tmp_path / "a", episodes, features=stamped, fps=10)
    with ThreadPoolExecutor(1) as executor:
        for fps, name in ((None, "b"), (10, "c")):
            source = open_source(a, features=["n"])
            report = convert(source, tmp_path / name, executor=executor, fps=fps)
            notes = [note for note in report.inventory.notes if "fps ignored for 1" in note]
            assert len(notes) == (fps is not None)
            with seqrecord.open(tmp_path / name) as dataset:
                assert [episode.fps for episode in dataset.episodes.values()] == [10, None]


def test_images_are_passed_on_undecoded(tmp_path: Path) -> None:
    """Their pixels are damaged, so that decoding would fail."""
    data = encoded(np.arange(48, dtype=np.uint8).reshape(4, 4, 3)).replace(b"IDATx", b"IDAT\0")
    schema = Schema([FeatureSpec("image", np.dtype("u1"), (4, 4, 3), PNG)])
    a = write(tmp_path / "a", {"a": [{"image": EncodedImage(data)}]}, schema=schema)
    with seqrecord.open(a) as dataset, pytest.raises(seqrecord.errors.CodecError):
        dataset.episodes["a"][0]
    convert(open_source(a), tmp_path / "b", workers=1)
    assert blobs_of(tmp_path / "b", "image") == [data]
    with pytest.raises(SourceError, match=r"cannot decode.*episode: a; feature: image"):
        convert(open_source(a), tmp_path / "c", codecs={"image": "raw"}, workers=1)


def test_images_that_are_not_complete_files(tmp_path: Path) -> None:
    pytest.importorskip("imagecodecs")
    images = noise(3, 40, 60, 3)
    codec = ({"id": "seqrecord.image", "format": "jpegxl"},)
    a = write(tmp_path / "a", {"a": columns(image=images)}, codecs={"image": codec})
    convert(open_source(a), tmp_path / "b", workers=1)
    assert_same(a, tmp_path / "b")
    convert(open_source(a), tmp_path / "c", codecs="small", workers=1)
    seqrecord.export.to_files(a, None, tmp_path / "d")
    edit.merge_datasets([a], tmp_path / "e")
    for place in "bce":
        with seqrecord.open(tmp_path / place) as dataset:
            assert np.array_equal(dataset.episodes["a"][:]["image"], images)
            assert (dataset.features["image"].codec == codec) == (place != "c")
    found = [np.asarray(Image.open(path)) for path in sorted((tmp_path / "d").rglob("*.png"))]
    assert np.array_equal(found, images)


def test_video_in_another_codec_is_decoded(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    write_video(a)
    convert(open_source(a), b, codecs={"image": "ffv1"}, workers=1)
    assert_same(a, b)
    convert(open_source(b), tmp_path / "c", codecs="raw", workers=1)  # as if it was not named
    assert features_of(tmp_path / "c")["image"].codec[0]["codec"] == "ffv1"
    convert(open_source(b), tmp_path / "d", codecs={"image": "raw"}, workers=1)
    assert_same(a, tmp_path / "d")
    edit.drop_features(a, "x")  # only video remains
    seqrecord.add_statistics(a)
    convert(open_source(a), tmp_path / "e", workers=1)
    assert pages_of(tmp_path / "e", "image") == pages_of(a, "image")
    assert_same(a, tmp_path / "e")
    with seqrecord.open(a) as one, seqrecord.open(tmp_path / "e") as two:
        assert list(two.features) == ["image"]
        assert two.statistics.summary() == one.statistics.summary() != {}


def keys_in(path: Path, split: str) -> list[str]:
    with seqrecord.open(path) as dataset:
        keys = list(dataset.episodes)
        return [keys[number] for number in dataset.find_episodes(None, split)]


def test_edits_and_splits_are_copied(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    convert(MadeSource(), a, workers=1, chunk_frames=4, max_file_size="60kB")
    names = [info.key for info in MadeSource().episodes()]
    edit.delete_episodes(a, names[1])
    edit.rename_episodes(a, {names[2]: "other"})
    edit.set_metadata(a, "other", {"number": "two", "new": [1]})
    edit.split_episodes(a, ["other", names[3]], "val")
    edit.split_episodes(a, [names[4]], "train")
    edit.add_feature(a, "sum", lambda episode: [None, *np.arange(len(episode) - 1)], kind="reward")
    edit.drop_features(a, "flow")
    convert(open_source(a), b, workers=1)
    assert_same(a, b)
    with seqrecord.open(b) as dataset:
        assert list(dataset.features) == ["image", "sum"]
        assert list(dataset.episodes) == [names[0], "other", *names[3:]]
    assert keys_in(b, "train") == [names[4]]
    for _ in range(2):
        assert keys_in(b, "val") == ["other", names[3]]
        (b / "manifest.json").unlink()
        seqrecord.reindex(b)
    edit.drop_features(a, "image")  # frames without features remain
    convert(open_source(a), tmp_path / "c", workers=1)
    assert_same(a, tmp_path / "c")


def test_splits_of_appended_and_resumed_episodes(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    for path, lengths in ((a, (2, 3, 4)), (b, (2, 3, 4, 5, 6))):
        convert(MadeSource(lengths), path, workers=1)
    edit.split_episodes(b, ["made/002", "made/003"], "val")
    edit.split_episodes(b, ["made/004"], "test")
    edit.split_episodes(a, ["made/000"], "test")
    report = convert(open_source(b), a, mode="append", workers=1)
    assert report.skipped == ("made/000", "made/001", "made/002")
    # Existing episodes keep their split, or stay without one.
    assert keys_in(a, "test") == ["made/000", "made/004"]
    assert keys_in(a, "val") == ["made/003"]
    with pytest.raises(SourceError, match="invalid name of a split"):
        convert(Part(MadeSource(), split="a/b"), tmp_path / "c", workers=1)
    convert(Part(MadeSource(), key="new", split="val"), a, mode="append", workers=1)
    assert keys_in(a, "val") == ["made/003", "new"]


def test_statistics_are_copied_from_the_source(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    write_small(a)
    seqrecord.add_statistics(a)
    convert(open_source(a), b, workers=1)
    with seqrecord.open(a) as one, seqrecord.open(b) as two:
        assert "photo" in two.statistics  # without decoding
        assert two.statistics.num_frames == two.num_frames
        assert set(two.statistics) == set(one.statistics)
        for name in two.statistics:
            for field in ("count", "mean", "min", "max"):
                got, want = (getattr(s[name], field) for s in (two.statistics, one.statistics))
                np.testing.assert_allclose(got, want)
    # For a part of the episodes, only decoded features get statistics.
    convert(Part(open_source(a)), tmp_path / "c", workers=1)
    with seqrecord.open(tmp_path / "c") as made:
        assert made.statistics.num_frames == made.num_frames
        assert made.statistics.missing(made.features) == ["photo"]
    convert(open_source(a), tmp_path / "c", mode="append", workers=1)
    assert not seqrecord.open(tmp_path / "c").statistics
    convert(open_source(a), tmp_path / "d", statistics=False, workers=1)
    assert not seqrecord.open(tmp_path / "d").statistics


def test_statistics_after_an_append_of_copied_chunks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An addition without statistics removes the destination's, with a message."""
    frames = columns(x=np.arange(5.0), y=noise(5, 100, dtype="f8"))
    features: dict[str, Any] = {"x": {"group": 0}, "y": {"group": 1}}
    options: dict[str, Any] = {"codecs": "raw", "features": features}
    part = write(tmp_path / "part", {"a": frames}, **options)  # of which one episode is there
    write(part, {"b": frames}, mode="append")
    none = write(tmp_path / "none", {"c": frames}, statistics=False, **options)
    for name, source, codec, names in (
        ("1", part, "raw", set[str]()),
        ("2", part, [{"id": "zstd", "level": 1}], {"y"}),  # which is decoded
        ("3", none, "raw", set[str]()),
    ):
        path = tmp_path / name
        options["codecs"] = {"x": "raw", "y": codec}
        write(path, {"a": frames}, **options)
        caplog.clear()
        convert(open_source(source), path, mode="append", workers=1)
        assert {*seqrecord.open(path).statistics} == names
        [message] = [message for message in caplog.messages if "statistics" in message]
        assert ("statistics of x removed" if names else "statistics removed") in message
        command = message.rpartition("`seqrecord ")[2].partition("`")[0]
        run(*command.replace("stats", f"stats {path} --quiet").split())
        assert {*seqrecord.open(path).statistics} == {"x", "y"}


@pytest.mark.parametrize(("before", "after"), [(None, "depth"), ("depth", None)])
@pytest.mark.parametrize("others", [{}, {"x": range(3)}])
def test_statistics_of_another_kind_are_left_out(
    tmp_path: Path,
    before: str | None,
    after: str | None,
    others: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """[8, 8] are 8 channels, or one of depth."""
    a, b = tmp_path / "a", tmp_path / "b"
    grid = [np.full((8, 8), i, np.float32) for i in range(3)]
    write(a, {"e": columns(grid=grid, **others)}, features={"grid": {"kind": before}})
    convert(open_source(a), b, kinds={"grid": after}, workers=1)
    assert {*seqrecord.open(b).statistics} == {*others}
    assert seqrecord.verify(b).ok
    [message] = [message for message in caplog.messages if "statistics" in message]
    assert "statistics of grid removed because its channels changed" in message
    command = message.rpartition("`seqrecord ")[2].partition("`")[0]
    run(*command.replace("stats", f"stats {b} --quiet").split())
    assert len(seqrecord.open(b).statistics["grid"].sketches) == (1 if after else 8)


class Part:
    """Only the first episode of a source, with another key and split."""

    def __init__(self, source: seqrecord.sources.Source, **changes: Any) -> None:
        self.source, self.changes = source, changes

    def schema(self) -> Schema:
        return self.source.schema()

    def episodes(self) -> list[EpisodeInfo]:
        return [replace(self.source.episodes()[0], **self.changes)]

    def frames(self, info: EpisodeInfo) -> Iterator[Any]:
        return self.source.frames(self.source.episodes()[0])


def test_append_to_a_dataset_with_other_codecs_and_groups(tmp_path: Path) -> None:
    """Codecs, groups, kinds and the order of features are the destination's."""
    frames = [
        {"x": np.full(2000, i, "<f4"), "n": i, "i": image} for i, image in enumerate(moving(5))
    ]
    one, two = (
        [{name: frame[name] for name in names if name != "n" or frame["n"]} for frame in frames]
        for names in ("xni", "inx")
    )
    a = write(tmp_path / "a", {"a": one}, codecs={"i": "jpeg:quality=90", "x": "raw"})
    features: dict[str, Any] = {"x": {"unit": "m"}, "n": {"group": 1}}
    b = write(tmp_path / "b", {"b": two}, codecs={"i": "jpeg:quality=30"}, features=features)
    with seqrecord.open(a) as first, seqrecord.open(b) as second:
        expected, before = frames_of(first) | frames_of(second), first.features
    images = [*blobs_of(a, "i"), *blobs_of(b, "i")]
    run("write", "--src", b, "--dst", a, "--append", "--workers", 1)
    assert blobs_of(a, "i") == images  # each keeps its quality
    with seqrecord.open(a) as dataset:
        assert frames_of(dataset) == expected
        assert dataset.features == before
        assert dataset.statistics.num_frames == 10
    with pytest.raises(SchemaError, match="other features"):
        convert(open_source(a, features=["x"]), b, mode="append", workers=1)


def test_from_other_storages(tmp_path: Path) -> None:
    write_small(tmp_path / "a")
    url = f"memory://{uuid.uuid4().hex}"
    convert(open_source(tmp_path / "a"), url, workers=1)
    assert_same(tmp_path / "a", url)
    with ThreadPoolExecutor(2) as executor:
        convert(open_source(url), f"{url}/again", executor=executor)
    assert_same(url, f"{url}/again")
    run("write", "--src", url, "--dst", tmp_path / "b", "--workers", 1)
    assert_same(url, tmp_path / "b")
    with WebFolder(tmp_path) as server:  # without listings
        source = open_source(f"{server.endpoint}/a", storage_options={"deadline": 20})
        convert(source, tmp_path / "c", workers=1)
    assert_same(tmp_path / "a", tmp_path / "c")


def test_errors_in_the_source_name_the_episode(tmp_path: Path) -> None:
    a = tmp_path / "a"
    convert(MadeSource((3, 4)), a, workers=1, max_file_size=1000)
    record = max((a / "records").iterdir())
    data = bytearray(record.read_bytes())
    data[1000] ^= 1
    record.write_bytes(data)
    with pytest.raises(SourceError, match=r"checksum.*episode: made/00"):
        convert(open_source(a), tmp_path / "b", workers=1)
    report = convert(open_source(a), tmp_path / "c", workers=1, skip_bad_episodes=True)
    assert (len(report.written), len(report.bad)) == (1, 1)
    assert str(record) in report.bad[0].error


def test_how_a_dataset_is_found_and_features_are_chosen(tmp_path: Path) -> None:
    a, other, gone = (tmp_path / name for name in ("a", "other", "gone"))
    write_small(a)
    assert "seqrecord" in format_names()
    assert open_source(a, format="seqrecord").schema() == open_source(str(a)).schema()
    shutil.copytree(a, other)
    (other / "manifest.json").write_text('{"name": "an app"}')
    named: dict[str, Any] = {"format": "seqrecord"}
    found = r"no supported dataset found.*seqrecord \(manifest.json"
    for path, options, error, match in (
        (a, {"cameras": ("left",)}, SourceError, "cameras does not apply to the format seqrecord"),
        (a, {"features": ["gone"]}, SchemaError, "no such feature"),
        (other, {}, SourceError, found),
        (other, named, FormatError, "."),
        (gone, named, NotFoundError, "no dataset here"),
    ):
        with pytest.raises(error, match=match):
            open_source(path, **options)
    (other / "manifest.json").write_text("no JSON")
    with pytest.raises(SourceError, match=found):
        open_source(other)
    run("write", "--src", a, "--dst", tmp_path / "b", "--features", "pose,photo")
    with seqrecord.open(tmp_path / "b") as made:
        assert list(made.features) == ["pose", "photo"]
        assert frames_of(made) == frames_of(seqrecord.open(a, features=["pose", "photo"]))
        assert list(made.statistics) == ["pose"]
