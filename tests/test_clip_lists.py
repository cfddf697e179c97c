"""The argument `clips`: tables of chosen clips, how often they come, and errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from seqrecord import (
    ClipError,
    HorizontalFlip,
    RandomCrop,
    SeqRecordIterableDataset,
    SeqRecordMapDataset,
    SeqRecordMix,
    SeqRecordPipe,
    StateError,
)
from seqrecord.errors import MemoryLimitError
from tests.clip_data import check, effective, names, possible_clips, write_numbered
from tests.resume_contract import check_resume

LISTED = [("set/3", 5), ("set/0", 19), ("set/3", 4), ("set/1", 0), ("set/3", 30), ("set/0", 2)]
EPISODES, STARTS = [key for key, _ in LISTED], [start for _, start in LISTED]


class Table:
    """What pandas, Polars and others are to Arrow."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


KINDS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "lists": dict,
    "arrays": lambda columns: {name: np.array(column) for name, column in columns.items()},
    "arrow": pa.table,
    "batch": lambda columns: pa.RecordBatch.from_pydict(columns),
    "chunked": lambda columns: {
        name: pa.chunked_array([column[:2], column[2:]]) for name, column in columns.items()
    },
    "dictionary": lambda columns: {
        **columns,
        "episode": pa.array(columns["episode"]).dictionary_encode(),
    },
    "other": lambda columns: Table(pa.table(columns)),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_numbered(tmp_path_factory.mktemp("lists") / "records", codecs="raw")


