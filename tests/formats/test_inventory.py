"""Inventories: all data of each format is packed or listed, and datasets keep the report."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqrecord
from seqrecord import FeatureSpec, Schema, SeqRecordWriter, open_source
from seqrecord.edit import delete_episodes, merge_datasets
from seqrecord.errors import FormatError, SourceError
from seqrecord.formats.converting.dataset_source import DatasetSource
from seqrecord.sources import Account, EpisodeInfo, Inventory, LeftOut, inventory_of, unread_files
from tests.formats.format_cases.sequences import write_tum
from tests.formats.format_cases.webdataset import write_tar
from tests.kit.command_line import run
from tests.kit.datasets import encoded
from tests.kit.lerobot_video_data import CAMERAS, unpack
from tests.kit.video_file_data import pictures, write_video

CLOUDS = LeftOut("lidar/*.pcd", 1000, "no reader")
CHOSEN = LeftOut("feature depth", 1, "not selected by features=", "features", is_data=False)


ACCOUNT = Account("2 recordings", {"x": "*/x.npy"}, (CLOUDS, CHOSEN), ("unit of x assumed: m",))


@dataclass(frozen=True)
class Recording:
    """A source of one feature that reports the given account."""

    account_of: Account = ACCOUNT
    keys: tuple[str, ...] = ("a", "b")

    def schema(self) -> Schema:
        return Schema([FeatureSpec("x", np.dtype("<f4"), (3,), kind="pose", unit="m")])

    def episodes(self) -> Sequence[EpisodeInfo]:
        return [EpisodeInfo(key, 2) for key in self.keys]

    def frames(self, info: EpisodeInfo) -> Iterator[dict[str, Any]]:
        yield from ({"x": np.zeros(3, "<f4")} for _ in range(info.num_frames))

    def account(self) -> Account:
        return self.account_of


class Plain:
    """A source with the three methods of the protocol only."""

    def __init__(self) -> None:
        self.schema = Recording().schema
        self.episodes = Recording().episodes
        self.frames = Recording().frames


FEATURE = {"name": "x", "dtype": "float32", "shape": [3], "kind": "pose", "unit": "m"}
EXPECTED = Inventory.from_json(
    {
        "format": "Recording",
        "reason": "2 recordings",
        "features": [FEATURE | {"place": "*/x.npy"}],
        "left_out": [asdict(CLOUDS), asdict(CHOSEN)],
        "notes": ["unit of x assumed: m"],
    }
)


def test_the_dataset_keeps_the_inventory_and_info_shows_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A damaged inventory is an error, but not for `info`."""
    report = seqrecord.convert(Recording(), tmp_path / "records", workers=1)
    assert report.inventory == EXPECTED
    assert seqrecord.open(tmp_path / "records").inventories == (EXPECTED,)
    text = run("info", str(tmp_path / "records")).stdout
    assert "lidar/*.pcd: 1,000 files, no reader" in text
    assert "from */x.npy" in text
    assert "unit of x assumed: m" in text
    shown = json.loads(run("info", str(tmp_path / "records"), "--json").stdout)
    assert [Inventory.from_json(each) for each in shown["inventories"]] == [EXPECTED]
    [file] = (tmp_path / "records" / "index").glob("*-inventory.json")
    file.write_bytes(file.read_bytes().replace(b"lidar", b"radar"))
    with pytest.raises(FormatError, match="inventories"):
        _ = seqrecord.open(tmp_path / "records").inventories
    with caplog.at_level(logging.WARNING, "seqrecord"):
        assert seqrecord.summarize(tmp_path / "records").inventories == ()
    assert "inventories not shown" in caplog.text


