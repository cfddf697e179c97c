"""Budgets over video, HTTP, joins, crops and workers: the same rows as without a budget."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import seqrecord
from seqrecord import (
    BatchResize,
    Budget,
    CenterCrop,
    HorizontalFlip,
    RandomCrop,
    SeqRecordIterableDataset,
    SeqRecordMapDataset,
    SeqRecordMix,
    SeqRecordPipe,
)
from seqrecord.errors import ClipError
from tests.kit.datasets import columns, noise, write_dataset
from tests.kit.services.web_server import WebFolder
from tests.kit.video_data import moving

EPISODES = {f"e{number}": 24 + 3 * number for number in range(7)}
SIZE = 30
Row = tuple[str, tuple[int, ...]]


def table() -> dict[str, Any]:
    """Lists of 1 to 9 frames that overlap, with a column of tokens."""
    rows = [
        (key, [*range(start, min(start + 1 + (start + number) % 9, length))])
        for number, (key, length) in enumerate(EPISODES.items())
        for start in range(0, length, 3)
    ]
    tokens = [2 + 5 * place % 11 for place in range(len(rows))]
    return {"episode": [e for e, _ in rows], "frames": [f for _, f in rows], "tokens": tokens}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Datasets of the same episodes: video and raw steps, and latents to join."""
    folder = tmp_path_factory.mktemp("budgets")
    frames, latents = {}, {}
    for seed, (key, length) in enumerate(EPISODES.items()):
        image = list(moving(length, seed=seed, size=(32, 48)))
        frames[key] = columns(image=image, step=np.arange(length) + 1000 * seed)
        latents[key] = columns(latent=list(noise(length, 5, dtype="f4", seed=seed)))
    write_dataset(folder / "video", frames, codecs={"image": "h264:gop=8", "step": "raw"})
    write_dataset(folder / "latents", latents, chunk_frames=7, codecs="raw")
    return folder


def rows_of(batch: dict[str, Any], names: list[str]) -> Iterator[tuple[Row, dict[str, Any]]]:
    """The rows of a batch of lists, with their values without padding."""
    for number, flags in enumerate(batch["frames_is_pad"].tolist()):
        length = flags.count(False)
        frames = tuple(batch["frames"][number, :length].tolist())
        yield (
            (batch["episode"][number], frames),
            {name: batch[name][number][:length] for name in names},
        )


def alone(place: Any, names: list[str], **options: Any) -> dict[Row, dict[str, Any]]:
    """The values of all rows, from a loader of single clips."""
    pipe = SeqRecordPipe(place, samples=table(), shuffle=False, **options)
    rows = {}
    for clip in pipe:
        length = int((~clip["frames_is_pad"]).sum())
        key = clip["episode"], tuple(clip["frames"][:length].tolist())
        rows[key] = {name: clip[name][:length] for name in names}
    return rows


def check_rows(batches: Any, expected: dict[Row, dict[str, Any]], names: list[str]) -> Counter[Row]:
    """Check the values of all rows, and the costs of each batch; returns the rows."""
    counts = Counter[Row]()
    for batch in batches:
        total = 0
        for key, values in rows_of(batch, names):
            counts[key] += 1
            total += len(key[1])
            for name, value in values.items():
                assert torch.equal(value, expected[key][name]), (key, name)
        assert total <= SIZE
    return counts


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize(
    "case",
    ["video", "http", "join", "center", "resize", pytest.param("small", marks=pytest.mark.slow)],
)
def test_rows_equal_single_clips(folder: Path, case: str, ranks: int) -> None:
    options: dict[str, Any] = {}
    names, place = ["image", "step"], cast("Any", folder / "video")
    if case == "join":
        names = ["image", "step", "latent"]
        place = seqrecord.open(folder / "video", join=[folder / "latents"])
    elif case == "center":
        options = {"clip_transform": [CenterCrop((16, 24)), HorizontalFlip(1.0)]}
    elif case == "resize":
        options = {"resize": (16, 24)}
    with WebFolder(folder) as server:
        place = f"{server.endpoint}/video" if case == "http" else place
        expected = alone(place, names, **options)
        if case == "small":  # frames of a few rows alone fit
            options = {"memory_limit": "2MiB"}
        for epoch in (0, 2):
            counts, numbers = Counter[Row](), set[int]()
            for rank in range(ranks):
                pipe = SeqRecordPipe(
                    place,
                    samples=table(),
                    batch_size=Budget(SIZE),
                    rank=(rank, ranks),
                    **options,
                )
                pipe.set_epoch(epoch)
                counts += check_rows(pipe, expected, names)
                numbers.add(len(pipe))
            assert counts == Counter([*expected])
            assert len(numbers) == 1


