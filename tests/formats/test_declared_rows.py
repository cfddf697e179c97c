"""HDF5, Zarr, RLDS: declared row counts are checked, unused data is reported."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import seqrecord
from seqrecord import open_source
from seqrecord.errors import SourceError
from seqrecord.sources import Hdf5Source, RldsSource, inventory_of
from tests.formats.format_cases.hdf5 import (
    write_aloha,
    write_droid,
    write_robomimic,
    write_video_of_droid,
)
from tests.formats.format_cases.replay_buffers import write_buffer
from tests.formats.test_rlds import features_json, tensor
from tests.formats.tf_records import example, write_records

zarr: Any = pytest.importorskip("zarr")  # it needs Python 3.11


def lines(source: Any) -> list[str]:
    return inventory_of(source).lines()


def left_out(source: Any) -> dict[str, tuple[int, str, bool]]:
    found = inventory_of(source).left_out
    return {each.pattern: (each.count, each.unit, each.is_data) for each in found}


def refused(source: Any, number: int) -> SourceError:
    with pytest.raises(SourceError) as caught:
        list(source.frames(source.episodes()[number]))
    return caught.value


# --- HDF5 ------------------------------------------------------------------------------------


def changed(root: Path, place: str, **attributes: Any) -> Hdf5Source:
    """Robomimic file with 3 and 5 rows and changed attributes of a group."""
    root.mkdir()
    write_robomimic(root / "a.hdf5")
    with h5py.File(root / "a.hdf5", "a") as file:
        file[place].attrs.update(attributes)
        file["data"].attrs["total"] = attributes.get("total", 3 + attributes.get("num_samples", 5))
    return Hdf5Source(root)


def test_num_samples_and_totals_of_robomimic(tmp_path: Path) -> None:
    for value in (4, 6, np.float64(4), np.array([6])):
        source = changed(tmp_path / f"{value!r}", "data/demo_1", num_samples=value)
        assert [info.key for info in source.episodes()] == ["a/demo_0", "a/demo_1"]
        error = refused(source, 1)
        declared = int(np.ravel(value)[0])
        assert error.expected == f"{declared} rows, as the episode's attributes declare"
        assert (error.episode, error.got) == ("a/demo_1", "5 rows")
        assert len(list(source.frames(source.episodes()[0]))) == 3
    for number, (name, value, found) in enumerate(
        (("total", 9, 8), ("total", 7, 8), ("num_demos", 3, 2))
    ):
        source = changed(tmp_path / f"total {number}", "data", **{name: value})
        error = refused(source, 2)
        assert str(value) in str(error.expected)
        assert str(found) in str(error.got)
        assert str(error.file).endswith("a.hdf5")
        with pytest.raises(SourceError, match="disagrees with the demonstrations"):
            seqrecord.convert(source, tmp_path / f"records {number}", workers=1)
    with h5py.File(tmp_path / "4" / "a.hdf5", "a") as file:
        file["data/demo_0"].attrs["num_samples"] = "three"
        file["data/demo_1"].attrs["num_samples"] = 5
        file["mask/test"] = np.array([b"demo_0", b"demo_7", b"demo_9"], "S8")
    source = Hdf5Source(tmp_path / "4")
    error = refused(source, 0)
    assert (error.expected, error.got) == ("a whole number", "'three'")
    assert len(list(source.frames(source.episodes()[1]))) == 5
    [note] = inventory_of(source).notes
    assert note == "a.hdf5: 2 of 3 demonstrations of mask/test missing: demo_7, demo_9"


def test_an_attribute_of_aloha_declares_the_number_of_rows(tmp_path: Path) -> None:
    write_aloha(tmp_path / "episode_0.hdf5")
    for name in ("num_samples", "num_timesteps", "num_frames"):
        with h5py.File(tmp_path / "episode_0.hdf5", "a") as file:
            file.attrs.clear()
            file.attrs[name] = 400
        for source in (Hdf5Source(tmp_path), Hdf5Source(tmp_path, map={"x": "action"})):
            error = refused(source, 0)
            assert str(error.expected).startswith("400 rows")
            assert error.got == "5 rows"


def test_unwritten_rows_are_counted(tmp_path: Path) -> None:
    for number in range(2):
        write_aloha(tmp_path / f"episode_{number}.hdf5", number, 10)
    with h5py.File(tmp_path / "episode_1.hdf5", "a") as file:
        for name, chunks in (("qvel", None), ("effort", (3, 7)), ("qpos", (4, 14))):
            del file[f"observations/{name}"]
            more = {"fillvalue": 2.5} if name == "qpos" else {}
            file.create_dataset(f"observations/{name}", (10, 14), "<f4", chunks=chunks, **more)
        file["observations/effort"][2:4, :7] = 1  # half of rows 0 to 5
        file["observations/effort"][9, :] = 1
        file["observations/qpos"][:4] = 1
    assert set(inventory_of(Hdf5Source(tmp_path)).notes) == {
        "10 of 20 rows of observations.qvel were never written: filled with 0.0",
        "9 of 20 rows of observations.effort were never written: filled with 0.0",
        "6 of 20 rows of observations.qpos were never written: filled with 2.5",
    }
    assert inventory_of(Hdf5Source(tmp_path, features=["action"])).notes == ()
    with pytest.raises(SourceError, match="no values") as caught:
        inventory_of(Hdf5Source(tmp_path / "episode_1.hdf5", features=["observations.qvel"]))
    assert caught.value.feature == "observations.qvel"
    assert caught.value.got == "10 rows, none of them written"


def test_unused_datasets_are_listed(tmp_path: Path) -> None:
    write_robomimic(tmp_path / "a.hdf5", (3, 5, 2))
    with h5py.File(tmp_path / "a.hdf5", "a") as file:
        file["extra/lidar/points"] = np.zeros((8, 3))
        file["data/broken/obs/x"] = np.zeros((8, 3))
        file["loose"] = np.zeros(3)
        file["far"] = h5py.ExternalLink("b.hdf5", "/x")
        for number in range(3):
            file[f"data/demo_{number}/hints"] = ["one", "two", "three", "four"]
    (tmp_path / "notes.txt").write_text("x")
    found = left_out(Hdf5Source(tmp_path))
    assert found == {
        "data/demo_*/next_obs/*": (6, "datasets", True),
        "data/demo_*/hints": (3, "datasets", True),
        "extra/lidar/points": (1, "datasets", True),
        "data/broken/obs/x": (1, "datasets", True),
        "loose": (1, "datasets", True),
        "far": (1, "datasets", True),
        "notes.txt": (1, "files", True),
    }
    found = left_out(Hdf5Source(tmp_path, features=["actions"]))
    assert found["data/demo_*/obs/agentview_image"] == (3, "datasets", False)
    assert found["data/demo_*/next_obs/*"] == (6, "datasets", False)
    found = left_out(Hdf5Source(tmp_path, map={"a": "actions"}))
    assert found["data/demo_*/rewards"] == (3, "datasets", False)
    [feature] = inventory_of(Hdf5Source(tmp_path, map={"a": "actions"})).features
    assert feature.place == "/data/demo_*/actions"


def test_inventories_of_aloha_and_droid(tmp_path: Path) -> None:
    (tmp_path / "aloha").mkdir()
    write_aloha(tmp_path / "aloha" / "episode_0.hdf5", compress=True)
    found = inventory_of(Hdf5Source(tmp_path / "aloha"))
    assert found.reason == "1 HDF5 file, 1 episode of ALOHA"
    assert [(each.pattern, each.is_data) for each in found.left_out] == [("compress_len", False)]
    [video, *_] = write_video_of_droid(tmp_path / "droid", "Fri", 1, 4)
    video.with_name("11-stereo.mp4").write_bytes(b"x")
    write_droid(tmp_path / "droid" / "Sat", 2)
    source = Hdf5Source(tmp_path / "droid", without_video=True)
    shown = "\n".join(lines(source))
    assert "/11-stereo.mp4: 1 file, both lenses in one frame" in shown
    assert "observation/controller_info/movement_enabled: 2 datasets" in shown
    assert "feature observation.image.wrist: 1 dataset, not selected" in shown
    assert "json" not in shown


# --- Zarr ------------------------------------------------------------------------------------


def _outdate_metadata(path: Path, where: str = "") -> None:
    """Consolidates metadata, then extends arrays and adds one."""
    zarr.consolidate_metadata(path, path=where or None)
    data = zarr.open_group(path / "data", mode="r+", use_consolidated=False)
    action = data["action"]
    action.resize((15, 2))
    action[13:] = 7
    data.create_array("added", data=np.arange(15.0), chunks=(4,))
    meta = zarr.open_group(path / "meta", mode="r+", use_consolidated=False)
    meta["episode_ends"].resize((4,))
    meta["episode_ends"][3] = 15
    for name in ("img", "keypoint", "n_contacts"):
        data[name].resize((15, *data[name].shape[1:]))


def zipped(folder: Path) -> Path:
    path = folder.with_name("b.zarr.zip")
    with zipfile.ZipFile(path, "w") as file:
        for each in sorted(folder.rglob("*")):
            if each.is_file():
                file.write(each, each.relative_to(folder).as_posix())
    return path


_SLOW = pytest.mark.slow


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
@pytest.mark.parametrize(
    ("zarr_format", "where", "is_zip"),
    [
        *((2, "", False), (3, "data", True)),
        *(pytest.param(2, "", True, marks=_SLOW), pytest.param(2, "data", False, marks=_SLOW)),
        *(pytest.param(2, "data", True, marks=_SLOW), pytest.param(3, "", False, marks=_SLOW)),
        *(pytest.param(3, "", True, marks=_SLOW), pytest.param(3, "data", False, marks=_SLOW)),
    ],
)
def test_stale_consolidated_metadata_is_ignored_and_missing_chunks_are_counted(
    tmp_path: Path, zarr_format: int, where: str, is_zip: bool
) -> None:
    path, other = tmp_path / "a.zarr", tmp_path / "other" / "a.zarr"
    for each in (path, other):
        write_buffer(each, zarr_format=zarr_format)
    _outdate_metadata(path, where)
    chunks = sorted(each for each in (other / "data/img").rglob("*") if each.name[-1:].isdigit())
    for each in [each for each in chunks if each.is_file()][:2]:
        each.unlink()
    (other / "meta/success" / ("c/0" if zarr_format == 3 else "0")).unlink()
    if is_zip:
        path, other = zipped(path), zipped(other)
    source = open_source(path)
    assert [info.num_frames for info in source.episodes()] == [4, 2, 7, 2]
    frames = [dict(frame) for frame in source.frames(source.episodes()[3])]
    assert [frame["added"] for frame in frames] == [13, 14]
    np.testing.assert_array_equal([frame["action"] for frame in frames], np.full((2, 2), 7, "f4"))
    success = "1 of 1 chunk of meta/success were never written: filled with False"
    images = "2 of 5 chunks of data/img were never written: filled with 0.0"
    assert inventory_of(open_source(other)).notes == (images, success)
    assert inventory_of(open_source(other, features=["action"])).notes == (success,)


def test_arrays_without_chunks_and_shards_are_counted(tmp_path: Path) -> None:
    write_buffer(tmp_path / "a.zarr")
    zarr.open_group(tmp_path / "a.zarr")["data"].create_array("depth", shape=(13, 4), dtype="f4")
    assert "1 of 1 chunk of data/depth were never written: filled with 0.0" in "\n".join(
        lines(open_source(tmp_path))
    )
    with pytest.raises(SourceError, match=r"no values; .*depth.*got: 1 chunk, none"):
        inventory_of(open_source(tmp_path, features=["depth", "action"]))
    group = zarr.open_group(tmp_path / "shards" / "a.zarr", zarr_format=3)
    group.create_group("meta").create_array("episode_ends", data=np.array([8]))
    options: dict[str, Any] = {"shape": (8, 2), "dtype": "f4", "chunks": (2, 2), "shards": (4, 2)}
    group.create_group("data").create_array("x", **options)[:4] = 1
    [note] = inventory_of(open_source(tmp_path / "shards")).notes
    assert note == "1 of 2 shards of data/x were never written: filled with 0.0"


def test_unused_rows_and_arrays_of_a_buffer_are_listed(tmp_path: Path) -> None:
    write_buffer(tmp_path / "a.zarr", spare=5)
    group = zarr.open_group(tmp_path / "a.zarr")
    group["meta"].create_array("names", data=np.arange(7.0))
    group["data"].create_group("lidar").create_array("points", data=np.zeros((9, 3)))
    group.create_array("calibration", data=np.zeros((3, 3)))
    group["data/action"].resize((14, 2))
    (tmp_path / "log.txt").write_text("x")
    assert left_out(open_source(tmp_path, features=["img", "action"])) == {
        "data/img": (5, "rows", True),
        "data/action": (1, "rows", True),
        "data/keypoint": (1, "arrays", False),
        "data/n_contacts": (1, "arrays", False),
        "meta/names": (1, "arrays", True),
        "data/lidar/points": (1, "arrays", True),
        "calibration": (1, "arrays", True),
        "log.txt": (1, "files", True),
    }
    found = inventory_of(open_source(tmp_path / "a.zarr"))
    assert found.reason == "1 group with data/ and meta/episode_ends"
    assert found.features[0].place == "data/action"
    (tmp_path / "a.zarr/calibration/.zarray").write_text("{")  # unreadable arrays are noted
    report = seqrecord.convert(open_source(tmp_path), tmp_path / "records", workers=1)
    assert len(report.written) == 3
    assert any("a.zarr: cannot list other arrays" in n for n in report.inventory.notes)


# --- RLDS ------------------------------------------------------------------------------------

STEPS = {"state": tensor("float32", 2), "sound": {"audio": {}}}
RECORD = example({"steps/state": [1.0, 2.0], "steps/is": [1], "picture": [b"x"]})


def write_rlds(
    root: Path, found: dict[str, tuple[int, ...]], declared: dict[str, list[int]] | None = None
) -> Path:
    """Writes shards with `found` records per split; dataset_info.json has `declared`."""
    root.mkdir(exist_ok=True)
    (root / "features.json").write_text(features_json(STEPS, picture={"image": {"dtype": "uint8"}}))
    for split, counts in found.items():
        for number, count in enumerate(counts):
            name = f"a-{split}.tfrecord-{number:05d}-of-{len(counts):05d}"
            write_records(root / name, [RECORD] * count)
    if declared is not None:
        splits = [
            {"name": name, "shardLengths": [*map(str, counts)]} for name, counts in declared.items()
        ]
        (root / "dataset_info.json").write_text(json.dumps({"splits": splits}))
    return root


def test_more_or_fewer_records_than_declared_are_refused(tmp_path: Path) -> None:
    write_rlds(tmp_path / "set", {"train": (2, 3)}, {"train": [2, 1]})
    source = RldsSource(tmp_path / "set", features=["state"])
    assert len(list(source.episodes())) == 5
    error = refused(source, 3)
    assert "more records than dataset_info.json declares" in str(error)
    assert (error.episode, error.expected, error.got) == ("train/000003", "1 record", "3 records")
    with pytest.raises(SourceError, match="more records than"):
        seqrecord.convert(source, tmp_path / "records", workers=1)
    report = seqrecord.convert(source, tmp_path / "others", workers=1, skip_bad_episodes=True)
    assert report.written == ("train/000000", "train/000001", "train/000002")
    write_rlds(tmp_path / "fewer", {"train": (2, 1)}, {"train": [2, 4]})
    source = RldsSource(tmp_path / "fewer", features=["state"])
    error = refused(source, 5)
    assert "fewer records than dataset_info.json declares" in str(error)
    assert (error.episode, error.expected, error.got) == ("train/000005", "4 records", "1 record")
    assert str(error.file).endswith("-00001-of-00002")


def test_a_split_without_shard_lengths(tmp_path: Path) -> None:
    """Written by older versions of TFDS."""
    write_rlds(tmp_path, {"train": (1, 2)}, {})
    info, source = tmp_path / "dataset_info.json", RldsSource(tmp_path, features=["state"])
    info.write_text(json.dumps({"splits": [{"name": "train", "numShards": "2"}]}))
    assert len(source.episodes()) == 3
    assert inventory_of(source).notes == (
        "split train: no shardLengths in dataset_info.json, record counts not checked",
    )
    for split, count in (({"numShards": "3"}, 3), ({}, 0)):
        info.write_text(json.dumps({"splits": [{"name": "train", **split}]}))
        with pytest.raises(SourceError, match=f"expected: train: {count} files; got: 2"):
            source.episodes()


def test_splits_and_shards_that_differ_from_their_declaration_are_refused(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, tuple[int, ...]], dict[str, list[int]], str, str]] = [
        ({"train": (1,), "test": (1, 1)}, {"train": [1]}, "train", r"test \(2 shards\)"),
        ({"train": (1,)}, {"train": [1], "val": [2, 3]}, "val: 2 files, 5 records", "0 files"),
        ({"train": (1, 1)}, {"train": [1]}, "train: 1 file, 1 record", "2 files"),
    ]
    for number, (found, declared, expected, got) in enumerate(cases):
        write_rlds(tmp_path / f"{number}", found, declared)
        with pytest.raises(SourceError, match=f"expected: {expected}; got: {got}"):
            RldsSource(tmp_path / f"{number}", features=["state"]).episodes()
    # A missing shard, and a shard of another dataset
    for name in ("less", "other"):
        write_rlds(tmp_path / name, {"train": (1, 1, 1)})
    shard = "a-train.tfrecord-00001-of-0000"
    (tmp_path / "less" / f"{shard}3").unlink()
    (tmp_path / "other" / f"{shard}3").rename(tmp_path / "other" / f"{shard}4")
    for name, match in (
        (
            "less",
            "download the split again; .*expected: train: 3 files; got: 2 files, without number 1",
        ),
        ("other", "not belong to one dataset; .*file per shard, 3 shards .*got: shard 1 of 4"),
    ):
        with pytest.raises(SourceError, match=match):
            RldsSource(tmp_path / name, features=["state"]).episodes()


def test_inventory_of_rlds(tmp_path: Path) -> None:
    write_rlds(tmp_path, {"train": (2, 1), "val": (1,)}, {"train": [2, 1], "val": [1], "more": [0]})
    (tmp_path / "action_stats.json").write_text("{}")
    source = RldsSource(tmp_path, features=["state"])
    found = inventory_of(source)
    assert found.reason == "features.json with steps, 2 shards of train, 1 shard of val"
    assert [each.place for each in found.features] == ["*.tfrecord-*, feature steps/state"]
    assert left_out(source) == {
        "feature sound": (4, "steps", False),
        "episode feature picture": (4, "episodes", True),
        "action_stats.json": (1, "files", True),
    }
    assert found.notes == ("split more: declared as empty, no files",)
    (tmp_path / "dataset_info.json").unlink()
    assert inventory_of(source).notes == ("no dataset_info.json: record counts not checked",)
