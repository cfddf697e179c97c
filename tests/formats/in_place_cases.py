"""Random originals, in place if they can be, packed, and by an independent loop: all are the same.

The expected frames come from PyAV, which decodes each video from front to back, from Pillow and
from numpy.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from torch.utils.data import DataLoader

import seqrecord
from seqrecord import open_source
from seqrecord.errors import SourceError
from tests.formats.cases import index_source
from tests.kit import video_file_data as video

KINDS = ["videos", "cameras", "v3.0", "v2.1", "folders", "webdataset", "hdf5"]
if importlib.util.find_spec("zarr"):  # zarr needs Python 3.11
    KINDS.append("zarr")
_ONLY_CONVERTED = ("webdataset", "hdf5", "zarr")
FPS = 10
_PLACE, _NUMBER = "chunk-{chunk_index:03d}/file-{file_index:03d}", "episode_{episode_index:06d}"
_PATHS = {
    "v3.0": (f"data/{_PLACE}.parquet", f"videos/{{video_key}}/{_PLACE}.mp4"),
    "v2.1": (f"data/chunk-000/{_NUMBER}.parquet", f"videos/chunk-000/{{video_key}}/{_NUMBER}.mp4"),
}
Frames = dict[str, list[dict[str, Any]]]


@dataclass
class Case:
    """An original at `root`, its content, and the arguments to open it."""

    root: Path
    rng: random.Random
    kind: str
    frames: Frames = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    may_be_refused: bool = False  # contains packets that an index cannot refer to

    def maybe(self, share: float) -> bool:
        return self.rng.random() < share

    def lengths(self) -> list[int]:
        return [self.rng.choice([1, 2, 5, 9, 14, 33]) for _ in range(self.rng.randrange(1, 5))]


def make(root: Path, number: int, kind: str) -> Case:
    case = Case(root, random.Random(number), kind)
    root.mkdir(parents=True)
    makers = (_videos, _videos, _lerobot, _lerobot, _tree, _tree, _hdf5, _zarr)
    makers[KINDS.index(kind)](case)
    if case.maybe(0.3):
        _link(case)
    return case


class _Encoder:
    """Writes videos of a camera with random settings."""

    def __init__(self, case: Case, endings: Sequence[str] = (".mp4",)) -> None:
        self.case, rng = case, case.rng
        self.codec = rng.choice(["libx264"] * 6 + ["libx265", "libvpx-vp9", "libsvtav1"])
        self.ending = ".mp4" if self.codec == "libsvtav1" else rng.choice(endings)
        if self.codec == "libvpx-vp9" and self.ending == ".mov":
            self.ending = ".mp4"
        length = rng.choice([1, 2, 4, 12, 30, 400])
        self.options = {"g": str(length), "bf": str(rng.choice([0, 0, 1, 3]))}
        is_open = case.maybe(0.2) and "x26" in self.codec
        if self.codec == "libx265":
            self.options["x265-params"] = f"{video.QUIET}:open-gop={int(is_open)}:keyint={length}"
        elif self.codec == "libx264":
            self.options["x264-params"] = f"open-gop={int(is_open)}:keyint={length}"
        case.may_be_refused |= is_open or length > 256
        self.fragmented = self.ending == ".mp4" and case.maybe(0.15)

    def write(self, path: Path, times: list[int], cuts: Sequence[int], first: int) -> None:
        """Write frames at these milliseconds, preceded by hidden or missing ones."""
        case = self.case
        path.parent.mkdir(parents=True, exist_ok=True)
        hidden = case.rng.randrange(4) if self.ending in (".mp4", ".mov") and case.maybe(0.3) else 0
        times = [*range(0, 100 * hidden, 100), *(time + 100 * hidden for time in times)]
        made: dict[str, Any] = {"times": times, "key_frames": [cut + hidden for cut in cuts]}
        pictures = video.pictures(len(times), first)
        video.write_video(path, pictures, self.codec, options=self.options, **made)
        if hidden:
            video.hide_first(path, 100 * hidden, 1000)
        elif self.fragmented:
            whole = path.rename(path.with_name("whole.mp4"))
            video.write_fragmented(whole, path)
            whole.unlink()


def _times(case: Case, count: int) -> list[int]:
    """Milliseconds of frames from 0 on, at the frame rate or not."""
    steps = [100] * count
    if case.options.get("jitter"):
        steps = [case.rng.randrange(20, 200) for _ in range(count)]
    return [sum(steps[:i]) for i in range(count)]


def _videos(case: Case) -> None:
    rng = case.rng
    cameras = ["image"] if case.kind == "videos" else ["left", "right"][: rng.randrange(1, 3)]
    jitter = case.maybe(0.3)
    encoders = {name: _Encoder(case, (".mp4", ".mov", ".mkv")) for name in cameras}
    for number, length in enumerate(case.lengths()):
        key = f"run {number}/ü" if case.maybe(0.3) else f"{number}"
        case.options["jitter"] = jitter
        times, columns = _times(case, length), {}
        for at, (name, encoder) in enumerate(encoders.items()):
            if number and case.maybe(0.2):
                encoder = _Encoder(case, (".mp4", ".mov", ".mkv"))
            path = case.root / key / name if case.kind == "cameras" else case.root / key
            path = path.with_name(path.name + encoder.ending)
            encoder.write(path, times, [], 1000 * at + 50 * number)
            columns[name] = video.decoded(path)[1]
        case.frames[key] = _rows(columns)
    case.options = {"by_folder": True} if case.kind == "cameras" else {}


def _rows(columns: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _lerobot(case: Case) -> None:
    """Several files per camera and of rows, of one or several episodes; rows may be fewer than
    video frames, and video may contain frames of no episode."""
    rng, root = case.rng, case.root
    lengths, is_v3 = case.lengths(), case.kind == "v3.0"
    case.options["jitter"] = case.maybe(0.2)
    every = rng.choice([1, 1, 2])
    film = [_times(case, (length - 1) * every + 1) for length in lengths]
    times = [each[::every] for each in film]
    names = [f"observation.images.{side}" for side in ("a", "b")[: rng.randrange(1, 3)]]
    state = [np.random.default_rng(i).random((n, 3), np.float32) for i, n in enumerate(lengths)]
    table: dict[str, list[Any]] = {
        "episode_index": [*range(len(lengths))],
        "length": lengths,
        "tasks": [[f"task {i % 2}"] for i in range(len(lengths))],
    }
    columns: list[dict[str, Any]] = [{} for _ in lengths]
    for name in names:
        files = _in_files(case, lengths) if is_v3 else [[i] for i in range(len(lengths))]
        encoder, places = _Encoder(case), {}
        for number, episodes in enumerate(files):
            all_times: list[int] = []
            begins, cuts = {}, []
            for episode in episodes:
                gap = 100 * rng.randrange(1, 4) if all_times else 0
                between = all_times[-1] + 100 if all_times else 0
                all_times += [*range(between, between + gap, 100)] if case.maybe(0.3) else []
                begins[episode] = all_times[-1] + 100 if all_times else 0
                cuts += [len(all_times)] if case.maybe(0.7) else []
                all_times += [begins[episode] + time for time in film[episode]]
            folder = f"videos/{name}/chunk-000" if is_v3 else f"videos/chunk-000/{name}"
            stem = f"file-{number:03d}" if is_v3 else f"episode_{number:06d}"
            path = root / folder / f"{stem}.mp4"
            if number and case.maybe(0.3):  # LeRobot extends datasets in another codec
                encoder = _Encoder(case)
            encoder.write(path, all_times, cuts, 100 * number + 7 * names.index(name))
            found, images = video.decoded(path)
            for episode in episodes:
                begin = begins[episode] / 1000 + found[0]  # not 0 in fragments with B-frames
                wanted = begin + np.array(times[episode]) / 1000
                nearest = np.abs(found[None] - wanted[:, None]).argmin(1)
                columns[episode][name] = images[nearest]
                places[episode] = number, begin
        for at, part in enumerate(("file_index", "from_timestamp")):
            table[f"videos/{name}/{part}"] = [places[i][at] for i in range(len(lengths))]
        table[f"videos/{name}/chunk_index"] = [0] * len(lengths)
    rows = _in_files(case, lengths) if is_v3 else [[i] for i in range(len(lengths))]
    for number, episodes in enumerate(rows):
        parts = []
        for episode in episodes:
            count = lengths[episode]
            seconds = (np.array(times[episode]) / 1000).astype(np.float32)
            columns[episode] |= {"timestamp": seconds, "observation.state": state[episode]}
            columns[episode] |= {"task": [f"task {episode % 2}"] * count}
            values = {
                "timestamp": seconds,
                "observation.state": list(state[episode]),
                "frame_index": np.arange(count),
                "episode_index": np.full(count, episode),
                "index": np.arange(count) + sum(lengths[:episode]),
                "task_index": np.full(count, episode % 2),
            }
            parts.append(pa.table(values))
        stem = f"file-{number:03d}" if is_v3 else f"episode_{number:06d}"
        path = root / f"data/chunk-000/{stem}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.concat_tables(parts), path, row_group_size=rng.choice([3, 1000]))
        for episode in episodes:
            table.setdefault("data/file_index", [0] * len(lengths))[episode] = number
    table["data/chunk_index"] = [0] * len(lengths)
    case.frames = {f"episode_{i:06d}": _rows(each) for i, each in enumerate(columns)}
    case.options = {}
    _write_meta(root, table, names, case.kind)


def _in_files(case: Case, lengths: Sequence[int]) -> list[list[int]]:
    files: list[list[int]] = [[]]
    for episode in range(len(lengths)):
        if files[-1] and case.maybe(0.4):
            files.append([])
        files[-1].append(episode)
    return files


def _write_meta(root: Path, table: dict[str, list[Any]], cameras: list[str], version: str) -> None:
    def feature(dtype: str, *shape: int) -> dict[str, Any]:
        return {"dtype": dtype, "shape": shape}

    numbers = ("frame_index", "episode_index", "index", "task_index")
    info: dict[str, Any] = {
        "codebase_version": version,
        "fps": FPS,
        "features": {
            "timestamp": feature("float32", 1),
            "observation.state": feature("float32", 3),
            **dict.fromkeys(numbers, feature("int64", 1)),
            **dict.fromkeys(cameras, feature("video", video.HEIGHT, video.WIDTH, 3)),
        },
        "chunks_size": 1000,
    }
    tasks = {"task_index": [0, 1], "task": ["task 0", "task 1"]}
    info["data_path"], info["video_path"] = _PATHS[version]
    (root / "meta/episodes/chunk-000").mkdir(parents=True)
    if version == "v3.0":
        pq.write_table(pa.table(table), root / "meta/episodes/chunk-000/file-000.parquet")
        pq.write_table(pa.table(tasks), root / "meta/tasks.parquet")
    else:
        for name, columns in (("episodes", table), ("tasks", tasks)):
            lines = (json.dumps(row) for row in _rows(columns))
            (root / f"meta/{name}.jsonl").write_text("\n".join(lines))
    (root / "meta/info.json").write_text(json.dumps(info))


def _tree(case: Case) -> None:
    """Images and arrays, one file per frame, with missing files."""
    rng, values = case.rng, np.random.default_rng(case.rng.randrange(1 << 30))
    shapes: dict[str, tuple[str, tuple[int, ...], str]] = {
        "rgb": (rng.choice([".png", ".jpg"]), (8, 12, 3), "u1"),
        "depth": (".npy", (40, 50), rng.choice(["<f4", ">f4", "<f2"])),
        "grey": (".png", (8, 12), rng.choice(["u1", "u2"])),
        "mask": (rng.choice([".png", ".npy"]), (70, 80), "u1"),
        "state": (".npy", (3,), "f8"),
    }
    names = ["rgb", *rng.sample([*shapes][1:], rng.randrange(1, 5))]
    sparse = [name for name in names[1:] if case.maybe(0.3)]
    begin = rng.choice([0, 1, 95])
    for number, length in enumerate(case.lengths()):
        key, frames = f"{number}", list[dict[str, Any]]()
        folder = case.root / "loose" / key if case.kind == "webdataset" else case.root / key
        for at in range(length):
            frame = {}
            for name in names:
                ending, shape, dtype = shapes[name]
                if name in sparse and at > 0 and case.maybe(0.3):
                    continue
                path = folder / name / f"{begin + at:04d}{ending}"
                path.parent.mkdir(parents=True, exist_ok=True)
                made = (values.random(shape) * 250).astype(dtype)
                if ending == ".npy":
                    np.save(path, made)
                    frame[name] = np.load(path).astype(dtype.replace(">", "<"))
                else:
                    Image.fromarray(made).save(path)
                    frame[name] = np.asarray(Image.open(path))
            frames.append(frame)
        case.frames[key] = frames
    if case.kind == "webdataset":
        for folder in sorted((case.root / "loose").iterdir()):
            form = rng.choice([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
            with tarfile.open(case.root / f"{folder.name}.tar", "w", format=form) as tar:
                for path in sorted(folder.rglob("*.*"), key=lambda path: path.stem):
                    tar.add(path, f"{path.stem}.{path.parent.name}{path.suffix}")
        shutil.rmtree(case.root / "loose")
    case.options = {"sparse": ",".join(sparse)} if sparse else {}


def _arrays(case: Case, count: int, order: str) -> dict[str, Any]:
    """Arrays of `count` rows; all-ones rows are not written."""
    values = np.random.default_rng(case.rng.randrange(1 << 30))
    shapes = {"rgb": ((40, 60, 3), "u1"), "depth": ((40, 50), f"{order}f4")}
    shapes |= {"mask": ((70, 80), "?"), "state": ((3,), "f8")}
    made = {name: (values.random((count, *s)) * 250).astype(d) for name, (s, d) in shapes.items()}
    for name in [*made][:-1]:
        made[name][values.random(count) < case.rng.choice([0, 0.3])] = 1
    return made


def _write_rows(case: Case, array: Any, rows: Any) -> None:
    for at in case.rng.sample(range(len(rows)), len(rows)):
        if not (rows[at] == 1).all():
            array[at] = rows[at]


def _hdf5(case: Case) -> None:
    rng, libver = case.rng, case.rng.choice(["earliest", "latest"])
    chunks = [rng.choice([None, 1, 2, 7]) for _ in range(4)]
    order = rng.choice("<>")
    for number, length in enumerate(case.lengths()):
        made = _arrays(case, length, order)
        with h5py.File(case.root / f"{number}.hdf5", "w", libver=libver) as file:
            file["action"] = made.pop("state")
            for (name, rows), chunk in zip(made.items(), chunks, strict=False):
                options: dict[str, Any] = {"fillvalue": 1}
                if chunk is not None:
                    row = rows.shape[1:]
                    options |= {"chunks": (chunk, *row), "maxshape": (None, *row)}
                place = f"observations/images/{name}"
                array = file.create_dataset(place, rows.shape, rows.dtype, **options)
                _write_rows(case, array, rows)
            columns = {f"observations.images.{name}": rows for name, rows in made.items()}
            columns["action"] = file["action"][()]
        case.frames[f"{number}"] = _rows({n: _little(rows) for n, rows in columns.items()})


def _zarr(case: Case) -> None:
    import zarr

    rng, lengths = case.rng, case.lengths()
    made, ends = _arrays(case, sum(lengths), rng.choice("<>")), np.cumsum(lengths)
    zarr_format = rng.choice([2, 3])
    group = zarr.open_group(case.root / "a.zarr", mode="w", zarr_format=zarr_format)
    separator = rng.choice([".", "/"])
    key = {"name": "v2" if zarr_format == 2 else "default", "separator": separator}
    common: dict[str, Any] = {"fill_value": 1, "compressors": None, "chunk_key_encoding": key}
    for name, rows in made.items():
        length = rng.choice([1, 1, 2, 7])
        options: dict[str, Any] = {"chunks": (length, *rows.shape[1:]), **common}
        if zarr_format == 3 and case.maybe(0.4):
            options["shards"] = (3 * length, *rows.shape[1:])
        options |= {"shape": rows.shape, "dtype": rows.dtype}
        _write_rows(case, group.create_array(f"data/{name}", **options), rows)
    group.create_array("meta/episode_ends", data=ends, chunks=(2,))
    for number, (start, stop) in enumerate(pairwise([0, *ends.tolist()])):
        columns = {name: _little(rows[start:stop]) for name, rows in made.items()}
        case.frames[f"a/{number:06d}"] = _rows(columns)


def _little(rows: Any) -> Any:
    return rows.astype(rows.dtype.newbyteorder("<"))


def _link(case: Case) -> None:
    """Replace some of the files by links to files elsewhere; or folders."""
    away = case.root.with_name("away")
    away.mkdir()
    for number, path in enumerate(sorted(case.root.rglob("*"))):
        if path.is_symlink() or not path.exists() or not case.maybe(0.3):
            continue
        if path.is_file() or case.maybe(0.2):
            target = away / f"{number}{path.suffix}"
            path.rename(target)
            relative = os.path.relpath(target, os.path.realpath(path.parent))
            path.symlink_to(target if case.maybe(0.5) else relative)


def frames_of(dataset: seqrecord.Dataset) -> Frames:
    return {
        key: [
            {n: v if isinstance(v, str) else np.asarray(v) for n, v in episode[i].items()}
            for i in range(len(episode))
        ]
        for key, episode in dataset.episodes.items()
    }


def assert_same(found: Any, expected: Any, *, of: Any = "") -> None:
    """Assert equal values of equal types in results of loaders and datasets."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), (of, [*found], [*expected])
        for key in expected:
            assert_same(found[key], expected[key], of=(of, key))
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected), of
        for at, pair in enumerate(zip(found, expected, strict=True)):
            assert_same(*pair, of=(of, at))
    elif isinstance(expected, (str, int, float, type(None))):
        assert found == expected, (of, found, expected)
    else:
        one, other = np.asarray(found), np.asarray(expected)
        assert (one.dtype, one.shape) == (other.dtype, other.shape), of
        assert one.tobytes() == other.tobytes(), of