def test_conversions_edits_and_merges_keep_inventories(tmp_path: Path) -> None:
    records, other = tmp_path / "records", tmp_path / "other"
    with pytest.raises(SourceError, match=r"lidar/\*\.pcd: 1,000 files, no reader") as caught:
        seqrecord.convert(Recording(), records, workers=1, strict=True)
    assert "depth" not in str(caught.value)
    assert not records.exists()
    seqrecord.convert(Recording(), records, workers=1)
    more = replace(Recording(), keys=("a", "b", "z"))  # an equal inventory is not added
    seqrecord.convert(more, records, workers=1, mode="append")
    assert seqrecord.open(records).inventories == (EXPECTED,)
    added = Recording(Account("more of it", {"x": "x.npy"}), ("c",))
    seqrecord.convert(added, records, workers=1, mode="append")
    chosen = Recording(Account("all of it", left_out=(CHOSEN,)), ("d",))
    seqrecord.convert(chosen, other, workers=1, strict=True)
    delete_episodes(records, ["a"])
    merge_datasets([records, other], tmp_path / "all")
    for path, last in ((records, []), (tmp_path / "all", ["all of it"])):
        first, *others = seqrecord.open(path).inventories
        assert first == EXPECTED
        assert [each.reason for each in others] == ["more of it", *last]


def test_text_is_limited_in_lines_and_lists_data_first() -> None:
    found = replace(
        EXPECTED,
        features=tuple(replace(EXPECTED.features[0], name=f"f{n}") for n in range(12)),
        left_out=(CHOSEN, *(LeftOut(f"*.{n}", 2, "no reader") for n in range(20))),
    )
    lines = found.lines(10)
    assert len(lines) == 10
    assert lines[0] == "format    Recording: 2 recordings"
    assert lines[1].startswith("features  12: f0, f1, ")
    assert lines[2] == "left out  *.0: 2 files, no reader"
    assert lines[-1] == "more      15 lines; `seqrecord info` shows all"
    assert len(found.lines()) == 1 + 12 + 21 + 1


def test_json_that_is_no_inventory_is_refused() -> None:
    sound = json.loads(json.dumps(EXPECTED.to_json()))
    assert Inventory.from_json(sound) == EXPECTED
    left_out = sound["left_out"][0]
    changes: list[Any] = [
        *({"format": 1}, {"features": [{}]}, {"notes": "text"}, {"more": 1}),
        *({"left_out": [{**left_out, "count": -1}]}, {"left_out": [{**left_out, "is_data": 1}]}),
    ]
    for change in changes:
        with pytest.raises(FormatError):
            Inventory.from_json({**sound, **change})


def test_unread_files_are_grouped_by_pattern(tmp_path: Path) -> None:
    names = [
        *(f"seq-01/frame-{n:06d}.pose.txt" for n in range(3)),
        *(f"seq-02/frame-{n:06d}.pose.txt" for n in range(2)),
        *(f"seq-01/lidar/{n:06d}.pcd" for n in range(4)),
        *("seq-01/rgb/1305031102.175304.png", "seq-01/rgb/1305031102.211214.png"),
        *("calib.yaml", "README.md", "LICENSE", ".hidden", "seq-01/._frame-000000.pose.txt"),
    ]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    found = unread_files(tmp_path, lambda path: path.suffix == ".png")
    assert found == [
        LeftOut("*/*.pose.txt", 5, "no reader"),
        LeftOut("seq-01/lidar/*.pcd", 4, "no reader"),
        LeftOut("calib.yaml", 1, "no reader"),
    ]
    assert LeftOut("seq-01/rgb/*.png", 2, "x") in unread_files(tmp_path, lambda _: False, "x")
    assert str(found[0]) == "*/*.pose.txt: 5 files, no reader"
    assert str(found[-1]) == "calib.yaml: 1 file, no reader"
    for row in found:
        there = [p for p in tmp_path.glob(row.pattern) if p.name[0] != "."]
        assert len(there) == row.count


@dataclass(frozen=True)
class HalfEmpty(Recording):
    """A source whose second feature is missing in all frames."""

    features: tuple[str, ...] | None = None

    def schema(self) -> Schema:
        return Schema([*super().schema().values(), FeatureSpec("y", np.dtype("<f4"), (2,))])


def test_values_that_are_not_finite_are_reported(tmp_path: Path) -> None:
    for name, values in (("a", np.zeros((3, 2))), ("b", np.array([[0, 0], [0, np.nan], [1, 1]]))):
        (tmp_path / "runs" / name).mkdir(parents=True)
        np.save(tmp_path / "runs" / name / "action.npy", values)
    report = seqrecord.convert(open_source(tmp_path / "runs"), tmp_path / "records", workers=1)
    assert report.inventory.notes == ("NaN or infinities of action: 1 value; b from frame 1 (1)",)


