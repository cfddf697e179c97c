"""seqrecord's version of LeRobot's class: items, and the order that decodes each frame once.

`make test-lerobot` compares both with lerobot itself.
"""

from __future__ import annotations

import json
import pickle
import shutil
import sys
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice, product
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

import seqrecord
from seqrecord import samples
from seqrecord.errors import ClipError, JoinError, MissingPackageError, SourceError, StateError
from seqrecord.export import to_lerobot as export
from seqrecord.lerobot import LeRobotDataset, PlannedSampler
from tests.kit.lerobot_depth_data import DEPTH, IMAGE
from tests.kit.lerobot_language_data import BINDINGS, annotate
from tests.kit.lerobot_stand_in import install, same
from tests.kit.lerobot_video_data import CAMERAS, unpack
from tests.kit.video_data import moving

LENGTHS = (60, 1, 41, 75, 30, 52)
FPS = 10
FRONT, WRIST = CAMERAS
MANY_WINDOWS = {
    FRONT: [-0.3, 0.0, 0.1],
    "observation.state": [-0.1, 0.0],
    "index": [0.2],
    "frame_index": [-0.1, 0.0, 0.4],
    "episode_index": [0.0, 0.9],
    "timestamp": [-0.1, 0.1],
}
WINDOWS = {FRONT: [-0.1, 0.0], "action": [i / FPS for i in range(8)]}