def check(root: Path, number: int, *, kind: str, is_long: bool = False) -> str:
    """Check one case below the new folder `root`; `is_long` also starts processes. Returns the
    outcome."""
    case = make(root / "original", number, kind)
    source = open_source(case.root, **case.options)
    packed, index = root / "packed", root / "index"
    keep: dict[str, Any] = {} if case.kind in ("videos", "cameras") else {"keep_encoded": True}
    if case.kind in _ONLY_CONVERTED:
        seqrecord.convert(source, packed, workers=1 + is_long)
        with seqrecord.open(packed) as dataset:
            _assert_expected(case, frames_of(dataset))
        return "same"
    is_alone = case.kind in ("videos", "v3.0", "v2.1") and case.maybe(0.5)
    try:
        if is_alone:
            with seqrecord.open(case.root) as dataset:
                index = Path(dataset.url)
        else:
            index_source(source, index, workers=1 + is_long, checksums=case.maybe(0.3))
    except SourceError as error:
        if not case.may_be_refused or "`seqrecord write`" not in error.message:
            raise
        return "refused"
    seqrecord.convert(open_source(case.root, **case.options, **keep), packed, workers=1)
    places: list[Any] = [case.root if is_alone else index, packed]
    with seqrecord.open(places[0], verify=case.maybe(0.8)) as one, seqrecord.open(packed) as other:
        assert any(group.external.any() for group in one.contents.index.groups)
        found = frames_of(one)
        assert_same(found, frames_of(other))
        _assert_expected(case, found)
        for key in case.frames:
            assert one.episodes[key].metadata == other.episodes[key].metadata
        own, theirs = (each.statistics.to_json()["features"] for each in (one, other))
        assert_same(own, {name: theirs[name] for name in own})  # referenced features have none
    assert seqrecord.verify(places[0], deep=True).ok
    if is_alone or case.maybe(0.5):
        _check_loaders(case, places, is_long=is_long)
    elif case.maybe(0.7):
        _check_edits(case, places, root)
    else:
        _check_exports(case, places, root)
    return "same"


