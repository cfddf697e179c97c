"""LeRobot datasets written by lerobot: rows, videos, and all kinds of damage."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import seqrecord
from seqrecord import open_source
from seqrecord.errors import SourceError
from seqrecord.formats.converting.convert_jobs import KEPT_COST, frame_cost
from seqrecord.in_place.boundary import UnexpectedError
from seqrecord.sources import DepthScale, LeftOut, Source, inventory_of
from tests.formats.format_cases.lerobot import CASES, row_frames
from tests.kit.bags import png
from tests.kit.datasets import encoded
from tests.kit.lerobot_data import (
    FPS,
    LISTED,
    ROWS,
    at,
    column,
    edit_info,
    episodes,
    rewrite,
    write_v21,
)
from tests.kit.lerobot_depth_data import DEPTH, IMAGE, INFO, codes_of, with_depth
from tests.kit.lerobot_depth_data import LENGTHS as DEPTH_LENGTHS
from tests.kit.lerobot_language_data import ANNOTATED, annotate, random_rows
from tests.kit.lerobot_video_data import CAMERAS, LENGTHS, block_means, with_video
from tests.kit.lerobot_video_data import unpack as unpack_golden
from tests.kit.source_faults import check_refused, frames_of
from tests.kit.video_file_data import (
    HAS_TABLES,
    HEIGHT,
    WIDTH,
    copy_packets,
    declare_full_range,
    decoded,
    hide_first,
    pictures,
    write_video,
)
from tests.video.gops import decode_gops_of

BLACK = np.zeros((7, 8, 3), np.uint8)
VERSIONS = ["v21", "v3"]
IMAGES = "observation.image"


def unpack(folder: Path, version: str = "v3") -> Path:
    return unpack_golden(folder, f"lerobot_{version}")


def check(source: Source, times: int = 1) -> None:
    """All frames equal lerobot's input, repeated `times` times."""
    assert [info.key for info in source.episodes()] == [*row_frames()]
    for key, frames in row_frames().items():
        expected = [f | {"timestamp": np.float32(i / 10)} for i, f in enumerate(frames * times)]
        CASES["lerobot v3.0"].assert_frames(frames_of(source, key), expected)


@pytest.mark.parametrize("version", VERSIONS)
def test_metadata(tmp_path: Path, version: str) -> None:
    info = open_source(unpack(tmp_path, version)).episodes()[1]
    assert info.metadata == {
        "episode_index": 1,
        "tasks": ["place", "pick"],
        "robot_type": "arm",
        "names": {"observation.state": ["x", "y", "grip"], "action": {"motors": ["a", "b"]}},
    }


def test_images_stay_encoded_in_an_index(tmp_path: Path) -> None:
    root = unpack(tmp_path)
    for keep in (False, True):
        source, index = open_source(root, keep_encoded=keep), tmp_path / f"{keep}"
        seqrecord.convert(source, index, in_place=True, workers=1)
        with seqrecord.open(index) as dataset:
            codecs = {
                name: [each["id"] for each in s.codec] for name, s in dataset.features.items()
            }
            assert codecs[IMAGES] == ["seqrecord.image"] * keep
            frame = dataset.episodes["episode_000001"][2]
            np.testing.assert_array_equal(frame[IMAGES], episodes()[1][2][IMAGES])


@pytest.mark.parametrize(
    "group", [40, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in (500, 7))]
)
def test_rows_are_found_in_any_row_group(tmp_path: Path, group: int) -> None:
    """Groups of 45, 27 and 63 rows in sequence; fewer rows are read at a time."""
    root = unpack(tmp_path)

    def longer(table: pa.Table) -> pa.Table:
        numbers = table["episode_index"].to_numpy()
        rows = [np.tile(np.flatnonzero(numbers == episode), 9) for episode in range(3)]
        table = table.take(np.concatenate(rows))
        frames = np.concatenate([np.arange(9 * length) for length in (5, 3, 7)])
        table = column("frame_index", lambda _: frames.tolist())(table)
        return column("timestamp", lambda _: (frames / 10).tolist())(table)

    rewrite(root / ROWS, longer, row_group_size=group)
    rewrite(root / LISTED, column("length", lambda lengths: [9 * length for length in lengths]))
    edit_info(root, total_frames=135)
    source = open_source(root)
    check(source, 9)
    for number in (2, 0, 0, 1):
        assert frames_of(source, number)[-1]["note"] == episodes()[number][-1]["note"]


