"""LeRobot datasets that lerobot's own writer has written, and every way to be broken."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from seqrecord import open_source
from seqrecord.errors import SourceError
from seqrecord.sources import Source
from tests.bags import png
from tests.lerobot_data import FEATURES, episodes
from tests.lerobot_video_data import unpack as unpack_golden
from tests.source_faults import check_refused, frames_of

ROWS = "data/chunk-000/file-000.parquet"
LISTED = "meta/episodes/chunk-000/file-000.parquet"
BLACK = np.zeros((7, 8, 3), np.uint8)
NUMBERS = [name for name, feature in FEATURES.items() if feature["dtype"] != "string"]
VERSIONS = ["v21", "v3"]


def unpack(folder: Path, version: str = "v3") -> Path:
    return unpack_golden(folder, f"lerobot_{version}")


def check(source: Source, times: int = 1) -> None:
    """All frames of all episodes are what lerobot was given, so many times over."""
    wanted = [frames * times for frames in episodes()]
    keys = [f"episode_{i:06d}" for i in range(3)]
    assert [(e.key, e.num_frames) for e in source.episodes()] == [
        *zip(keys, map(len, wanted), strict=True)
    ]
    for i, frames in enumerate(wanted):
        for number, (frame, want) in enumerate(zip(frames_of(source, i), frames, strict=True)):
            assert list(frame) == list(source.schema())
            for name in NUMBERS:
                value = want[name][0] if want[name].shape == (1,) else want[name]
                np.testing.assert_array_equal(frame[name], value)
                assert np.asarray(frame[name]).dtype == value.dtype
            assert frame["timestamp"] == np.float32(number / 10)
            assert (frame["task"], frame["note"]) == (want["task"], want["note"])


@pytest.mark.parametrize("version", VERSIONS)
def test_what_lerobot_wrote(tmp_path: Path, version: str) -> None:
    source = open_source(unpack(tmp_path, version))
    assert [(str(spec), spec.kind, spec.unit) for spec in source.schema().values()] == [
        ("observation.state: float32 [3]", "state", None),
        ("action: float64 [2]", "action", None),
        ("observation.image: uint8 [6, 8, 3]", "image", None),
        ("next.reward: float32 []", None, None),
        ("next.done: bool []", None, None),
        ("tactile: int16 [2, 4]", None, None),
        ("note: text", "text", None),
        ("timestamp: float32 []", "timestamp", "s"),
        ("task: text", "text", None),
    ]
    check(source)
    assert source.episodes()[1].metadata == {
        "episode_index": 1,
        "tasks": ["place", "pick"],
        "robot_type": "arm",
        "split": "train",
        "names": {"observation.state": ["x", "y", "grip"], "action": {"motors": ["a", "b"]}},
    }
    assert source.episodes()[1].fps == 10


def rewrite(path: Path, change: Callable[[pa.Table], pa.Table], **options: Any) -> None:
    pq.write_table(change(pq.read_table(path)), path, **options)


@pytest.mark.parametrize(
    "group", [40, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in (500, 7))]
)
def test_rows_are_found_in_any_row_group(tmp_path: Path, group: int) -> None:
    """Of 45, 27 and 63 rows that follow each other; fewer than those are read at a time."""
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
    """Also if an episode is left in the middle."""
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


def edit_info(root: Path, **changes: Any) -> None:
    path = root / "meta/info.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_every_kind_of_lists(tmp_path: Path) -> None:
    path = unpack(tmp_path) / ROWS
    whole = path.read_bytes()
    rows, large = pa.list_(pa.list_(pa.int16())), pa.large_list(pa.large_list(pa.int16()))
    for kind in (rows, large, pa.list_(pa.list_(pa.int16(), 4), 2)):

        def changed(table: pa.Table, kind: Any = kind) -> pa.Table:
            lists = pa.array(table["tactile"].to_pylist(), kind)
            return table.set_column(table.column_names.index("tactile"), "tactile", lists)

        path.write_bytes(whole)
        rewrite(path, changed)
        check(open_source(tmp_path / "lerobot_v3"))
        for wrong in (None, [[0, 1, 2, 3], None], [[0, 1, 2, None]] * 2):
            rewrite(path, column("tactile", at(6, wrong)))
            with pytest.raises(SourceError) as caught:
                frames_of(open_source(tmp_path / "lerobot_v3"), 1)
            assert caught.value.feature == "tactile"


# --- ways to be broken -----------------------------------------------------------------------


def not_utf8(name: str, *, is_lost: bool = False) -> Callable[[pa.Table], pa.Table]:
    """Texts, or images' names, of bytes that are no UTF-8; of row 6 the image `is_lost`."""

    def changed(table: pa.Table) -> pa.Table:
        place, values = table.column_names.index(name), table[name].to_pylist()
        array = pa.array([b"\xff\xfe"] * len(values)).view(pa.string())
        if isinstance(values[0], dict):
            data = [None if is_lost and i == 6 else v["bytes"] for i, v in enumerate(values)]
            array = pa.StructArray.from_arrays([pa.array(data), array], ["bytes", "path"])
        return table.set_column(place, name, array)

    return changed


def column(name: str, change: Callable[[list[Any]], list[Any]]) -> Callable[[pa.Table], pa.Table]:
    def changed(table: pa.Table) -> pa.Table:
        place = table.column_names.index(name)
        values = change(table.column(name).to_pylist())
        return table.set_column(place, name, pa.array(values, table.schema.types[place]))

    return changed


def at(row: int, value: Any) -> Callable[[list[Any]], list[Any]]:
    return lambda values: [*values[:row], value, *values[row + 1 :]]


BROKEN: list[tuple[Callable[[pa.Table], pa.Table], str]] = [
    (lambda t: t.drop_columns("action"), "lacks a column; .*feature: action; expected: action"),
    (lambda t: t.drop_columns("frame_index"), "lacks a column; .*expected: frame_index"),
    (lambda t: t.slice(0, 6), "number of rows differs .*; expected: 3; got: 1"),
    (lambda t: t.filter(pc.not_equal(t["index"], 6)), "unordered rows; .*frame: 1; expec"),
    (column("frame_index", at(7, 1)), "missing or unordered rows; .*frame: 2; exp"),
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


def test_broken_rows(tmp_path: Path) -> None:
    """Rows 5, 6 and 7 are those of the second episode."""
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
    (root / "meta/tasks.jsonl").write_text('{"task_index": "0", "task": "pick"}')
    (root / "meta/episodes.jsonl").write_text('{"episode_index": 0, "tasks": [], "length": 5}')
    with pytest.raises(SourceError, match="invalid task"):
        frames_of(open_source(root), "episode_000000")
    assert len(frames_of(open_source(root, features=["action"]), "episode_000000")) == 5


# --- declared numbers ------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_numbers_that_info_declares_are_those_of_meta(tmp_path: Path, version: str) -> None:
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
