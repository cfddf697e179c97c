"""The argument `samples`: tables of clips with a first frame or a list of frames, and columns."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import seqrecord
from seqrecord import (
    At,
    Budget,
    ClipError,
    Dataset,
    HorizontalFlip,
    RandomCrop,
    Seconds,
    SeqRecordIterableDataset,
    SeqRecordMapDataset,
    SeqRecordMix,
    SeqRecordPipe,
    StateError,
)
from seqrecord.errors import MemoryLimitError
from seqrecord.samples import (
    dilate,
    every,
    final_goal,
    future_goal,
    inside,
    per_episode,
    reverse,
    segments,
    skip_first,
    skip_last,
    where,
)
from tests.kit.clip_data import (
    LENGTHS,
    effective_arguments,
    expected_frame,
    minimum_memory,
    names,
    no_leaks,
    possible_clips,
    write_numbered,
)
from tests.kit.datasets import columns, write_dataset
from tests.kit.services.web_server import WebFolder
from tests.loader.resume_contract import check_resume

Clip = tuple[str, tuple[int, ...]]

PAIRS: list[Clip] = [
    ("set/3", (3, 38)),
    ("set/0", (21, 2)),
    ("set/3", (3, 4)),
    ("set/3", (3, 5)),
    ("set/1", (0, 8)),
    ("set/3", (39, 3)),
    ("set/0", (2, 2)),
    ("set/3", (3, 38)),
]
FRAMES: dict[str, Any] = {
    "episode": [key for key, _ in PAIRS],
    "frames": [[*frames] for _, frames in PAIRS],
}
LISTED = [("set/3", 5), ("set/0", 19), ("set/3", 4), ("set/1", 0), ("set/3", 30), ("set/0", 2)]
STARTS: dict[str, Any] = {
    "episode": [key for key, _ in LISTED],
    "start": [start for _, start in LISTED],
}
RUNS: list[Clip] = [(key, tuple(range(start, start + 4))) for key, start in LISTED]
WEIGHTS = [0.5, 2.0, 0.0, 1.0, 1.5, 3.0]
TABLES = {"starts": (STARTS, RUNS), "frames": (FRAMES, PAIRS)}
"""Tables with their clips."""

EACH = pytest.mark.parametrize(("clips", "listed"), TABLES.values(), ids=TABLES)


class Table:
    """A table with the Arrow interface of pandas and Polars."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


FORMS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "lists": dict,
    "arrays": lambda columns: {name: np.array(column) for name, column in columns.items()},
    "tensors": lambda columns: {  # one-dimensional ones are no tensors
        n: torch.tensor(column) if n == "frames" else column for n, column in columns.items()
    },
    "arrow": pa.table,
    "fixed lists": lambda columns: pa.table(
        {
            n: pa.array(c, pa.list_(pa.int32(), 2)) if n == "frames" else c
            for n, c in columns.items()
        }
    ),
    "batch": pa.RecordBatch.from_pydict,
    "chunked": lambda columns: {
        name: pa.chunked_array([column[:2], column[2:]]) for name, column in columns.items()
    },
    "dictionary": lambda columns: {
        **columns,
        "episode": pa.array(columns["episode"]).dictionary_encode(),
    },
    "other": lambda columns: Table(pa.table(columns)),
}