def test_files_of_several_episodes_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if an episode is not read to its end."""
    source = open_source(unpack(tmp_path))
    infos = source.episodes()
    opens: list[str] = []
    real = pq.ParquetFile

    def counted(path: Path) -> pq.ParquetFile:
        opens.append(path.name)
        return real(path)

    monkeypatch.setattr(pq, "ParquetFile", counted)
    assert sum(len(list(source.frames(info))) for info in infos) == 15
    assert opens == ["tasks.parquet", "file-000.parquet"]
    for number in (0, 1):
        next(source.frames(infos[number]))
        assert len(frames_of(source, 1)) == 3
    check(source)


KINDS_OF_LISTS = [
    pa.list_(pa.list_(pa.int16())),
    pa.large_list(pa.large_list(pa.int16())),
    pa.list_(pa.list_(pa.int16(), 4), 2),
]


@pytest.mark.parametrize("kind", KINDS_OF_LISTS, ids=["lists", "large", "fixed"])
def test_every_kind_of_lists(tmp_path: Path, kind: Any) -> None:
    path = unpack(tmp_path) / ROWS

    def changed(table: pa.Table) -> pa.Table:
        lists = pa.array(table["tactile"].to_pylist(), kind)
        return table.set_column(table.column_names.index("tactile"), "tactile", lists)

    rewrite(path, changed)
    check(open_source(tmp_path / "lerobot_v3"))
    for wrong in (None, [[0, 1, 2, 3], None], [[0, 1, 2, None]] * 2):
        rewrite(path, column("tactile", at(6, wrong)))
        with pytest.raises(SourceError) as caught:
            frames_of(open_source(tmp_path / "lerobot_v3"), 1)
        assert caught.value.feature == "tactile"


# --- damage ------------------------------------------------------------------------------------


def not_utf8(name: str, *, is_lost: bool = False) -> Callable[[pa.Table], pa.Table]:
    """Texts or image names that are not UTF-8; if `is_lost`, row 6 has no image."""

    def changed(table: pa.Table) -> pa.Table:
        place, values = table.column_names.index(name), table[name].to_pylist()
        array = pa.array([b"\xff\xfe"] * len(values)).view(pa.string())
        if isinstance(values[0], dict):
            data = [None if is_lost and i == 6 else v["bytes"] for i, v in enumerate(values)]
            array = pa.StructArray.from_arrays([pa.array(data), array], ["bytes", "path"])
        return table.set_column(place, name, array)

    return changed


BROKEN: list[tuple[Callable[[pa.Table], pa.Table], str]] = [
    (lambda t: t.drop_columns("action"), "lacks a column; .*feature: action; expected: action"),
    (lambda t: t.drop_columns("frame_index"), "lacks a column; .*expected: frame_index"),
    (lambda t: t.slice(0, 6), "number of rows differs .*; expected: 3; got: 1"),
    (lambda t: t.filter(pc.not_equal(t["index"], 6)), "unordered rows; .*frame: 1; expec"),
    (column("frame_index", at(7, 1)), "missing or unordered rows; .*frame: 2; exp"),
    (lambda t: t.set_column(t.column_names.index("frame_index"), "frame_index",
                            pa.array([float("nan")] * len(t))),
     "unordered rows; .*expected: frame_index 0; got: nan"),
    (column("timestamp", at(6, 0.0)), "not ascending; .*frame: 1; expected: more than"),
    (column("timestamp", at(6, float("nan"))), "timestamps are not ascending"),
    (column("timestamp", at(6, None)), "invalid column timestamp; .*1 null"),
    (column("next.reward", at(6, None)), "declaration in info.json; .*next.reward"),
    (column("tactile", at(6, [[1, 2, 3, 4]])), "declaration in info.json; .*tactile; .*in length"),
    (column("tactile", lambda v: [r[:1] for r in v]), r"tactile; expected.*; got: int16 \[1, 4\]"),
    (column("observation.image", at(6, None)), "not embedded in the Parquet file; .*frame: 1; exp"),
    (
        column("observation.image", at(6, {"bytes": None, "path": "../a.png"})),
        r"not embedded in the Parquet file; .*frame: 1; .*\.\./a\.png",
    ),
    (
        column("observation.image", at(6, {"bytes": png(BLACK[:6])[:-20], "path": None})),
        "truncated PNG; .*feature: observation.image; frame: 1",
    ),
    (
        column("observation.image", at(6, {"bytes": png(BLACK), "path": None})),
        r"differs from the first one in dtype or shape; .*frame: 1; .*got: uint8 \[7, 8, 3\]",
    ),
    (
        column("observation.image", at(6, {"bytes": b"GIF89a", "path": None})),
        "neither a PNG nor a JPEG image; .*frame: 1",
    ),
    (lambda t: t.set_column(1, "action", t["action"].cast(pa.list_(pa.float32()))),
     "feature: action; .*got: float32"),
    (column("note", at(6, None)), r"declaration in info.json; .*note; .*string with 1 nulls"),
    (not_utf8("note"), r"not UTF-8; .*xff"),
    (not_utf8("observation.image", is_lost=True), r"not UTF-8; .*feature: observ.*frame: 1; .*xff"),
    (column("task_index", at(6, 7)), r"unknown task number; .*among 2 texts; got: task_index 7"),
    (column("episode_index", at(6, 0)), "(missing or out of order|rows of other episodes)"),
    (lambda t: t.set_column(t.column_names.index("episode_index"), "episode_index",
                            t["episode_index"].cast(pa.string())),
     "invalid column episode_index; .*one number per row; .*string"),
]  # fmt: skip


def nanoseconds(name: str) -> Callable[[pa.Table], pa.Table]:
    """A column of times that `datetime` cannot represent."""
    return lambda t: t.set_column(
        t.column_names.index(name), name, pa.array([1] * len(t), pa.duration("ns"))
    )


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda t: t.append_column("action", t["action"]), "duplicate column .*got: action"),
        (nanoseconds("observation.image"), "no form in Python; .*observation.image; .*Nanosec"),
    ],
)
def test_columns_that_no_recorder_writes(
    tmp_path: Path, change: Callable[[pa.Table], pa.Table], match: str
) -> None:
    root = unpack(tmp_path)
    rewrite(root / ROWS, change)
    with pytest.raises(SourceError, match=match) as caught:
        frames_of(open_source(root), 0)
    assert not isinstance(caught.value, UnexpectedError)
    assert caught.value.file == str(root / ROWS)


def test_broken_rows(tmp_path: Path) -> None:
    """Rows 5, 6 and 7 form the second episode."""
    root = unpack(tmp_path)
    path = root / ROWS
    whole = path.read_bytes()
    for change, match in BROKEN:
        path.write_bytes(whole)
        rewrite(path, change)
        with pytest.raises(SourceError, match=match) as caught:
            frames_of(open_source(root), 1)
        assert (caught.value.episode, caught.value.file) == ("episode_000001", str(path))


def test_damaged_files(tmp_path: Path) -> None:
    root, bad = unpack(tmp_path, "v21"), ["episode_000001"]
    path, listed = root / "data/chunk-000/episode_000001.parquet", root / "meta/episodes.jsonl"
    whole, text = path.read_bytes(), listed.read_text()
    for data in (b"", whole[:100], whole[:-10], whole[100:]):
        path.write_bytes(data)
        check_refused(open_source(root), bad, file=path)
    path.unlink()
    check_refused(open_source(root), bad, "cannot read", file=path)
    path.write_bytes(whole)
    for wrong in ({"length": "many"}, {"tasks": 3}):
        lines = [json.loads(line) for line in text.splitlines()]
        lines[1] |= wrong
        listed.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        check_refused(open_source(root), bad, file=listed)


BAD_IMAGES: list[Any] = [b"GIF89a", b"", None, png(BLACK), png(np.zeros((6, 8), np.uint8))]


@pytest.mark.parametrize("data", BAD_IMAGES, ids=["gif", "empty", "null", "size", "grey"])
def test_a_bad_first_image_refuses_its_episode_only(tmp_path: Path, data: bytes | None) -> None:
    """One table has all episodes; the others give the schema."""
    root = unpack(tmp_path)
    rewrite(root / ROWS, column(IMAGES, at(0, {"bytes": data, "path": "0.png"})))
    check_refused(open_source(root), ["episode_000000"], file=root / ROWS)
    rewrite(root / ROWS, column(IMAGES, lambda values: [values[0]] * len(values)))
    with pytest.raises(SourceError):
        open_source(root).schema()


def test_images_of_other_formats(tmp_path: Path) -> None:
    """WebP in a table is decoded; AVIF is left out, and an error where it is selected."""
    picture = np.random.default_rng(0).integers(0, 256, (32, 48, 3), np.uint8)
    features = {
        "rgb": {"dtype": "image", "shape": [32, 48, 3], "names": None},
        "timestamp": {"dtype": "float32", "shape": [1], "names": None},
    }
    webp = encoded(picture, kind="webp", lossless=True)
    avif = b"\0\0\0\x20ftypavif" + bytes(40)
    webp_root, avif_root = (
        write_v21(tmp_path / name, {"rgb": [{"bytes": data, "path": "0"}]}, features, 1)
        for name, data in (("webp", webp), ("avif", avif))
    )
    for keep in (False, True):
        [frame] = frames_of(open_source(webp_root, keep_encoded=keep))
        np.testing.assert_array_equal(frame["rgb"], picture)
    source = open_source(avif_root)
    assert [*frames_of(source)[0]] == [*source.schema()]
    assert "rgb" not in source.schema()
    assert any("got: AVIF" in str(row) for row in inventory_of(source).left_out_data)
    with pytest.raises(SourceError, match=r"unsupported image format; .*feature: rgb; .*PNG, JPEG"):
        open_source(avif_root, features=["rgb"]).schema()


def damage_group(path: Path, name: str) -> None:
    """Overwrite a column of the first row group."""
    group = pq.ParquetFile(path).metadata.row_group(0)
    [found] = [
        one for one in map(group.column, range(group.num_columns)) if one.path_in_schema == name
    ]
    start = min(found.dictionary_page_offset or found.data_page_offset, found.data_page_offset)
    data = bytearray(path.read_bytes())
    data[start : start + found.total_compressed_size] = b"\xff" * found.total_compressed_size
    path.write_bytes(data)


def test_a_damaged_first_row_group(tmp_path: Path) -> None:
    root, bad = unpack(tmp_path), ["episode_000000"]
    path = root / ROWS
    rewrite(path, lambda table: table, row_group_size=5)
    damage_group(path, f"{IMAGES}.bytes")
    check_refused(open_source(root), bad, "damaged Parquet file", file=path)
    seqrecord.convert(open_source(root), tmp_path / "r", workers=1, skip_bad_episodes=True)
    with seqrecord.open(tmp_path / "r") as dataset:
        assert [*dataset.episodes] == ["episode_000001", "episode_000002"]


def declared(dtype: Any, *shape: int) -> dict[str, Any]:
    return {"features": {"action": {"dtype": dtype, "shape": [*shape]}}}


BROKEN_INFO: list[tuple[dict[str, Any], str]] = [
    (
        {"codebase_version": "v1.6"},
        r"unsupported LeRobot version; .*v2.0, v2.1 or v3.0; got: 'v1",
    ),
    ({"codebase_version": None}, "unsupported LeRobot version"),
    ({"fps": 0}, "invalid fps; .*expected: a number above 0; got: 0"),
    ({"fps": "10"}, "invalid fps"),
    ({"chunks_size": 0}, "invalid chunks_size"),
    ({"data_path": 3}, "invalid data_path"),
    (
        {"data_path": "../{chunk_index:03d}.parquet"},
        "invalid data_path; .*a path below the dataset",
    ),
    ({"data_path": "{chunk_index.__class__}"}, "invalid data_path"),
    ({"data_path": "{other:03d}.parquet"}, "invalid other"),
    ({"features": {}}, "invalid features"),
    ({"features": {"a": {"dtype": "float32"}}}, "invalid features.a"),
    (declared("float1", 2), "unsupported feature.*float1"),
    (declared("O", 2), "cannot be stored.*: action"),
    (declared("float32", -1), "unsupported feature.*action"),
]


def test_a_broken_info(tmp_path: Path) -> None:
    root = unpack(tmp_path)
    text = (root / "meta/info.json").read_text()
    for changes, match in BROKEN_INFO:
        (root / "meta/info.json").write_text(text)
        edit_info(root, **changes)
        source = open_source(root, features=["action"])
        with pytest.raises(SourceError, match=match):
            source.schema(), source.episodes()


def test_broken_tables_of_episodes(tmp_path: Path) -> None:
    root = unpack(tmp_path)
    path = root / LISTED
    whole = path.read_bytes()
    for change, match in (
        (lambda t: t.drop_columns("length"), "lacks a column; file: .*expected: length"),
        (column("length", at(1, -3)), "invalid episode"),
        (column("episode_index", at(1, 0)), "listed twice; .*episode: episode_000000"),
        (column("data/file_index", at(1, None)), "invalid file_index"),
    ):
        path.write_bytes(whole)
        rewrite(path, change)
        source = open_source(root)
        with pytest.raises(SourceError, match=match):
            [list(source.frames(info)) for info in source.episodes()]
    path.write_bytes(whole[:-20])
    with pytest.raises(SourceError, match=r"not a Parquet file; file: .*file-000.parquet"):
        open_source(root).episodes()
    shutil.rmtree(root / "meta/episodes")
    with pytest.raises(SourceError, match="missing table of episodes"):
        open_source(root).episodes()


def test_broken_lines_of_episodes(tmp_path: Path) -> None:
    root = unpack(tmp_path, "v21")
    for text, match in (
        ('{"episode_index": 0, "tasks": ["pick"], "length": 5}\n{"epi', "invalid JSON in line 2"),
        ("[]\n", "not a JSON object"),
        ('{"episode_index": 0, "tasks": 5, "length": 5}', "invalid tasks"),
        ("\n", "without episodes"),
    ):
        (root / "meta/episodes.jsonl").write_text(text)
        with pytest.raises(SourceError, match=match):
            open_source(root, features=["action"]).episodes()
    edit_info(root, total_episodes=1, total_frames=5, total_tasks=1, splits={"train": "0:1"})
    (root / "meta/episodes.jsonl").write_text('{"episode_index": 0, "tasks": [], "length": 5}')
    tasks = ['{"task_index": 0, "task": "pick"}', '{"task_index": 0, "task": "place"}']
    for text, match in (
        ('{"task_index": "0", "task": "pick"}', "invalid task"),
        ("\n".join(tasks), "two texts have one number.*0: 'pick', 'place'"),
    ):
        (root / "meta/tasks.jsonl").write_text(text)
        with pytest.raises(SourceError, match=match):
            frames_of(open_source(root), "episode_000000")
    assert len(frames_of(open_source(root, features=["action"]), "episode_000000")) == 5


# --- declared numbers ------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_numbers_declared_in_info_match_meta(tmp_path: Path, version: str) -> None:
    root = unpack(tmp_path, version)
    text = (root / "meta/info.json").read_text()
    for declared, expected, got in (
        ({"total_episodes": 4}, "total_episodes 4", 3),
        ({"total_episodes": 2}, "total_episodes 2", 3),
        ({"total_frames": 16}, "total_frames 16", 15),
        ({"total_tasks": 3}, "total_tasks 3", 2),
        ({"splits": {"train": "0:2", "val": "2:5"}}, "episodes up to 2", "2:5"),
    ):
        (root / "meta/info.json").write_text(text)
        edit_info(root, **declared)
        with pytest.raises(SourceError) as caught:
            frames_of(open_source(root))
        assert (caught.value.expected, caught.value.got) == (expected, got)
        assert caught.value.file == str(root / "meta/info.json")


def test_rows_of_an_episode_that_is_not_listed(tmp_path: Path) -> None:
    root = unpack(tmp_path)
    listed = (root / LISTED).read_bytes()
    rewrite(root / LISTED, lambda table: table.slice(0, 2))
    with pytest.raises(SourceError, match="total_episodes disagrees with meta/episodes"):
        open_source(root).episodes()
    edit_info(root, total_episodes=2, total_frames=8, splits={})
    assert len(open_source(root).episodes()) == 2
    with pytest.raises(SourceError, match="more rows than meta/episodes lists") as caught:
        frames_of(open_source(root))
    assert (caught.value.expected, caught.value.got) == ("8 rows", "15 rows")
    assert caught.value.file == str(root / ROWS)
    (root / LISTED).write_bytes(listed)
    rewrite(root / ROWS, not_utf8("observation.image"))  # images need no names
    info = json.loads((root / "meta/info.json").read_text())
    kept = {name: value for name, value in info.items() if not name.startswith("total")}
    (root / "meta/info.json").write_text(json.dumps(kept))
    check(open_source(root))


# --- videos ------------------------------------------------------------------------------------

VIDEO = CAMERAS[0]
COUNTS = tuple(map(len, episodes()))
BEGIN = f"videos/{VIDEO}/from_timestamp"


def video_of(source: Any, number: int, name: str = VIDEO) -> npt.NDArray[np.uint8]:
    """The video frames of one episode."""
    return decode_gops_of(source.schema()[name], source.videos(source.episodes()[number])[name])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Rows of three episodes, in files of v3.0."""
    return unpack(tmp_path)


