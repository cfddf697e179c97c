"""What every source does, whatever its format: found, listed, read, chosen from, packed, broken.

A format has a row in `SETS`. What is its own alone is tested in a file of its own.
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
from tests import originals
from tests.bags import write_bag, write_mcap
from tests.golden.make_replay_buffer import FILE
from tests.lerobot_video_data import unpack
from tests.source_faults import check_refused, read_all
from tests.source_writers import write_euroc, write_kitti, write_samples, write_tum
from tests.test_sources_hdf5 import with_video, write_aloha, write_robomimic
from tests.test_sources_mcap import CAMERA, recording
from tests.trees import make_frames, write_v1, write_v2


@dataclass(frozen=True)
class Set:
    """Originals of one format.

    `write` makes at least two episodes in a folder, and `damage` breaks the one of them called
    `bad`, by the path of a file below that folder that errors name; the others stay as they are.
    """

    source: str
    write: Callable[[Path], object]
    damage: Callable[[Path], object]
    bad: str
    file: str
    options: dict[str, Any] = field(default_factory=dict)
    keeps_images: bool = False


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
    file = "data/chunk-000/file-000.parquet"
    damage, bad = functools.partial(one_time_back, row=6), "episode_000001"
    if name == "lerobot_v21":
        file, damage = "data/chunk-000/episode_000001.parquet", functools.partial(cut)
    write = functools.partial(golden, name=name)
    return Set("LeRobot", write, lambda root: damage(root / file), bad, file, **more)


def bags(folder: Path, *, sqlite: bool = False) -> None:
    for number in range(3):
        write_bag(folder / f"run_{number}", recording(3 + number), sqlite=sqlite)


def mcap_files(folder: Path) -> None:
    for number, name in enumerate("abc"):
        write_mcap(folder / f"{name}.mcap", recording(3 + number))


def aloha(folder: Path) -> None:
    for number in range(3):
        write_aloha(folder / f"episode_{number}.hdf5", number, 4 + number, compress=number == 1)


def robomimic_says_more(folder: Path) -> None:
    with h5py.File(folder / "demos.hdf5", "a") as file:
        file["data/demo_1"].attrs["num_samples"] = 6


def droid(folder: Path) -> None:
    for seed, name in ((1, "Fri"), (2, "Sat")):
        with_video(folder, name, seed, 4)


def flipped(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 4
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
    """Rows 8 and 9, of the last episode, become no compressed values."""
    with zipfile.ZipFile(path) as file:
        values = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, "w") as file:
        for name, data in values.items():
            file.writestr(name, b"no blosc frame" if name == "data/img/2.0.0.0" else data)


def damaged(
    source: str, write: Callable[[Path], object], folder: str, file: str, key: str = "", **more: Any
) -> Set:
    """Of which a file below an episode's folder is cut."""
    path = f"{folder}/{file}"
    return Set(source, write, lambda root: cut(root / path), key or folder, path, **more)


