"""The argument `clips` with lists of frames: clips are those that are listed, whatever else is in
the list, and each frame is decoded once where an episode's fit into memory."""

from __future__ import annotations

import logging
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import seqrecord
from seqrecord import (
    ClipError,
    RandomCrop,
    SeqRecordIterableDataset,
    SeqRecordMapDataset,
    SeqRecordMix,
    SeqRecordPipe,
    StateError,
)
from seqrecord.errors import MemoryLimitError
from tests.clip_data import LENGTHS, expected_frame, leaves_nothing, write_numbered
from tests.resume_contract import check_resume
from tests.web_server import WebFolder

PAIRS = [
    ("set/3", [3, 38]),
    ("set/0", [21, 2]),
    ("set/3", [3, 4]),
    ("set/3", [3, 5]),
    ("set/1", [0, 8]),
    ("set/3", [39, 3]),
    ("set/0", [2, 2]),
    ("set/3", [3, 38]),
]
TABLE: dict[str, list[Any]] = {
    "episode": [key for key, _ in PAIRS],
    "frames": [frames for _, frames in PAIRS],
}
Listed = tuple[str, tuple[int, ...]]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_numbered(tmp_path_factory.mktemp("listed") / "records", codecs="balanced")


@pytest.fixture(scope="module", params=["raw", "balanced", "apart"])
def each(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("listed") / "records"
    if request.param == "apart":
        groups = {"image": 0, "flow": 1, "note": 1, "id": 1}
        return write_numbered(folder, groups=groups, flush_at=[2, 8, 9, 30], chunk_frames=None)
    return write_numbered(folder, codecs=request.param)


def make(path: Path, **settings: Any) -> SeqRecordPipe:
    usual = {"features": ["image", "id", "note"], "batch_size": 3, "clips": TABLE}
    return SeqRecordPipe(settings.pop("location", path), **{**usual, **settings})


def found_in(batch: dict[str, Any], features: tuple[str, ...] = ("image", "id")) -> list[Listed]:
    """The clips of a batch, whose frames are looked at."""
    found = []
    for i, key in enumerate(batch["episode"]):
        frames = batch["frames"][i].tolist()
        found.append((key, tuple(frames)))
        assert batch["start"][i] == min(frames)
        for t, frame in enumerate(frames):
            expected = expected_frame(int(key[4:]), frame)
            for name in features:
                np.testing.assert_array_equal(batch[name][i, t].numpy(), expected[name])
            if "note" in batch:
                np.testing.assert_array_equal(batch["note"][i][t].numpy(), expected["note"])
    return found


def listed(pairs: Any) -> Counter[Listed]:
    return Counter((key, tuple(frames)) for key, frames in pairs)


FORMS: dict[str, Any] = {
    "lists": TABLE,
    "array": {**TABLE, "frames": np.array(TABLE["frames"], np.uint16)},
    "tensor": {**TABLE, "frames": torch.tensor(TABLE["frames"])},
    "arrow": pa.table(TABLE),
    "fixed": pa.table({**TABLE, "frames": pa.array(TABLE["frames"], pa.list_(pa.int32(), 2))}),
}


@pytest.mark.parametrize("form", FORMS)
def test_tables_of_every_kind(path: Path, form: str) -> None:
    assert Counter(c for b in make(path, clips=FORMS[form]) for c in found_in(b)) == listed(PAIRS)


@pytest.mark.parametrize("more", [{}, {"shuffle": False}, {"device": "cpu"}, {"batch_size": 8}])
def test_gives_the_clips_of_the_table(each: Path, more: dict[str, Any]) -> None:
    pipe = make(each, **more)
    for _ in range(2):
        clips = [clip for batch in pipe for clip in found_in(batch)]
        assert Counter(clips) == listed(PAIRS)
        assert pipe.stats()["frames_decoded"] == len({(k, f) for k, fs in PAIRS for f in fs})
    assert (pipe.num_clips, len(pipe)) == (8, -(-8 // (more.get("batch_size") or 3)))


def test_from_a_server_they_are_read_ahead(each: Path) -> None:
    with WebFolder(each) as server:
        for more in ({}, {"frame_transform": dict, "features": ["image", "id"]}):
            pipe = make(Path(), location=server.endpoint, memory_limit="1MiB", **more)
            assert Counter(c for batch in pipe for c in found_in(batch)) == listed(PAIRS)


def test_transforms_get_these_frames(each: Path) -> None:
    pipe = make(each, frame_transform=lambda f: {"image": f["image"], "id": f["id"]})
    assert Counter(c for batch in pipe for c in found_in(batch)) == listed(PAIRS)
    chain = [RandomCrop((4, 5)), lambda clip, rng: {**clip, "drawn": rng.random(1)}]
    drawn: list[dict[Any, Any]] = []
    some = {name: column[1:] for name, column in TABLE.items()}
    for clips in (TABLE, some, TABLE):
        drawn.append({})
        for batch in make(each, clips=clips, clip_transform=chain, features=["image", "id"]):
            for i, key in enumerate(batch["episode"]):
                frames = tuple(batch["frames"][i].tolist())
                top, left, *_ = crop = batch["crop"][i].tolist()
                drawn[-1][key, frames] = (*crop, batch["drawn"][i].item())
                for t, frame in enumerate(frames):
                    whole = expected_frame(int(key[4:]), frame)["image"]
                    window = whole[top : top + 4, left : left + 5]
                    np.testing.assert_array_equal(batch["image"][i, t].numpy(), window)
    assert drawn[0] == drawn[2]
    assert drawn[1] == drawn[0]  # whatever else is in the list
    assert len(set(drawn[0].values())) > 4


def test_by_number_they_have_the_order_of_the_list(each: Path) -> None:
    dataset = SeqRecordMapDataset(each, features=["image", "id", "note"], clips=TABLE)
    assert len(dataset) == 8
    batch = seqrecord.collate(dataset.__getitems__([*range(8), 3]))
    assert found_in(batch) == [(key, tuple(frames)) for key, frames in [*PAIRS, PAIRS[3]]]
    assert dataset[1]["frames"].tolist() == [21, 2]
    assert dataset[1]["start"] == 2


def test_what_lacks_a_feature_is_left_out_and_counted(path: Path) -> None:
    clips = {"episode": ["set/3", "set/0", "set/3"], "frames": [[1, 20], [4, 2], [39, 1]]}
    pipe = make(path, clips=clips, features=["flow", "id"])
    assert [c for b in pipe for c in found_in(b, ("flow", "id"))] == [("set/0", (4, 2))]
    assert pipe.stats()["clips_incomplete"] == 2
    with pytest.raises(ClipError, match="no listed clip"):
        make(path, clips={**clips, "frames": [[1, 20], [22, 2], [39, 1]]}, features=["flow"])
    some = make(path, episodes=["set/3"])
    assert Counter(c for b in some for c in found_in(b)) == listed(
        pair for pair in PAIRS if pair[0] == "set/3"
    )


@pytest.mark.parametrize("memory", [None, "24KiB"])
def test_resumes_anywhere(path: Path, memory: str | None) -> None:
    weight = [2.5, 2.0, 1.5, 1.0, 1.25, 3.0, 1, 0.5]
    settings: dict[str, Any] = {"features": ["image", "id"], "memory_limit": memory}
    check_resume(lambda: make(path, clips={**TABLE, "weight": weight}, seed=1, **settings))


def test_a_state_of_other_lists_is_refused(path: Path) -> None:
    pipe = make(path)
    next(iter(pipe))
    state = pipe.state_dict()
    make(path).load_state_dict(state)
    others = [*TABLE["frames"][:-1], [3, 37]]
    with pytest.raises(StateError, match="other settings: clips"):
        make(path, clips={**TABLE, "frames": others}).load_state_dict(state)
    starts = {"episode": TABLE["episode"], "start": [min(f) for f in TABLE["frames"]]}
    with pytest.raises(StateError):
        make(path, clips=starts, clip_len=2).load_state_dict(state)


def test_parts_workers_and_mixes_share_them(path: Path) -> None:
    parts = [make(path, rank=i, world_size=2, even_batches=False) for i in range(2)]
    found = [c for pipe in parts for batch in pickle.loads(pickle.dumps(pipe)) for c in
             found_in(batch)]  # fmt: skip
    assert Counter(found) == listed(PAIRS)
    with leaves_nothing():
        stream = SeqRecordIterableDataset(path, features=["image", "id"], clips=TABLE, batch_size=2)
        loader = DataLoader(stream, batch_size=None, num_workers=2)
        assert Counter(c for batch in loader for c in found_in(batch)) == listed(PAIRS)
        del stream, loader
    a = SeqRecordIterableDataset(path, features=["image", "id", "flow"], clips=TABLE)
    b = SeqRecordIterableDataset(path, features=["image", "id"], clip_len=2)
    mix = SeqRecordMix({"a": a, "b": b}, batch_size=4, features="intersection")
    for batch in mix:
        for i, name in enumerate(batch["dataset"]):
            frames = batch["frames"][i].tolist() if name == "a" else [batch["start"][i]] * 2
            key = int(batch["episode"][i][4:])
            frames = [frames[0], frames[1] + (name == "b")]
            for t, frame in enumerate(frames):
                assert batch["id"][i, t].tolist() == [key, frame]


def test_goes_on_with_other_ranks(path: Path) -> None:
    weights = [3, 1, 1, 2, 1, 1, 2, 1]
    settings: dict[str, Any] = {"clips": {**TABLE, "weight": weights}, "batch_size": 2, "seed": 3}
    ranks = [make(path, **settings, rank=i, world_size=2) for i in range(2)]
    found, states = [], []
    for pipe in ranks:
        found += found_in(next(iter(pipe)))
        states.append(pipe.state_dict())
    rest = make(path, **settings)
    rest.load_state_dict(states[0])
    found += [clip for batch in rest for clip in found_in(batch)]
    pairs = [pair for pair, weight in zip(PAIRS, weights, strict=True) for _ in range(weight)]
    assert Counter(found) == listed(pairs)


MANY = [(f"set/{e}", [s, s + g]) for e, n in enumerate(LENGTHS) for g in (0, 2, 9, 20)
        for s in range(n - g)]  # fmt: skip


@pytest.mark.parametrize("each", ["apart"], indirect=True)
def test_each_frame_is_decoded_once_or_how_many_more_is_said(
    each: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clips = {"episode": [key for key, _ in MANY], "frames": [frames for _, frames in MANY]}
    more: dict[str, Any] = {"features": ["image", "id"], "clips": clips, "batch_size": 4}
    nbytes = 6 * 8 * 3 + 16
    with caplog.at_level(logging.WARNING, "seqrecord"):
        pipe = make(each, **more)
        found = [c for batch in pipe for c in found_in(batch, ("id",))]
        assert Counter(found) == listed(MANY)
        assert pipe.stats()["frames_decoded"] == sum(LENGTHS)
        pipe = make(each, **more, memory_limit=4 * nbytes * max(LENGTHS))
        assert not [r for r in caplog.records if "decodes" in r.getMessage()]
        found = [c for batch in pipe for c in found_in(batch, ("id",))]
        assert Counter(found) == listed(MANY)
        small = make(each, **more, memory_limit=4 * nbytes * 24)
    (record,) = [r for r in caplog.records if "decodes" in r.getMessage()]
    found = [c for batch in small for c in found_in(batch, ("id",))]
    assert Counter(found) == listed(MANY)
    assert small.stats()["peak_buffer_bytes"] <= 4 * nbytes * 24
    decoded = small.stats()["frames_decoded"]
    assert sum(LENGTHS) < decoded < 2 * sum(LENGTHS)
    share = round(100 * (decoded / sum(LENGTHS) - 1))
    assert f" {share}% of the frames a second time" in record.getMessage()
    with pytest.raises(MemoryLimitError):
        make(each, **more, memory_limit=nbytes)


@pytest.mark.parametrize("ranks", [2, pytest.param(7, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "more", [{}, {"drop_last": True}, {"even_batches": False}, {"shuffle": False}]
)
def test_ranks_cut_episodes_only_where_their_parts_begin(
    path: Path, ranks: int, more: dict[str, Any]
) -> None:
    clips = {"episode": [key for key, _ in MANY], "frames": [frames for _, frames in MANY]}
    settings: dict[str, Any] = {"features": ["id"], "clips": clips, "batch_size": 4, **more}
    found, counts, decoded = Counter[Listed](), [], 0
    for rank in range(ranks):
        pipe = make(path, **settings, rank=rank, world_size=ranks)
        clips_of_rank = [c for batch in pipe for c in found_in(batch, ("id",))]
        found.update(clips_of_rank)
        counts.append(len(clips_of_rank))
        decoded += pipe.stats()["frames_decoded"]
    assert max(counts) - min(counts) <= ("even_batches" in more)
    repeated = found - listed(MANY)
    missing = listed(MANY) - found
    assert sum(repeated.values()) == (0 if "even_batches" in more or "drop_last" in more else
                                      sum(counts) - len(MANY))  # fmt: skip
    assert sum(missing.values()) == (len(MANY) - sum(counts) if "drop_last" in more else 0)
    assert decoded <= sum(LENGTHS) + (ranks - 1) * max(LENGTHS)


@given(st.data())
def test_any_list(each: Path, data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 4))
    clip = st.integers(0, 3).flatmap(
        lambda e: st.tuples(
            st.just(f"set/{e}"),
            st.lists(st.integers(0, LENGTHS[e] - 1), min_size=length, max_size=length),
        )
    )
    pairs = data.draw(st.lists(clip, min_size=1, max_size=60))
    clips = {"episode": [key for key, _ in pairs], "frames": [frames for _, frames in pairs]}
    settings: dict[str, Any] = {
        "clips": clips,
        "features": ["image", "id"],
        "batch_size": data.draw(st.integers(1, 3)),
        "shuffle": data.draw(st.booleans()),
        "memory_limit": data.draw(st.sampled_from([None, 20 << 10])),
        "seed": data.draw(st.integers(0, 99)),
    }
    pipe = make(each, **settings)
    assert Counter(c for batch in pipe for c in found_in(batch)) == listed(pairs)
    frames = len({(key, frame) for key, frames in pairs for frame in frames})
    assert pipe.stats()["frames_decoded"] >= frames


BAD: list[tuple[dict[str, Any], str]] = [
    ({"frames": [[1, 2]], "start": [1]}, "start, beside frames"),
    ({"frames": [1]}, "no lists of frames in column frames"),
    ({"frames": [[0.5, 1.0]]}, "no lists of frames"),
    ({"frames": [[1, 23]]}, "in row 0.*set/0.*0 to 22"),
    ({"frames": [[-1, 2]]}, "in row 0.*set/0.*0 to 22"),
    ({"frames": [[]]}, "no frames, in row 0"),
    ({"frames": [[1, None]]}, "nulls"),
    ({"frames": [None]}, "no lists of frames in column frames"),
    ({"episode": ["set/0"] * 2, "frames": [[1, 2], [1]]}, "different lengths, in row 1"),
    ({"episode": ["set/9"], "frames": [[1, 2]]}, "unknown episode, in row 0"),
    ({"episode": [], "frames": []}, "no rows"),
    ({"frames": np.zeros((1, 0), int)}, "not a table|no frames, in row 0"),
    ({"frames": np.zeros((1, 2, 2), int)}, "not a table"),
]


@pytest.mark.parametrize(("clips", "match"), BAD)
def test_says_what_is_wrong(path: Path, clips: dict[str, Any], match: str) -> None:
    with pytest.raises(ClipError, match=match):
        make(path, clips={"episode": ["set/0"], **clips})


@pytest.mark.parametrize(
    "more", [{"clip_len": 2}, {"windows": {"id": [0]}}, {"pad": "edge"}, {"reverse": 0.5}]
)
def test_what_makes_no_sense_beside_frames(path: Path, more: dict[str, Any]) -> None:
    with pytest.raises(ClipError, match="or the frames of each clip"):
        make(path, **more)