@pytest.mark.parametrize("version", ["v3", "v21"])
def test_videos_match_lerobot_for_each_row(tmp_path: Path, version: str) -> None:
    root = unpack_golden(tmp_path, f"lerobot_video_{version}")
    source = open_source(root)
    schema = source.schema()
    with np.load(root / "frames.npz") as wanted:
        for name in CAMERAS:
            codec = {"codec": "av1", "pixel_format": "yuv420p"}
            assert schema[name].codec[0].items() >= codec.items()
            parts = np.split(wanted[name], np.cumsum(LENGTHS)[:-1])
            for number, want in enumerate(parts):
                got = block_means(video_of(source, number, name))
                # Other builds of FFmpeg may round colours differently, by less than 1 each.
                np.testing.assert_allclose(got, want, atol=1)
                assert np.abs(np.diff(want, axis=0)).max() > 5  # distinguishes neighbouring frames


@pytest.mark.parametrize("version", ["v3", "v21"])
def test_h264_in_the_same_layout(tmp_path: Path, version: str) -> None:
    root = unpack(tmp_path, version)
    parts = np.split(with_video(root, COUNTS), np.cumsum(COUNTS)[:-1])
    source = open_source(root)
    for number in (2, 0, 0, 1, 2):
        np.testing.assert_array_equal(video_of(source, number), parts[number])
    assert source.episodes()[0].metadata.get("names", {}).get(VIDEO) is None
    for options in ({"without_video": True}, {"features": ["action"]}):
        other: Any = open_source(root, **options)
        assert VIDEO not in other.schema()
        assert other.videos(other.episodes()[0]) == {}
    alone = open_source(root, features=[VIDEO])
    assert len(video_of(alone, 2)) == COUNTS[2]
    assert list(alone.frames(alone.episodes()[1])) == [{}] * COUNTS[1]