@pytest.fixture(scope="module", params=["raw", "uneven", "long"])
def each(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Raw, or images in a separate group, with chunks of various lengths or long chunks."""
    path = tmp_path_factory.mktemp("lists") / "records"
    if request.param == "raw":
        return seqrecord.open(write_numbered(path, codecs="raw"))
    if request.param == "resident":
        return seqrecord.open(write_numbered(path, codecs={"image": "png"}))
    groups = {"image": 0, "flow": 1, "note": 1, "id": 1}
    if request.param == "long":
        return seqrecord.open(write_numbered(path, groups=groups, chunk_frames=None))
    return seqrecord.open(write_numbered(path, groups=groups, flush_at=[2, 8, 9, 30]))


@pytest.fixture(scope="module")
def numbered(path: Path) -> Dataset:
    return seqrecord.open(path)


def options_of(clips: Any, **settings: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {"features": ["image", "id"], "samples": clips}
    if isinstance(clips, dict) and "start" in clips:
        usual["clip_len"] = 4
    return {**usual, **settings}


def make(path: Any, clips: Any = FRAMES, **settings: Any) -> SeqRecordPipe:
    return SeqRecordPipe(path, **options_of(clips, **{"batch_size": 3, **settings}))


def frames_of(batch: dict[str, Any], dilation: int = 1) -> list[Clip]:
    """Clips of a batch, after a check of their frames."""
    found = []
    for i, (key, start) in enumerate(names(batch)):
        if "frames" in batch:
            frames = [frame for frame in batch["frames"][i].tolist() if frame >= 0]
            assert start == min(frames)
            if "frames_is_pad" in batch:
                assert torch.equal(batch["frames_is_pad"][i], batch["frames"][i] < 0)
            else:
                assert len(frames) == len(batch["frames"][i])
        else:
            length = batch["id"].shape[1]
            frames = [*range(start, start + length * dilation, dilation)]
        found.append((key, tuple(frames)))
        for t, frame in enumerate(frames):
            expected = expected_frame(int(key[4:]), frame)
            for name in expected.keys() & batch.keys():
                assert np.array_equal(batch[name][i][t], expected[name]), name
        if isinstance(batch["id"], list):
            assert len(batch["id"][i]) == len(frames)
    return found


def clips_of(batches: Iterable[dict[str, Any]], dilation: int = 1) -> list[Clip]:
    return [clip for batch in batches for clip in frames_of(batch, dilation)]


@EACH
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_tables_of_every_kind(
    numbered: Dataset,
    clips: dict[str, Any],
    listed: list[Clip],
    form: Callable[[Any], Any],
) -> None:
    given = {"clip_len": 4} if clips is STARTS else {}
    pipe = make(numbered, form(clips), **given)
    assert Counter(clips_of(pipe)) == Counter(listed)
    assert (pipe.num_clips, len(pipe)) == (len(listed), -(-len(listed) // 3))


@pytest.mark.parametrize(
    "more", [{"features": ["image", "id", "note"]}, {"shuffle": False, "device": "cpu"}]
)
@EACH
def test_loaders_yield_the_clips_of_the_table(
    each: Dataset, clips: dict[str, Any], listed: list[Clip], more: dict[str, Any]
) -> None:
    pipe = make(each, clips, **more)
    for _ in range(2):
        assert Counter(clips_of(pipe)) == Counter(listed)
        if clips is FRAMES:
            used = {(key, frame) for key, frames in PAIRS for frame in frames}
            assert len(used) <= pipe.stats()["frames_decoded"] <= len(used) + 2
    subset = make(each, clips, episodes=["set/3"])
    assert Counter(clips_of(subset)) == Counter(clip for clip in listed if clip[0] == "set/3")


def test_listed_clips_are_read_ahead_from_a_server(path: Path) -> None:
    with WebFolder(path) as server:
        for more in ({}, {"frame_transform": dict}):
            pipe = make(server.endpoint, memory_limit="1MiB", **more)
            assert Counter(clips_of(pipe)) == Counter(PAIRS)


def test_only_used_frames_are_read_from_a_server(tmp_path: Path) -> None:
    """Of large raw frames, those of clips; a `frame_transform` needs whole chunks, once each."""
    rows = np.random.default_rng(1).integers(0, 256, (96, 200, 300, 3), np.uint8)
    episode = columns(image=rows, id=np.arange(96))
    write_dataset(tmp_path / "records", {"e": episode}, codecs="raw", chunk_frames=16)
    whole, read = rows.nbytes, []
    with WebFolder(tmp_path / "records") as server:
        settings: Any = {"clip_len": 1, "stride": 8, "batch_size": 2, "memory_limit": "40MB"}
        for more in ({}, {"frame_transform": dict, "shuffle": False}):
            pipe = SeqRecordPipe(server.endpoint, **settings | more)
            numbers = [number for batch in pipe for number in batch["id"].flatten().tolist()]
            assert sorted(numbers) == [*range(0, 96, 8)]
            read.append(pipe.stats()["bytes_read"])
    assert read[0] < 1.05 * whole / 8
    assert whole <= read[1] < 1.05 * whole


def test_reads_only_chunks_with_listed_clips(numbered: Dataset) -> None:
    pipe = make(numbered, {"episode": ["set/3"] * 2, "start": [0, 32]}, shuffle=False)
    assert clips_of(pipe) == [("set/3", (0, 1, 2, 3)), ("set/3", (32, 33, 34, 35))]
    assert (pipe.stats()["loads"], pipe.stats()["frames_decoded"]) == (2, 8)


@pytest.mark.parametrize("windows", [None, {"id": range(-4, 4)}])
def test_duplicate_clip_fits_into_the_lowest_memory(
    tmp_path: Path, windows: dict[str, Any] | None
) -> None:
    """A block may end between two copies of a clip and then includes the clip's frames."""
    path = write_numbered(tmp_path / "records", chunk_frames=1)
    clips = {"episode": ["set/0"] * 6, "start": [4, 5, 5, 9, 10, 10]}
    options: dict[str, Any] = {"samples": clips, "features": ["id"], "shuffle": False}
    options |= {"clip_len": 4} if windows is None else {"windows": windows}
    make = partial(SeqRecordPipe, path, **options)
    assert [clip["start"] for clip in make(memory_limit=minimum_memory(make))] == clips["start"]


def test_transforms_get_the_listed_frames(each: Dataset) -> None:
    pipe = make(each, frame_transform=lambda f: {"image": f["image"], "id": f["id"]})
    assert Counter(clips_of(pipe)) == Counter(PAIRS)
    chain = [RandomCrop((4, 5)), lambda clip, rng: {**clip, "drawn": rng.random(1)}]
    drawn: list[dict[Any, Any]] = []
    some = {name: column[1:] for name, column in FRAMES.items()}
    for clips in (FRAMES, some, FRAMES):
        drawn.append({})
        for batch in make(each, clips, clip_transform=chain):
            for i, key in enumerate(batch["episode"]):
                frames = tuple(batch["frames"][i].tolist())
                top, left, *_ = crop = batch["crop"][i].tolist()
                drawn[-1][key, frames] = (*crop, batch["drawn"][i].item())
                for t, frame in enumerate(frames):
                    whole = expected_frame(int(key[4:]), frame)["image"]
                    window = whole[top : top + 4, left : left + 5]
                    np.testing.assert_array_equal(batch["image"][i, t].numpy(), window)
    assert drawn[0] == drawn[1] == drawn[2], "draws depend on other clips of the list"
    assert len(set(drawn[0].values())) > 4


def test_lists_that_differ_in_length(each: Dataset) -> None:
    """As lists, padded by the last frame, or nested, from every loader."""
    listed: list[Clip] = [(key, frames[: 1 + i % 2]) for i, (key, frames) in enumerate(PAIRS)]
    listed += [("set/3", (5, 39, 0, 2)), ("set/2", (1,))]
    table = {"episode": [key for key, _ in listed], "frames": [frames for _, frames in listed]}
    wanted, used = Counter(listed), {(key, one) for key, frames in listed for one in frames}
    numbers = [*range(len(listed))]
    for form in ("list", "pad", "nested"):
        pipe = make(each, table, ragged=form)
        batches = [*pipe]
        assert pipe.stats()["frames_decoded"] == len(used)
        for batch in batches:
            if form == "nested":
                counts = (~batch["frames_is_pad"]).sum(dim=1).tolist()
                assert batch["image"].offsets().diff().tolist() == counts
                for name in ("image", "id"):
                    batch[name] = list(batch[name].unbind())
            elif form == "pad":
                assert batch["image"].shape[1] == 4
                rows = [[one for one in row if one >= 0] for row in batch["frames"].tolist()]
                assert batch["id"][:, -1, 1].tolist() == [row[-1] for row in rows]
        assert Counter(clips_of(batches)) == wanted
        mapped = SeqRecordMapDataset(each, **options_of(table, ragged=form))
        for clip, expected in zip(map(mapped.__getitem__, numbers), listed, strict=True):
            length = 4 if form == "pad" else len(expected[1])
            assert len(clip["image"]) == len(clip["id"]) == length
            assert clip["id"][: len(expected[1]), 1].tolist() == [*expected[1]]
        single = make(each, table, ragged=form, batch_size=None)
        assert sorted(len(clip["image"]) for clip in single) == sorted(
            4 if form == "pad" else len(frames) for _, frames in listed
        )
    mapped = SeqRecordMapDataset(each, **options_of(table))
    assert frames_of(seqrecord.collate(mapped.__getitems__(numbers))) == listed
    stream = SeqRecordIterableDataset(each, **options_of(table, batch_size=3))
    loader: Any = DataLoader(stream, batch_size=None, num_workers=1)
    assert Counter(clips_of(loader)) == wanted
    padded = SeqRecordIterableDataset(each, **options_of(table, ragged="pad"))
    assert Counter(clips_of(SeqRecordMix({"a": padded}, batch_size=5))) == wanted
    limited = make(each, table, batch_size=Budget(9), ragged="pad")
    assert all(np.prod(batch["image"].shape[:2]) <= 9 for batch in limited)
    limited.set_samples({"episode": ["set/0"] * 4, "frames": [[1, 2, 5], [3], [2, 4], [7]]})
    sizes = [len(batch["start"]) for batch in limited]  # at most three with [1, 2, 5]
    assert sorted(sizes) in ([1, 3], [2, 2])
    assert limited.options.batch_size == Budget(9)
    uneven = SeqRecordIterableDataset(each, **options_of(table))
    with pytest.raises(ClipError, match=r"source 'a' differ in length; .*ragged=\"pad\" in a mix"):
        SeqRecordMix({"a": uneven}, batch_size=4)
    with pytest.raises(ClipError, match=r"nested tensors of lists.*got: note"):
        make(each, table, features=["id", "note"], ragged="nested")

    def count(clip: dict[str, Any], _: Any) -> dict[str, Any]:
        return {"id": clip["id"] * ~clip["frames_is_pad"][:, None]}

    for batch in make(each, table, clip_transform=count):
        lengths = batch["id"][..., 1].count_nonzero(dim=1)
        assert (lengths <= (~batch["frames_is_pad"]).sum(dim=1)).all()


@pytest.mark.parametrize("form", ["list", "pad", "nested"])
def test_lists_of_one_length_take_the_form_of_others(each: Dataset, form: str) -> None:
    """With a frame transform, too: a table decides whether its lists differ in length."""
    pipe = make(each, ragged=form, frame_transform=lambda frame: {**frame})
    assert Counter(clips_of(pipe)) == Counter(PAIRS)
    pipe.set_samples({"episode": ["set/0", "set/3"], "frames": [[1, 2, 5], [3]]})
    assert [len(batch["start"]) for batch in pipe] == [2]


def test_map_dataset_keeps_the_order_of_the_list(numbered: Dataset) -> None:
    for clips, listed in TABLES.values():
        dataset = SeqRecordMapDataset(numbered, **options_of(clips))
        numbers = [*range(len(listed)), 3, 0]
        batch = seqrecord.collate(dataset.__getitems__(numbers))
        assert frames_of(batch) == [listed[number] for number in numbers]
        assert [names(dataset[i])[0] for i in numbers] == names(batch)
        if clips is FRAMES:
            assert dataset[1]["frames"].tolist() == [21, 2]
    flow = SeqRecordMapDataset(numbered, **options_of(STARTS, features=["flow"]))
    assert [names(flow[i])[0] for i in range(len(flow))] == [LISTED[0], *LISTED[2:]]
    with pytest.raises(ClipError, match="gives each sample once"):
        SeqRecordMapDataset(numbered, clip_len=4, samples={**STARTS, "repeat": WEIGHTS})


def labelled(clips: dict[str, Any], copies: int = 3) -> dict[str, Any]:
    """A table with several rows of each clip, which differ in their columns."""
    table = {name: column * copies for name, column in clips.items()}
    rows = np.arange(len(table["episode"]))
    return {
        **table,
        "row": rows,
        "weight": np.sqrt(rows).astype("f4"),
        "label": [f"Ürümqi {row}" * (row % 3) for row in rows],
        "pair": np.stack((rows, -rows), axis=1).astype("i2"),
        "flag": rows % 2 == 0,
    }


def rows_of(batch: dict[str, Any], table: dict[str, Any], listed: list[Clip]) -> list[int]:
    """Rows of a batch's samples, after a check of their frames and columns."""
    rows: list[int] = batch["row"].tolist()
    assert frames_of(batch) == [listed[row % len(listed)] for row in rows]
    for name in ("weight", "pair", "flag"):
        column = np.asarray(batch[name])
        assert column.dtype == table[name].dtype
        assert np.array_equal(column, table[name][rows])
    assert batch["label"] == [table["label"][row] for row in rows]
    return rows


@EACH
def test_columns_come_with_their_samples(
    numbered: Dataset, tmp_path: Path, clips: dict[str, Any], listed: list[Clip]
) -> None:
    table, check = labelled(clips), partial(rows_of, table=labelled(clips), listed=listed)
    every, path = [*range(len(table["row"]))], tmp_path / "samples.parquet"
    arrow = pa.table({n: c.tolist() if n == "pair" else c for n, c in table.items()})
    arrow = arrow.set_column(
        arrow.column_names.index("pair"),
        "pair",
        pa.array([*table["pair"]], pa.list_(pa.int16(), 2)),
    )
    pq.write_table(arrow, path, row_group_size=5)
    length: dict[str, Any] = {"clip_len": 4} if clips is STARTS else {}
    for form in (table, arrow, path, str(path)):
        pipe = make(numbered, form, **length)
        for _ in range(2):
            assert sorted(row for batch in pipe for row in check(batch)) == every
    for more in ({"output": "numpy"}, {"device": "cpu"}, {"memory_limit": "24KiB"}):
        pipe = make(numbered, table, **more)
        assert sorted(row for batch in pipe for row in check(batch)) == every, more
    assert sorted(clip["row"].item() for clip in make(numbered, table, batch_size=None)) == every
    dataset = SeqRecordMapDataset(numbered, **options_of(table))
    assert check(seqrecord.collate(dataset.__getitems__(every))) == every
    assert [dataset[i]["label"] for i in every] == table["label"]


def test_a_table_of_episodes_gives_all_their_clips(numbered: Dataset, tmp_path: Path) -> None:
    table = {
        "episode": ["set/3", "set/0"],
        "repeat": [2, 1],
        "rank": [7, 5],
        "label": ["good", "Ürümqi"],
        "pair": pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2)),
    }
    row = {"set/3": (7, "good", [1, 2]), "set/0": (5, "Ürümqi", [3, 4])}
    path = tmp_path / "quality.parquet"
    pq.write_table(pa.table(table), path)
    options: dict[str, Any] = {"clip_len": 4, "stride": 2}
    skip = skip_last(5)
    listed = clips_of(make(numbered, skip, episodes=[*row], **options))
    every = Counter(clip for clip in listed for _ in range(2 if clip[0] == "set/3" else 1))
    for pipes in (
        [make(numbered, [path, skip], **options)],
        [make(numbered, [path, skip], memory_limit="24KiB", **options)],
        [make(numbered, [table, skip], rank=(i, 2), last_batch="keep", **options) for i in (0, 1)],
    ):
        batches = [batch for pipe in pickle.loads(pickle.dumps(pipes)) for batch in pipe]
        assert Counter(clips_of(batches)) == every
        for batch in batches:
            found = zip(batch["rank"].tolist(), batch["label"], batch["pair"].tolist(), strict=True)
            assert [*found] == [row[key] for key in batch["episode"]]
    one = SeqRecordMapDataset(
        numbered, **options_of([{**table, "repeat": [1, 1]}, skip], **options)
    )
    assert Counter(frame for i in range(len(one)) for frame in names(one[i])) == Counter(
        (key, frames[0]) for key, frames in listed
    )
    assert Counter(clips_of(make(numbered, [path, skip], episodes="*0", **options))) == Counter(
        clip for clip in listed if clip[0] == "set/0"
    )
    pipe = make(numbered, table, **options)
    next(iter(pipe))
    with pytest.raises(StateError, match="other settings: samples"):
        make(numbered, {**table, "rank": [7, 6]}, **options).load_state_dict(pipe.state_dict())


