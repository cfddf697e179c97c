"""Datasets with video: written, kept, read in every way, verified, resumed."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

import seqrecord
from seqrecord import EngineOptions, FeatureSpec, Schema
from seqrecord.errors import CodecError, FrameError, MissingPackageError, SchemaError, SourceError
from seqrecord.sources import Gop
from seqrecord.video.decoding import decode_gop
from seqrecord.video.packages import pyav
from tests.kit.command_line import run
from tests.kit.datasets import append, columns, write_dataset, write_episodes
from tests.kit.made_source import GivenSource
from tests.kit.video_data import HEIGHT, WIDTH, moving
from tests.video.gops import config_of, gops_of

Pixels = npt.NDArray[np.uint8]
SLOW = pytest.mark.slow

LENGTHS = {"a": 70, "b": 45, "c": 9}
FRAMES = {key: moving(count, seed=count) for key, count in LENGTHS.items()}


def state(count: int) -> npt.NDArray[np.float32]:
    return np.arange(count * 3, dtype=np.float32).reshape(count, 3)


def write_arrays(path: Path, codec: str, *, features: Any = None) -> None:
    episodes = {key: columns(image=each, state=state(len(each))) for key, each in FRAMES.items()}
    write_dataset(path, episodes, codecs={"image": codec}, features=features)


def kept_schema(name: str = "h264", size: tuple[int, int] = (HEIGHT, WIDTH)) -> Schema:
    chain = (config_of(name, size).to_json(),)
    image = FeatureSpec("image", np.dtype("u1"), (*size, 3), codec=chain)
    return Schema([image, FeatureSpec("state", np.dtype("<f4"), (3,))])


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Pixels]]:
    """Kept H.264 with B-frames in GOPs of 12, and its decoded frames."""
    path = tmp_path_factory.mktemp("video") / "kept"
    gops = {key: gops_of("h264", each, 12) for key, each in FRAMES.items()}
    rows = {key: columns(state=state(count)) for key, count in LENGTHS.items()}
    items = {k: [*columns(image=g[:2]), *rows[k], *columns(image=g[2:])] for k, g in gops.items()}
    write_dataset(path, items, schema=kept_schema())
    decode = partial(decode_gop, config_of("h264"), HEIGHT, WIDTH)
    return path, {key: np.concatenate([*map(decode, each)]) for key, each in gops.items()}


@pytest.mark.parametrize(
    "codec",
    ["ffv1", "h264", *(pytest.param(c, marks=SLOW) for c in ("av1:gop=8", "hevc", "vp9:gop=12"))],
)
def test_arrays_are_encoded(tmp_path: Path, codec: str) -> None:
    write_arrays(tmp_path, codec)
    dataset = seqrecord.open(tmp_path)
    assert [spec.group for spec in dataset.features.values()] == [0, 1]
    for key, frames in FRAMES.items():
        episode = dataset.episodes[key]
        found = episode[:]
        assert np.array_equal(found["state"], state(len(frames)))
        difference = np.abs(found["image"].astype(int) - frames).mean(axis=(1, 2, 3))
        assert difference.max() < (30 if codec != "ffv1" else 1e-9)
        for number in (0, 8, -1):
            assert np.array_equal(episode[number]["image"], found["image"][number])
        assert np.array_equal(episode[::-3]["image"], found["image"][::-3])
        again = [5, 2, 5, 5, 0]
        assert np.array_equal(episode.read(again)["image"], found["image"][again])
    assert seqrecord.verify(tmp_path, deep=True).problems == ()
    assert "image" in dataset.statistics  # of the original pixels


def test_chunks_are_whole_gops_and_each_frame_is_decoded_once(
    kept: tuple[Path, dict[str, Pixels]],
) -> None:
    index = seqrecord.open(kept[0]).contents.index
    assert index.groups[0].num_frames.tolist() == [24, 24, 22, 24, 21, 9]
    assert index.groups[1].num_frames.tolist() == [70, 45, 9]
    pipe = seqrecord.SeqRecordPipe(kept[0], clip_len=4, shuffle=False)
    count = sum(1 for _ in pipe)
    assert count == sum(n - 3 for n in LENGTHS.values())
    assert pipe.stats()["video_frames_decoded"] == sum(LENGTHS.values())


def test_kept_packets_decode_unchanged(kept: tuple[Path, dict[str, Pixels]]) -> None:
    path, decoded = kept
    dataset = seqrecord.open(path)
    for key, frames in decoded.items():
        assert np.array_equal(dataset.episodes[key][:]["image"], frames)
        assert np.array_equal(dataset.episodes[key][8]["image"], frames[8])
    assert seqrecord.verify(path, deep=True).problems == ()
    assert list(dataset.statistics) == ["state"]  # statistics of video need decoding
    pixels = np.concatenate(list(decoded.values())).reshape(-1, 3)
    mean = dataset.compute_statistics()["image"].mean
    assert np.allclose(mean, pixels.mean(axis=0), atol=4)
    report = seqrecord.verify(path)
    packets = sum(g.nbytes for key in FRAMES for g in gops_of("h264", FRAMES[key], 12))
    tables = sum(8 + 8 * n + 4 for n in LENGTHS.values())
    assert report.page_bytes <= packets + tables + 12 * sum(LENGTHS.values()) + 64 * 9


def test_frames_without_video(tmp_path: Path) -> None:
    images = moving(40)
    present = [n not in (0, 1, 17, 18, 39) for n in range(40)]
    column = [image if there else None for image, there in zip(images, present, strict=True)]
    episodes = {"gaps": columns(image=column, state=state(40)), "none": columns(state=state(300))}
    write_dataset(tmp_path, episodes, schema=kept_schema("ffv1:gop=6"), chunk_frames=16)
    dataset = seqrecord.open(tmp_path)
    found = dataset.episodes["gaps"]
    assert found.present("image").tolist() == present
    for n in (2, 16, 19, 38):
        assert np.array_equal(found[n]["image"], images[n])
    assert "image" not in found[17]
    assert not dataset.episodes["none"].present("image").any()
    pipe = seqrecord.SeqRecordPipe(tmp_path, clip_len=8, episodes=["gaps"])
    starts = sorted(int(clip["start"]) for clip in pipe)
    assert starts == [s for s in range(33) if all(present[s : s + 8])]
    assert seqrecord.verify(tmp_path, deep=True).problems == ()


def test_flush_and_resume(tmp_path: Path) -> None:
    gops = gops_of("ffv1:gop=6", moving(30), 6)
    writer = seqrecord.SeqRecordWriter(tmp_path, schema=kept_schema("ffv1:gop=6"))
    episode = writer.episode("kept")
    episode.append_video("image", gops[:2])
    with pytest.raises(FrameError, match="different numbers of frames"):
        episode.flush()
    episode = append(writer.episode("kept"), [{"state": row} for row in state(12)])
    episode.append_video("image", gops[:2])
    episode.flush()
    episode.append_video("image", gops[2:])
    writer.abort()
    with seqrecord.SeqRecordWriter(
        tmp_path, schema=kept_schema("ffv1:gop=6"), mode="resume"
    ) as writer:
        assert writer.completed_episodes == {"kept"}
        arrays = columns(image=moving(30), state=state(30))
        write_episodes(writer, {"arrays": arrays}, flush_at=[9])
    dataset = seqrecord.open(tmp_path)
    assert np.array_equal(dataset.episodes["kept"][:]["image"], moving(12))
    assert np.array_equal(dataset.episodes["arrays"][:]["image"], moving(30))
    assert dataset.contents.index.groups[0].num_frames.tolist() == [12, 10, 20]
    schema = Schema([kept_schema("ffv1:gop=6")["image"]])  # only video
    write_dataset(tmp_path / "only", {"a": columns(image=gops)}, schema=schema, flush_at=[0])
    assert np.array_equal(seqrecord.open(tmp_path / "only").episodes["a"][:]["image"], moving(30))


@pytest.mark.parametrize("features", [["image"], ["image", "state"]])
def test_record_files_end_after_a_flush(tmp_path: Path, features: list[str]) -> None:
    """Also where all frames come as packets, or before the other features."""
    gops, rows = gops_of("ffv1:gop=6", moving(30), 6), columns(state=state(30))
    schema = Schema([kept_schema("ffv1:gop=6")[name] for name in features])
    options: dict[str, Any] = {"schema": schema, "max_file_size": 1, "chunk_frames": 6}
    with (
        seqrecord.SeqRecordWriter(tmp_path, **options) as writer,
        writer.episode("a") as episode,
    ):
        for number, gop in enumerate(gops):
            episode.append_video("image", [gop])
            if "state" in features:
                append(episode, rows[6 * number : 6 * number + 6])
            if number == 0:
                episode.flush()
    assert len([*tmp_path.glob("records/*")]) >= len(gops)
    assert np.array_equal(seqrecord.open(tmp_path).episodes["a"][:]["image"], moving(30))
    assert not seqrecord.verify(tmp_path, deep=True).problems


def one_gop() -> list[Gop]:
    return gops_of("ffv1", moving(1), 1)


def test_invalid_video_is_refused(tmp_path: Path) -> None:
    row, image = {"state": state(1)[0]}, {"image": moving(1)[0]}
    refused: list[tuple[str, list[Any]]] = [
        ("the episode has frames", [lambda e: e.append(row | image), append_gop]),
        ("both frames and appended video", [append_gop, lambda e: e.append(row | image)]),
        ("was flushed", [lambda e: e.append(row), lambda e: e.flush(), append_gop]),
        ("feature is not video", [lambda e: e.append_video("state", one_gop())]),
        ("does not fit its feature", [lambda e: e.append({"image": image["image"][:9]})]),
        ("does not fit its feature", [lambda e: e.append({"image": np.zeros((9, 9, 3), "f4")})]),
    ]
    writer = seqrecord.SeqRecordWriter(tmp_path, schema=kept_schema("ffv1"))
    for number, (message, (*before, last)) in enumerate(refused):
        episode = writer.episode(f"a/{number}")
        for step in before:
            step(episode)
        with pytest.raises(FrameError, match=message) as info:
            last(episode)
        assert info.value.episode == f"a/{number}"
        assert info.value.feature in ("image", "state")
    writer.abort()


def append_gop(episode: Any) -> None:
    episode.append_video("image", one_gop())


def test_invalid_schemas_are_refused(tmp_path: Path) -> None:
    episode = seqrecord.SeqRecordWriter(tmp_path / "0").episode("a")
    with pytest.raises(FrameError, match="needs a schema"):
        episode.append_video("image", [])
    with pytest.raises(SchemaError, match="shares its group"):
        write_arrays(
            tmp_path / "1", "ffv1", features={"image": {"group": 0}, "state": {"group": 0}}
        )
    with pytest.raises(SchemaError, match=r"stores uint8 \[H, W, 3\]"):
        seqrecord.SeqRecordWriter(tmp_path / "2", schema=kept_schema(), codecs={"state": "av1"})
    episode = seqrecord.SeqRecordWriter(tmp_path / "3", codecs={"depth": "ffv1"}).episode("a")
    episode.append({"depth": np.zeros((48, 64), np.float32)})
    with pytest.raises(SchemaError, match=r"(?s)floats.*balanced.*uint16 \[H, W\], with `ffv1`"):
        episode.close()


def test_convert_keeps_video(tmp_path: Path) -> None:
    rows = columns(state=state(12))
    counts = {"a": 12, "short": 6, "b": 12}  # of frames of video
    packets = {key: {"image": gops_of("ffv1", moving(n), 6)} for key, n in counts.items()}
    source = GivenSource(kept_schema("ffv1:gop=6"), dict.fromkeys(counts, rows), packets)
    with pytest.raises(SourceError, match="different numbers of frames"):
        seqrecord.convert(source, tmp_path, workers=1)
    report = seqrecord.convert(source, tmp_path, workers=1, skip_bad_episodes=True, mode="resume")
    assert [bad.key for bad in report.bad] == ["short"]
    dataset = seqrecord.open(tmp_path)
    assert list(dataset.episodes) == ["a", "b"]
    assert np.array_equal(dataset.episodes["b"][:]["image"], moving(12))


def test_the_error_names_a_broken_packet(tmp_path: Path) -> None:
    good = gops_of("h264", moving(8), 8)
    bad = Gop((good[0].packets[0], b"\0\0\0\1\x65" + b"\x55" * 50), (0, 1))
    items = columns(image=[*good, bad]) + columns(state=state(10))
    write_dataset(tmp_path, {"a/b": items}, schema=kept_schema())
    dataset = seqrecord.open(tmp_path)
    assert dataset.episodes["a/b"][:8]["image"].shape == (8, HEIGHT, WIDTH, 3)
    (problem, *_) = seqrecord.verify(tmp_path, deep=True).problems
    with pytest.raises(CodecError, match="cannot decode video") as info:
        dataset.episodes["a/b"][9]
    for error in (problem, info.value):
        assert error.episode == "a/b (frames 0 to 9)"
        assert error.feature == "image"
        assert error.file is not None
        assert error.offset == 64 + 4 + 8 * 10 + 4 + good[0].nbytes
    pipe = seqrecord.SeqRecordPipe(tmp_path, clip_len=2, engine=EngineOptions(num_cursors=1))
    with pytest.raises(CodecError, match="cannot decode video"):
        list(pipe)


def test_missing_pyav_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, kept: tuple[Path, dict[str, Pixels]]
) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    pyav.cache_clear()
    try:
        with pytest.raises(MissingPackageError, match="pip install av"):
            gops_of("ffv1", moving(1), 1)
        # Not for each frame, and all other data is decoded.
        report = seqrecord.verify(kept[0], deep=True)
        [problem] = report.problems
        assert isinstance(problem, MissingPackageError)
        assert not problem.context()
        assert report.num_frames == sum(LENGTHS.values())
    finally:
        monkeypatch.undo()
        pyav.cache_clear()


DEPTH = 500 * np.arange(60)[:, None] + np.random.default_rng(1).integers(0, 30_000, (20, 1, 50))
DEPTH = DEPTH.astype(np.uint16)
BGR0 = {"id": "video", "codec": "ffv1", "pixel_format": "bgr0", "gop": 4}


@pytest.mark.parametrize(
    ("name", "frames", "codec"),
    [
        pytest.param("image", moving(12), BGR0, marks=SLOW, id="colour"),
        pytest.param("depth", DEPTH, BGR0 | {"pixel_format": "gray16le"}, id="depth of 16 bits"),
    ],
)
def test_the_command_line(tmp_path: Path, name: str, frames: Pixels, codec: object) -> None:
    """PNGs packed as lossless video, inspected, verified and exported."""
    folder = tmp_path / "originals" / "run" / name
    folder.mkdir(parents=True)
    for number, image in enumerate(frames):
        Image.fromarray(image).save(folder / f"{number:06d}.png")
    records = tmp_path / "records"
    common = ("--src", tmp_path / "originals", "--dst", records, "--workers", 1)
    run("write", *common, "--codec", f"{name}=ffv1:gop=4")
    dataset = seqrecord.open(records)
    np.testing.assert_array_equal(dataset.episodes["run"][:][name], frames, strict=True)
    assert dataset.features[name].codec == (codec,)
    for clip in seqrecord.SeqRecordPipe(
        records, clip_len=3, stride=2, engine=EngineOptions(num_cursors=2)
    ):
        start = int(clip["start"])
        assert np.array_equal(clip[name].numpy(), frames[start : start + 3])
    assert "ffv1" in run("info", records, "--clip-len", 4).stdout
    run("verify", records, "--deep")
    run("reindex", records)
    run("stats", records, "--recompute")
    run("export", records, "run", tmp_path / "out")
    exported = sorted((tmp_path / "out").rglob("*.png"))
    assert np.array_equal([np.asarray(Image.open(path)) for path in exported], frames)
    refused = run("write", *common[:2], "--codec", f"{name}=av1:gop=0", code=1)
    assert "takes gop 1 to 256" in refused.stderr or name == "depth"
