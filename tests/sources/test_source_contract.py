"""Contract of all sources: detection, listing, reading, selection, conversion, damage.

Each format has a row in `SETS`, and a test file for its own features.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import fsspec
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqrecord
from seqrecord import EncodedImage, open_source
from seqrecord.errors import SourceError
from seqrecord.feature_kinds import check_kinds_and_units
from seqrecord.sources import EpisodeInfo, LeftOut, Source, format_names, inventory_of
from tests.golden.make_replay_buffer import FILE
from tests.kit import originals
from tests.kit.bags import write_bag, write_mcap
from tests.kit.lerobot_video_data import unpack
from tests.kit.source_faults import check_refused, read_all
from tests.kit.source_writers import write_euroc, write_kitti, write_samples, write_tum
from tests.kit.trees import make_frames, write_v1, write_v2
from tests.sources.scene_data import write_colmap, write_nerfstudio
from tests.sources.test_hdf5 import with_video, write_aloha, write_robomimic
from tests.sources.test_mcap import CAMERA, recording


@dataclass(frozen=True)
class Set:
    """Originals of one format.

    `write` makes at least two episodes in a folder. `damage` breaks the episode `bad` by changing
    `file`, which errors must name; other episodes stay readable.
    """

    source: str
    write: Callable[[Path], object]
    bad: str
    file: str
    damage: Callable[[Path], object] = lambda path: cut(path)
    options: dict[str, Any] = field(default_factory=dict)
    keeps_images: bool = False

    def damage_episode(self, root: Path) -> None:
        self.damage(root / self.file)


def cut(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def golden(folder: Path, name: str) -> None:
    unpack(folder.parent, name).rename(folder)


def one_time_back(path: Path, row: int) -> None:
    table = pq.read_table(path)
    place = table.column_names.index("timestamp")
    times = table["timestamp"].to_pylist()
    times[row] = 0.0
    pq.write_table(table.set_column(place, "timestamp", pa.array(times, pa.float32())), path)


def lerobot(name: str, **more: Any) -> Set:
    file, write = "data/chunk-000/file-000.parquet", functools.partial(golden, name=name)
    damage: Any = functools.partial(one_time_back, row=6)
    if name == "lerobot_v21":
        file, damage = "data/chunk-000/episode_000001.parquet", cut
    return Set("LeRobot", write, "episode_000001", file, damage, **more)


def bags(folder: Path, *, sqlite: bool = False) -> None:
    for number in range(3):
        write_bag(folder / f"run_{number}", recording(3 + number), sqlite=sqlite)


def mcap_files(folder: Path) -> None:
    for number, name in enumerate("abc"):
        write_mcap(folder / f"{name}.mcap", recording(3 + number))


def aloha(folder: Path) -> None:
    for number in range(3):
        write_aloha(folder / f"episode_{number}.hdf5", number, 4 + number, compress=number == 1)


def robomimic_declares_more(path: Path) -> None:
    with h5py.File(path, "a") as file:
        file["data/demo_1"].attrs["num_samples"] = 6


def robomimic(folder: Path) -> None:
    write_robomimic(folder / "demos.hdf5")


def droid(folder: Path) -> None:
    for seed, name in ((1, "Fri"), (2, "Sat")):
        with_video(folder, name, seed, 4)


def cup(folder: Path) -> None:
    shutil.copy(FILE, folder / "cup.zarr.zip")


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[100] ^= 4
    path.write_bytes(data)


TRAIN = "arm-train.tfrecord-00000-of-00001"


def tartanair(folder: Path, *, v2: bool = False) -> None:
    write = write_v2 if v2 else write_v1
    for number, level in enumerate(("Data_easy", "Data_hard") if v2 else ("Easy", "Hard")):
        write(folder / "house" / level / "P000", make_frames(number, 2 + number, v2=v2))


def tars(folder: Path) -> None:
    write_samples(folder / "a.tar", 0, "run_2/")
    write_samples(folder / "more" / "b.tar", 1, count=4)


def sequences(folder: Path, write: Callable[..., object]) -> None:
    for number, name in enumerate("ab"):
        write(folder / name, number)


def kitti(folder: Path) -> None:
    for number, name in enumerate(("00", "01")):
        write_kitti(folder, name, number)


def damaged_zip(path: Path) -> None:
    """Replaces the chunk of rows 8 and 9, of the last episode, with invalid data."""
    with zipfile.ZipFile(path) as file:
        values = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, "w") as file:
        for name, data in values.items():
            file.writestr(name, b"no blosc frame" if name == "data/img/2.0.0.0" else data)


_KEEPS: dict[str, Any] = {"keeps_images": True}
_CLOCK: dict[str, Any] = {"options": {"clock": CAMERA}}
_SQLITE = functools.partial(bags, sqlite=True)
_V2 = functools.partial(tartanair, v2=True)
_TUM, _EUROC, _NERFSTUDIO, _COLMAP = (
    functools.partial(sequences, write=write)
    for write in (write_tum, write_euroc, write_nerfstudio, write_colmap)
)
_RIGHT = "house/Hard/P000/image_right/000001_right.png"
_FLOW = "house/Data_hard/P000/flow_lcam_front/000001_000002_flow.png"
SETS: dict[str, Set] = {
    "lerobot v2.1": lerobot("lerobot_v21", **_KEEPS),
    "lerobot v3.0": lerobot("lerobot_v3", **_KEEPS),
    "lerobot with video": lerobot("lerobot_video_v3"),
    "rlds": Set(
        "Rlds", functools.partial(golden, name="rlds"), "train/000000", TRAIN, flipped, **_KEEPS
    ),
    "mcap": Set("Mcap", mcap_files, "b", "b.mcap", **_CLOCK),
    "rosbag2 of sqlite": Set("Mcap", _SQLITE, "run_1", "run_1/run_1.db3", **_CLOCK),
    "aloha": Set("Hdf5", aloha, "episode_1", "episode_1.hdf5", options={"jpeg_order": "rgb"}),
    "robomimic": Set("Hdf5", robomimic, "demos/demo_1", "demos.hdf5", robomimic_declares_more),
    "droid": Set("Hdf5", droid, "Sat", "Sat/trajectory.h5"),
    "videos": Set("Video", originals.videos, "b", "b.mp4"),
    "tartanair": Set("TartanAir", tartanair, "house/Hard/P000", _RIGHT, **_KEEPS),
    "tartanair 2": Set("TartanAir", _V2, "house/Data_hard/P000", _FLOW, **_KEEPS),
    "folders": Set(
        "Folder", originals.folders, "b", "b/rgb/2.jpg", options={"sparse": "mask"}, **_KEEPS
    ),
    "webdataset": Set("WebDataset", tars, "more/b", "more/b.tar", **_KEEPS),
    "tum": Set("Tum", _TUM, "b", "b/rgb/1305031102.033000.png", **_KEEPS),
    "euroc": Set("Euroc", _EUROC, "b", "b/mav0/cam1/data/1403636579813555584.png"),
    "kitti": Set("Kitti", kitti, "01", "sequences/01/image_3/000001.png", **_KEEPS),
    "nerfstudio": Set("Scene", _NERFSTUDIO, "b", "b/images/frame_00002.png", **_KEEPS),
    "colmap": Set("Scene", _COLMAP, "b", "b/sparse/0/images.bin", **_KEEPS),
}
if importlib.util.find_spec("zarr") is not None:  # it needs Python 3.11
    SETS["zarr"] = Set("Zarr", cup, "cup/000002", "cup.zarr.zip", damaged_zip)


def upload(folder: Path, url: str) -> str:
    """Copies a folder to fsspec's memory file system."""
    memory = fsspec.filesystem("memory")
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            memory.pipe_file(f"{url}/{path.relative_to(folder).as_posix()}", path.read_bytes())
    return url