SETS: dict[str, Set] = {
    "lerobot v2.1": lerobot("lerobot_v21", keeps_images=True),
    "lerobot v3.0": lerobot("lerobot_v3", keeps_images=True),
    "lerobot with video": lerobot("lerobot_video_v3"),
    "rlds": Set(
        "Rlds",
        functools.partial(golden, name="rlds"),
        lambda root: flipped(root / TRAIN, 100),
        "train/000000",
        TRAIN,
        keeps_images=True,
    ),
    "mcap": Set(
        "Mcap", mcap_files, lambda root: cut(root / "b.mcap"), "b", "b.mcap", {"clock": CAMERA}
    ),
    "rosbag2 of sqlite": Set(
        "Mcap",
        functools.partial(bags, sqlite=True),
        lambda root: cut(root / "run_1/run_1.db3"),
        "run_1",
        "run_1/run_1.db3",
        {"clock": CAMERA},
    ),
    "aloha": Set(
        "Hdf5",
        aloha,
        lambda root: cut(root / "episode_1.hdf5"),
        "episode_1",
        "episode_1.hdf5",
        {"jpeg_order": "rgb"},
    ),
    "robomimic": Set(
        "Hdf5",
        lambda folder: write_robomimic(folder / "demos.hdf5"),
        robomimic_says_more,
        "demos/demo_1",
        "demos.hdf5",
    ),
    "droid": Set(
        "Hdf5", droid, lambda root: cut(root / "Sat/trajectory.h5"), "Sat", "Sat/trajectory.h5"
    ),
    "videos": damaged("Video", originals.videos, ".", "b.mp4", key="b"),
    "tartanair": damaged(
        *("TartanAir", tartanair, "house/Hard/P000", "image_right/000001_right.png"),
        keeps_images=True,
    ),
    "tartanair 2": damaged(
        *("TartanAir", functools.partial(tartanair, v2=True), "house/Data_hard/P000"),
        "flow_lcam_front/000001_000002_flow.png",
        keeps_images=True,
    ),
    "folders": damaged(
        *("Folder", originals.folders, "b", "rgb/2.jpg"),
        options={"sparse": "mask"},
        keeps_images=True,
    ),
    "webdataset": Set(
        "WebDataset",
        tars,
        lambda root: cut(root / "more/b.tar"),
        "more/b",
        "more/b.tar",
        keeps_images=True,
    ),
    "tum": damaged(
        *("Tum", functools.partial(sequences, write=write_tum), "b"),
        "rgb/1305031102.033000.png",
        keeps_images=True,
    ),
    "euroc": damaged(
        *("Euroc", functools.partial(sequences, write=write_euroc), "b"),
        "mav0/cam1/data/1403636579813555584.png",
    ),
    "kitti": damaged(
        *("Kitti", kitti, "sequences/01", "image_3/000001.png"), key="01", keeps_images=True
    ),
}
if importlib.util.find_spec("zarr") is not None:  # it needs Python 3.11
    SETS["zarr"] = Set(
        "Zarr",
        lambda folder: shutil.copy(FILE, folder / "cup.zarr.zip"),
        lambda root: damaged_zip(root / "cup.zarr.zip"),
        "cup/000002",
        "cup.zarr.zip",
    )


def upload(folder: Path, url: str) -> str:
    """Copy a folder to memory, as the filesystem of fsspec shows it."""
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


@pytest.fixture
def root(written: Path, tmp_path: Path) -> Path:
    """The folder with the originals, a copy for each test."""
    return shutil.copytree(written, tmp_path / "originals")


def opened(case: Set, root: Path, **more: Any) -> Source:
    return open_source(root, **case.options, **more)


def everything(source: Source, infos: Iterable[EpisodeInfo] = ()) -> dict[str, Any]:
    """Of each episode what is known of it, its frames and its packets, to be compared."""
    found = {}
    for info in infos or source.episodes():
        frames = [{n: _bytes(v) for n, v in frame.items()} for frame in source.frames(info)]
        videos = source.videos(info) if hasattr(source, "videos") else {}
        gops = {n: [(gop.packets, gop.order) for gop in each] for n, each in videos.items()}
        found[info.key] = (info, frames, gops)
    return found


def _bytes(value: Any) -> bytes:
    return value.data if isinstance(value, EncodedImage) else np.asarray(value).tobytes()


def test_it_is_found_listed_and_chosen_from(case: Set, root: Path) -> None:
    source = opened(case, root)
    assert type(source) is getattr(seqrecord.sources, f"{case.source}Source")
    assert isinstance(source, Source)
    infos = source.episodes()
    assert len({info.key for info in infos}) == len(infos) > 1
    assert case.bad in {info.key for info in infos}
    assert source.episodes() == infos == opened(case, root).episodes()
    assert source.schema() == opened(case, root).schema()
    json.dumps([dict(info.metadata) for info in infos])
    first, *_, last = opened(case, root).schema()
    assert list(opened(case, root, features=[last, first]).schema()) == [last, first]
    with pytest.raises(SourceError) as caught:
        opened(case, root, features=[first, "lidar"]).schema()
    assert caught.value.file is not None
    assert caught.value.got == "lidar"
    assert caught.value.expected


