"""Tables of values by episode and frame: packed once, compared with a model of Python lists."""

from __future__ import annotations

import os
import random
import shutil
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqrecord
from seqrecord.errors import JoinError
from seqrecord.formats.indexing.table_source import TableSource
from seqrecord.store.reading.filters import BadEpisodes
from seqrecord.store.tables.arrow_tables import ArrowTable
from tests.kit.datasets import columns, write_dataset
from tests.kit.tiny import check_frames

pytestmark = pytest.mark.usefixtures("home")

LENGTHS = {"a": 5, "b": 3, "c/d": 9, "e": 1}
KEYS = [*LENGTHS]
Values = dict[str, Any]
Frames = dict[str, list[Values]]


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """A dataset of the episodes in `LENGTHS`."""
    frames = {key: columns(step=np.arange(n)) for key, n in LENGTHS.items()}
    write_dataset(tmp_path / "records", frames)
    return tmp_path / "records"


def frames_of(records: Path, table: Any) -> Frames:
    """The frames of a table, by episode that has a row."""
    with seqrecord.open(records, join=table, missing="drop") as dataset:
        features = [name for name in dataset.features if name != "step"]
        episodes = dataset.select(features).episodes
        return {key: [e[number] for number in range(len(e))] for key, e in episodes.items()}


def frames_by_buckets(records: Path, table: Any, scratch: Path, bucket_bytes: int) -> Frames:
    """Like `frames_of`, with small buckets of rows on disk."""
    with seqrecord.open(records) as dataset:
        names = BadEpisodes().names(dataset.contents.index)
    source = TableSource(ArrowTable.open(table), names, scratch, bucket_bytes)
    with closing(source):
        seqrecord.convert(source, scratch / "packed", workers=1)
    with seqrecord.open(scratch / "packed") as packed:
        return {key: [e[i] for i in range(len(e))] for key, e in packed.episodes.items()}


# Against a model


def random_rows(rng: random.Random, spans: bool) -> list[tuple[str, int, int]]:
    """Episodes and disjoint frames [start, stop), in random order."""
    rows = []
    for key, length in LENGTHS.items():
        frame = rng.randrange(2)
        while frame < length and rng.random() < 0.9:
            stop = min(length, frame + rng.randint(1, 4)) if spans else frame + 1
            rows.append((key, frame, stop))
            frame = stop + rng.choice([0, 0, 1, 3])
    rng.shuffle(rows)
    return rows or [("a", 0, 1)]


def place_columns(
    rng: random.Random, rows: list[tuple[str, int, int]], *, spans: bool, whole: bool
) -> dict[str, Any]:
    """Columns that name the places of rows, in any of the ways."""
    keys = [key for key, _, _ in rows]
    numbers = [KEYS.index(key) for key in keys]
    starts = np.array([start for _, start, _ in rows])
    begins = np.cumsum([0, *LENGTHS.values()])[numbers]
    episodes: dict[str, Any] = rng.choice(
        [
            {"episode": keys},
            {"episode": pa.array(keys).dictionary_encode()},
            {"episode": np.array(numbers, "u1")},
            {"episode_index": numbers},
            {"episode": keys, "episode_index": numbers},
        ]
    )
    if whole:
        return episodes
    if spans:
        return {**episodes, "start": starts, rng.choice(["stop", "end"]): [row[2] for row in rows]}
    return rng.choice(
        [
            {**episodes, "frame": starts},
            {**episodes, "frame_index": starts.astype("i4")},
            {**episodes, "index": begins + starts},
            {"index": begins + starts},
            {**episodes, "index": begins + starts, "frame_index": starts},
        ]
    )


def random_values(rng: random.Random, count: int) -> dict[str, tuple[pa.DataType, list[Any]]]:
    """Columns of all kinds with nulls, by name: type and values."""

    def some(make: Any) -> list[Any]:
        return [None if rng.random() < 0.2 else make() for _ in range(count)]

    def numbers(length: int) -> list[float]:
        return [rng.choice([rng.random(), float("nan"), 1.0]) for _ in range(length)]

    return {
        "advantage": (pa.float32(), some(lambda: rng.choice([0.5, float("nan"), -2.0]))),
        "label.number": (pa.int8(), some(lambda: rng.randrange(-100, 100))),
        "is_good": (pa.bool_(), some(lambda: rng.random() < 0.5)),
        "text": (pa.string(), some(lambda: rng.choice(["", "pick", "schließe"]))),
        "token": (pa.large_binary(), some(lambda: rng.randbytes(rng.randrange(4)))),
        "latent": (pa.list_(pa.float64(), 3), some(lambda: numbers(3))),
        "list": (pa.list_(pa.float64()), some(lambda: numbers(2))),
        "ragged": (pa.large_list(pa.int64()), some(lambda: [*range(rng.randrange(4))])),
        "boxes": (
            pa.list_(pa.list_(pa.float64(), 4)),
            some(lambda: [numbers(4) for _ in range(rng.randrange(3))]),
        ),
    }