def _assert_expected(case: Case, found: Frames) -> None:
    for key, frames in case.frames.items():
        named = [{n: f[n] for n in e} for f, e in zip(found[key], frames, strict=True)]
        assert_same(named, frames, of=key)


def _check_loaders(case: Case, places: list[Any], *, is_long: bool) -> None:
    """Check batches of both in order, and an epoch resumed from the other one's state."""
    rng = case.rng
    with seqrecord.open(places[1]) as dataset:
        every = [*dataset.episodes.values()]
        dense = [n for n in dataset.features if all(each.present(n).all() for each in every)]
    options: dict[str, Any] = {
        "clip_len": rng.choice([1, 2, 4]),
        "batch_size": rng.choice([1, 3]),
        "shuffle": case.maybe(0.7),
        "seed": rng.randrange(9),
        "stride": rng.choice([1, 1, 2, 5]),
        "features": dense,
        "memory_limit": "64MiB",
        "engine": seqrecord.EngineOptions(num_threads=rng.choice([1, 2])),
    }
    images = [name for name in options["features"] if "image" in name or name in ("left", "rgb")]
    if case.maybe(0.3):
        options |= {"features": images or options["features"]}
    if case.maybe(0.4):
        options |= {"pad": "edge", "windows": {name: [-2, 0, 3] for name in images[:1]}}
    if images and case.maybe(0.3):
        options["clip_transform"] = {name: seqrecord.RandomCrop((6, 5)) for name in images}
    if case.maybe(0.3):
        options["episodes"] = rng.sample([*case.frames], rng.randrange(1, len(case.frames) + 1))
    if case.maybe(0.2):
        options["order"] = "sequences"
    length = max(len(case.frames[key]) for key in options.get("episodes", case.frames))
    if length < options["clip_len"]:
        options["clip_len"] = 1
    one, other = (seqrecord.SeqRecordPipe(place, **options) for place in places)
    batches, states = list[Any](), list[Any]()
    for batch in one:
        batches.append(batch)
        states.append(one.state_dict())
    assert_same([*other], batches)
    if len(batches) > 1:
        at = rng.randrange(len(batches) - 1)
        again = seqrecord.SeqRecordPipe(places[0], **options)
        again.load_state_dict(states[at])
        assert_same([*again], batches[at + 1 :])
    if is_long:
        stream = seqrecord.SeqRecordIterableDataset(places[0], **options)
        assert len([*DataLoader(stream, batch_size=None, num_workers=2)]) >= len(batches)
        each = {f"{i}": seqrecord.SeqRecordPipe(p, clip_len=1) for i, p in enumerate(places)}
        mix = seqrecord.SeqRecordMix(each, batch_size=4, stopping_strategy="all_exhausted")
        assert {name for batch in mix for name in batch["dataset"]} == {"0", "1"}


