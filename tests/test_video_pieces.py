"""Long chunks of video in pieces: grids against brute force, and each frame decoded once."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import seqrecord
from seqrecord.clips.grids import ChunkGrid
from seqrecord.clips.tables import EpisodeTable
from seqrecord.codecs.video.decoding import decode_gop
from seqrecord.errors import MemoryLimitError
from seqrecord.pipes.arrays import in_pieces
from seqrecord.pipes.memory import bytes_beside, open_chunk_bytes
from tests.clip_data import effective
from tests.test_memory import BESIDE, check_taken
from tests.test_video_datasets import kept_schema, state
from tests.video_data import HEIGHT, WIDTH, config_of, gops_of, moving

Pixels = npt.NDArray[np.uint8]


@given(
    st.lists(st.lists(st.integers(1, 20), min_size=1, max_size=5), min_size=1, max_size=4),
    st.integers(1, 12),
)
def test_pieces_are_those_of_the_chunks(episodes: list[list[int]], most: int) -> None:
    lengths = np.array([sum(chunks) for chunks in episodes])
    first_chunk = np.cumsum([0, *map(len, episodes[:-1])])
    first_frame = np.concatenate([np.cumsum([0, *chunks[:-1]]) for chunks in episodes])
    whole = ChunkGrid.of(lengths, first_chunk, first_frame)
    grid = whole.in_pieces(lengths, most)
    if max(map(max, episodes)) <= most:
        assert grid.largest.max() <= most
    for number, chunks in enumerate(episodes):
        episode = np.full(lengths[number], number)
        frames = np.arange(lengths[number])
        place = grid.place(episode, frames)
        start, stop = grid.bounds(episode, place)
        stop = np.minimum(stop, lengths[number])
        assert (np.diff(place) >= 0).all()
        assert ((start <= frames) & (frames < stop)).all()
        assert (stop - start <= most).all()
        expected = first_chunk[number] + np.repeat(np.arange(len(chunks)), chunks)
        assert grid.row(episode, place).tolist() == expected.tolist()
        assert grid.take(np.array([number])).row(np.zeros_like(episode), place).tolist() == (
            expected.tolist()
        )
        # No piece has frames of two chunks.
        assert (grid.row(episode, grid.place(episode, start)) == expected).all()
        assert (grid.row(episode, grid.place(episode, stop - 1)) == expected).all()


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Pixels]]:
    """GOPs of 100 frames with B-frames, and of 50, 120 and 37, kept; `state` in a chunk an
    episode."""
    return write_long(tmp_path_factory.mktemp("long") / "records")


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Pixels]]:
    """The same, with `state` in chunks of 7."""
    return write_long(tmp_path_factory.mktemp("beside") / "records", chunk_frames=7)


def write_long(path: Path, **options: Any) -> tuple[Path, dict[str, Pixels]]:
    decoded: dict[str, Pixels] = {}
    with seqrecord.SeqRecordWriter(path, schema=kept_schema(), **options) as writer:
        for key, cuts in {"a": (100, 100, 60), "b": (50, 120, 37), "c": (20,)}.items():
            frames = moving(sum(cuts), seed=len(key))
            edges = np.cumsum((0, *cuts)).tolist()
            gops = [gops_of("h264", frames[a:b], b - a)[0] for a, b in pairwise(edges)]
            decoded[key] = np.concatenate(
                [decode_gop(config_of("h264"), HEIGHT, WIDTH, gop) for gop in gops]
            )
            with writer.episode(key) as episode:
                episode.append_video("image", gops)
                for row in state(len(frames)):
                    episode.append({"state": row})
    return path, decoded


def same(frame: dict[str, Any]) -> dict[str, Any]:
    """A transform that changes nothing."""
    return frame


def upside_down(frame: dict[str, Any]) -> dict[str, Any]:
    return {"small": frame["image"][::-2, ::2], "number": frame["state"][:1] / 3}


def check(path: Path, decoded: dict[str, Pixels], **options: Any) -> dict[str, Any]:
    """Every clip of an epoch is right; the statistics."""
    pipe = seqrecord.SeqRecordPipe(path, batch_size=4, **effective(options))
    length, step = options["clip_len"], options.get("dilation", 1)
    seen = 0
    for batch in pipe:
        for i, (key, start) in enumerate(zip(batch["episode"], batch["start"], strict=True)):
            frames = int(start) + step * np.arange(length)
            if options.get("frame_transform") is upside_down:
                expected = decoded[key][frames][:, ::-2, ::2]
                assert np.array_equal(batch["small"][i].numpy(), expected), (key, start)
                assert batch["number"][i, :, 0].tolist() == frames.tolist(), (key, start)
            else:
                expected = decoded[key][frames]
                assert np.array_equal(batch["image"][i].numpy(), expected), (key, start)
            seen += 1
    assert seen == len(pipe) * 4 - (-pipe.stats()["clips"] % 4)
    return pipe.stats()


def least_limit(path: Path, **options: Any) -> int:
    """The least memory limit that would do, in bytes."""
    with pytest.raises(MemoryLimitError) as caught:
        seqrecord.SeqRecordPipe(path, batch_size=4, memory_limit=1, **effective(options))
    return int(re.findall(r"at least (\d+) bytes", str(caught.value))[0])


def test_chunks_are_read_and_decoded_once(long: tuple[Path, dict[str, Pixels]]) -> None:
    path, decoded = long
    options: dict[str, Any] = {"clip_len": 4, "shuffle": False}
    limit = least_limit(path, **options)
    stats = check(path, decoded, **options, memory_limit=limit)
    assert stats["video_frames_decoded"] == sum(map(len, decoded.values()))
    pages = sum(
        int(group.page_length.sum()) for group in seqrecord.open(path).contents.index.groups
    )
    assert stats["bytes_read"] == pages
    assert stats["resident_bytes"] < 100 * HEIGHT * WIDTH * 3  # a chunk has 120


@pytest.mark.parametrize("dataset", ["long", "beside"])
def test_a_transform_gets_frames_piece_by_piece(
    dataset: str, request: pytest.FixtureRequest
) -> None:
    """Pages are read once for a chunk of video, and none of their frames is decoded twice."""
    path, decoded = request.getfixturevalue(dataset)
    options: dict[str, Any] = {"clip_len": 4, "shuffle": False}
    options |= {"frame_transform": same}
    stats = check(path, decoded, **options, memory_limit=least_limit(path, **options))
    assert (
        stats["video_frames_decoded"] == stats["frames_decoded"] == sum(map(len, decoded.values()))
    )
    assert stats["resident_bytes"] < 100 * HEIGHT * WIDTH * 3  # a chunk has 120
    video, states = seqrecord.open(path).contents.index.groups
    beside = bytes_beside(video, states, states.page_length[:, 0].astype(np.int64))
    assert stats["bytes_read"] == int(video.page_length.sum()) + int(beside.sum())


@pytest.mark.parametrize(
    "options",
    [
        {"clip_len": 16, "num_cursors": 3},
        {"clip_len": 5, "dilation": 9, "num_cursors": 2},
        {"clip_len": 2, "stride": 7, "dilation": 3},
        {"clip_len": 8, "num_cursors": 4, "num_threads": 4},
        {"clip_len": 8, "num_cursors": 2, "device": "cpu"},
    ],
    ids=str,
)
def test_transformed_clips(beside: tuple[Path, dict[str, Pixels]], options: dict[str, Any]) -> None:
    check(*beside, seed=1, frame_transform=upside_down, **options)


def test_a_transform_takes_no_more_memory(beside: tuple[Path, dict[str, Pixels]]) -> None:
    path, decoded = beside
    options: dict[str, Any] = {"clip_len": 4, "num_cursors": 2, "num_threads": 1}
    least = [least_limit(path, **options, frame_transform=made) for made in (None, same)]
    # Each load under way has a frame beside, and what is made of it; a chunk has 120.
    assert least[1] <= 1.05 * least[0]
    options |= {"frame_transform": same, "memory_limit": least[1]}
    check_taken(lambda: check(path, decoded, **options), least[1] + BESIDE)


def test_a_transform_that_raises_leaves_no_chunk_open(
    beside: tuple[Path, dict[str, Pixels]],
) -> None:
    """Its error names the frame, which is not of the first piece."""

    def fails(frame: dict[str, Any]) -> dict[str, Any]:
        if frame["state"][0] == 3 * 61:
            raise ZeroDivisionError
        return frame

    options: dict[str, Any] = {"clip_len": 4, "shuffle": False}
    with pytest.raises(ZeroDivisionError) as caught:
        check(*beside, **options, frame_transform=fails)
    assert "frame 61" in str(getattr(caught.value, "__notes__", caught.value))


@pytest.mark.parametrize(
    "options",
    [
        {"clip_len": 16, "num_cursors": 3},
        {"clip_len": 4, "stride": 4, "num_cursors": 2},
        {"clip_len": 3, "stride": 40, "num_cursors": 2},
        {"clip_len": 5, "dilation": 9, "num_cursors": 2},
        {"clip_len": 2, "stride": 7, "dilation": 3},
        {"clip_len": 8, "num_cursors": 4, "num_threads": 4},
        {"clip_len": 8, "num_cursors": 2, "device": "cpu"},
    ],
    ids=str,
)
def test_clips(long: tuple[Path, dict[str, Pixels]], options: dict[str, Any]) -> None:
    check(*long, seed=1, **options)


def test_loads_go_on_where_the_cursor_was(long: tuple[Path, dict[str, Pixels]]) -> None:
    """Many threads do the loads of two cursors: each waits for the one before."""
    path, decoded = long
    total = sum(map(len, decoded.values()))
    for seed in range(2):
        stats = check(path, decoded, clip_len=4, num_cursors=2, num_threads=8, seed=seed)
        assert total <= stats["video_frames_decoded"] <= total + 2 * 120  # where runs are cut


def test_resume_in_the_middle_of_a_chunk(long: tuple[Path, dict[str, Pixels]]) -> None:
    path, _ = long
    options: dict[str, Any] = {"clip_len": 4, "stride": 3, "batch_size": 4}
    options["engine"] = seqrecord.EngineOptions(num_cursors=2)
    pipe = seqrecord.SeqRecordPipe(path, **options)
    batches = [(b["episode"], b["start"].tolist(), b["image"].sum().item()) for b in pipe]
    pipe = seqrecord.SeqRecordPipe(path, **options)
    iterator = iter(pipe)
    for _ in range(17):
        next(iterator)
    saved = pipe.state_dict()
    del iterator
    resumed = seqrecord.SeqRecordPipe(path, **options)
    resumed.load_state_dict(saved)
    rest = [(b["episode"], b["start"].tolist(), b["image"].sum().item()) for b in resumed]
    assert rest == batches[17:]


def test_memory_is_counted_for_what_stays_open(long: tuple[Path, dict[str, Pixels]]) -> None:
    dataset = seqrecord.open(long[0])
    table = dataset.contents.episode_table
    pieces = in_pieces(table, dataset.features)
    assert isinstance(pieces, EpisodeTable)
    assert table.groups[0].largest.tolist() == [100, 120, 20]
    assert pieces.groups[0].largest.tolist() == [25, 30, 20]
    assert pieces.groups[1].whole is None
    groups = dataset.contents.index.groups
    kept = 30 * open_chunk_bytes(pieces.groups[0], groups[:1], dataset.features)
    assert kept >= int(groups[0].page_length.max()) + 16 * HEIGHT * WIDTH * 3
    assert open_chunk_bytes(table.groups[0], groups[:1], dataset.features) == 0
    states = int(groups[1].page_length.max())
    beside = 30 * open_chunk_bytes(pieces.groups[0], groups, dataset.features)
    assert kept + states <= beside <= kept + states + 64 + 30