@EACH
def test_mixes_and_workers_keep_columns(
    numbered: Dataset, clips: dict[str, Any], listed: list[Clip]
) -> None:
    table = labelled(clips)
    stream = SeqRecordIterableDataset(numbered, **options_of(table, batch_size=2))
    loader: Any = DataLoader(stream, batch_size=None, num_workers=2)
    rows = [row for batch in loader for row in rows_of(batch, table, listed)]
    assert sorted(rows) == [*range(len(table["row"]))]
    sources = {
        "a": SeqRecordIterableDataset(numbered, **options_of(table)),
        "b": SeqRecordIterableDataset(
            numbered, features=["image", "id"], clip_len=len(listed[0][1])
        ),
    }
    mixed: dict[str, Any] = {"weights": {"a": 1, "b": 1}, "batch_size": 4, "stopping_strategy": 9}
    found = Counter[int]()
    for batch in SeqRecordMix(sources, **mixed):
        mine = np.array(batch["dataset"]) == "a"
        assert all((label is None) != a for label, a in zip(batch["label"], mine, strict=True))
        assert not batch["row"][~mine].any()
        part = {
            name: [v for v, a in zip(value, mine, strict=True) if a]
            if isinstance(value, list)
            else value[torch.from_numpy(mine)]
            for name, value in batch.items()
        }
        found.update(rows_of(part, table, listed))
    assert found.total() > len(listed)


@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize("limit", [None, "24KiB"])
@EACH
def test_equal_clips_keep_their_columns_on_other_ranks(
    numbered: Dataset, clips: dict[str, Any], listed: list[Clip], limit: str | None, epoch: int
) -> None:
    """Samples that differ only in their columns come once each, also after changes of ranks."""
    table = labelled(clips)
    repeat = 1 + np.arange(len(table["row"])) % 2
    expected = Counter({row: int(times) for row, times in enumerate(repeat)})
    settings: dict[str, Any] = {"last_batch": "keep", "memory_limit": limit, "batch_size": 2}
    found, states = Counter[int](), list[dict[str, Any]]()
    for ranks, batches in ((3, 2), (1, 3), (2, None)):
        last = states[-1:]
        for rank in range(ranks):
            own = {**settings, "rank": (rank, ranks)}
            pipe = make(numbered, {**table, "repeat": repeat}, **own)
            pipe.set_epoch(epoch)
            for state in last:
                pipe.load_state_dict(state)
            rows = (row for batch in islice(pipe, batches) for row in rows_of(batch, table, listed))
            found.update(rows)
            states.append(pipe.state_dict())
    assert found == expected


def test_rows_have_dilations_and_directions(numbered: Dataset) -> None:
    """Windows are planned for the largest dilation; incomplete clips are skipped by their own."""
    listed = [("set/3", 21, 3, True), ("set/3", 21, 1, False), ("set/0", 13, 3, False)]
    listed += [("set/3", 17, 1, True), ("set/3", 19, 2, True), ("set/3", 21, 3, False)]
    names = ("episode", "start", "dilation", "reverse")
    table: dict[str, Any] = dict(zip(names, map(list, zip(*listed, strict=True)), strict=True))
    wanted = Counter(listed)
    del wanted["set/0", 13, 3, False]  # frame 22 of set/0 lacks flow
    del wanted["set/3", 17, 1, True]  # and frame 20 of set/3
    settings: list[dict[str, Any]] = [{}, {"shuffle": False}, {"memory_limit": "24KiB"}]
    for more in (*settings, {"pad": "edge"}):
        rows = {**table, "row": [*range(6)]}
        pipe = make(numbered, rows, features=["id", "flow"], **{"clip_len": 4, **more})
        found = Counter[tuple[str, int, int, bool]]()
        for batch in pipe:
            columns = (batch[name].tolist() for name in ("row", "dilation", "reversed", "id"))
            for row, dilation, is_reversed, frames in zip(*columns, strict=True):
                _, start, *steps = listed[row]
                assert steps == [dilation, is_reversed]
                numbers = [start + i * dilation for i in range(4)]
                assert [n for _, n in frames] == (numbers[::-1] if is_reversed else numbers)
                found[listed[row]] += 1
        assert found == wanted
        assert pipe.stats()["clips_incomplete"] == 2
    dataset = SeqRecordMapDataset(numbered, clip_len=4, features=["id"], samples=table)
    assert dataset[0]["id"][:, 1].tolist() == [30, 27, 24, 21]
    with pytest.raises(ClipError, match=r"samples has.*no dilation"):
        make(numbered, table, dilation=2)
    with pytest.raises(ClipError, match=r"dilation is that of clip_len"):
        make(numbered, table, clip_len=None, windows={"id": [0]})
    for function in (dilate(1, 2), reverse(1)):
        with pytest.raises(ClipError, match=f"samples has.*no {function.name}"):
            make(numbered, [table, function], clip_len=4)


def test_clips_without_a_feature_are_skipped_and_counted(numbered: Dataset) -> None:
    pipe = make(numbered, STARTS, features=["flow", "id"])
    assert Counter(clips_of(pipe)) == Counter(clip for clip in RUNS if clip[1][0] != 19)
    assert pipe.stats()["clips_incomplete"] == 1
    assert "1 of 6 clips" in repr(pipe)
    clips = {"episode": ["set/3", "set/0", "set/3"], "frames": [[1, 20], [4, 2], [39, 1]]}
    pipe = make(numbered, clips, features=["flow", "id"])
    assert clips_of(pipe) == [("set/0", (4, 2))]
    assert pipe.stats()["clips_incomplete"] == 2
    with pytest.raises(ClipError, match="no sample belongs"):
        make(numbered, {**clips, "frames": [[1, 20], [22, 2], [39, 1]]}, features=["flow"])


def test_weights_that_sum_to_one_after_rounding(numbered: Dataset) -> None:
    table = {"episode": ["set/0"] * 6, "start": range(6), "repeat": [1 / 6] * 6}
    assert all(len(clips_of(make(numbered, table, seed=seed))) == 1 for seed in range(5))


@pytest.mark.parametrize("shuffle", [True, False])
def test_weight_is_the_number_of_copies_of_a_clip(numbered: Dataset, shuffle: bool) -> None:
    given: dict[str, Any] = {"seed": 5, "shuffle": shuffle}
    pipe = make(numbered, {**STARTS, "repeat": WEIGHTS}, **given)
    epochs = []
    for _ in range(10):
        count = pipe.num_clips
        epochs.append(Counter(clips_of(pipe)))
        assert epochs[-1].total() == count
    for name, weight in zip(RUNS, WEIGHTS, strict=True):
        times = {epoch[name] for epoch in epochs}
        assert {int(np.floor(weight)), int(np.ceil(weight))} == times
    assert any(epoch != epochs[0] for epoch in epochs)
    assert Counter(clips_of(make(numbered, {**STARTS, "repeat": WEIGHTS}, **given))) == epochs[0]