@pytest.fixture(scope="module", params=[[2, 8, 9, 30], []])
def several(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images and the rest in groups of their own, with chunks of many lengths, or very long."""
    return write_numbered(
        tmp_path_factory.mktemp("several") / "records",
        groups={"image": 0, "flow": 1, "note": 1, "id": 1},
        flush_at=request.param,
        chunk_frames=4 if request.param else None,
    )


def make(path: Path, **settings: Any) -> SeqRecordPipe:
    usual = {"clip_len": 4, "features": ["image", "id"], "batch_size": 3}
    return SeqRecordPipe(path, **{**usual, **settings})


@pytest.mark.parametrize("kind", KINDS)
def test_gives_the_clips_of_the_table(path: Path, kind: str) -> None:
    pipe = make(path, clips=KINDS[kind]({"episode": EPISODES, "start": STARTS}))
    for _ in range(2):
        clips = [name for batch in pipe for name in check(batch, ["image", "id"], 4)]
        assert sorted(clips) == sorted(LISTED)
    assert (len(pipe), pipe.num_clips) == (2, len(LISTED))


def test_reads_only_chunks_that_hold_one(path: Path) -> None:
    pipe = make(path, clips={"episode": ["set/3"] * 2, "start": [0, 32]}, shuffle=False)
    assert [name for batch in pipe for name in names(batch)] == [("set/3", 0), ("set/3", 32)]
    assert pipe.stats()["loads"] == 2
    assert pipe.stats()["frames_decoded"] == 8


@pytest.mark.parametrize("windows", [None, {"id": range(-4, 4)}])
def test_a_clip_that_is_there_twice_fits_into_the_least_memory(
    tmp_path: Path, windows: dict[str, Any] | None
) -> None:
    """A block may end between two copies of a clip, and then holds that clip's frames too."""
    path = write_numbered(tmp_path / "records", chunk_frames=1)
    clips = {"episode": ["set/0"] * 6, "start": [4, 5, 5, 9, 10, 10]}
    options: dict[str, Any] = {"clips": clips, "features": ["id"], "shuffle": False}
    options |= {"clip_len": 4} if windows is None else {"windows": windows}
    with pytest.raises(MemoryLimitError) as caught:
        SeqRecordPipe(path, **options, memory_limit=1)
    least = int(str(caught.value.expected).split()[2])
    given = [clip["start"] for clip in SeqRecordPipe(path, **options, memory_limit=least)]
    assert given == clips["start"]


def test_what_lacks_a_feature_is_left_out_and_counted(path: Path) -> None:
    pipe = make(path, features=["flow"], clips={"episode": EPISODES, "start": STARTS})
    given = [name for batch in pipe for name in check(batch, ["flow"], 4)]
    assert sorted(given) == sorted(set(LISTED) - {("set/0", 19)})
    assert pipe.stats()["clips_incomplete"] == 1
    assert "1 of 6 clips" in repr(pipe)


def test_episodes_leave_out_the_others(path: Path) -> None:
    clips = {"episode": EPISODES, "start": STARTS}
    pipe = make(path, clips=clips, episodes=["set/3"])
    assert sorted(name for batch in pipe for name in names(batch)) == [
        ("set/3", 4),
        ("set/3", 5),
        ("set/3", 30),
    ]


WEIGHTS = [0.5, 2.0, 0.0, 1.0, 1.25, 3.0]


@pytest.mark.parametrize("shuffle", [True, False])
def test_weights_are_how_often_a_clip_comes(path: Path, shuffle: bool) -> None:
    clips = {"episode": EPISODES, "start": STARTS, "weight": WEIGHTS}
    pipe = make(path, clips=clips, seed=5, shuffle=shuffle)
    epochs = []
    for _ in range(40):
        count = pipe.num_clips
        found = [name for batch in pipe for name in check(batch, ["image", "id"], 4)]
        assert len(found) == count
        epochs.append(Counter(found))
    for name, weight in zip(LISTED, WEIGHTS, strict=True):
        times = [epoch[name] for epoch in epochs]
        assert {int(np.floor(weight)), int(np.ceil(weight))} == set(times)
    assert any(epoch != epochs[0] for epoch in epochs)
    same = make(path, clips=clips, seed=5, shuffle=shuffle)
    assert Counter(name for batch in same for name in names(batch)) == epochs[0]


@pytest.mark.parametrize("batch_size", [None, 3])
def test_resumes_anywhere(path: Path, batch_size: int | None) -> None:
    clips = {"episode": EPISODES, "start": STARTS, "weight": [2.5, 2.0, 1.5, 1.0, 1.25, 3.0]}
    check_resume(lambda: make(path, clips=clips, batch_size=batch_size, seed=1), num_epochs=2)


def test_a_state_of_other_clips_is_refused(path: Path) -> None:
    clips = {"episode": EPISODES, "start": STARTS}
    pipe = make(path, clips=clips)
    next(iter(pipe))
    state = pipe.state_dict()
    make(path, clips=clips).load_state_dict(state)
    others: list[dict[str, Any]] = [
        {"episode": EPISODES, "start": [*STARTS[:-1], 3]},
        {**clips, "weight": [1, 1, 1, 1, 1, 2]},
    ]
    for other in others:
        with pytest.raises(StateError, match="other settings: clips"):
            make(path, clips=other).load_state_dict(state)
    with pytest.raises(StateError):
        make(path).load_state_dict(state)


def test_map_style_clips_have_the_numbers_of_the_table(path: Path) -> None:
    features = ["image", "id"]
    clips = {"episode": EPISODES, "start": STARTS}
    dataset = SeqRecordMapDataset(path, clip_len=4, features=features, clips=clips)
    assert [names(dataset[i])[0] for i in range(len(dataset))] == LISTED
    assert [names(clip)[0] for clip in dataset.__getitems__([4, 0, 4])] == [
        LISTED[4],
        LISTED[0],
        LISTED[4],
    ]
    for i in range(len(dataset)):
        check(dataset[i], features, 4)
    flow = SeqRecordMapDataset(path, clip_len=4, features=["flow"], clips=clips)
    assert [names(flow[i])[0] for i in range(len(flow))] == [LISTED[0], *LISTED[2:]]
    with pytest.raises(ClipError, match="gives each clip once"):
        SeqRecordMapDataset(path, clip_len=4, clips={**clips, "weight": WEIGHTS})


@pytest.mark.parametrize(
    ("clips", "match"),
    [
        ([("set/0", 1)], "clips is not a table"),
        ("set/0", "clips is not a table"),
        ({"episode": EPISODES}, "lacks a column: start.*got: episode"),
        ({"episode": EPISODES, "start": STARTS, "score": STARTS}, "unknown column: score"),
        (
            {"episode": EPISODES, "start": STARTS[:-1]},
            r"clips is not a table: .*length 6 but got length 5",
        ),
        ({"episode": ["set/0", None], "start": [0, 0]}, "no episode in row 1"),
        ({"episode": ["set/0", "set/9"], "start": [0, 0]}, "unknown episode, in row 1.*'set/9'"),
        ({"episode": [0], "start": [0]}, "no keys in column episode.*int64"),
        ({"episode": ["set/0"], "start": [0.5]}, "no frames in column start.*double"),
        ({"episode": ["set/0"] * 2, "start": [0, 20]}, "in row 1.*set/0.*0 to 19.*got: 20"),
        ({"episode": ["set/0"], "start": [-1]}, "in row 0.*0 to 19.*got: -1"),
        ({"episode": ["set/2"], "start": [0]}, "an episode with at least 4 frames"),
        ({"episode": ["set/0"], "start": np.array([2**63], "u8")}, "in row 0.*0 to 19"),
        ({"episode": ["set/0"], "start": [0], "weight": [-0.5]}, "weight.*row 0.*got: -0.5"),
        ({"episode": ["set/0"], "start": [0], "weight": [float("nan")]}, "weight.*row 0.*nan"),
        ({"episode": ["set/0"], "start": [0], "weight": [1e9]}, "weight.*row 0"),
        ({"episode": ["set/0"], "start": [0], "weight": ["1"]}, "no numbers in column weight"),
        ({"episode": ["set/0"], "start": [0], "weight": [0.0]}, "no clip has all of its frames"),
        ({"episode": [], "start": []}, "no rows"),
        ({"episode": [["a"], 3], "start": [0, 0]}, "clips is not a table"),
        ({"episode": ["set/0"], "start": [10**30]}, "clips is not a table"),
        (pa.table([["set/0"], [0], [1]], ["episode", "start", "start"]), "duplicate column names"),
    ],
)
def test_says_what_is_wrong(path: Path, clips: Any, match: str) -> None:
    with pytest.raises(ClipError, match=match):
        make(path, clips=clips)


def test_a_stride_makes_no_sense(path: Path) -> None:
    with pytest.raises(ClipError, match="clips has the starts"):
        make(path, clips={"episode": EPISODES, "start": STARTS}, stride=2)


@given(data=st.data())
def test_lists_of_data_sets_of_several_groups(several: Path, data: st.DataObject) -> None:
    """Some clips twice; without shuffle they come episode by episode."""
    clip_len, dilation = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 2))
    possible = possible_clips(["id"], clip_len, 1, dilation)
    listed = data.draw(st.lists(st.sampled_from(possible), min_size=1, max_size=12))
    settings = {
        "batch_size": data.draw(st.none() | st.integers(1, 5)),
        "shuffle": data.draw(st.booleans()),
        "num_cursors": data.draw(st.none() | st.integers(1, 4)),
        "memory_limit": data.draw(st.sampled_from([200_000, 4 << 20])),
    }
    pipe = SeqRecordPipe(
        several,
        clip_len=clip_len,
        dilation=dilation,
        features=["image", "id"],
        clips={"episode": [key for key, _ in listed], "start": [start for _, start in listed]},
        **effective(settings),
    )
    clips = [name for batch in pipe for name in check(batch, ["image", "id"], clip_len, dilation)]
    assert (sorted(clips) if settings["shuffle"] else clips) == sorted(listed)