@pytest.fixture(autouse=True)
def lerobot(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEQRECORD_HOME", str(tmp_path_factory.mktemp("home")))
        yield tmp_path_factory.mktemp("lerobot")


@pytest.fixture(scope="module")
def root(home: Path) -> Path:
    """A v3.0 dataset with two cameras, written by `seqrecord export`."""
    codecs = {FRONT: "av1:gop=2", WRIST: "h264:gop=4"}
    rng = np.random.default_rng(0)
    with seqrecord.SeqRecordWriter(home / "records", fps=FPS, codecs=codecs) as writer:
        for number, length in enumerate(LENGTHS):
            front = moving(length, seed=number, size=(48, 64))
            with writer.episode(f"{number}") as episode:
                for i in range(length):
                    values = rng.normal(size=(2, 4)).astype(np.float32)
                    frame = {FRONT: front[i], WRIST: front[i, 8:40, 8:56], "action": values[0]}
                    frame |= {"observation.state": values[1], "task": f"task {number % 3}"}
                    episode.append({**frame, "touch": rng.integers(0, 256, 2, np.uint8)})
    return export(home / "records", home / "exported")


@pytest.fixture(scope="module", params=["v21", "v3"])
def golden(home: Path, request: pytest.FixtureRequest) -> Path:
    """Datasets of both versions, written by lerobot."""
    return unpack(home, f"lerobot_video_{request.param}")


def dataset(root: Path, **options: Any) -> LeRobotDataset:
    return LeRobotDataset("a/test", root, **options)


@lru_cache
def columns(root: Path) -> dict[str, npt.NDArray[Any]]:
    """All rows of the tables, and all frames."""
    tables = [pq.read_table(path) for path in sorted(root.rglob("data/**/*.parquet"))]
    rows = pa.concat_tables(tables)
    found = {name: np.array(rows[name].to_pylist()) for name in rows.column_names}
    with seqrecord.open(root) as opened:
        for name in CAMERAS:
            found[name] = np.concatenate([opened.episodes[k][:][name] for k in opened.episodes])
    return found


def expected(root: Path, number: int, windows: dict[str, list[float]], *, as_uint8: bool) -> Any:
    """The item of a row, by brute force."""
    rows, item = columns(root), dict[str, Any]()
    every = rows["episode_index"]
    [of_episode] = np.nonzero(every == every[number])
    for name, values in rows.items():
        offsets = [round(time * FPS) for time in windows.get(name, [0])]
        asked = number + np.array(offsets)
        used = asked.clip(of_episode[0], of_episode[-1])
        value = torch.from_numpy(values[used])
        if name in CAMERAS:
            value = value.permute(0, 3, 1, 2)
            value = value if as_uint8 else value / 255.0
        elif value.dtype != torch.bool:
            value = value.to(torch.float32 if value.is_floating_point() else torch.int64)
        item[name] = value if name in windows else value[0]
        if name in windows:
            item[f"{name}_is_pad"] = torch.from_numpy(asked != used)
    return item


def check(item: dict[str, Any], wanted: dict[str, Any]) -> None:
    """An item equals `wanted` bit for bit; `task` is a text."""
    assert item.keys() == {*wanted, "task"}
    assert isinstance(item["task"], str)
    for name, value in wanted.items():
        got = item[name]
        assert (got.dtype, got.shape) == (value.dtype, value.shape), name
        assert torch.equal(got, value), name


# ---- items


def test_items(golden: Path) -> None:
    for as_uint8, windows in ((False, {}), (True, MANY_WINDOWS), (False, MANY_WINDOWS)):
        ours = dataset(golden, delta_timestamps=windows or None, return_uint8=as_uint8)
        assert (len(ours), ours.num_frames, ours.num_episodes) == (16, 16, 3)
        wanted = [expected(golden, i, windows, as_uint8=as_uint8) for i in range(16)]
        for number, item in enumerate(wanted):
            check(ours[number], item)
        for got, number in zip(ours.__getitems__([9, 2, 9, 15]), (9, 2, 9, 15), strict=True):
            check(got, wanted[number])
        check(ours[-1], wanted[15])
        for got, item in zip(ours[3:9:2], wanted[3:9:2], strict=True):
            check(got, item)
    plain = dataset(golden)[4]
    ours = dataset(golden, image_transforms=lambda image: 1 - image)
    assert all(torch.equal(ours[4][name], 1 - plain[name]) for name in CAMERAS)
    ours.set_image_transforms(None)
    assert same(ours[4], plain)


def test_items_have_the_features_of_companions(golden: Path, home: Path) -> None:
    table = {
        "index": [*range(16)],
        "advantage": np.arange(16.0),
        "good": np.arange(16) % 2 == 0,
        "label": [f"frame {i}" for i in range(16)],
    }
    windows = {"advantage": [-0.1, 0.0]}
    ours = dataset(golden, delta_timestamps=windows, join=[table])
    assert ours.features["advantage"] == {"dtype": "float64", "shape": (), "names": None}
    assert "advantage" not in ours.meta.features
    for number in range(16):
        item, is_first = ours[number], number in (0, 5, 9)
        assert item["advantage"].tolist() == [number - (not is_first), number]
        assert item["advantage_is_pad"].tolist() == [is_first, False]
        assert item["good"].item() == (number % 2 == 0)
        assert item["label"] == f"frame {number}"
    with pytest.raises(JoinError, match="without a partner"):
        dataset(golden, join=[{"episode": [0], "x": [1]}])


def test_items_have_the_values_of_their_texts(golden: Path, home: Path, tmp_path: Path) -> None:
    seqrecord.derive(
        golden,
        lambda batch: {"mean": batch["observation.state"].mean(dim=1)},
        tmp_path / "means",
        features=["observation.state"],
        batch_size=4,
        per_text={"task": lambda text: torch.full((len(text), 2), len(text)).bfloat16()},
    )
    ours = dataset(golden, join=[tmp_path / "means"])
    assert ours.features["task_embedding"]["shape"] == (4, 2)
    assert ours.features["task_embedding_mask"]["dtype"] == "bool"
    for item in (*(ours[number] for number in (0, 7, 15)), *ours[3:5]):
        expected = torch.full((len(item["task"]), 2), len(item["task"])).bfloat16()
        assert torch.equal(item["task_embedding"], expected)
        assert item["task_embedding_mask"].all()
    sampler = PlannedSampler(ours, batch_size=4)
    for batch in DataLoader(ours, batch_size=4, sampler=sampler):
        assert batch["task_embedding"].shape == (len(batch["task"]), 4, 2)
    assert ours.stats()["items_in_order"]


def test_selected_episodes(golden: Path) -> None:
    ours = dataset(golden, episodes=[2, 0], delta_timestamps={"index": [-0.1, 0.1]})
    assert (len(ours), ours.num_episodes, ours.episodes) == (12, 2, [2, 0])
    rows = [*range(5), *range(9, 16)]
    assert ours.absolute_to_relative_idx == {row: item for item, row in enumerate(rows)}
    assert dataset(golden).absolute_to_relative_idx is None
    for item, row in enumerate(rows):
        wanted = expected(golden, row, {"index": [-0.1, 0.1]}, as_uint8=False)
        check(ours[item], wanted)
    other = dataset(golden, episode_filter=lambda episode: episode["episode_index"] == 1)
    assert [item["index"].item() for item in other[:]] == [5, 6, 7, 8]


def test_episodes_that_cannot_be_read(tmp_path: Path) -> None:
    """Numbers of episodes and rows stay those of the whole dataset."""
    whole, root = (unpack(tmp_path / name, "lerobot_video_v21") for name in ("whole", "damaged"))
    video = root / f"videos/chunk-000/{FRONT}/episode_000001.mp4"
    video.write_bytes(b"damaged")
    for options in ({}, {"episodes": [1, 2]}):
        with pytest.raises(SourceError, match=r"episode_000001; .*skip_bad_episodes=True"):
            dataset(root, **options)
    video.unlink()
    rows = [*range(5), *range(9, 16)]
    for ours in (dataset(root, episodes=[0, 2]), dataset(root, skip_bad_episodes=True)):
        assert (len(ours), ours.num_episodes, ours.episodes) == (12, 2, [0, 2])
        assert ours.absolute_to_relative_idx == {row: item for item, row in enumerate(rows)}
        for item, row in enumerate(rows):
            check(ours[item], expected(whole, row, {}, as_uint8=False))
        order = list(PlannedSampler(ours, batch_size=2))
        assert sorted(order) == [*range(12)]
        assert [item["index"] for item in ours.__getitems__(order)] == [rows[i] for i in order]
    ours = dataset(root, episodes=[1, 2], skip_bad_episodes=True)
    assert [item["index"] for item in ours[:]] == rows[5:]


def test_tasks_other_attributes_and_converted_records(root: Path, home: Path) -> None:
    ours = dataset(root, tolerance_s=1e-3)
    assert [ours[i]["task"] for i in (0, 60, 61)] == ["task 0", "task 1", "task 2"]
    check(ours[61], expected(root, 61, {}, as_uint8=False))
    assert ours[61]["touch"].dtype == torch.int64
    assert (ours.fps, ours.features, ours.root) == (FPS, ours.meta.features, root)
    assert "259 frames, read by seqrecord" in repr(ours)
    seqrecord.convert(seqrecord.open_source(root), home / "converted", workers=1)
    other = dataset(root, records=home / "converted")
    assert all(same(ours[number], other[number]) for number in (0, 60, 101, 258))


def test_language_columns(home: Path, tmp_path: Path) -> None:
    """Items have the lists of the tables, with timestamps of float32; loops have texts."""
    root = unpack(tmp_path, "lerobot_video_v3")
    annotate(root)
    tables = [pq.read_table(path) for path in sorted(root.rglob("data/**/*.parquet"))]
    rows = pa.concat_tables(tables).to_pylist()
    for one in (one for row in rows for one in row["language_persistent"]):
        one["timestamp"] = float(np.float32(one["timestamp"]))
    names = ("language_persistent", "language_events")
    windows = {"observation.state": [-0.1, 0.0]}
    ours = dataset(root, delta_timestamps=windows)
    sampler = PlannedSampler(ours, batch_size=4)
    loader = DataLoader(ours, 4, sampler=sampler, collate_fn=list)
    items = [item for batch in loader for item in batch]
    assert sorted(int(item["index"]) for item in items) == [*range(len(ours))]
    for item in [*items, *ours[:]]:
        wanted = rows[int(item["index"])]
        assert [item[name] for name in names] == [wanted[name] for name in names]
    with pytest.raises(ClipError, match="windows of no such features"):
        dataset(root, delta_timestamps={names[1]: [0.0]})

    windowed = {
        "subtask": seqrecord.Latest([-1, 0], unknown="zeros"),
        "interjection": seqrecord.Next(max_wait=3, unknown="zeros"),
    }
    with seqrecord.open(root, language=BINDINGS) as opened:
        pipe = seqrecord.SeqRecordPipe(
            opened, features=[*windowed], windows=windowed, metadata=names[:1], pad="edge"
        )
        clips = [*pipe]
        keys = [*opened.episodes]
        frames = {
            key: [opened.episodes[key][i] for i in range(n)]
            for key, n in zip(keys, (5, 4, 7), strict=True)
        }
    assert len(clips) == len(rows)
    for clip in clips:
        own, start = frames[clip["episode"]], int(clip["start"])
        assert clip["subtask"] == [own[max(start + i, 0)].get("subtask", "") for i in (-1, 0)]
        texts = [frame.get("interjection", "") for frame in own[start : start + 4]]
        wait = next((i for i, text in enumerate(texts) if text), -1)
        assert clip["interjection_wait"].tolist() == [wait]
        assert clip["interjection"] == [texts[wait] if wait >= 0 else ""]
        number = sum((5, 4, 7)[: keys.index(clip["episode"])])
        assert clip[names[0]] == rows[number][names[0]]
    seqrecord.convert(seqrecord.open_source(root), home / "language", workers=1)
    other = dataset(root, records=home / "language", delta_timestamps=windows)
    assert [other[3][name] for name in names] == [rows[3][name] for name in names]
    with pytest.raises(ClipError, match="language cannot be combined with a dataset of record"):
        seqrecord.open(home / "language", language=BINDINGS)


@pytest.mark.parametrize(("kind", "name"), [("log", DEPTH[0]), ("linear", DEPTH[1])])
def test_depth(tmp_path: Path, kind: str, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """As in lerobot 0.6.1: metres, and whole millimetres; of records and in place."""
    folder = unpack(tmp_path, "lerobot_depth")
    records = tmp_path / "records"
    seqrecord.convert(seqrecord.open_source(folder / kind), records, workers=1)
    metres = np.load(folder / "frames.npz")[name][:, None]
    units = (("m", metres), ("mm", (metres * np.float32(1000)).round()))
    for (unit, wanted), place in product(units, (records, None)):
        ours = dataset(folder / kind, records=place, depth_output_unit=unit, cache_limit=0)
        got = torch.stack([item[name] for item in ours[:]]).numpy()
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-6)
    assert "each decodes its own 1 picture, from" in caplog.text


@pytest.mark.parametrize("dtype", ["u2", "f4"])
def test_depth_as_tiff(tmp_path: Path, dtype: str) -> None:
    folder = unpack(tmp_path, "lerobot_depth_images")
    seqrecord.convert(seqrecord.open_source(folder / dtype), tmp_path / "records", workers=1)
    with np.load(folder / "frames.npz") as frames:
        for unit in ("mm", "m"):
            ours = dataset(folder / dtype, records=tmp_path / "records", depth_output_unit=unit)
            got = torch.stack([item[IMAGE] for item in ours[:]]).numpy()
            np.testing.assert_array_equal(got, frames[f"{dtype} {unit}"], strict=True)


@pytest.mark.parametrize("is_given", [False, True])
def test_missing_files_are_downloaded(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_given: bool
) -> None:
    """By the Hub's own function, to the folder that LeRobot's class uses."""
    asked = []
    place = tmp_path / "a/test"
    shutil.copytree(golden / "meta", place / "meta")

    def snapshot_download(repo_id: str, **options: Any) -> str:
        asked.append((repo_id, options))
        to = options.get("local_dir", tmp_path / "snapshot")
        shutil.copytree(golden, to, dirs_exist_ok=True)
        return str(to)

    hub = ModuleType("huggingface_hub")
    hub.snapshot_download = snapshot_download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path))
    given: dict[str, Any] = {"root": place} if is_given else {}
    ours = LeRobotDataset("a/test", **given, revision="main", token="secret")
    where = {"local_dir": place} if is_given else {"cache_dir": "the cache"}
    options = {"repo_type": "dataset", "revision": "main", "token": "secret", **where}
    assert asked == [("a/test", options)]
    assert ours.root == (place if is_given else tmp_path / "snapshot")
    assert same(ours[3], dataset(golden)[3])