@pytest.mark.parametrize("in_place", [False, True])
def test_a_range_that_only_the_container_declares(root: Path, in_place: bool) -> None:
    limited = with_video(root, COUNTS)
    [path] = (root / "videos" / VIDEO).rglob("*.mp4")
    images = decoded(declare_full_range(path))[1]
    assert np.abs(images.astype(int) - limited).mean() > 5
    seqrecord.convert(open_source(root), root.parent / "r", in_place=in_place, workers=1)
    with seqrecord.open(root.parent / "r") as dataset:
        found = [episode[:][VIDEO] for episode in dataset.episodes.values()]
    np.testing.assert_array_equal(np.concatenate(found), images)


@pytest.mark.parametrize("in_place", [False, True])
def test_frames_that_are_displayed_later_than_decoded(root: Path, in_place: bool) -> None:
    """Encoders of graphics cards delay all frames by the same time, without B-frames."""
    options = {"g": "4", "bf": "0"}
    frames = np.split(with_video(root, COUNTS, options=options), np.cumsum(COUNTS)[:-1])
    [path] = (root / "videos" / VIDEO).rglob("*.mp4")
    copy_packets(path.rename(root.parent / "whole.mp4"), path, decoded_before=2)
    seqrecord.convert(open_source(root), root.parent / "r", in_place=in_place, workers=1)
    with seqrecord.open(root.parent / "r") as dataset:
        for number, expected in enumerate(frames):
            episode = dataset.episodes[f"episode_{number:06d}"][:]
            np.testing.assert_array_equal(episode[VIDEO], expected)