def test_frames_are_as_the_schema_says(case: Set, root: Path) -> None:
    for keep in {False, case.keeps_images}:
        source = opened(case, root, keep_encoded=keep)
        schema, kept = source.schema(), set()
        said = schema.values()
        check_kinds_and_units(
            schema, {s.name: s.kind for s in said}, {s.name: s.unit for s in said}
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


def test_a_pickled_one_is_the_same(case: Set, root: Path) -> None:
    fresh = pickle.loads(pickle.dumps(opened(case, root)))
    source = opened(case, root)
    wanted = everything(source)
    copy = pickle.loads(pickle.dumps(source))
    assert copy == fresh == source
    assert copy.schema() == source.schema()
    assert everything(fresh) == wanted
    assert everything(copy, source.episodes()) == wanted  # those that a worker is sent
    saved = pickle.dumps(source)
    case.damage(root)  # it is a snapshot
    assert pickle.loads(saved).schema() == source.schema()


def test_a_url_gives_what_a_folder_gives(case: Set, root: Path, memory_url: str) -> None:
    """And what is left out of it; frames of videos, which would take requests, are not counted."""
    (root / "notes").mkdir()
    (root / "notes" / "lidar.pcd").write_text("x")
    wanted, account = everything(opened(case, root)), inventory_of(opened(case, root))
    source = open_source(upload(root, memory_url), **case.options)
    assert everything(source) == wanted
    found = inventory_of(source)
    notes = tuple(note for note in found.notes if not note.endswith("are not counted on a URL"))
    assert replace(found, notes=notes) == account
    assert LeftOut("notes/lidar.pcd", 1, "no reader") in account.left_out
    infos, copy = source.episodes(), pickle.loads(pickle.dumps(source))
    del source
    assert everything(copy, infos) == wanted


def test_what_is_not_there(case: Set, root: Path) -> None:
    source = opened(case, root)
    for key in ("no such episode", "../originals", "", "/", ".", "x/..", str(root)):
        with pytest.raises(SourceError) as caught:
            list(source.frames(EpisodeInfo(key, 3)))
        assert caught.value.episode == key
    empty = root.parent / "empty"
    empty.mkdir()
    kind = next(name for name in format_names() if name.startswith(case.source.lower()))
    with pytest.raises(SourceError):
        open_source(empty, format=kind, **case.options).episodes()


def test_a_broken_episode_is_left_out_and_packed_later(case: Set, root: Path) -> None:
    whole = everything(opened(case, root))
    sound = (root / case.file).read_bytes()
    case.damage(root)
    source = opened(case, root)
    keys = [info.key for info in source.episodes()]
    assert keys == [*whole]
    check_refused(source, [case.bad], file=root / case.file)
    others = tuple(key for key in keys if key != case.bad)
    with pytest.raises(SourceError):
        seqrecord.convert(source, root.parent / "none", workers=1)
    report = seqrecord.convert(source, root.parent / "records", workers=1, skip_bad_episodes=True)
    assert (report.written, [bad.key for bad in report.bad]) == (others, [case.bad])
    (root / case.file).write_bytes(sound)
    source = opened(case, root)
    report = seqrecord.convert(source, root.parent / "records", workers=1, mode="append")
    assert (report.written, report.skipped) == ((case.bad,), others)


def test_a_pipe_is_refused_and_not_waited_for(case: Set, root: Path) -> None:
    (root / case.file).unlink()
    os.mkfifo(root / case.file)

    def read() -> None:
        source = opened(case, root)
        read_all(source, next(info for info in source.episodes() if info.key == case.bad))

    with pytest.raises(SourceError) as caught:
        read()
    assert caught.value.file in (str(root / case.file), str(root))


def test_two_processes_pack_what_the_source_gives(case: Set, root: Path) -> None:
    source = opened(case, root, keep_encoded=case.keeps_images)
    decoded = opened(case, root)
    report = seqrecord.convert(source, root.parent / "records", workers=2)
    assert report.written == tuple(info.key for info in source.episodes())
    with seqrecord.open(root.parent / "records") as dataset:
        for info in decoded.episodes():
            episode = dataset.episodes[info.key]
            assert dict(episode.metadata) == dict(info.metadata)
            assert (len(episode), episode.fps) == (info.num_frames, info.fps)
            for number, frame in enumerate(decoded.frames(info)):
                stored = episode[number]
                absent = {n for n, spec in source.schema().items() if not spec.is_video}
                assert stored.keys() - frame.keys() == {*source.schema()} - absent
                for feature, value in frame.items():
                    np.testing.assert_array_equal(stored[feature], value)