def test_a_requested_feature_without_any_value_is_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(SourceError, match="no value in any frame") as caught:
        seqrecord.convert(HalfEmpty(features=("x", "y")), tmp_path / "refused", workers=1)
    assert caught.value.feature == "y"
    assert not (tmp_path / "refused" / "manifest.json").exists()
    with caplog.at_level(logging.WARNING, "seqrecord"):
        seqrecord.convert(HalfEmpty(), tmp_path / "records", workers=1)
    assert "feature y has no value in any frame" in caplog.text


def test_a_source_of_three_methods_has_an_inventory_of_its_features(tmp_path: Path) -> None:
    """Its attribute `features` may be of any type; a writer makes no inventory."""

    class Own(Plain):
        def features(self) -> None:
            raise AssertionError

    for source in (Plain(), Own()):
        found = inventory_of(source)
        assert (found.format, found.left_out) == (type(source).__name__, ())
        assert [each.name for each in found.features] == ["x"]
    report = seqrecord.convert(Own(), tmp_path / "records", workers=1)
    assert report.manifest.num_episodes == 2
    with SeqRecordWriter(tmp_path / "written") as writer, writer.episode("a") as episode:
        episode.append({"x": np.zeros(3, "<f4")})
    assert seqrecord.open(tmp_path / "written").inventories == ()


# --- by format ---------------------------------------------------------------------------------


def lines(path: Path, **options: Any) -> list[str]:
    return inventory_of(open_source(path, **options)).lines()


def test_the_inventory_of_webdataset(tmp_path: Path) -> None:
    png = encoded(np.zeros((2, 2), np.uint8))
    names = [f"{n}.{ending}" for n in range(3) for ending in ("rgb.png", "mp4", "depth.png")]
    write_tar(tmp_path / "a.tar", {**dict.fromkeys(names, png), "NOTES": b"", ".x.png": b""})
    write_tar(tmp_path / "b.tar", {"0.rgb.png": png, "0.mp4": png})
    write_tar(tmp_path / "c.tar", {})
    (tmp_path / "a.idx").write_text("0")
    assert lines(tmp_path, features=["rgb"])[1:] == [
        "feature   rgb  uint8 [2, 2]  image  from *.tar/*.rgb.png",
        "left out  *.tar/*.mp4: 4 files, no reader",
        "left out  *.tar/NOTES: 1 file, no reader",
        "left out  a.idx: 1 file, no reader",
        "left out  field depth: 3 files, not selected by features=",
        "note      c.tar has no samples",
    ]