def test_random_crops_keep_rows(folder: Path) -> None:
    """Crops of a size that is drawn per clip place; rows and batches stay within the budget."""
    crops = [RandomCrop((16, 24)), HorizontalFlip(0.5)]
    pipe = SeqRecordPipe(
        folder / "video", samples=table(), batch_size=Budget(SIZE), clip_transform=crops
    )
    expected, counts = alone(folder / "video", ["step"]), Counter[Row]()
    for batch in pipe:
        assert {clip.shape[1:] for clip in batch["image"]} == {(16, 24, 3)}
        counts += check_rows([batch], expected, ["step"])
    assert counts == Counter([*expected])


def test_sizes_drawn_per_batch(folder: Path) -> None:
    """Aspect buckets: all clips of a batch have one of the sizes, and each row comes once."""
    sizes = [(16, 24), (24, 16), (16, 16)]
    drawn, counts = set[tuple[int, ...]](), Counter[Row]()
    pipe = SeqRecordPipe(
        folder / "video",
        samples=table(),
        batch_size=Budget(SIZE),
        clip_transform=BatchResize(sizes),
    )
    expected = alone(folder / "video", ["step"])
    for batch in pipe:
        [shape] = {tuple(clip.shape[1:3]) for clip in batch["image"]}
        drawn.add(shape)
        counts += check_rows([batch], expected, ["step"])
    assert drawn == {*sizes}
    assert counts == Counter([*expected])


@pytest.mark.parametrize("place", ["video", pytest.param("join", marks=pytest.mark.slow)])
def test_each_rank_resumes_from_its_state(folder: Path, place: str) -> None:
    """4 ranks, then 3, then 2, from the state of any rank; each row once."""
    names = ["image", "step"]
    source: Any = folder / "video"
    if place == "join":
        source, names = seqrecord.open(source, join=[folder / "latents"]), [*names, "latent"]
    expected, counts, state = alone(source, names), Counter[Row](), None
    for ranks, number in ((4, 2), (3, 2), (2, None)):
        states = set[str]()
        for rank in range(ranks):
            loader = SeqRecordIterableDataset(
                source, samples=table(), batch_size=Budget(SIZE), rank=(rank, ranks)
            )
            if state is not None:
                loader.load_state_dict(json.loads(state))
            iterator = iter(loader)
            batches = [batch for _, batch in zip(range(number or 1 << 20), iterator, strict=False)]
            counts += check_rows(batches, expected, names)
            states.add(json.dumps(loader.state_dict()))
        [state] = states
    assert counts == Counter([*expected])


@pytest.mark.parametrize("ragged", ["list", "nested", "pad"])
def test_workers_have_each_row_once(folder: Path, ragged: Any) -> None:
    expected = alone(folder / "video", ["image", "step"])
    loader = SeqRecordIterableDataset(
        folder / "video", samples=table(), batch_size=Budget(SIZE), ragged=ragged
    )
    counts = check_rows(DataLoader(loader, None, num_workers=2), expected, ["image", "step"])
    assert counts == Counter([*expected])


def test_mixes_name_the_remedy(folder: Path) -> None:
    source = SeqRecordIterableDataset(folder / "video", samples=table(), ragged="pad")
    with pytest.raises(ClipError, match="a loader for each source with the Budget"):
        SeqRecordMix({"a": source}, batch_size=Budget(SIZE))


def test_map_style_has_no_budget(folder: Path) -> None:
    options: Any = {"batch_size": Budget(SIZE)}
    with pytest.raises(ClipError, match="which stream epochs; got: batch_size"):
        SeqRecordMapDataset(folder / "video", samples=table(), **options)