@pytest.mark.parametrize(
    ("clips", "weight", "more"),
    [
        (STARTS, [2.5, 2.0, 1.5, 1.0, 1.25, 3.0], {"batch_size": None}),
        (FRAMES, [2.5, 2.0, 1.5, 1.0, 1.25, 3.0, 1, 0.5], {}),
        (FRAMES, [2.5, 2.0, 1.5, 1.0, 1.25, 3.0, 1, 0.5], {"memory_limit": "24KiB"}),
    ],
)
def test_resumes_after_any_batch(
    numbered: Dataset, clips: dict[str, Any], weight: list[float], more: dict[str, Any]
) -> None:
    listed = {**clips, "repeat": weight}
    check_resume(
        lambda: make(numbered, listed, seed=1, **more),
        num_epochs=2,
        positions=lambda count: range(1, count, 1 + count // 6),
    )


def test_state_of_another_list_is_refused(numbered: Dataset) -> None:
    last = [*FRAMES["frames"][:-1], [3, 37]]
    others: list[tuple[Any, list[Any]]] = [
        (
            STARTS,
            [{**STARTS, "start": [*STARTS["start"][:-1], 3]}, {**STARTS, "repeat": [1] * 5 + [2]}],
        ),
        (FRAMES, [{**FRAMES, "frames": last}]),
    ]
    for clips, refused in others:
        pipe = make(numbered, clips)
        next(iter(pipe))
        state = pipe.state_dict()
        make(numbered, clips).load_state_dict(state)
        for other in refused:
            with pytest.raises(StateError, match="other settings: samples"):
                make(numbered, other).load_state_dict(state)
        least = {"episode": clips["episode"], "start": [0] * len(clips["episode"])}
        for other in (least, None):
            with pytest.raises(StateError):
                make(numbered, other, clip_len=2).load_state_dict(state)


def test_ranks_workers_and_mixes_divide_a_list(numbered: Dataset) -> None:
    parts = [make(numbered, rank=(i, 2), last_batch="keep") for i in range(2)]
    found = [clip for pipe in parts for clip in clips_of(pickle.loads(pickle.dumps(pipe)))]
    assert Counter(found) == Counter(PAIRS)
    with no_leaks():
        stream = SeqRecordIterableDataset(numbered, **options_of(FRAMES, batch_size=2))
        loader: Any = DataLoader(stream, batch_size=None, num_workers=2)
        assert Counter(clips_of(loader)) == Counter(PAIRS)
        del stream, loader
    a = SeqRecordIterableDataset(numbered, features=["image", "id", "flow"], samples=FRAMES)
    b = SeqRecordIterableDataset(numbered, features=["image", "id"], clip_len=2)
    for batch in SeqRecordMix({"a": a, "b": b}, batch_size=4, features="intersection"):
        for i, (name, (key, start)) in enumerate(zip(batch["dataset"], names(batch), strict=True)):
            frames = batch["frames"][i].tolist() if name == "a" else [start, start + 1]
            assert batch["id"][i].tolist() == [[int(key[4:]), frame] for frame in frames]


MANY: list[Clip] = [
    (f"set/{episode}", (start, start + gap))
    for episode, length in enumerate(LENGTHS)
    for gap in (0, 9, 20)
    for start in range(length - gap)
]
MANY_CLIPS = {"episode": [key for key, _ in MANY], "frames": [[*frames] for _, frames in MANY]}


def test_lists_of_little_memory_are_decoded_again(
    numbered: Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    nbytes = 6 * 8 * 3 + 16
    total = sum(LENGTHS)
    decoded = []
    for limit in (None, 4 * nbytes * max(LENGTHS), 4 * nbytes * 24):
        pipe = make(numbered, MANY_CLIPS, batch_size=4, memory_limit=limit)
        assert Counter(clips_of(pipe)) == Counter(MANY)
        assert limit or "decoded twice" not in caplog.text  # these frames all have memory
        decoded.append(pipe.stats()["frames_decoded"])
        assert limit is None or pipe.stats()["peak_buffer_bytes"] <= limit
    assert total <= decoded[0] <= 1.1 * total
    assert decoded[0] <= decoded[2] < 4 * total
    with pytest.raises(MemoryLimitError):
        make(numbered, MANY_CLIPS, memory_limit=nbytes)


@pytest.mark.parametrize("ranks", [2, pytest.param(7, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "more", [{}, {"last_batch": "drop"}, {"last_batch": "keep", "shuffle": False}]
)
def test_ranks_cut_episodes_only_at_shard_boundaries(
    numbered: Dataset, ranks: int, more: dict[str, Any]
) -> None:
    found, counts, decoded = Counter[Clip](), [], 0
    for rank in range(ranks):
        given: dict[str, Any] = {"features": ["id"], "batch_size": 4, **more}
        pipe = make(numbered, MANY_CLIPS, rank=(rank, ranks), **given)
        clips = clips_of(pipe)
        found.update(clips)
        counts.append(len(clips))
        decoded += pipe.stats()["frames_decoded"]
    repeated, missing = found - Counter(MANY), Counter(MANY) - found
    assert max(counts) - min(counts) <= (more.get("last_batch") == "keep")
    assert repeated.total() == (0 if more else sum(counts) - len(MANY))
    assert missing.total() == (len(MANY) - sum(counts) if more.get("last_batch") == "drop" else 0)
    assert decoded <= sum(LENGTHS) + (ranks - 1) * max(LENGTHS)


@given(st.data())
def test_any_list(each: Dataset, data: st.DataObject) -> None:
    """Lists with duplicates; without shuffle, clips are ordered by episode."""
    length, dilation = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 2))
    more: dict[str, Any] = {
        "batch_size": data.draw(st.integers(1, 5)),
        "shuffle": data.draw(st.booleans()),
        "num_cursors": data.draw(st.none() | st.integers(1, 4)),
        "memory_limit": data.draw(st.sampled_from([None, 60_000, 200_000])),
        "seed": data.draw(st.integers(0, 99)),
    }
    if data.draw(st.booleans()):
        possible = possible_clips(["id"], length, 1, dilation)
        listed = data.draw(st.lists(st.sampled_from(possible), min_size=1, max_size=12))
        clips: dict[str, Any] = {"start": [start for _, start in listed]}
        more |= {"clip_len": length, "dilation": dilation}
        wanted = [(k, tuple(range(s, s + length * dilation, dilation))) for k, s in listed]
    else:
        least = 1 if data.draw(st.booleans()) else length  # lists may differ in length
        frames = [
            st.lists(st.integers(0, count - 1), min_size=least, max_size=length).map(tuple)
            for count in LENGTHS
        ]
        more["ragged"] = data.draw(st.sampled_from(["list", "pad"]))
        each_clip = st.integers(0, 3).flatmap(lambda e: st.tuples(st.just(f"set/{e}"), frames[e]))
        wanted = data.draw(st.lists(each_clip, min_size=1, max_size=60))
        clips, dilation = {"frames": [[*frames] for _, frames in wanted]}, 1
        del more["num_cursors"]
    clips["episode"] = [key for key, _ in wanted]
    found = clips_of(make(each, clips, **effective_arguments(more)), dilation)
    assert Counter(found) == Counter(wanted)
    if "start" in clips and not more["shuffle"]:
        assert found == sorted(wanted)


def batches_on_changing_ranks(
    data: st.DataObject, make_pipe: Callable[..., SeqRecordPipe]
) -> Iterator[dict[str, Any]]:
    """Batches of one epoch: up to three parts, each on another number of ranks, and the rest on one
    rank; each part resumes from the state before.
    """
    epoch, state = data.draw(st.integers(0, 2)), dict[str, Any]()
    few_ranks = st.tuples(st.integers(1, 3), st.integers(0, 3))
    for ranks, batches in (*data.draw(st.lists(few_ranks, max_size=3)), (1, None)):
        states = []
        for rank in range(ranks):
            pipe = make_pipe(rank=(rank, ranks))
            pipe.set_epoch(epoch)
            if state:
                pipe.load_state_dict(state)
            yield from islice(pipe, batches)
            states.append(pipe.state_dict())
        state = min(states, key=lambda one: one["epoch"])
        if state["epoch"] > epoch:
            return


@given(st.data())
def test_any_table_on_changing_ranks(each: Dataset, data: st.DataObject) -> None:
    """Each row as often as the table states, with its columns, whatever rows are equal."""
    length = data.draw(st.integers(1, 4))
    steps = data.draw(st.sampled_from([(1,), (1, 2), (3, 2, 1)]))
    possible = [
        (key, start, step)
        for step in steps
        for key, start in possible_clips(["id"], length, 1, step)
    ]
    few = st.lists(st.sampled_from(possible), min_size=1, max_size=4).flatmap(st.sampled_from)
    rows = data.draw(st.lists(st.one_of(few, st.sampled_from(possible)), min_size=1, max_size=20))
    times = data.draw(st.lists(st.integers(0, 3), min_size=len(rows), max_size=len(rows)))
    if not any(times):
        times[0] = 1
    key, start, dilation = map(list, zip(*rows, strict=True))
    table: dict[str, Any] = {"episode": key, "start": start, "repeat": times}
    table["row"] = [*range(len(rows))]
    if steps != (1,):
        table |= {"dilation": dilation, "reverse": [row % 2 > 0 for row in table["row"]]}
    settings: dict[str, Any] = {
        "clip_len": length,
        "features": ["id"],
        "batch_size": data.draw(st.integers(1, 4)),
        "shuffle": data.draw(st.booleans()),
        "memory_limit": data.draw(st.sampled_from([None, 20_000])),
        "seed": data.draw(st.integers(0, 99)),
        "last_batch": "keep",
    }
    found = Counter[int]()
    for batch in batches_on_changing_ranks(data, partial(make, each, table, **settings)):
        for row, ids in zip(batch["row"].tolist(), batch["id"].tolist(), strict=True):
            frames = [start[row] + i * dilation[row] for i in range(length)]
            is_reversed = steps != (1,) and row % 2
            wanted = frames[::-1] if is_reversed else frames
            assert ids == [[int(key[row][4:]), frame] for frame in wanted]
            found[row] += 1
    assert found == Counter(dict(enumerate(times)))


OFFSETS = {"id": (0, 2), "image": (-1,)}
"""Offsets of anchors that may be anywhere, by feature; `id` also has frame `start`."""


def anchored(row: tuple[int, int, int, int], feature: str) -> list[int]:
    """Frames of a row, (episode, start, goal, near), that a feature asks for."""
    _, start, goal, near = row
    of_start = [start, near + 1] if feature == "id" else [near]
    return [*of_start, *(goal + offset for offset in OFFSETS[feature])]


def anchored_windows(within: tuple[int, int]) -> dict[str, Any]:
    near = At("near", 1, within)
    return {
        "id": [0, near, At("goal", OFFSETS["id"])],
        "image": [At("near", within=within), At("goal", -1)],
    }


def is_whole(row: tuple[int, int, int, int], pad: str | None) -> bool:
    asked, last = [*anchored(row, "id"), *anchored(row, "image")], LENGTHS[row[0]] - 1
    before, after = pad in ("edge", "before"), pad in ("edge", "after")
    return (before or min(asked) >= 0) and (after or max(asked) <= last)


def check_anchors(batch: dict[str, Any], rows: list[Any], pad: str | None) -> list[int]:
    """Compares frames and masks with the table; returns the rows."""
    found: list[int] = batch["row"].tolist()
    for i, row in enumerate(found):
        episode = rows[row][0]
        assert batch["goal"][i] == rows[row][2]
        for name in ("id", "image"):
            asked = anchored(rows[row], name)
            frames = [min(max(one, 0), LENGTHS[episode] - 1) for one in asked]
            wanted = np.stack([expected_frame(episode, one)[name] for one in frames])
            assert np.array_equal(batch[name][i], wanted)
            if pad is not None:
                mask = [one != frame for one, frame in zip(asked, frames, strict=True)]
                assert batch[f"{name}_is_pad"][i].tolist() == mask
    return found


def anchored_table(rows: list[Any]) -> dict[str, Any]:
    episode, start, goal, near = map(list, zip(*rows, strict=True))
    numbers = {"start": start, "goal": goal, "near": near, "row": [*range(len(rows))]}
    return {"episode": [f"set/{one}" for one in episode], **numbers}


@pytest.mark.parametrize("each", ["raw", "uneven", "long", "resident"], indirect=True)
@given(st.data())
def test_any_anchors_on_changing_ranks(each: Dataset, data: st.DataObject) -> None:
    """Frames relative to columns, anywhere or within a distance, padded, with equal starts."""
    pad = data.draw(st.sampled_from([None, "edge", "before", "after"]))
    number = st.integers(0, 3).flatmap(
        lambda e: st.tuples(
            st.just(e),
            st.integers(0, LENGTHS[e] - 1),
            st.integers(-3, LENGTHS[e] + 2),
            st.integers(-2, 5),
        )
    )
    drawn = data.draw(st.lists(number, min_size=1, max_size=20))
    rows = [(e, start, goal, start + near) for e, start, goal, near in drawn]
    rows = [row for row in rows if is_whole(row, pad)] or [(3, 4, 30, 5)]
    settings: dict[str, Any] = {
        "windows": anchored_windows((-2, 5)),
        "pad": pad,
        "features": ["id", "image"],
        "batch_size": data.draw(st.integers(1, 4)),
        "shuffle": data.draw(st.booleans()),
        "memory_limit": data.draw(st.sampled_from([None, 40_000])),
        "seed": data.draw(st.integers(0, 99)),
        "last_batch": "keep",
    }
    found = Counter[int]()
    for batch in batches_on_changing_ranks(
        data, partial(SeqRecordPipe, each, samples=anchored_table(rows), **settings)
    ):
        found.update(check_anchors(batch, rows, pad))
    assert found == Counter(range(len(rows)))


def test_every_loader_has_anchors(tmp_path: Path) -> None:
    """Frames are read once; resident ones stay."""
    numbered = seqrecord.open(write_numbered(tmp_path / "records", codecs={"image": "png"}))
    rng = np.random.default_rng(0)
    rows = [
        (e, s, int(rng.integers(1, LENGTHS[e] - 2)), min(s + 2, LENGTHS[e] - 2))
        for e in (0, 1, 3)
        for s in range(LENGTHS[e])
    ]
    every = [*range(len(rows))]
    options: dict[str, Any] = {
        "samples": anchored_table(rows),
        "windows": anchored_windows((-1, 2)),
        "features": ["id", "image"],
    }
    check = partial(check_anchors, rows=rows, pad=None)
    for limit, stays in ((None, ["image", "id"]), ("15KiB", [])):
        pipe = SeqRecordPipe(numbered, batch_size=3, memory_limit=limit, **options)
        for epoch in range(2):
            assert sorted(row for batch in pipe for row in check(batch)) == every
            stats = pipe.stats()
            used = sum(LENGTHS) - LENGTHS[2]
            most = 0 if epoch and stays else used if stays else 2 * used
            assert (0 if epoch and stays else used) <= stats["frames_decoded"] <= most
            assert sorted(stats["features_resident"]) == sorted(stays)
    mapped = SeqRecordMapDataset(numbered, **options)
    assert check(seqrecord.collate(mapped.__getitems__(every))) == every
    stream = SeqRecordIterableDataset(numbered, batch_size=2, **options)
    loader: Any = DataLoader(stream, batch_size=None, num_workers=1)
    assert sorted(row for batch in loader for row in check(batch)) == every
    mix = SeqRecordMix({"a": SeqRecordIterableDataset(numbered, **options)}, batch_size=4)
    assert sorted(row for batch in mix for row in check(batch)) == every


def test_anchors_without_a_feature_are_skipped(numbered: Dataset) -> None:
    table = {"episode": ["set/0"] * 3, "start": [3, 3, 3], "goal": [22, 21, 3]}  # 22 lacks flow
    pipe = SeqRecordPipe(numbered, samples=table, windows={"flow": [0, At("goal")]}, batch_size=1)
    assert sorted(batch["goal"].item() for batch in pipe) == [3, 21]
    assert pipe.stats()["clips_incomplete"] == 1


def kept(samples: Any, *_: Any) -> Any:
    return samples.with_columns(number=samples["start"])


ANCHORED: dict[str, Any] = {  # frame 22 lacks flow
    "episode": ["set/0"] * 5,
    "start": [3, 4, 4, 5, 6],
    "goal": [22, 21, 3, 22, 7],
}


@pytest.mark.parametrize(
    "function",
    [skip_first(0), every(1), future_goal(column="other"), final_goal("other"), kept],
    ids=["skip_first", "every", "future_goal", "final_goal", "kept"],
)
def test_functions_leave_anchors_of_a_table(numbered: Dataset, function: Any) -> None:
    """Rows whose anchor lacks the feature are skipped and counted, as without a function."""
    options: dict[str, Any] = {"windows": {"flow": [0, At("goal")]}, "shuffle": False}
    pipe = SeqRecordPipe(numbered, samples=[ANCHORED, function], batch_size=1, **options)
    for _ in range(2):
        found = [(batch["start"].item(), batch["goal"].item()) for batch in pipe]
        assert sorted(found) == [(4, 3), (4, 21), (6, 7)]
    assert pipe.stats()["clips_incomplete"] == 2
    clips = SeqRecordMapDataset(numbered, samples=[ANCHORED, function], windows=options["windows"])
    flows = [clips[number]["flow"][:, 0, 0].tolist() for number in range(3)]
    assert flows == [[4, 21], [4, 3], [6, 7]]


def test_functions_replace_anchors_of_a_table(numbered: Dataset) -> None:
    """Then the values of the table do not matter; nor values in rows that functions remove."""
    options: dict[str, Any] = {"windows": {"flow": [0, At("goal")]}, "batch_size": 1}
    pipe = SeqRecordPipe(numbered, samples=[ANCHORED, earlier], **options)
    goals = {(batch["start"].item(), batch["goal"].item()) for batch in pipe}
    assert goals == {(start, start) for start in ANCHORED["start"]}
    table = {**ANCHORED, "goal": [-1, 21, 99, 22, 7]}
    is_valid = where(lambda samples: (samples["goal"] >= 0) & (samples["goal"] < 23))
    pipe = SeqRecordPipe(numbered, samples=[table, is_valid], **options)
    assert sorted(batch["goal"].item() for batch in pipe) == [7, 21]
    with pytest.raises(ClipError, match="anchor goal out of range"):
        SeqRecordPipe(numbered, samples=[table, every(1)], **options)
    of_episodes = {"episode": ["set/1", "set/0"], "goal": [8, 3]}  # frame 8 lacks flow
    pipe = SeqRecordPipe(numbered, samples=of_episodes, **options)
    assert {batch["episode"][0] for batch in pipe} == {"set/0"}
    assert pipe.stats()["clips_incomplete"] == 8 + 1 + 1


def earlier(samples: Any, epoch: int, rng: Any) -> Any:
    return samples.with_columns(goal=samples["start"] // (epoch + 1))


GOALS: dict[str, Any] = {
    "final": seqrecord.samples.final_goal(),
    "future": [seqrecord.samples.every(2), seqrecord.samples.future_goal()],
    "own": earlier,
}


@pytest.mark.parametrize("name", GOALS)
def test_anchors_refer_to_columns_of_functions(numbered: Dataset, name: str) -> None:
    windows: dict[str, Any] = {"id": [0, At("goal")], "image": [At("goal")]}

    def make_one(**windows: Any) -> SeqRecordPipe:
        settings: dict[str, Any] = {"features": [*windows], "batch_size": 4, "seed": 3, **more}
        return SeqRecordPipe(numbered, samples=GOALS[name], windows=windows, **settings)

    more: dict[str, Any] = {}
    goals: list[dict[tuple[str, int], int]] = [{}, {}]
    for rank in range(2):
        more = {"rank": (rank, 2)}
        pipe = make_one(**windows)
        for epoch in range(2):
            for batch in pipe:
                for i, place in enumerate(names(batch)):
                    goal, episode = batch["goal"][i].item(), int(place[0][4:])
                    assert batch["id"][i].tolist() == [[episode, place[1]], [episode, goal]]
                    assert np.array_equal(
                        batch["image"][i, 0], expected_frame(episode, goal)["image"]
                    )
                    goals[epoch][place] = goal
    step = 2 if name == "future" else 1
    every = {(f"set/{e}", s) for e in range(4) for s in range(0, LENGTHS[e], step)}
    for epoch, found in enumerate(goals):
        assert found.keys() == every
        for (key, start), goal in found.items():
            last = LENGTHS[int(key[4:])] - 1
            if name == "future":
                assert start <= goal <= last
            else:
                assert goal == (last if name == "final" else start // (epoch + 1))
    assert (goals[0] == goals[1]) == (name == "final")
    with pytest.raises(ClipError, match=r"samples has an anchor.*in row"):
        list(make_one(id=At("goal", -60)))
    if name == "final":  # the last frame of set/0 lacks flow
        with pytest.raises(ClipError, match=r"anchor at a frame that lacks flow, in row \d"):
            list(make_one(flow=At("goal")))
        windows = {"id": At("goal"), "flow": At("goal")}  # equal frames, and one lacks some
        with pytest.raises(ClipError, match=r"anchor at a frame that lacks flow, in row \d"):
            list(make_one(**windows))
        options: dict[str, Any] = {"windows": windows, "samples": GOALS[name]}
        clips = SeqRecordMapDataset(numbered, features=[*windows], **options)
        with pytest.raises(ClipError, match=r"anchor at a frame that lacks flow, in row \d"):
            clips[0]


@pytest.mark.parametrize("clips", [STARTS, FRAMES], ids=TABLES)
@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_copies_of_a_clip_have_independent_random_values(
    numbered: Dataset, clips: dict[str, Any], num_workers: int
) -> None:
    numbers: list[int] = []

    def note(clip: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
        numbers.append(int(generator.integers(1 << 40)))
        return clip

    steps = [dilate(1, 2, 3), reverse(0.5)] if clips is STARTS else []
    functions = [] if num_workers else [note]
    pipe = make(
        numbered,
        clips,
        samples=[
            {**{name: column[:2] for name, column in clips.items()}, "repeat": [40, 1]},
            *steps,
        ],
        features=["image"],
        batch_size=8,
        clip_transform=[RandomCrop((2, 2)), HorizontalFlip(0.5), *functions],
        **({"clip_len": 2} if steps else {}),
    )
    loader: Any = DataLoader(pipe, batch_size=None, num_workers=num_workers)
    numbers.clear()
    batches = list(loader)
    for name in ("crop", "flipped", *(("dilation", "reversed") if steps else ())):
        drawn = {tuple(np.ravel(item)) for batch in batches for item in batch[name].numpy()}
        assert len(drawn) > 1, name
    assert num_workers or len({*numbers}) == 41


def test_copies_in_a_mix_and_after_a_resume(numbered: Dataset) -> None:
    chosen: dict[str, Any] = {"episode": ["set/3"], "start": [5], "repeat": [24]}
    settings = options_of(chosen, features=["image"], clip_transform=RandomCrop((2, 2)))
    mix = SeqRecordMix({"a": SeqRecordIterableDataset(numbered, **settings)}, batch_size=8)
    assert len({tuple(crop) for batch in mix for crop in batch["crop"].tolist()}) > 1
    whole = [batch["crop"].tolist() for batch in SeqRecordPipe(numbered, batch_size=8, **settings)]
    first = SeqRecordPipe(numbered, batch_size=8, **settings)
    assert next(iter(first))["crop"].tolist() == whole[0]
    rest = SeqRecordPipe(numbered, batch_size=8, **settings)
    rest.load_state_dict(first.state_dict())
    assert [batch["crop"].tolist() for batch in rest] == whole[1:]


ONE: dict[str, Any] = {"episode": ["set/0"], "start": [0]}
BAD: list[tuple[Any, str]] = [
    ([("set/0", 1)], "a list of functions, which may begin with a table"),
    ("set/0", "samples is not a table.*set/0"),
    (7, "samples is not a table"),
    ({"episode": ["set/0"], "reverse": [True]}, "lacks a column: start.*got: episode, reverse"),
    ({"episode": ["set/1", "set/0", "set/0"]}, "has an episode twice, in row 1.*set/0"),
    ({"episode": ["set/0", "set/9"]}, "unknown episode, in row 1.*'set/9'"),
    ({**ONE, "score": [None]}, "no values for batches in column score.*got: null"),
    ({**ONE, "score": pa.array([0], pa.timestamp("s"))}, "expected: numbers, texts, or lists"),
    ({"episode": ["set/0"] * 2, "start": [0, 0], "score": [1, None]}, "no score in row 1.*NaN"),
    ({"episode": ["set/0"] * 2, "start": [0, 0], "pair": [[1, 2], [1]]}, "column pair, in row 1"),
    ({**ONE, "dilation": [0]}, "invalid dilation, in row 0.*got: 0"),
    ({**ONE, "dilation": [1 << 31]}, "expected: 1 to 2147483647; got: 2147483648"),
    ({**ONE, "dilation": np.array([2**63], "u8")}, "row 0.*set/0.*got: 9223372036854775808"),
    (
        segments({**ONE, "stop": [9], "dilation": np.array([2**63], "u8")}),
        "invalid dilation.*row 0",
    ),
    ({"episode": ["set/0"] * 2, "start": [0, 9], "dilation": [1, 5]}, "in row 1.*0 to 7.*got: 9"),
    ({**ONE, "reverse": [1]}, "no flags in column reverse"),
    ({**ONE, "image": [1]}, "a feature has the name of a batch's extra column"),
    ({**ONE, "dilation": [1], "reversed": [1], "reverse": [True]}, "another column.*got: reversed"),
    ({**ONE, "start": [0, 1]}, r"samples is not a table: .*length 1 but got length 2"),
    ({"episode": ["set/0", None], "start": [0, 0]}, "no episode in row 1"),
    ({"episode": ["set/0", "set/9"], "start": [0, 0]}, "unknown episode, in row 1.*'set/9'"),
    ({**ONE, "episode": [0.5]}, "no keys or numbers in column episode.*double"),
    ({**ONE, "episode": [9]}, "unknown number in column episode, in row 0.*got: 9"),
    ({**ONE, "start": [0.5]}, "no frames in column start.*double"),
    ({"episode": ["set/0"] * 2, "start": [0, 20]}, "in row 1.*set/0.*0 to 19.*got: 20"),
    ({**ONE, "start": [-1]}, "in row 0.*0 to 19.*got: -1"),
    ({**ONE, "episode": ["set/2"]}, "an episode with at least 4 frames"),
    ({**ONE, "start": np.array([2**63], "u8")}, "in row 0.*0 to 19"),
    ({**ONE, "repeat": [-0.5]}, "invalid repeat.*row 0.*got: -0.5"),
    ({**ONE, "repeat": [float("nan")]}, "invalid repeat.*row 0.*nan"),
    ({**ONE, "stop": [9]}, r"has start and stop.*segments\(table\).*another name for stop"),
    ({**ONE, "end": [9]}, r"has start and end.*segments\(table\).*another name for end"),
    (segments(ONE), "segments lack a column.*start, and stop or end"),
    (segments({**ONE, "stop": [9], "end": [9]}), "segments lack a column"),
    (segments({**ONE, "stop": [9.5]}), "no frames in column stop"),
    (segments({**ONE, "stop": [24]}), "no segment.*row 0.*set/0.*start < stop <= 23.*stop 24"),
    (segments({**ONE, "end": [0]}), "no segment of its episode, in row 0"),
    (segments({**ONE, "end": [3]}), "no segment is as long as a clip.*at least 4 frames"),
    (segments({**ONE, "episode": ["x"], "end": [9]}), "unknown episode, in row 0"),
    ({**ONE, "repeat": [1e9]}, "invalid repeat.*row 0"),
    ({**ONE, "repeat": ["1"]}, "no numbers in column repeat"),
    ({**ONE, "repeat": [0.0]}, "some epochs have no sample.*got: 0.0"),
    ({**ONE, "repeat": [0.25]}, "some epochs have no sample.*a sum of at least 1.*got: 0.25"),
    ({"episode": [], "start": []}, "no rows"),
    ({"episode": [["a"], 3], "start": [0, 0]}, "samples is not a table"),
    ({**ONE, "start": [10**30]}, "samples is not a table"),
    (pa.table([["set/0"], [0], [1]], ["episode", "start", "start"]), "duplicate column names"),
    ({**ONE, "frames": [[1, 2]]}, "start, beside frames"),
    ({"frames": [1]}, "no lists of frames in column frames"),
    ({"frames": [[0.5, 1.0]]}, "no lists of frames"),
    ({"frames": [[1, 23]]}, "in row 0.*set/0.*0 to 22"),
    ({"frames": [[-1, 2]]}, "in row 0.*set/0.*0 to 22"),
    ({"frames": [[]]}, "an empty list in column frames, in row 0"),
    ({"frames": [[1, None]]}, "nulls"),
    ({"frames": [[1, 2]], "dilation": [2]}, "dilation, beside frames"),
    ({"frames": [None]}, "no lists of frames in column frames"),
    ({"episode": ["set/0"] * 2, "frames": [[1, 2], [23]]}, "in row 1.*set/0.*0 to 22"),
    (
        {"episode": ["set/0"] * 2, "frames": [[1, 2], []]},
        "an empty list in column frames, in row 1",
    ),
    ({"episode": ["set/0"] * 2, "frames": [[1, 2], [-1]]}, "in row 1.*set/0.*0 to 22"),
    ({"episode": ["set/9"], "frames": [[1, 2]]}, "unknown episode, in row 0"),
    ({"episode": [], "frames": []}, "no rows"),
    ({"frames": np.zeros((1, 0), int)}, "not a table|empty list"),
    ({"frames": np.zeros((1, 2, 2), int)}, "not a table"),
]


ONE_START: dict[str, Any] = {"episode": ["set/0"], "start": [2], "goal": [22]}


SPANS = {
    "episode": ["set/3", "set/0", "set/3", "set/2", "set/1"],
    "start": [5, 0, 8, 0, 2],
    "stop": [15, 23, 40, 3, 9],
    "label": ["a", None, "c", "d", "e"],
    "score": [0.5, float("nan"), 1.0, 2.0, 3.0],
}


@pytest.mark.parametrize("name", ["stop", "end"])
@pytest.mark.parametrize(
    "options",
    [
        {"clip_len": 4},
        {"clip_len": 3, "dilation": 2, "stride": 3},
        {"windows": {"id": [-2, 0, 1]}},
        {"windows": {"id": [-2, 0, 1]}, "pad": "edge"},
    ],
    ids=str,
)
def test_all_clips_inside_segments(each: Dataset, name: str, options: dict[str, Any]) -> None:
    """A clip of two segments comes twice, each time with the columns of one."""
    table = {name if column == "stop" else column: values for column, values in SPANS.items()}
    offsets = [i * options.get("dilation", 1) for i in range(options.get("clip_len", 0))]
    offsets = offsets or ([0] if "pad" in options else options["windows"]["id"])
    expected: Counter[Any] = Counter()
    for key, begin, stop, label, score in zip(*SPANS.values(), strict=True):
        starts = range(begin - min(offsets), stop - max(offsets), options.get("stride", 1))
        expected.update((key, start, label, str(score)) for start in starts)
    pipe = SeqRecordPipe(each, features=["id"], samples=segments(table), batch_size=4, **options)
    rows: Counter[Any] = Counter()
    for batch in pipe:
        scores = [str(score) for score in batch["score"].tolist()]
        starts = batch["start"].tolist()
        rows.update(zip(batch["episode"], starts, batch["label"], scores, strict=True))
    assert rows == expected


def test_segments_repeat_each_clip_and_combine_with_functions(each: Dataset) -> None:
    table = {"episode": ["set/3", "set/0"], "start": [5, 0], "end": [15, 10], "repeat": [2.0, 0.5]}
    options: dict[str, Any] = {"features": ["id"], "clip_len": 4, "batch_size": 4}
    pipe = SeqRecordPipe(each, samples=segments(table), **options)
    found = Counter(key for batch in pipe for key in batch["episode"])
    assert found["set/3"] == 2 * 7
    assert found["set/0"] in (3, 4)
    pipe = SeqRecordPipe(each, samples=[segments(pa.table(table)), skip_first(2)], **options)
    assert min(start for batch in pipe for start in batch["start"].tolist()) == 2
    state = begun_state(pipe)
    changed = segments({**table, "end": [15, 11]})
    with pytest.raises(StateError, match="samples"):
        SeqRecordPipe(each, samples=[changed, skip_first(2)], **options).load_state_dict(state)
    del table["repeat"]
    clips = SeqRecordMapDataset(each, features=["id"], clip_len=4, samples=segments(table))
    assert [clip["start"] for clip in (clips[0], clips[7])] == [5, 0]


def test_dilated_clips_stay_inside_their_segments(each: Dataset) -> None:
    """A clip draws among the dilations with which it is complete there."""
    spans: dict[str, Any] = {
        "episode": ["set/3", "set/0", "set/3"],
        "start": [5, 0, 8],
        "stop": [19, 10, 12],
        "number": [0, 1, 2],
    }
    options: dict[str, Any] = {"clip_len": 4, "batch_size": 4}
    pipe = SeqRecordPipe(
        each, features=["id"], samples=[segments(spans), dilate(1, 3), reverse(0.5)], **options
    )
    starts = Counter[tuple[int, int, int]]()
    for _ in range(12):
        for batch in pipe:
            columns = (batch[name].tolist() for name in ("number", "start", "dilation", "id"))
            for number, start, dilation, ids in zip(*columns, strict=True):
                frames = sorted(frame for _, frame in ids)
                assert frames == [start + i * dilation for i in range(4)]
                assert spans["start"][number] <= start <= frames[-1] < spans["stop"][number]
                starts[number, start, dilation] += 1
    assert {*starts} == {
        (number, start, dilation)
        for number in range(3)
        for dilation in (1, 3)
        for start in range(spans["start"][number], spans["stop"][number] - 3 * dilation)
    }
    # Frame 20 of set/3 lacks flow: clips from 18 and 19 are complete with a dilation of 3 only.
    for stop, expected in ((27, []), (28, [18]), (29, [18, 19])):
        span = segments({"episode": ["set/3", "set/0"], "start": [18, 0], "stop": [stop, 4]})
        pipe = SeqRecordPipe(each, features=["flow"], samples=[span, dilate(1, 3)], **options)
        found = [start for batch in pipe for start in batch["start"].tolist()]
        assert sorted(start for start in {*found} if 18 <= start <= 20) == expected


def test_segments_with_dilations(each: Dataset) -> None:
    """Each clip has that of its segment, also beside functions that draw the other step."""
    table = {**SPANS, "dilation": [1, 2, 5, 1, 3]}
    options: dict[str, Any] = {"features": ["id"], "clip_len": 3, "batch_size": 4}
    pipe = SeqRecordPipe(each, samples=[segments(table), reverse(0.5)], **options)
    of_spans = ("episode", "start", "stop", "dilation")
    spans: Any = zip(*(table[name] for name in of_spans), strict=True)
    expected = Counter(
        (key, first, step)
        for key, start, stop, step in spans
        for first in range(start, stop - 2 * step)
    )
    found: Counter[Any] = Counter()
    for batch in pipe:
        values = (batch[name] for name in ("episode", "start", "dilation", "reversed", "id"))
        for key, start, step, is_reversed, ids in zip(*values, strict=True):
            first, frames = int(start), [int(start) + i * int(step) for i in range(3)]
            assert ids[:, 1].tolist() == (frames[::-1] if is_reversed else frames)
            found[key, first, int(step)] += 1
    assert found == expected


SPANS_OF_ONE = {"episode": ["set/3"] * 3, "start": [0, 2, 5], "stop": [3, 12, 14]}


@pytest.mark.parametrize(
    ("added", "options", "row"),
    [
        ({"repeat": [-2.0, 1.0, -1.0]}, {"clip_len": 4}, 2),  # no clip is in row 0
        ({"dilation": [1, 1, 0]}, {"clip_len": 4}, 2),
        ({"pair": [[1, 2], [1, 2], [3]]}, {"clip_len": 4}, 2),
        ({"goal": [3, 4, 99]}, {"windows": {"id": [0, At("goal")]}}, 2),
        ({"goal": [3, 99, 4]}, {"windows": {"id": [0, At("goal")]}}, 1),
        ({"tokens": [1, 1, 0]}, {"clip_len": 4, "batch_size": Budget(8, cost="tokens")}, 2),
    ],
)
def test_errors_name_the_rows_of_segments(
    each: Dataset, added: dict[str, Any], options: dict[str, Any], row: int
) -> None:
    table = segments({**SPANS_OF_ONE, **added})
    with pytest.raises(ClipError, match=f", in row {row}[;:]"):
        SeqRecordPipe(each, features=["id"], samples=table, **options)


def test_errors_name_the_rows_of_a_table_of_episodes(each: Dataset) -> None:
    table = {"episode": ["set/3", "set/0", "set/1"], "goal": [5, 6, 30]}
    with pytest.raises(ClipError, match=r"anchor goal out of range, in row 2; "):
        SeqRecordPipe(each, windows={"id": [0, At("goal")]}, samples=table, features=["id"])


OF_B: list[Any] = [
    {"episode": ["b"]},
    {"episode": ["b"], "start": [0]},
    segments({"episode": ["b"], "start": [0], "stop": [4]}),
]


@pytest.mark.parametrize("table", OF_B, ids=["episodes", "starts", "segments"])
def test_a_table_of_other_episodes_than_the_selected_ones(tmp_path: Path, table: Any) -> None:
    episodes = dict.fromkeys("ab", columns(id=np.arange(9)))
    write_dataset(tmp_path / "records", episodes, fps=10)
    for windows in (None, {"id": Seconds([0, 0.1])}):
        options: dict[str, Any] = {"windows": windows} if windows else {"clip_len": 2}
        assert len(SeqRecordPipe(tmp_path / "records", samples=table, **options))
        with pytest.raises(ClipError, match="no sample belongs to a selected episode") as caught:
            SeqRecordPipe(tmp_path / "records", samples=table, episodes=["a"], **options)
        assert caught.value.got == "1 episode in the table, 1 selected"


def test_errors_name_rows_inside_functions_of_episodes(tmp_path: Path) -> None:
    """Of the whole table, not of the episode's part."""
    episodes = dict.fromkeys("ab", columns(id=np.arange(9), label=np.zeros(9, np.int64)))
    write_dataset(tmp_path / "records", episodes)
    table = {"episode": ["b", "a", "b"], "start": [5, 2, 1], "goal": [7, 3, 99]}
    functions = [table, per_episode(inside("label"))]
    options: dict[str, Any] = {"windows": {"id": [0, At("goal")]}}
    with pytest.raises(ClipError, match="in row 2; "):
        SeqRecordPipe(tmp_path / "records", samples=functions, **options)


def test_tables_of_polars_and_segments_of_a_file(each: Dataset, tmp_path: Path) -> None:
    """Texts of Polars are views, which older Arrow lacks."""
    if not hasattr(pa, "string_view"):
        pytest.skip("pyarrow 16 has views")
    table = {"episode": ["set/3", "set/0"], "start": [5, 0], "label": ["a", None]}
    texts = {name: pa.array(table[name], pa.string_view()) for name in ("episode", "label")}
    options: dict[str, Any] = {"features": ["id"], "clip_len": 4, "shuffle": False}
    for form in (table | texts, pa.table(table | texts)):
        clips = list(SeqRecordPipe(each, samples=form, **options))
        assert [clip["label"] for clip in clips] == [None, "a"]
    spans = pa.table({**table, **texts, "stop": [10, 5]})
    path = tmp_path / "spans.parquet"
    pq.write_table(spans, path)
    expected = [("set/0", 0), ("set/0", 1), ("set/3", 5), ("set/3", 6)]
    for spans_of in (spans, path, str(path)):
        clips = list(SeqRecordPipe(each, samples=segments(spans_of), **options))
        assert [(clip["episode"], clip["start"]) for clip in clips] == expected
    assert len(SeqRecordMapDataset(each, clip_len=4, samples=segments(str(path)))) == 4


def begun_state(pipe: SeqRecordPipe) -> dict[str, Any]:
    next(iter(pipe))
    return pipe.state_dict()


class FromPandas:
    """A table as pandas makes it: NaN are nulls."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self._table = pa.table({n: pa.array(c, from_pandas=True) for n, c in columns.items()})

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def test_missing_values_are_the_same_in_every_form_of_a_table(each: Dataset) -> None:
    nan = float("nan")
    columns: dict[str, Any] = {
        "episode": ["set/0"] * 3,
        "start": [0, 1, 2],
        "score": [0.5, nan, 1.5],
        "label": ["a", nan, None],
    }
    arrays = {n: np.array(c, object if n == "label" else None) for n, c in columns.items()}
    halves = {**columns, "score": np.array(columns["score"], np.float16)}
    tables: list[tuple[Any, torch.dtype]] = [
        *((table, torch.float64) for table in (columns, arrays, FromPandas(columns))),
        *((table, torch.float16) for table in (halves, FromPandas(halves))),
    ]
    for table, dtype in tables:
        [batch] = SeqRecordPipe(
            each, features=["id"], clip_len=1, samples=table, batch_size=3, shuffle=False
        )
        np.testing.assert_equal(batch["score"].numpy(), [0.5, nan, 1.5])
        assert batch["label"] == ["a", None, None]
        assert batch["score"].dtype == dtype
    none = {**columns, "score": np.full(3, nan)}
    for table in (none, FromPandas(none)):
        pipe = SeqRecordPipe(each, features=["id"], clip_len=1, samples=table, batch_size=3)
        assert next(iter(pipe))["score"].isnan().all()
    for name in ("episode", "start", "repeat", "reverse"):
        wrong = {**columns, name: [*columns["start"][:2], None]}
        if name in ("episode", "reverse"):
            wrong[name] = ["set/0", "set/0", nan] if name == "episode" else [True, True, None]
        for table in (wrong, FromPandas(wrong)):
            with pytest.raises(ClipError, match=f"no {name} in row 2"):
                SeqRecordPipe(each, features=["id"], clip_len=1, samples=table)


def test_numbers_name_episodes_and_frames_as_keys_do(each: Dataset, tmp_path: Path) -> None:
    keys, starts = [*each.episodes], np.array([3, 0, 7, 12])
    numbers = np.array([0, 3, 3, 0])
    begins = np.cumsum([0, *map(len, each.episodes.values())])[numbers]
    rest: dict[str, Any] = {"score": [0.5, 1.5, 2.5, 3.5]}

    def rows_of(table: Any) -> list[tuple[Any, ...]]:
        [batch] = SeqRecordPipe(
            each, features=["id"], clip_len=2, samples=table, batch_size=4, shuffle=False
        )
        names = ("id", "episode", "start", *rest)
        return [*zip(*(np.asarray(batch[name]).tolist() for name in names), strict=True)]

    by_key = {"episode": [keys[n] for n in numbers], "start": starts, **rest}
    expected = rows_of(by_key)
    tables: list[dict[str, Any]] = [
        {"episode": numbers, "start": starts},
        {"episode_index": numbers.astype("u2"), "frame_index": starts},
        {"episode": by_key["episode"], "frame": starts.astype("i1")},
        {"index": begins + starts},
        {"frame": starts, "frame_index": starts + 1, "episode": numbers, "index": starts},
    ]
    for table in tables:
        assert rows_of({**table, **rest}) == expected
    with pa.OSFile(str(tmp_path / "t.arrow"), "wb") as file:
        table = pa.table({**tables[1], **rest})
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    assert rows_of(tmp_path / "t.arrow") == expected
    spans = {"episode_index": numbers, "start": starts, "end": starts + 2, **rest}
    assert rows_of(segments(spans)) == expected


@pytest.mark.parametrize(
    ("table", "match"),
    [
        ({"index": [0, -1]}, "outside of the dataset in column index, in row 1.*got: -1"),
        ({"index": [0.5]}, "in column index.*got: double"),
        ({"episode_index": ["set/0"]}, "no numbers in column episode_index"),
        ({"start": [0]}, "lacks a column: episode"),
    ],
)
def test_wrong_numbers_are_refused(numbered: Dataset, table: dict[str, Any], match: str) -> None:
    with pytest.raises(ClipError, match=match):
        SeqRecordPipe(numbered, clip_len=1, samples=table)


def test_other_names_of_places_stay_values(each: Dataset) -> None:
    key = next(iter(each.episodes))
    table = {"episode": [key], "start": [2], "episode_index": [7], "frame": [8], "index": [9]}
    [batch] = SeqRecordPipe(each, features=["id"], clip_len=2, samples=table, batch_size=1)
    assert [batch[n].item() for n in ("start", "episode_index", "frame", "index")] == [2, 7, 8, 9]
    table = {"episode": [key], "index": [9]}  # of all clips of an episode
    pipe = SeqRecordPipe(each, features=["id"], clip_len=2, samples=table, batch_size=1)
    assert len(pipe) > 1
    assert all(batch["index"].item() == 9 for batch in pipe)


def test_wrong_lists_are_refused(numbered: Dataset) -> None:
    for clips, match in BAD:
        length: dict[str, Any] = {"clip_len": 4}
        if isinstance(clips, dict):
            clips = {"episode": ["set/0"], **clips}
            length = {} if "frames" in clips else length
        with pytest.raises(ClipError, match=match):
            SeqRecordPipe(numbered, samples=clips, **length)
    own = {**ONE_START, "label": ["a"], "weight": [0.5]}
    at: Any = At
    anchors: list[tuple[Any, str]] = [
        (lambda: at("gaol"), r"no integers for At\('gaol'\).*got: goal, label, weight"),
        (lambda: at("label"), "no integers for At.*other values"),
        (lambda: [0, at("weight")], "no integers for At"),
        (lambda: at("goal", 1), "anchor goal out of range, in row 0.*at most 21; .*got: 22"),
        (lambda: at("goal", within=(0, 19)), "out of range, in row 0.*at most 21; or.*got: 22"),
        (lambda: at(3), "At has no column"),
        (lambda: at("goal", []), "empty or too long"),
        (lambda: at("goal", [at("goal")]), "offsets of At are not frames"),
        (lambda: at("goal", "a"), "a window is not valid"),
        (lambda: at("goal", within=3), "within of At is not valid"),
        (lambda: at("goal", within=(3, 2)), "within of At is not valid"),
    ]
    for window, match in anchors:
        with pytest.raises(ClipError, match=match):
            SeqRecordPipe(numbered, samples=own, windows={"id": window()})
    with pytest.raises(ClipError, match=r"no integers for At.*no columns"):
        SeqRecordPipe(numbered, windows={"id": At("goal")})
    with pytest.raises(ClipError, match="samples has the starts"):
        make(numbered, STARTS, stride=2)
    several: list[dict[str, Any]] = [
        {"clip_len": 2},
        {"windows": {"id": [0]}},
        {"pad": "edge"},
        {"samples": [FRAMES, reverse(0.5)]},
    ]
    for more in several:
        with pytest.raises(ClipError, match="samples has the frames of each clip"):
            make(numbered, FRAMES, **more)


def test_clips_by_number_are_in_the_order_of_a_table_of_episodes(numbered: Dataset) -> None:
    def odd(samples: Any, *_: Any) -> Any:
        return samples.filter(samples["start"] % 2 == 1)

    table = {"episode": ["set/3", "set/0"], "label": [7, 8]}
    for functions in ([], [odd]):
        clips = SeqRecordMapDataset(numbered, clip_len=4, samples=[table, *functions])
        every = [clips[number] for number in range(len(clips))]
        found = [(clip["episode"], int(clip["start"]), int(clip["label"])) for clip in every]
        assert found == sorted(found, key=lambda clip: (clip[2], clip[1]))
        assert {(key, label) for key, _, label in found} == {("set/3", 7), ("set/0", 8)}


def test_functions_see_lists_with_one_start_as_listed(numbered: Dataset) -> None:
    rows = list[int]()

    def see(samples: Any, *_: Any) -> Any:
        rows[:] = samples.rows_listed.tolist()
        return samples

    frames = [[1, 4], [0, 3], [1, 2], [1, 3], [0, 1]]
    table = {"episode": ["set/0"] * 5, "frames": frames}
    assert len(list(SeqRecordPipe(numbered, samples=[table, see]))) == 5
    assert rows == [1, 4, 0, 2, 3]