def _check_edits(case: Case, places: list[Any], root: Path) -> None:
    """Apply the same edits to both, and compare frames."""
    edit, keys, names = seqrecord.edit, list[str](), list[str]()
    edits: dict[str, Callable[[Path], object]] = {
        "delete": lambda place: len(keys) > 1 and edit.delete_episodes(place, keys[:1]),
        "rename": lambda place: edit.rename_episodes(place, {keys[0]: "another"}),
        "drop": lambda place: len(names) > 1 and edit.drop_features(place, names[:1]),
        "rewrite": lambda place: edit.rewrite_files(place, min_unused=0.01),
        "reindex": seqrecord.reindex,
        "clean": lambda place: edit.clean(place, older_than=-1e3),
        "merge": lambda place: edit.merge_datasets([place], root / f"m {place.name}"),
    }
    for name in case.rng.sample([*edits], case.rng.randrange(1, 5)):
        with seqrecord.open(places[0]) as dataset:
            keys[:], names[:] = [*dataset.episodes], [*dataset.features]
        case.rng.shuffle(keys)
        case.rng.shuffle(names)
        for place in places:
            edits[name](place)
        if name == "merge":
            places = [root / f"m {place.name}" for place in places]
    with seqrecord.open(places[0]) as one, seqrecord.open(places[1]) as other:
        assert_same(frames_of(one), frames_of(other), of="edits")
    assert seqrecord.verify(places[0], deep=True).ok


def _check_exports(case: Case, places: list[Any], root: Path) -> None:
    made = [root / f"exported {place.name}" for place in places]
    for place, to in zip(places, made, strict=True):
        if case.kind in ("v3.0", "v2.1"):
            seqrecord.export.to_lerobot(place, to, fps=FPS)  # may have lost timestamps
        else:
            seqrecord.export.to_files(place, None, to)
    assert_same(*map(_files, made), of="export")


def _files(root: Path) -> dict[str, Any]:
    """Content of all files; images may be encoded again unless the original was kept."""
    found: dict[str, Any] = {}
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        is_image = path.suffix == ".png"
        content = np.asarray(Image.open(path)) if is_image else np.fromfile(path, "u1")
        found[path.relative_to(root).as_posix()] = content
    return found