def refused(root: Path, number: int, **options: Any) -> SourceError:
    source = open_source(root, **options)
    with pytest.raises(SourceError) as caught:
        video_of(source, number)
    assert caught.value.episode == f"episode_{number:06d}"
    assert caught.value.feature == VIDEO
    return caught.value


def test_fewer_frames_than_rows(root: Path) -> None:
    with_video(root, [5, 3, 6])
    error = refused(root, 2)
    assert error.frame == 6
    assert "no frame of its own" in error.message
    assert len(video_of(open_source(root), 1)) == 3


def test_broken_videos(tmp_path: Path) -> None:
    root = unpack(tmp_path, "v21")
    with_video(root, COUNTS)
    folder = root / f"videos/chunk-000/{VIDEO}"
    path = folder / "episode_000001.mp4"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert "unsupported video" in refused(root, 1).message
    path.unlink()
    assert refused(root, 1).got == "No such file or directory"
    write_video(path, pictures(3)[:, : HEIGHT // 2], rate=10)
    error = refused(root, 1)
    assert "another size than the first one" in error.message
    assert (error.expected, error.got) == ([HEIGHT, WIDTH], [HEIGHT // 2, WIDTH])
    path.write_bytes(whole)
    assert len(video_of(open_source(root), 1)) == 3
    hide_first(path, 2, 10)
    assert refused(root, 1).frame == 1
    for each in folder.iterdir():
        each.write_bytes(b"")
    with pytest.raises(SourceError, match=r"unsupported video.*episode: episode_000000"):
        open_source(root).schema()


def test_a_tolerance(root: Path) -> None:
    images = with_video(root, COUNTS)
    rows = root / "data/chunk-000/file-000.parquet"
    rewrite(rows, column("timestamp", at(6, 0.13)))
    assert refused(root, 1).frame == 1
    rewrite(rows, column("timestamp", lambda times: [time + 0.003 for time in times]))
    error = refused(root, 0)
    assert error.frame == 0
    assert "seqrecord.open(…, tolerance=0.01)" in error.message
    with pytest.raises(SourceError, match="--source-option tolerance="):
        seqrecord.convert(open_source(root), root.parent / "i", in_place=True, workers=1)
    np.testing.assert_array_equal(video_of(open_source(root, tolerance=0.01), 0), images[:5])


JITTER = [0.0, 0.0021, -0.0017, 0.0009, -0.0006, 0.0, 0.0013, -0.0024, 0.0004, 0.0]


def jitter(times: list[float]) -> list[float]:
    return [time + JITTER[i % len(JITTER)] for i, time in enumerate(times)]


@pytest.mark.parametrize("in_place", [False, True])
def test_rows_that_jitter_have_the_frames_of_their_number(
    root: Path, caplog: pytest.LogCaptureFixture, in_place: bool
) -> None:
    images = with_video(root, COUNTS)
    rewrite(root / "data/chunk-000/file-000.parquet", column("timestamp", jitter))
    out = root.parent / "out"
    report = seqrecord.convert(open_source(root), out, in_place=in_place, workers=1)
    with seqrecord.open(out) as dataset:
        episode = dataset.episodes["episode_000000"][:]
    np.testing.assert_array_equal(episode[VIDEO], images[:5])
    np.testing.assert_allclose(np.diff(episode["timestamp"])[:2], [0.1021, 0.0962], atol=1e-6)
    warnings = [text for text in caplog.messages if "jitter" in text]
    assert len(warnings) == 1
    assert "in 3 episodes, by up to 2.4 ms" in warnings[0]  # the largest is not in the first one
    assert "--tolerance_s=0.0025" in warnings[0]
    assert report.inventory is not None
    assert warnings[0].endswith(report.inventory.notes[0])


@pytest.mark.parametrize(
    "change",
    [
        lambda times: [time + 0.1 for time in jitter(times)],  # one frame later
        lambda times: [time + 0.1 * (i > 2) for i, time in enumerate(jitter(times))],  # a lost row
        lambda times: [time * 1.02 for time in times],  # drift
        lambda times: [time * 2 for time in jitter(times)],  # another frame rate
        lambda times: [time + 0.04 * (i % 2) for i, time in enumerate(times)],  # too far apart
    ],
)
@pytest.mark.parametrize("in_place", [False, True])
def test_other_times_than_jitter_are_refused(
    root: Path, change: Callable[[list[float]], list[float]], in_place: bool
) -> None:
    with_video(root, COUNTS)
    rewrite(root / "data/chunk-000/file-000.parquet", column("timestamp", change))
    with pytest.raises(SourceError, match=r"tolerance=.*--tolerance_s|claim the same|ascending"):
        seqrecord.convert(open_source(root), root.parent / "i", in_place=in_place, workers=1)


def test_a_tolerance_is_kept(root: Path) -> None:
    """A tolerance that the user chooses refuses rows further from their frames."""
    with_video(root, COUNTS)
    rewrite(root / "data/chunk-000/file-000.parquet", column("timestamp", jitter))
    with pytest.raises(SourceError, match=r"within 0\.001 s"):
        seqrecord.convert(open_source(root, tolerance=0.001), root.parent / "i", workers=1)


@pytest.mark.parametrize(
    ("times", "tolerance", "shown"),
    [
        ([0, 100, 200, 300, 400], 0.02, [0, 1, 2, 3, 4]),
        ([0, 10, 100, 200, 300, 400], 0.02, [0, 2, 3, 4, 5]),
        ([0, 100, 170, 200, 300, 400], 0.04, [0, 1, 3, 4, 5]),
        ([0, 100, 200, 230, 300, 400], 0.04, [0, 1, 2, 4, 5]),
        ([*range(0, 450, 50)], 0.06, [0, 2, 4, 6, 8]),
        ([10, 90, 205, 310, 395], 0.02, [0, 1, 2, 3, 4]),
    ],
)
def test_rows_have_their_nearest_frames(
    tmp_path: Path, times: list[int], tolerance: float, shown: list[int]
) -> None:
    """With a tolerance, whichever other frames are within it; packed as in place."""
    root = unpack(tmp_path, "v21")
    with_video(root, COUNTS)
    path = root / f"videos/chunk-000/{VIDEO}" / "episode_000000.mp4"
    write_video(path, pictures(len(times)), times=times, key_frames=range(len(times)))
    _, images = decoded(path)
    source = open_source(root, tolerance=tolerance)
    np.testing.assert_array_equal(video_of(source, 0), images[shown])
    with seqrecord.open(root, tolerance=tolerance) as dataset:
        np.testing.assert_array_equal(dataset.episodes["episode_000000"][:][VIDEO], images[shown])


def test_invalid_paths_and_times(root: Path) -> None:
    with_video(root, COUNTS)
    path = json.loads((root / "meta/info.json").read_text())["video_path"]
    for wrong, match in (
        (None, "invalid video_path"),
        ("/{video_key}.mp4", "invalid video_path; .*a path below the dataset"),
        ("{video_key:03d}.mp4", "invalid video_key; .*a number for video_path"),
        ("{video_key.x}.mp4", "invalid video_path"),
    ):
        edit_info(root, video_path=wrong)
        with pytest.raises(SourceError, match=match):
            open_source(root).episodes()
    edit_info(root, video_path=path)
    for value in (-1.0, float("nan"), None):
        rewrite(root / LISTED, column(BEGIN, at(1, value)))
        source: Any = open_source(root)
        with pytest.raises(SourceError, match=r"invalid .*from_timestamp") as caught:
            source.videos(source.episodes()[1])
        assert caught.value.episode == "episode_000001"
    rewrite(root / LISTED, lambda table: table.drop_columns(BEGIN))
    with pytest.raises(SourceError) as caught:
        open_source(root).episodes()
    assert caught.value.expected == BEGIN


def test_video_that_is_kept_is_little_work(tmp_path: Path) -> None:
    schema = open_source(unpack_golden(tmp_path, "lerobot_video_v3")).schema()
    videos = sum(schema[name].nbytes for name in CAMERAS)
    assert videos > 100 * KEPT_COST
    assert frame_cost(schema) == schema.frame_nbytes - videos + videos // KEPT_COST


@pytest.mark.skipif(not HAS_TABLES, reason="PyAV 17 reads the tables of a video")
@pytest.mark.parametrize("version", ["v3", "v21"])
def test_frames_of_no_episode_are_in_the_inventory(tmp_path: Path, version: str) -> None:
    root = unpack(tmp_path, version)
    with_video(root, [*COUNTS[:-1], COUNTS[-1] + 4])
    frames = LeftOut(f"frames of {VIDEO}", 4, "outside of all episodes", "frames")
    assert frames in inventory_of(open_source(root)).left_out
    assert len(video_of(open_source(root), 2)) == COUNTS[2]


@pytest.mark.parametrize(
    ("begins", "bad"),
    [
        ([0.0, 0.4, 0.8], [0, 1]),
        ([0.0, 0.0, 0.8], [0, 1]),  # which is true?
        ([0.0, 0.8, 0.5], [1, 2]),  # exchanged by a merge
        ([0.8, 0.0, 0.9], [0, 2]),
        ([0.0, 0.9, 0.8], [1, 2]),  # one inside of the other
        ([0.0, 0.5, 0.2], [0, 1, 2]),
        ([0.0, 0.5, 0.8], []),
    ],
)
def test_of_two_episodes_that_claim_the_same_frames_both_are_bad(
    root: Path, begins: list[float], bad: list[int]
) -> None:
    images = with_video(root, COUNTS)
    rewrite(root / LISTED, column(BEGIN, lambda _: begins))
    keys = [f"episode_{number:06d}" for number in range(3)]
    bad_keys = [keys[number] for number in bad]
    for number in bad:
        error = refused(root, number)
        assert "two episodes claim the same frames of a video" in error.message
        assert str(error.got).split()[-1] in {*bad_keys} - {keys[number]}
    options: dict[str, Any] = {"workers": 1, "skip_bad_episodes": True}
    for in_place in (False, True) if len(bad) < 3 else ():
        report = seqrecord.convert(
            open_source(root), root.parent / f"{in_place}", in_place=in_place, **options
        )
        assert [episode.key for episode in report.bad] == bad_keys
        with seqrecord.open(root.parent / f"{in_place}") as dataset:
            for key, episode in dataset.episodes.items():
                first_frame = round(begins[keys.index(key)] * FPS)
                expected = images[first_frame : first_frame + len(episode)]
                np.testing.assert_array_equal(episode[:][VIDEO], expected)
    for number in bad:
        with pytest.raises(SourceError, match="claim the same frames"):
            seqrecord.SeqRecordPipe(root, clip_len=1, batch_size=1, episodes=[keys[number]])


def test_rows_that_are_later_than_their_number_claim_frames_too(root: Path) -> None:
    """By its listed length the first episode ends before the second one begins."""
    with_video(root, COUNTS)
    rewrite(root / ROWS, column("timestamp", at(4, 0.5)))
    for number in (0, 1):
        assert "two episodes claim the same frames" in refused(root, number).message
    assert len(video_of(open_source(root), 2)) == COUNTS[2]


def test_a_new_episode_that_claims_frames_of_an_indexed_one(root: Path) -> None:
    with_video(root, COUNTS)
    listed, rows = (pq.read_table(root / name) for name in (LISTED, ROWS))
    rewrite(root / LISTED, lambda table: table.slice(0, 2))
    rewrite(root / ROWS, lambda table: table.slice(0, 8))
    totals = {"total_episodes": 2, "total_frames": 8}
    edit_info(root, **totals, splits={})
    with seqrecord.open(root) as dataset:
        assert len(dataset.episodes) == 2
    rewrite(root / LISTED, lambda _: column(BEGIN, at(2, 0.7))(listed))
    rewrite(root / ROWS, lambda _: rows)
    edit_info(root, total_episodes=3, total_frames=15)
    with seqrecord.open(root, skip_bad_episodes=True) as dataset:
        assert [*dataset.episodes] == ["episode_000000"]


# --- depth ------------------------------------------------------------------------------------

NAME = DEPTH[0]


def depth_of(source: Any, number: int, name: str = NAME) -> Any:
    return video_of(source, number, name)


def test_metres_of_codes() -> None:
    """Each code by the formula, in float64."""
    codes = np.arange(4096) / 4095
    for low, high, shift, use_log in (
        *((0.01, 10.0, 3.5, True), (0.01, 10.0, 3.5, False)),
        *((-1.0, 100.0, 1.5, True), (0.3, 0.4, 0.0, True)),
    ):
        metres, ratio = (
            DepthScale(low, high, shift, use_log).metres(),
            (high + shift) / (low + shift),
        )
        wanted = (low + shift) * ratio**codes - shift if use_log else low + (high - low) * codes
        assert metres.shape == (4096,)
        assert metres.dtype == np.float32
        # Five float32 roundings of values up to the maximum.
        atol = 8 * 2**-24 * (high + max(shift, 0.0))
        np.testing.assert_allclose(metres, wanted, rtol=0, atol=atol)
        assert (np.diff(metres) > 0).all()
        assert metres.min() >= np.float32(low)
        assert metres.max() <= np.float32(high)


def test_every_row_has_its_depth(tmp_path: Path, root: Path) -> None:
    codes = codes_of(sum(COUNTS))
    with_depth(root, codes, COUNTS)
    parts = np.split(with_video(root, COUNTS), np.cumsum(COUNTS)[:-1])
    source: Any = open_source(root)
    spec = source.schema()[NAME]
    assert (str(spec), spec.kind, spec.unit) == (f"{NAME}: float32 [48, 64]", "depth", "m")
    wanted = np.split(DepthScale.of(INFO).metres()[codes], np.cumsum(COUNTS)[:-1])
    for number in (2, 0, 0, 1, 2):
        np.testing.assert_array_equal(depth_of(source, number), wanted[number])
    np.testing.assert_array_equal(depth_of(open_source(root, features=[NAME]), 1), wanted[1])
    seqrecord.convert(source, tmp_path / "kept", workers=1)
    as_floats = seqrecord.convert(
        source, tmp_path / "floats", workers=1, codecs={NAME: "balanced"}, strict=True
    )
    for place in (root, tmp_path / "kept", tmp_path / "floats"):  # in place, packets, metres
        with seqrecord.open(place) as dataset:
            found = dataset.features[NAME]
            assert (str(found), found.kind, found.unit) == (str(spec), "depth", "m")
            for number, part in enumerate(parts):
                got = dataset.episodes[f"episode_{number:06d}"][:]
                np.testing.assert_array_equal(got[NAME], wanted[number])
                np.testing.assert_array_equal(got[VIDEO], part)
    with seqrecord.open(tmp_path / "floats") as dataset:
        assert dataset.statistics[NAME].max[0] == pytest.approx(10.0)
    assert f"{NAME}: codes of gray12le decoded to metres" in as_floats.inventory.notes


def test_b_frames_and_a_linear_scale_in_ffv1(root: Path) -> None:
    codes = codes_of(sum(COUNTS), 1)
    info = {**INFO, "video.use_log": False}
    try:
        with_depth(root, codes, COUNTS, info=info, codec="ffv1", options={})
    except ValueError:
        pytest.skip("PyAV 17 writes FFV1 into MP4")
    moving = "log-level=none:pools=none:frame-threads=1:lossless=1:bframes=4:keyint=9"
    with_depth(root, codes[::-1], COUNTS, DEPTH[1], options={"x265-params": moving})
    source = open_source(root)
    for name, use_log, wanted in ((NAME, False, codes), (DEPTH[1], True, codes[::-1])):
        got = [depth_of(source, number, name) for number in range(len(COUNTS))]
        metres = DepthScale(0.01, 10.0, 3.5, use_log).metres()
        np.testing.assert_array_equal(np.concatenate(got), metres[wanted])


def change_feature(root: Path, **more: Any) -> None:
    """Change the feature's entry in info.json."""
    features = json.loads((root / "meta/info.json").read_text())["features"]
    edit_info(root, features={**features, NAME: {**features[NAME], **more}})


def test_invalid_scales(root: Path) -> None:
    with_video(root, COUNTS, NAME)  # never opened
    for name, value in (
        *(("depth_min", None), ("depth_max", None), ("shift", None), ("use_log", None)),
        *(("use_log", 1), ("depth_min", True), ("depth_max", "10"), ("depth_max", math.inf)),
        *(("shift", math.nan), ("depth_max", 10**400), ("depth_max", 0.01), ("shift", -0.01)),
        *(("depth_max", 1e300), ("depth_max", 1e39)),
    ):
        info = {**INFO, "video.use_log": value != 1e39, f"video.{name}": value}
        change_feature(root, info={key: each for key, each in info.items() if each is not None})
        assert NAME not in open_source(root).schema()
        with pytest.raises(SourceError, match=f"video.{name}: .*without_video") as caught:
            open_source(root, features=[NAME]).schema()
        assert caught.value.feature == NAME
        assert caught.value.file == str(root / "meta/info.json")
    assert NAME not in open_source(root, without_video=True).schema()
    for mark, key in product(
        ({"is_depth_map": True}, {"video.pix_fmt": "gray12le"}), ("info", "video_info")
    ):
        change_feature(root, **{"info": None, "video_info": None, key: mark})
        with pytest.raises(SourceError, match="depth video without a valid scale"):
            open_source(root, features=[NAME]).schema()


def test_videos_without_depth_codes(root: Path) -> None:
    with_depth(root, codes_of(sum(COUNTS)), COUNTS, pixels="gray10le")
    with pytest.raises(SourceError, match=r"without 12-bit codes.*feature: obs") as caught:
        open_source(root).schema()
    assert (caught.value.expected, caught.value.got) == ("gray12le", "gray10le")


def test_another_size_and_fewer_frames_than_rows(root: Path) -> None:
    with_depth(root, codes_of(sum(COUNTS) - 1), COUNTS)
    source = open_source(root)
    depth_of(source, 1)
    with pytest.raises(SourceError, match="no frame of its own") as caught:
        depth_of(source, 2)
    assert (caught.value.episode, caught.value.feature) == ("episode_000002", NAME)
    assert caught.value.frame == COUNTS[2] - 1
    change_feature(root, shape=[48, 65, 1])
    with pytest.raises(SourceError, match=r"the video size differs from info\.json"):
        open_source(root).schema()


@pytest.mark.parametrize(("dtype", "unit"), [("u2", "mm"), ("f4", "m")])
def test_depth_as_tiff_matches_lerobot(tmp_path: Path, dtype: str, unit: str) -> None:
    root = unpack_golden(tmp_path, "lerobot_depth_images")
    seqrecord.convert(open_source(root / dtype), tmp_path / "records", workers=1, strict=True)
    with seqrecord.open(tmp_path / "records") as dataset, np.load(root / "frames.npz") as frames:
        spec = dataset.features[IMAGE]
        assert str(spec) == f"{IMAGE}: {np.dtype(dtype).name} [6, 8]"
        assert (spec.kind, spec.unit) == ("depth", unit)
        rows = np.concatenate([each[:][IMAGE] for each in dataset.episodes.values()])
        np.testing.assert_array_equal(rows[:, None], frames[f"{dtype} {unit}"])
        assert len(np.unique(rows)) > 40
    with pytest.raises(SourceError, match=r"cannot be read in place.*seqrecord write"):
        seqrecord.open(root / dtype)


def test_metres_match_lerobot_for_each_row(tmp_path: Path) -> None:
    root = unpack_golden(tmp_path, "lerobot_depth")
    with np.load(root / "frames.npz") as frames:
        for name in DEPTH:
            source = open_source(root / name.rpartition(".")[2])
            rows = [depth_of(source, number, name) for number in range(len(DEPTH_LENGTHS))]
            assert [len(each) for each in rows] == [*DEPTH_LENGTHS]
            got, wanted = np.concatenate(rows), frames[name]
            if name == DEPTH[1]:
                np.testing.assert_array_equal(got, wanted)
            else:  # torch's exponentials, see docs/reference/sources.md
                np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-6)
                assert (got == wanted).mean() > 0.99
            assert wanted.min() == pytest.approx(0.01, abs=1e-6)
            assert wanted.max() == 8
            assert np.abs(np.diff(wanted, axis=0)).max() > 0.05  # distinguishes neighbouring frames


# --- language columns --------------------------------------------------------------------------


def of_first(root: Path, **options: Any) -> list[Any]:
    """The frames of the first episode, with texts of `options`."""
    return frames_of(open_source(root, language=options), 0)


RESOLVED: list[tuple[str, list[str | None]]] = [
    ("active_at(t, style=subtask)", [None, "reach", "reach", "grasp", "grasp"]),
    ("active_at(t, style='subtask', role=user)", [None] * 5),
    ("nth_prev(t, style=subtask)", [None, None, None, "reach", "reach"]),
    ("nth_next(t, style=subtask)", ["reach", "grasp", "grasp", None, None]),
    ("nth_next(t, style=subtask, offset=2)", ["grasp", None, None, None, None]),
    ("emitted_at(t, style=memory)", [None, None, "reached", None, None]),
    ("emitted_at(t, style=interjection)", [None, "wait", None, None, None]),
    ("emitted_at(style=vqa, camera=observation.images.wrist)", [None, None, None, "right", None]),
]


def annotated(folder: Path) -> Path:
    root = unpack(folder)
    annotate(root, lambda number, own: ANNOTATED if number == 0 else random_rows(number, own))
    return root


def test_language_columns(tmp_path: Path) -> None:
    root = annotated(tmp_path)
    source = open_source(root, language={f"text{i}": text for i, (text, _) in enumerate(RESOLVED)})
    frames = frames_of(source, 0)
    for i, (text, expected) in enumerate(RESOLVED):
        assert [frame.get(f"text{i}") for frame in frames] == expected, text
    persistent, events = ANNOTATED
    as_float32 = [{**one, "timestamp": float(np.float32(one["timestamp"]))} for one in persistent]
    assert source.episodes()[0].metadata["language_persistent"] == as_float32
    assert [json.loads(frame["language_events"] or "[]") for frame in frames] == events
    said = of_first(root, said="emitted_at(t, tool_name=say)")
    assert ["said" in frame for frame in said] == [False, True, False, False, False]
    assert json.loads(said[1]["said"]) == events[1][1]["tool_calls"]
    assert not any(one.is_data for one in inventory_of(source).left_out)


LANGUAGE_REFUSED = [
    ("active_at(t, style=task_aug)", "several rows of language match"),
    ("active_at(t)", "not a resolver.*expected: a style among subtask, plan"),
    ("active_at(t, style=vqa)", "not a resolver.*expected: a style among subtask, plan"),
    ("emitted_at(t, style=song)", "not a resolver.*expected: a style among"),
    ("active_at(t, style=subtask, offset=2)", "not a resolver.*expected: keys style, role"),
    ("nth_prev(t, style=subtask, offset=0)", "not a resolver.*expected: an offset"),
    ("active_at(t, subtask)", "not a resolver.*expected: keys"),
    ("activeat(t, style=subtask)", "not a resolver"),
]


def test_resolvers_that_are_refused(tmp_path: Path) -> None:
    root = annotated(tmp_path)
    for text, match in LANGUAGE_REFUSED:
        with pytest.raises(SourceError, match=match):
            of_first(root, said=text)
    with pytest.raises(SourceError, match="names a feature of the dataset"):
        of_first(root, action=RESOLVED[0][0])
    with pytest.raises(SourceError, match="language is not valid"):
        open_source(root, language="{")
    rewrite(root / ROWS, column("language_persistent", at(3, [])))
    source = open_source(root)
    with pytest.raises(SourceError, match="frames of an episode have different persistent rows"):
        frames_of(source, 0)
    assert frames_of(source, 1)
    plain = unpack(tmp_path / "plain")
    with pytest.raises(SourceError, match="the dataset has no language_persistent"):
        of_first(plain, said=RESOLVED[0][0])


def test_unreadable_language_refuses_its_episode_only(tmp_path: Path) -> None:
    """And no other episode loses its rows."""
    root, bad = annotated(tmp_path), ["episode_000000"]
    whole = open_source(root).episodes()[1:]
    assert all(info.metadata["language_persistent"] for info in whole)
    path, language = root / ROWS, {"memory": "active_at(t, style=memory)"}
    # The second group begins with the last row of the first episode.
    rewrite(path, lambda table: table, row_group_size=4, compression="none", use_dictionary=False)
    data = path.read_bytes()
    for name in ("content", "timestamp"):
        path.write_bytes(data)
        damage_group(path, f"language_persistent.list.element.{name}")
        check_refused(open_source(root), bad, "damaged Parquet file", file=path)
        check_refused(open_source(root, language=language), bad, feature="language_persistent")
        assert open_source(root).episodes()[1:] == whole
    path.write_bytes(data.replace(b"reached", b"\xff\xfeached"))
    check_refused(open_source(root), bad, "text is not UTF-8", feature="language_persistent")
    assert open_source(root).episodes()[1:] == whole