@pytest.mark.parametrize("is_listed", [False, True], ids=["start", "frames"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_copies_of_a_clip_have_draws_of_their_own(
    path: Path, is_listed: bool, num_workers: int
) -> None:
    place: dict[str, Any] = {"frames": [[5, 9], [1, 2]]} if is_listed else {"start": [5, 19]}
    numbers: list[int] = []

    def note(clip: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
        numbers.append(int(generator.integers(1 << 40)))
        return clip

    functions = [] if num_workers else [note]
    steps: dict[str, Any] = (
        {} if is_listed else {"clip_len": 2, "dilation": (1, 2, 3), "reverse": 0.5}
    )
    pipe = SeqRecordPipe(
        path,
        clips={"episode": ["set/3", "set/0"], **place, "weight": [40, 1]},
        features=["image"],
        batch_size=8,
        clip_transform=[RandomCrop((2, 2)), HorizontalFlip(0.5), *functions],
        **steps,
    )
    loader = DataLoader(pipe, batch_size=None, num_workers=num_workers)
    numbers.clear()
    batches = list(loader)
    drawn = {
        name: [tuple(np.ravel(item)) for batch in batches for item in batch[name].numpy()]
        for name in ("crop", "flipped", *(("dilation", "reversed") if steps else ()))
    }
    assert {name: len({*values}) > 1 for name, values in drawn.items()} == dict.fromkeys(
        drawn, True
    )
    assert num_workers or len({*numbers}) == 41


def test_copies_in_a_mix_and_after_a_resume(path: Path) -> None:
    chosen: dict[str, Any] = {"episode": ["set/3"], "start": [5], "weight": [24]}
    settings: dict[str, Any] = {
        "clips": chosen,
        "clip_len": 2,
        "features": ["image"],
        "clip_transform": RandomCrop((2, 2)),
    }
    mix = SeqRecordMix({"a": SeqRecordIterableDataset(path, **settings)}, batch_size=8)
    assert len({tuple(crop) for batch in mix for crop in batch["crop"].tolist()}) > 1
    whole = [batch["crop"].tolist() for batch in SeqRecordPipe(path, batch_size=8, **settings)]
    first = SeqRecordPipe(path, batch_size=8, **settings)
    iterator = iter(first)
    assert next(iterator)["crop"].tolist() == whole[0]
    state = first.state_dict()
    rest = SeqRecordPipe(path, batch_size=8, **settings)
    rest.load_state_dict(state)
    assert [batch["crop"].tolist() for batch in rest] == whole[1:]