@pytest.fixture(scope="module", params=SETS)
def case(request: pytest.FixtureRequest) -> Set:
    return SETS[request.param]


@pytest.fixture(scope="module")
def written(case: Set, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The originals, which no test changes."""
    folder = tmp_path_factory.mktemp("written") / "originals"
    folder.mkdir()
    case.write(folder)
    return folder


@pytest.fixture(scope="module")
def whole(case: Set, written: Path) -> dict[str, Any]:
    return everything(opened(case, written))


@pytest.fixture
def root(written: Path, tmp_path: Path) -> Path:
    """A copy of the originals for each test."""
    return shutil.copytree(written, tmp_path / "originals")


def opened(case: Set, root: Path, **more: Any) -> Source:
    return open_source(root, **case.options, **more)


def everything(source: Source, infos: Iterable[EpisodeInfo] = ()) -> dict[str, Any]:
    """Info, frames and video packets of each episode, for comparisons."""
    found = {}
    for info in infos or source.episodes():
        frames = [{n: _bytes(v) for n, v in frame.items()} for frame in source.frames(info)]
        videos = source.videos(info) if hasattr(source, "videos") else {}
        gops = {n: [(gop.packets, gop.order) for gop in each] for n, each in videos.items()}
        found[info.key] = (info, frames, gops)
    return found


def _bytes(value: Any) -> bytes:
    return value.data if isinstance(value, EncodedImage) else np.asarray(value).tobytes()


def test_detection_listing_and_selection(case: Set, written: Path) -> None:
    source = opened(case, written)
    assert type(source) is getattr(seqrecord.sources, f"{case.source}Source")
    assert isinstance(source, Source)
    infos = source.episodes()
    assert len({info.key for info in infos}) == len(infos) > 1
    assert case.bad in {info.key for info in infos}
    assert source.episodes() == infos == opened(case, written).episodes()
    assert source.schema() == opened(case, written).schema()
    json.dumps([dict(info.metadata) for info in infos])
    first, *_, last = source.schema()
    assert list(opened(case, written, features=[last, first]).schema()) == [last, first]
    with pytest.raises(SourceError) as caught:
        opened(case, written, features=[first, "lidar"]).schema()
    assert caught.value.file is not None
    assert caught.value.got == "lidar"
    assert caught.value.expected
    for key in ("no such episode", "../originals", "", "/", ".", "x/..", str(written)):
        with pytest.raises(SourceError) as caught:
            list(source.frames(EpisodeInfo(key, 3)))
        assert caught.value.episode == key


def test_frames_match_the_schema(case: Set, written: Path) -> None:
    for keep in {False, case.keeps_images}:
        source = opened(case, written, keep_encoded=keep)
        schema, kept = source.schema(), set()
        specs = schema.values()
        check_kinds_and_units(
            schema, {s.name: s.kind for s in specs}, {s.name: s.unit for s in specs}
        )
        for info in source.episodes():
            frames = list(source.frames(info))
            assert len(frames) == info.num_frames
            for frame in frames:
                assert [*frame] == [feature for feature in schema if feature in frame]
                for feature, value in frame.items():
                    spec = schema[feature]
                    if isinstance(value, EncodedImage):
                        kept.add(feature)
                    elif spec.value == "text":
                        assert isinstance(value, str)
                    else:
                        array = np.asarray(value)
                        assert array.dtype == spec.dtype
                        assert spec.accepts(array.shape)
            videos = source.videos(info) if hasattr(source, "videos") else {}
            assert {*videos} == {n for n, spec in schema.items() if spec.is_video}
            for gops in videos.values():
                assert sum(gop.num_frames for gop in gops) == info.num_frames
        assert bool(kept) == keep
        assert kept == {n for n, spec in schema.items() if spec.codec and not spec.is_video}


def test_a_pickled_source_is_equal(case: Set, root: Path, whole: dict[str, Any]) -> None:
    fresh = pickle.loads(pickle.dumps(opened(case, root)))
    source = opened(case, root)
    assert everything(source) == whole
    saved = pickle.dumps(source)
    copy = pickle.loads(saved)
    assert copy == fresh == source
    assert copy.schema() == source.schema()
    assert everything(copy, source.episodes()) == whole  # infos as sent to workers
    case.damage_episode(root)  # the pickle is a snapshot
    assert pickle.loads(saved).schema() == source.schema()


def test_a_url_and_a_folder_give_the_same(
    case: Set, root: Path, whole: dict[str, Any], memory_url: str
) -> None:
    """Episodes and inventory are equal, but video frames are not counted on a URL."""
    (root / "notes").mkdir()
    (root / "notes" / "lidar.pcd").write_text("x")
    expected = inventory_of(opened(case, root))
    source = open_source(upload(root, memory_url), **case.options)
    found = inventory_of(source)
    notes = tuple(note for note in found.notes if not note.endswith("are not counted on a URL"))
    assert replace(found, notes=notes) == expected
    assert LeftOut("notes/lidar.pcd", 1, "no reader") in expected.left_out
    infos, copy = source.episodes(), pickle.loads(pickle.dumps(source))
    del source
    assert everything(copy, infos) == whole


def test_a_damaged_episode_is_skipped_and_converted_later(
    case: Set, root: Path, whole: dict[str, Any]
) -> None:
    sound, records = (root / case.file).read_bytes(), root.parent / "records"
    case.damage_episode(root)
    source = opened(case, root)
    keys = [info.key for info in source.episodes()]
    assert keys == [*whole]
    check_refused(source, [case.bad], file=root / case.file)
    others = tuple(key for key in keys if key != case.bad)
    report = seqrecord.convert(source, records, workers=1, skip_bad_episodes=True)
    assert (report.written, [bad.key for bad in report.bad]) == (others, [case.bad])
    (root / case.file).write_bytes(sound)
    source = opened(case, root)
    report = seqrecord.convert(source, records, workers=1, mode="append")
    assert (report.written, report.skipped) == ((case.bad,), others)
    check_packed(records, source)


def test_a_named_pipe_is_refused_without_blocking(case: Set, root: Path) -> None:
    (root / case.file).unlink()
    os.mkfifo(root / case.file)

    def read() -> None:
        source = opened(case, root)
        read_all(source, next(info for info in source.episodes() if info.key == case.bad))

    with pytest.raises(SourceError) as caught:
        read()
    assert caught.value.file in (str(root / case.file), str(root))
    empty = root.parent / "empty"
    empty.mkdir()
    kind = next(name for name in format_names() if name.startswith(case.source.lower()))
    with pytest.raises(SourceError):
        open_source(empty, format=kind, **case.options).episodes()


def check_packed(records: Path, source: Source) -> None:
    """Compares a dataset with its source, except for frames of videos."""
    videos = {name for name, spec in source.schema().items() if spec.is_video}
    with seqrecord.open(records) as dataset:
        for info in source.episodes():
            episode = dataset.episodes[info.key]
            assert dict(episode.metadata) == dict(info.metadata)
            assert (len(episode), episode.fps) == (info.num_frames, info.fps)
            for number, frame in enumerate(source.frames(info)):
                stored = episode[number]
                assert stored.keys() - frame.keys() == videos
                for feature, value in frame.items():
                    np.testing.assert_array_equal(stored[feature], value)


FAST = ("lerobot with video", "folders", "mcap")  # converted by two processes in fast tests


@pytest.mark.parametrize(
    "name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in SETS]
)
def test_conversion_by_two_processes_equals_the_source(tmp_path: Path, name: str) -> None:
    case, root = SETS[name], tmp_path / "originals"
    root.mkdir()
    case.write(root)
    source = opened(case, root, keep_encoded=case.keeps_images)
    report = seqrecord.convert(source, tmp_path / "records", workers=2)
    assert report.written == tuple(info.key for info in source.episodes())
    check_packed(tmp_path / "records", opened(case, root))