def test_invalid_windows_and_settings(golden: Path) -> None:
    with pytest.raises(ClipError) as error:
        dataset(golden, delta_timestamps={FRONT: [0.0, 0.05]})  # between two frames
    assert error.value.feature == FRONT
    dataset(golden, delta_timestamps={FRONT: [0.0, 0.099]}, tolerance_s=0.01)
    for name in ("other", "task_index"):
        with pytest.raises(ClipError, match="windows of no such features") as error:
            dataset(golden, delta_timestamps={name: [0.0]})
        assert error.value.got == name
    ours, wrong = dataset(golden), list[dict[str, Any]]()
    wrong += [{"batch_size": 0}, {"num_workers": -1}, {"num_replicas": 0}, {"seed": "one"}]
    for options in (*wrong, {"num_replicas": 3, "rank": 3}):
        with pytest.raises(ClipError):
            PlannedSampler(ours, **{"batch_size": 4, **options})


def test_frames_far_from_their_times(golden: Path, tmp_path: Path) -> None:
    wanted, root = dataset(golden)[:], tmp_path / "late"
    shutil.copytree(golden, root)
    for path in root.rglob("data/**/*.parquet"):
        rows = pq.read_table(path)
        later = pa.array([time + 0.003 for time in rows["timestamp"].to_pylist()], pa.float32())
        at = rows.column_names.index("timestamp")
        pq.write_table(rows.set_column(at, rows.schema.field(at), later), path)
    for _ in range(2):
        with pytest.raises(SourceError, match=r"within 0.0001 s"):
            dataset(root)
        for tolerance in (0.01, 0.3):  # 0.3 s is longer than a frame
            for got, item in zip(dataset(root, tolerance_s=tolerance)[:], wanted, strict=True):
                assert all(torch.equal(got[name], item[name]) for name in CAMERAS)
                assert got["timestamp"] == item["timestamp"] + 0.003
    with pytest.raises(SourceError, match=r"within 0.002 s"):
        dataset(root, tolerance_s=0.002)