def model(rows: list[tuple[str, int, int]], values: dict[str, Any], shapes: Any) -> Frames:
    """Frames by episode: for each frame of each row its values."""
    present = {key for key, _, _ in rows}
    frames: Frames = {k: [{} for _ in range(n)] for k, n in LENGTHS.items() if k in present}
    for number, (key, start, stop) in enumerate(rows):
        for frame in range(start, stop):
            for name, (_, column) in values.items():
                value = column[number]
                if value is not None:
                    is_array = isinstance(value, list)
                    shape = shapes.get(name, (len(value),) if is_array else ())
                    frames[key][frame][name] = np.reshape(value, shape) if is_array else value
    return frames


@pytest.mark.parametrize("seed", range(12))
def test_frames_have_the_values_of_a_tables_rows(records: Path, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    kind = rng.choice(["frames", "frames", "spans", "episodes"])
    if kind == "episodes":
        rows = [(key, 0, length) for key, length in LENGTHS.items() if rng.random() < 0.7]
        rng.shuffle(rows := rows or [("b", 0, 3)])
    else:
        rows = random_rows(rng, spans=kind == "spans")
    values = random_values(rng, len(rows))
    places = place_columns(rng, rows, spans=kind == "spans", whole=kind == "episodes")
    table = pa.table(
        places | {name: pa.array(column, dtype) for name, (dtype, column) in values.items()}
    )
    if seed % 2:  # rows by buckets on disk, and read in several batches
        pq.write_table(table, tmp_path / "table.parquet", row_group_size=3)
        frames = frames_by_buckets(records, tmp_path / "table.parquet", tmp_path, 64)
    else:
        frames = frames_of(records, table)
    check_frames(frames, model(rows, values, {"boxes": (-1, 4)}))


def test_lists_of_one_length_are_a_fixed_shape(records: Path) -> None:
    table = {
        "episode": ["a", "b", "b"],
        "frame": [0, 0, 2],
        "pair": [[1, 2], [3, 4], None],
        "ragged": [[1], [], [2, 3]],
        "matrix": [[[1.0, 2.0]], [[3.0, 4.0]], [[5.0, 6.0]]],
        "array": np.zeros((3, 7), "f4"),
    }
    with seqrecord.open(records, join=[table], missing="pad") as dataset:
        specs = [spec for name, spec in dataset.features.items() if name != "step"]
    shapes = {spec.name: spec.shape for spec in specs}
    dtypes = {spec.name: str(spec.dtype) for spec in specs}
    assert shapes == {"pair": (2,), "ragged": (None,), "matrix": (1, 2), "array": (7,)}
    assert dtypes == {"pair": "int64", "ragged": "int64", "matrix": "float64", "array": "float32"}


def test_nan_is_a_value_and_null_a_gap(records: Path) -> None:
    table = pa.table(
        {"episode": ["b"] * 3, "frame": [0, 1, 2], "x": pa.array([1.0, None, float("nan")])}
    )
    check_frames(frames_of(records, table), {"b": [{"x": 1.0}, {}, {"x": float("nan")}]})


def test_a_value_of_an_episode_is_repeated(records: Path) -> None:
    embedding = np.arange(1 << 20, dtype="f4")[None]  # 4 MB: frames come in several blocks
    frames = frames_of(records, {"episode": ["c/d"], "embedding": embedding})
    check_frames(frames, {"c/d": [{"embedding": embedding[0]}] * 9})


# Files and objects


@pytest.mark.parametrize("kind", ["parquet", "arrow", "compressed arrow", "arrow table", "stream"])
def test_files_and_objects_are_tables(records: Path, tmp_path: Path, kind: str) -> None:
    table = pa.table({"episode": ["b", "b"], "frame": [2, 0], "x": [1, 2]})
    given: Any = table
    if kind == "parquet":
        pq.write_table(table, given := tmp_path / "table")
    elif "arrow" in kind and kind != "arrow table":
        given = tmp_path / "table.arrow"
        options = pa.ipc.IpcWriteOptions(compression="zstd" if "compressed" in kind else None)
        with pa.ipc.new_file(str(given), table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=1)
        given = str(given)
    elif kind == "stream":  # as of Polars: text views, and dictionaries

        class Frame:
            def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
                views = table.set_column(0, "episode", table["episode"].cast(pa.string_view()))
                return views.__arrow_c_stream__(requested_schema)

        given = Frame()
    check_frames(frames_of(records, given), {"b": [{"x": 2}, {}, {"x": 1}]})


def test_the_index_of_a_pandas_file_is_no_value(records: Path, tmp_path: Path) -> None:
    table = pa.table({"episode": ["e"], "x": [1], "__index_level_0__": [7]})
    pq.write_table(table, tmp_path / "table.parquet")
    check_frames(frames_of(records, tmp_path / "table.parquet"), {"e": [{"x": 1}]})


# LeRobot's numbers


def write_numbered(path: Path, numbers: dict[str, int]) -> None:
    """Write episodes of 2, 3, 4 frames with LeRobot's numbers."""
    frames = {key: columns(step=range(2 + place)) for place, key in enumerate(numbers)}
    metadata = {key: {"episode_index": number} for key, number in numbers.items()}
    write_dataset(path, frames, metadata=metadata)


def test_lerobots_numbers_name_episodes_that_have_them(tmp_path: Path) -> None:
    write_numbered(tmp_path / "r", {"x": 4, "y": 0, "z": 2})
    table = {"episode_index": [4, 2, 3], "frame_index": [1, 0, 9], "v": [1, 2, 3]}
    expected: Frames = {"x": [{}, {"v": 1}], "z": [{"v": 2}, {}, {}, {}]}
    check_frames(frames_of(tmp_path / "r", table), expected)
    by_number = {"episode": [0, 2], "frame_index": [1, 0], "v": [1, 2]}
    check_frames(frames_of(tmp_path / "r", by_number), expected)
    with pytest.raises(JoinError, match=r"index is ambiguous.*lacks some of LeRobot's"):
        frames_of(tmp_path / "r", {"index": [0], "v": [1]})
    both = {"index": [0], "episode_index": [4], "frame_index": [1], "v": [1]}
    check_frames(frames_of(tmp_path / "r", both), {"x": [{}, {"v": 1}]})


def test_index_counts_in_the_order_of_lerobots_numbers(tmp_path: Path) -> None:
    write_numbered(tmp_path / "r", {"x": 2, "y": 0, "z": 1})
    table = {"index": [0, 3, 8], "v": [1, 2, 3]}
    expected: Frames = {"x": [{}, {"v": 3}], "y": [{"v": 1}, {}, {}], "z": [{"v": 2}, {}, {}, {}]}
    check_frames(frames_of(tmp_path / "r", table), expected)


def test_numbers_of_merged_originals_are_ambiguous(tmp_path: Path) -> None:
    write_numbered(tmp_path / "r", {"x": 0, "y": 0})
    with pytest.raises(JoinError, match=r"episode_index is ambiguous.*column episode"):
        frames_of(tmp_path / "r", {"episode_index": [0], "v": [1]})


@pytest.mark.parametrize("number", [1 << 63, -(10**30)])
def test_numbers_that_are_not_lerobots(tmp_path: Path, number: int) -> None:
    """An entry of one's own, which no table can name."""
    write_numbered(tmp_path / "r", {"x": number, "y": 0})
    with pytest.raises(JoinError, match=r"episode_index is ambiguous"):
        frames_of(tmp_path / "r", {"episode_index": [0], "v": [1]})


# Errors

PLACE = {"episode": ["a", "b"], "frame": [1, 2]}

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no episodes": ({"frame": [1], "v": [1]}, "names no episodes.*episode_index"),
    "no values": (PLACE, "no values.*got: episode, frame"),
    "no rows": ({"episode": pa.array([], pa.string()), "v": pa.array([], "i4")}, "no rows"),
    "a start without a stop": ({"episode": ["a"], "start": [0], "v": [1]}, "a span needs start"),
    "two stops": (
        {"episode": ["a"], "start": [0], "stop": [1], "end": [1], "v": [1]},
        "start and one of stop",
    ),
    "spans and frames": (
        {"episode": ["a"], "start": [0], "stop": [1], "frame": [1], "v": [1]},
        "for spans and for single frames",
    ),
    "a frame outside": (
        {"episode": ["a", "b"], "frame": [4, 3], "v": [1, 2]},
        "in row 1.*episode: b.*0 to 2.*got: 3",
    ),
    "a negative frame": ({**PLACE, "frame": [1, -1], "v": [1, 2]}, "in row 1.*got: -1"),
    "a span outside": (
        {"episode": ["b"], "start": [1], "stop": [4], "v": [1]},
        "in row 0.*stop <= 3",
    ),
    "an empty span": ({"episode": ["b"], "start": [1], "end": [1], "v": [1]}, "in row 0"),
    "a number outside": ({"episode": [0, 4], "v": [1, 2]}, "in row 1.*0 to 3; got: 4"),
    "an index outside": ({"index": [17, 18], "v": [1, 2]}, "in row 1.*0 to 17; got: 18"),
    "another index": (
        {"episode": ["b"], "frame": [1], "index": [1], "v": [1]},
        "index disagrees.*in row 0; .*expected: 6; got: 1",
    ),
    "two episodes": (
        {"episode": ["a", "b"], "episode_index": [0, 0], "v": [1, 2]},
        "episode and episode_index disagree, in row 1",
    ),
    "two frames": (
        {**PLACE, "frame_index": [1, 1], "v": [1, 2]},
        "frame and frame_index disagree, in row 1",
    ),
    "a frame twice": (
        {"episode": ["b", "a", "b"], "frame": [1, 1, 1], "v": [1, 2, 3]},
        "a frame twice, in rows 0 and 2.*episode: b; frame: 1",
    ),
    "an episode twice": ({"episode": ["b", "b"], "v": [1, 2]}, "twice, in rows 0 and 1"),
    "overlapping spans": (
        {"episode": ["a", "a"], "start": [2, 0], "stop": [4, 3], "v": [1, 2]},
        "twice, in rows 0 and 1.*frame: 2",
    ),
    "no episode in a row": (
        {"episode": ["a", None], "frame": [1, 2], "v": [1, 2]},
        "no value in column episode, in row 1",
    ),
    "no frame in a row": (
        {"episode": ["a", "b"], "frame": pa.array([None, 2], pa.int64()), "v": [1, 2]},
        "no value in column frame, in row 0",
    ),
    "floats as frames": ({**PLACE, "frame": [1.0, 2.0], "v": [1, 2]}, "column frame.*got: double"),
    "floats as episodes": ({"episode": [0.0], "v": [1]}, "no keys or numbers in column episode"),
    "text as a number": ({"episode_index": ["a"], "v": [1]}, "no numbers in column episode_index"),
    "other episodes": ({"episode": ["q"], "v": [1]}, "no episode of the dataset.*1 rows"),
    "a null in a list": ({**PLACE, "v": [[1, 2], [3, None]]}, "a null, in row 1.*feature: v"),
    "uneven lists": (
        {**PLACE, "v": [[[1], [2]], [[1, 2], [3]]]},
        "differ in length, in row 1; .*expected: 1; got: 2|expected: 2; got: 1",
    ),
    "structures": ({**PLACE, "v": [{"x": 1}, None]}, "no feature.*feature: v.*struct"),
    "times": ({**PLACE, "v": np.array([1, 2], "M8[s]")}, "no feature.*timestamp"),
    "lists of texts": ({**PLACE, "v": [["x"], []]}, "no feature.*list"),
    "no type": ({**PLACE, "v": [None, None]}, "no feature.*got: null"),
    "another name": ({**PLACE, "v(t)": [1, 2]}, "not a feature name; rename it"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_row_is_named(records: Path, name: str) -> None:
    table, match = WRONG[name]
    with pytest.raises(JoinError, match=match):
        frames_of(records, table)


def test_rows_of_later_batches_have_their_numbers(records: Path, tmp_path: Path) -> None:
    count = 5000
    frames = np.zeros(count, "i8")
    frames[4321] = 7
    table = pa.table({"episode": ["q"] * 4000 + ["a"] * 1000, "frame": frames, "v": frames})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=100)
    with pytest.raises(JoinError, match=r"in row 4321.*t\.parquet.*episode: a"):
        frames_of(records, tmp_path / "t.parquet")


def test_other_files_are_refused(records: Path, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("episode,v\na,1\n")
    with pytest.raises(JoinError, match=r"not a table.*t\.csv.*Parquet or Arrow"):
        frames_of(records, tmp_path / "t.csv")
    (tmp_path / "t.parquet").write_bytes(b"PAR1" + bytes(100))
    with pytest.raises(JoinError, match=r"cannot be read.*t\.parquet"):
        frames_of(records, tmp_path / "t.parquet")


def test_rows_of_other_episodes_are_counted(
    records: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = {"episode": ["q", "b", "q"], "v": [1, 2, 3]}
    for _ in range(2):  # also of a companion that exists
        check_frames(frames_of(records, table), {"b": [{"v": 2}] * 3})
        assert "2 rows, of episodes that the dataset lacks, first in row 0" in caplog.text
        caplog.clear()


# The companion in the cache folder


def companions(home: Path) -> list[Path]:
    return [path for path in (home / "tables").iterdir() if path.is_dir()]


def test_a_table_is_packed_once(records: Path, home: Path, tmp_path: Path) -> None:
    table = pa.table({"episode": ["b"], "v": [1]})
    pq.write_table(table, tmp_path / "t.parquet")
    frames_of(records, tmp_path / "t.parquet")
    [folder] = companions(home)
    (folder / "mark").touch()
    shutil.copy(tmp_path / "t.parquet", tmp_path / "u.parquet")
    frames_of(records, tmp_path / "u.parquet")  # the same bytes
    assert companions(home) == [folder]
    assert (folder / "mark").exists()
    pq.write_table(pa.table({"episode": ["b"], "v": [2]}), tmp_path / "t.parquet")
    check_frames(frames_of(records, tmp_path / "t.parquet"), {"b": [{"v": 2}] * 3})
    assert len(companions(home)) == 2


def test_other_lengths_have_another_companion(records: Path, tmp_path: Path) -> None:
    table = {"episode": ["b"], "v": [1]}
    frames_of(records, table)
    write_dataset(tmp_path / "longer", {"b": columns(step=range(5))})
    check_frames(frames_of(tmp_path / "longer", table), {"b": [{"v": 1}] * 5})


@pytest.mark.parametrize("damage", ["no record file", "no manifest", "shared"])
def test_a_damaged_companion_is_packed_again(records: Path, home: Path, damage: str) -> None:
    table = {"episode": ["b"], "v": [1]}
    frames_of(records, table)
    [folder] = companions(home)
    if damage == "no manifest":
        (folder / "manifest.json").unlink()
    elif damage == "shared":  # another user could have written it
        folder.chmod(0o777)
    else:
        shutil.rmtree(folder / "records")
    check_frames(frames_of(records, table), {"b": [{"v": 1}] * 3})


def test_nothing_is_left_of_a_table_with_an_error(records: Path, home: Path) -> None:
    with pytest.raises(JoinError):
        frames_of(records, WRONG["a frame twice"][0])
    assert companions(home) == []


def test_companions_without_use_are_removed(records: Path, home: Path) -> None:
    frames_of(records, {"episode": ["b"], "v": [1]})
    frames_of(records, {"episode": ["b"], "v": [2]})
    old, used = companions(home)
    for folder in (old, used):
        os.utime(folder, (0, 0))
    value = 2 if "2" in str(frames_of(records, {"episode": ["b"], "v": [2]})) else 1
    assert value == 2
    frames_of(records, {"episode": ["b"], "v": [3]})
    assert len(companions(home)) == 2


def _set_home(home: Path) -> None:
    os.environ["SEQRECORD_HOME"] = str(home)


def _open_in_process(records: Path) -> Frames:
    return frames_of(records, {"episode": ["b", "a"], "v": [1, 2]})


@pytest.mark.slow
def test_processes_share_one_companion(records: Path, home: Path) -> None:
    # A fork server that an earlier test has started keeps that test's environment.
    with get_context("forkserver").Pool(4, _set_home, (home,)) as pool:
        results = pool.map(_open_in_process, [records] * 8)
    assert len({str(result) for result in results}) == 1
    assert len(companions(home)) == 1


@pytest.mark.slow
def test_memory_is_bounded_by_buckets(tmp_path: Path) -> None:
    """The table has 49 MB, an episode 4 MB."""
    length, lengths = 500, {f"{number:02}": 500 for number in range(12)}
    write_dataset(tmp_path / "r", {key: columns(x=range(n)) for key, n in lengths.items()})
    numbers = np.repeat(np.arange(12), length)
    places = {"episode_index": numbers, "frame": np.tile(np.arange(length), 12)}
    values = np.random.default_rng(0).random((12 * length, 1024))
    table = pa.table({**places, "v": pa.FixedSizeListArray.from_arrays(values.reshape(-1), 1024)})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=length)
    pool, default = pa.proxy_memory_pool(pa.default_memory_pool()), pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        packed = frames_by_buckets(tmp_path / "r", tmp_path / "t.parquet", tmp_path, 1 << 20)
    finally:
        pa.set_memory_pool(default)
    np.testing.assert_array_equal(packed["11"][7]["v"], values[11 * length + 7])
    assert pool.max_memory() < values.nbytes / 2