@pytest.mark.parametrize("version", ["v21", "v3"])
def test_the_inventory_of_lerobot(tmp_path: Path, version: str) -> None:
    root = unpack(tmp_path, f"lerobot_video_{version}")
    info = json.loads((root / "meta/info.json").read_text())
    info["splits"] = {"train": "0:3", "held/out": "2:3", "val": "10%"}
    info["features"]["observation.images.front"]["info"] = {"video.fps": 30}
    (root / "meta/info.json").write_text(json.dumps(info))
    if version == "v3":
        listed, text = root / "meta/episodes/chunk-000/file-000.parquet", "meta/episodes"
        with_column(listed, "success", 1)
    else:
        listed, text = root / "meta/episodes.jsonl", "meta/episodes.jsonl"
        rows = [json.loads(line) | {"success": 1} for line in listed.read_text().splitlines()]
        listed.write_text("\n".join(map(json.dumps, rows)))
    with_column(min(root.glob("data/*/*.parquet")), "torque", 0.5)
    stats = "meta/stats.json" if version == "v3" else "meta/episodes_stats.jsonl"
    for name in (stats, "images/x/0.png", "videos/old.mp4", "README.md"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("{}")
    positions = "features frame_index, episode_index, index: 3 features"
    rates = "observation.images.front: declared frame rate 30 differs from the dataset's 10"
    assert {line for line in lines(root) if line[:7] not in ("feature", "format ")} == {
        "left out  frames.npz: 1 file, no reader",
        "left out  images/x/0.png: 1 file, an image that belongs to no feature",
        "left out  videos/old.mp4: 1 file, no reader",
        "left out  column torque of data/: 16 rows, not declared in meta/info.json",
        f"left out  success in {text}: 3 episodes, no reader",
        f"left out  {stats}: 1 file, recomputed",
        f"left out  {positions}, follows from the frame's position",
        "note      split val ignored: '10%' is not a range of episodes",
        "note      split 'held/out' in the metadata only: its name is not [A-Za-z0-9_][A-Za-z0-9_.-]{0,99}",  # noqa: E501
        "note      splits overlap: an episode gets the last of its splits",
        f"note      {rates}",
    }
    splits = [info.metadata.get("split") for info in open_source(root).episodes()]
    assert splits == [None, None, "held/out"]
    chosen = inventory_of(open_source(root, without_video=True)).left_out
    assert [each.pattern for each in chosen if "not selected" in each.reason] == [
        f"feature {name}" for name in CAMERAS
    ]


def with_column(path: Path, name: str, value: float) -> None:
    table = pq.read_table(path)
    pq.write_table(table.append_column(name, pa.array([value] * len(table))), path)


def with_audio(path: Path) -> None:
    """A video of 3 frames, with sound."""
    with av.open(str(path), "w") as file:
        picture: Any = file.add_stream("libx264", rate=10)
        picture.width = picture.height = 32
        picture.pix_fmt = "yuv420p"
        sound: Any = file.add_stream("aac", rate=8000)
        for number in range(3):
            frame = av.VideoFrame.from_ndarray(np.full((32, 32, 3), number, np.uint8))
            frame.pts = number
            file.mux(picture.encode(frame))
        silence = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        silence.sample_rate, silence.pts = 8000, 0
        file.mux(sound.encode(silence))
        file.mux(picture.encode())
        file.mux(sound.encode())


def test_the_inventory_of_videos(tmp_path: Path) -> None:
    for number in range(2):
        path = tmp_path / f"{number}/front.mp4"
        path.parent.mkdir()
        with_audio(path)
        path.with_suffix(".srt").write_text("1")
        path.with_suffix(".json").write_text("{}")
        write_video(path.with_name("wrist.mkv"), pictures(3))
    assert lines(tmp_path)[:1] == ["format    videos: 4 files *.mkv, *.mp4"]
    assert [line for line in lines(tmp_path) if "left out" in line] == [
        "left out  audio in *.mkv, *.mp4: 2 streams, no reader",
        "left out  */front.json: 2 files, no reader",
        "left out  */front.srt: 2 files, no reader",
    ]
    chosen = lines(tmp_path, by_folder=True, features=["front"])
    assert "feature   front  uint8 [32, 32, 3]  image  from */front.*" in chosen
    assert "left out  wrist.*: 2 files, not selected by features=" in chosen
    assert "1 stream, no reader" in lines(tmp_path / "0/front.mp4")[3]


def test_a_dataset_as_a_source(tmp_path: Path) -> None:
    write_tum(tmp_path / "freiburg1_a")
    (tmp_path / "freiburg1_a/scan.pcd").write_text("x")
    seqrecord.convert(open_source(tmp_path / "freiburg1_a"), tmp_path / "one", workers=1)
    source = open_source(tmp_path / "one", features=["image", "pose"])
    report = seqrecord.convert(source, tmp_path / "two", workers=1, strict=True)
    shown = report.inventory.lines()
    assert shown[0] == "format    seqrecord: manifest.json of a dataset of 1 episode"
    assert "feature   pose  float64 [7]  pose, m  from feature pose" in shown
    assert "left out  feature depth: 1 feature, not selected by features=" in shown
    assert "left out  scan.pcd: 1 file, no reader, when tum was packed" in shown
    assert any(line.startswith("note      packed before from tum: 1 sequence") for line in shown)
    with seqrecord.open(tmp_path / "two").renamed({"pose": "camera"}) as dataset:
        found = DatasetSource(dataset).account()
    assert found.places == {"image": "feature image", "camera": "feature pose"}
    assert not [each for each in found.left_out if each.count == 1 and each.is_data]