def test_datasets_that_contradict_their_meta(golden: Path, tmp_path: Path) -> None:
    copy = unpack(tmp_path, golden.name)
    info = json.loads((copy / "meta/info.json").read_text())
    (copy / "meta/info.json").write_text(json.dumps({**info, "total_frames": 17}))
    with pytest.raises(SourceError, match="total_frames disagrees with meta/episodes") as error:
        dataset(copy)
    assert (error.value.expected, error.value.got) == ("total_frames 17", 16)
    (copy / "meta/info.json").write_text(json.dumps(info))
    records = tmp_path / "records"
    seqrecord.convert(seqrecord.open_source(copy), records, workers=1)
    seqrecord.edit.delete_episodes(records, ["episode_000002"])
    with pytest.raises(SourceError, match="the dataset contradicts its meta") as error:
        dataset(copy, records=records)
    assert error.value.got == "9 frames in 2 episodes"


def test_without_lerobot(golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with pytest.raises(MissingPackageError, match="pip install"):
        dataset(golden)


def test_the_cost_of_another_order_is_logged_once(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """So are numbers of workers and ranks that differ from the training's."""
    ours = dataset(root, delta_timestamps=WINDOWS, cache_limit=0)
    ours[0]
    caplog.clear()  # the first test of a process builds the index
    ours.__getitems__([1, 2])
    ours.__getitems__([3])
    [message] = caplog.messages
    assert "PlannedSampler: each decodes its own 3 pictures" in message
    stats = ours.stats()
    assert stats["video_frames_decoded"] > 4 * 2
    assert stats["items_in_order"] == 0

    ours = dataset(unpack(tmp_path, "lerobot_video_v3"))
    order = list(PlannedSampler(ours, batch_size=1, num_workers=2, num_replicas=2))
    caplog.clear()
    for batch in (order[:1], order[8:9]):
        assert [item["index"] for item in ours.__getitems__(batch)] == batch
    workers, ranks = (one for one in caplog.messages if "PlannedSampler" in one)
    assert "PlannedSampler's num_workers is not 1" in workers
    assert "PlannedSampler's num_replicas is not how many" in ranks


def of_worker(items: list[dict[str, Any]]) -> dict[str, Any]:
    """A batch with its worker's id and statistics."""
    info: Any = get_worker_info()
    stats = info.dataset.stats()
    return {**torch.utils.data.default_collate(items), "worker": info.id, "stats": stats}


def test_frames_that_fit_the_cache_are_decoded_once_in_any_order(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours, alone = (dataset(root, delta_timestamps=WINDOWS, cache_limit=n) for n in ("512MiB", 0))
    loader: Any = DataLoader(ours, batch_size=8, shuffle=True)
    stats = [(len(list(loader)), ours.stats()) for _ in range(2)]
    assert stats[0][1]["video_frames_decoded"] >= 2 * sum(LENGTHS)
    assert stats[0] == stats[1]
    assert "each decodes its own" not in caplog.text
    for number in range(0, len(ours), 29):
        assert same(ours[number], alone[number])


# ---- the planned order


def test_each_frame_is_decoded_once(root: Path) -> None:
    """In the order of a pipe or of the rows."""
    ours, alone = dataset(root, delta_timestamps=WINDOWS), dataset(root, delta_timestamps=WINDOWS)
    sampler = PlannedSampler(ours, batch_size=8, seed=5)
    orders = []
    for epoch in range(2):
        loader: Any = DataLoader(ours, batch_size=8, sampler=sampler)
        order = [index for batch in loader for index in batch["index"].tolist()]
        assert sorted(order) == list(range(sum(LENGTHS)))
        orders.append(order)
        stats = ours.stats()
        assert stats["items_in_order"] == (epoch + 1) * sum(LENGTHS)
        assert stats["video_frames_decoded"] == 2 * sum(LENGTHS)
        assert stats["frames_decoded"] == sum(LENGTHS)
    assert orders[0] != orders[1]
    subset = list(PlannedSampler(ours, batch_size=8, seed=5))[:40]
    assert subset == orders[0][:40]
    for index, item in zip(subset, ours.__getitems__(subset), strict=True):
        assert index == item["index"]
        assert index % 9 or same(item, alone[int(index)])
    options: dict[str, Any] = {"windows": ours.clips.options.windows, "pad": "edge"}
    options |= {"batch_size": 8, "seed": 5, "last_batch": "keep"}
    begin, order = np.cumsum(LENGTHS) - LENGTHS, []
    for batch in seqrecord.SeqRecordPipe(ours.clips.dataset, **options):
        numbers = [int(key[-6:]) for key in batch["episode"]]
        order += (begin[numbers] + batch["start"].numpy()).tolist()
    assert orders[0] == order

    ours = dataset(root, episodes=[0, 2, 1])
    sampler = PlannedSampler(ours, batch_size=4, shuffle=False, drop_last_frames=1)
    order = list(sampler)
    assert order == [*range(59), *range(61, 101)]
    assert len(sampler) == len(order)
    relative: Any = ours.absolute_to_relative_idx
    assert [relative[item["index"].item()] for item in ours.__getitems__(order)] == order
    assert ours.stats()["items_in_order"] == 99

    ours = dataset(root)
    sampler = PlannedSampler(ours, batch_size=4, samples=[samples.every(7, rotate=True)])
    seen: list[int] = []
    for epoch in range(7):
        order = list(sampler)
        sampler.set_epoch(epoch)
        assert len(sampler) == len(order)
        sampler.set_epoch(epoch + 1)
        seen += order
        assert [item["index"].item() for item in ours.__getitems__(order)] == order
    assert sorted(seen) == [*range(sum(LENGTHS))]
    firsts = {int(begin[number]) for number in range(len(LENGTHS))}
    chosen = [*PlannedSampler(ours, batch_size=2, samples=[samples.one_per_episode()])]
    assert {max(first for first in firsts if first <= item) for item in chosen} == firsts


@pytest.mark.parametrize(("ranks", "workers"), [(1, 1), (2, 1), (1, 3), (2, 2)])
def test_a_state_resumes_at_any_item(root: Path, ranks: int, workers: int) -> None:
    ours = dataset(root)
    options: Any = {"batch_size": 4, "num_workers": workers, "num_replicas": ranks, "seed": 2}
    sampler = PlannedSampler(ours, **options)
    whole = [list(sampler), list(sampler)]
    assert sampler.state_dict() == {"epoch": 2, "start_index": 0}
    assert all(sorted(order) == list(range(sum(LENGTHS))) for order in whole)
    for start in (0, 1, 4, 37, 136, 250, 258, 259):
        resumed = PlannedSampler(ours, **options)
        resumed.load_state_dict({"epoch": 1, "start_index": start})
        assert len(resumed) == sum(LENGTHS)
        assert list(resumed) == whole[1][start:], start
    sampler.set_epoch(0)
    assert list(sampler) == whole[0]
    for epoch, start in ((0, 0), (1, 37)):  # the position is one in epoch 1
        sampler.load_state_dict({"epoch": 1, "start_index": 37})
        sampler.set_epoch(epoch)
        assert list(sampler) == whole[epoch][start:]


@pytest.mark.parametrize(
    ("ranks", "size", "options"),
    [
        (2, 4, {}),
        (3, 2, {}),
        (2, 200, {}),
        (2, 4, {"split_batches": True}),
        (2, 4, {"even_batches": False}),
        (3, 4, {"drop_last": True}),
    ],
    ids=str,
)
def test_a_resumed_epoch_of_accelerate_ends_as_a_whole_one(
    root: Path, ranks: int, size: int, options: dict[str, bool]
) -> None:
    """Each rank repeats the same first items of the epoch in its last batches."""
    accelerate = pytest.importorskip("accelerate.data_loader")
    given, ours = {**options}, dataset(root)
    item_numbers: Any = [*range(len(ours))]  # in place of the items
    drop_last, per_rank = given.pop("drop_last", False), size
    if given.get("split_batches"):
        per_rank //= ranks

    def batches(epoch: int, start: int = 0) -> list[list[list[int]]]:
        """The batches of each rank, of an epoch from an item on."""
        of_ranks = []
        for rank in range(ranks):
            sampler = PlannedSampler(ours, batch_size=per_rank, num_replicas=ranks, seed=3)
            sampler.load_state_dict({"epoch": epoch, "start_index": start})
            loader: Any = DataLoader(item_numbers, size, sampler=sampler, drop_last=drop_last)
            numbers = {"num_processes": ranks, "process_index": rank, "put_on_device": False}
            loader = accelerate.prepare_data_loader(loader, **numbers, **given)
            loader.set_epoch(epoch)
            of_ranks.append([batch.tolist() for batch in loader])
        return of_ranks

    whole = batches(1)
    items = [item for of_rank in whole for batch in of_rank for item in batch]
    assert (len(items) > len({*items}) == len(ours)) == (
        not drop_last and options.get("even_batches", True)
    )
    for count in {1, len(whole[-1]) // 2, len(whole[-1])}:
        resumed = batches(1, min(count * per_rank * ranks, len(ours)))
        assert resumed == [of_rank[count:] for of_rank in whole]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it
@pytest.mark.parametrize("size", [None, 4])
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_stateful_loader_saves_the_place_in_the_epoch(
    root: Path, workers: int, size: int | None
) -> None:
    """Its state has that of the sampler, which is the next epoch, and that of the iteration."""

    def loader(epoch: int | None = None, state: Any = None) -> Any:
        ours = dataset(root, episodes=[0, 1])
        sampler = PlannedSampler(ours, batch_size=4, num_workers=workers)
        made: Any = StatefulDataLoader(ours, batch_size=size, num_workers=workers, sampler=sampler)
        if state is not None:
            made.load_state_dict(state)
        if epoch is not None:
            sampler.set_epoch(epoch)
        return made

    def order(items: Any) -> list[int]:
        return [index for item in items for index in item["index"].reshape(-1).tolist()]

    sampler = PlannedSampler(dataset(root, episodes=[0, 1]), batch_size=4, num_workers=workers)
    epochs = [list(sampler) for _ in range(3)]
    for count in (0, 3, None):
        running = loader(1)
        taken = order(islice(iterator := iter(running), count))
        state = json.loads(json.dumps(running.state_dict()))
        del iterator
        later = [epochs[1][len(taken) :], epochs[2]][count is None :]
        for epoch in (None, 1):
            resumed = loader(epoch, state)
            assert [order(resumed) for _ in later] == later
        resumed = loader(2, state)
        if count is not None:
            with pytest.raises(StateError, match=r"expected: set_epoch\(1\), or no call"):
                next(iter(resumed))
        if count is None or not workers:  # torchdata's workers load the state again
            assert order(resumed) == epochs[2]


def test_a_state_inside_an_epoch_has_its_order(root: Path) -> None:
    """Other data and arguments are refused there, and taken at the start of an epoch."""
    options: Any = {"batch_size": 4, "seed": 2}
    sampler = PlannedSampler(dataset(root), **options)
    iteration = iter(sampler)
    numbers = [next(iteration) for _ in range(9)]
    state = json.loads(json.dumps(iteration.state_dict()))
    assert state == {"epoch": 0, "start_index": 9, "order": state["order"]}
    resumed = PlannedSampler(dataset(root), **options)
    resumed.load_state_dict(state)
    assert numbers + list(resumed) == list(PlannedSampler(dataset(root), **options))
    fewer = dataset(root, episodes=[0, 1])
    for other in (
        PlannedSampler(fewer, **options),
        PlannedSampler(dataset(root), **options, drop_last_frames=1),
        PlannedSampler(dataset(root), **options, num_workers=2),
        PlannedSampler(dataset(root), **options, samples=[samples.one_per_episode()]),
        PlannedSampler(dataset(root), batch_size=4, seed=3),
    ):
        with pytest.raises(StateError, match=r"inside an epoch of another order.*expected.*got"):
            other.load_state_dict(state)
        begun = iter(other)
        begun.load_state_dict(state)
        with pytest.raises(StateError, match="inside an epoch of another order"):
            next(begun)
        other.load_state_dict({**state, "start_index": 0})
        assert len(list(other)) == len(other)


def test_wrong_states_of_a_sampler(root: Path) -> None:
    sampler = PlannedSampler(dataset(root), batch_size=4)
    wrong: list[Any] = [{}, {"epoch": 1}, [], None]
    for state in wrong:
        for loaded in (sampler, iter(sampler)):
            with pytest.raises(StateError, match="not the state of a sampler"):
                loaded.load_state_dict(state)
    state = {"epoch": 0, "start_index": sum(LENGTHS) + 1}
    resumed = iter(sampler)
    resumed.load_state_dict(state)
    sampler.load_state_dict(state)
    for iteration in (resumed, iter(sampler)):
        with pytest.raises(StateError, match=r"beyond the end.*at most 259 items of epoch 0"):
            next(iteration)
    at_end = iter(sampler)
    at_end.load_state_dict({"epoch": 0, "start_index": sum(LENGTHS)})
    assert list(at_end) == []


def test_wrong_arguments_of_a_sampler(root: Path) -> None:
    function: Any = samples.one_per_episode()
    with pytest.raises(ClipError, match=r"samples is not valid.*\[one_per_episode\(\)\]"):
        PlannedSampler(dataset(root), batch_size=4, samples=function)
    subset: Any = torch.utils.data.Subset(dataset(root), [0])
    with pytest.raises(ClipError, match=r"dataset is not valid.*LeRobotMixDataset.*Subset"):
        PlannedSampler(subset, batch_size=4)


@pytest.mark.parametrize("first", [0, pytest.param(5, marks=pytest.mark.slow)])
def test_ranks_and_workers_get_disjoint_parts(root: Path, first: int) -> None:
    """Batches are dealt out as by Accelerate and DataLoader, from batch `first` on."""
    ranks, workers, size = 2, 2, 4
    decoded, order = 0, list[int]()
    for rank in range(ranks):
        for worker in range(workers):
            ours = dataset(root, delta_timestamps=WINDOWS)
            sampler = PlannedSampler(ours, batch_size=size, num_workers=2, num_replicas=ranks)
            sampler.load_state_dict({"epoch": 0, "start_index": first * ranks * size})
            of_rank = islice(BatchSampler(sampler, size, drop_last=False), rank, None, ranks)
            for batch in islice(of_rank, worker, None, workers):
                sent = pickle.loads(pickle.dumps(batch))
                items = ours.__getitems__(sent)
                assert [item["index"].item() for item in items] == batch
                order += batch
            decoded += ours.stats()["video_frames_decoded"]
            assert ours.stats()["items_in_order"] >= 0.9 * len(order) / (2 * rank + worker + 1)
    assert len(order) == len(set(order)) == sum(LENGTHS) - first * ranks * size
    if not first:
        assert decoded <= 1.10 * 2 * sum(LENGTHS)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_with_a_rank_yields_its_own_batches(root: Path, workers: int) -> None:
    options: Any = {"batch_size": 4, "num_workers": workers, "num_replicas": 3}
    every, mine = PlannedSampler(dataset(root), **options), list[list[int]]()
    whole = [[*batch] for batch in BatchSampler(every, 4, drop_last=False)]
    for rank in range(3):
        sampler = PlannedSampler(dataset(root), **options, rank=rank)
        batches = [[*batch] for batch in BatchSampler(sampler, 4, drop_last=False)]
        assert batches == whole[rank : len(batches) * 3 : 3]
        assert len(sampler) == 4 * len(batches) >= 4 * (len(whole) // 3 - 2)
        sampler.load_state_dict({"epoch": 0, "start_index": 9})
        assert list(sampler) == [i for batch in batches for i in batch][9:]
        mine += batches
    assert len({len(batch) for batch in mine}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fork", "spawn"])
def test_worker_processes(root: Path, kind: str) -> None:
    """Persistent workers decode each frame once in any order."""
    ours = dataset(root, delta_timestamps=WINDOWS, return_uint8=True)
    workers: Any = {"num_workers": 2, "persistent_workers": True, "collate_fn": of_worker}
    workers["multiprocessing_context"] = kind
    sampler = PlannedSampler(ours, batch_size=4, num_workers=2)
    loader: Any = DataLoader(ours, batch_size=4, sampler=sampler, **workers)
    alone, seen = dataset(root, delta_timestamps=WINDOWS, return_uint8=True), list[list[int]]()
    for _ in range(2):
        order, stats = list[int](), dict[int, Any]()
        for batch in loader:
            order += batch["index"].tolist()
            stats[batch["worker"]] = batch["stats"]
            item = alone[order[-1]]
            assert torch.equal(batch[FRONT][-1], item[FRONT])
        assert sorted(order) == list(range(sum(LENGTHS)))
        decoded = sum(one["video_frames_decoded"] for one in stats.values())
        assert decoded <= 1.10 * 2 * sum(LENGTHS)
        seen.append(order)
    assert seen[0] == list(PlannedSampler(ours, batch_size=4, num_workers=2)) != seen[1]
    random: Any = np.random.default_rng(0).permutation(len(ours)).tolist()
    loader = DataLoader(ours, batch_size=8, sampler=random, **workers)
    first, second = ({b["worker"]: b["stats"] for b in loader} for _ in range(2))
    assert first.keys() == {0, 1}
    assert first == second


def test_repeated_items_and_abandoned_iterations(root: Path) -> None:
    """As Accelerate's `even_batches` repeats the first items at the end."""
    ours = dataset(root)
    sampler = PlannedSampler(ours, batch_size=4)
    for _ in range(2):
        sampler.set_epoch(1)
        for batch in islice(BatchSampler(sampler, 4, drop_last=False), 3):
            assert [item["index"] for item in ours.__getitems__(batch)] == batch
    assert ours.stats()["items_in_order"] == 2 * 3 * 4
    order = list(PlannedSampler(ours, batch_size=4))
    first, again = (ours.__getitems__([index])[0] for index in (order[0], order[0]))
    assert same(first, again)
    for batch in (order[:4], order[4:8], order[2:6], order[:4], order[6:10], order[40:44]):
        assert [item["index"] for item in ours.__getitems__(batch)] == batch
