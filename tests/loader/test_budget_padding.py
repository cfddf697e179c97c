"""Padding in batches of a budget: to the longest frame of the batch, in every form of batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from seqrecord import Budget, SeqRecordIterableDataset, SeqRecordMix, SeqRecordPipe
from tests.cuda.side_streams import STREAMS, device_of
from tests.kit.datasets import columns, write_dataset

SIZES = [2, 2, 5, 3, 3, 1, 16, 4, 2, 3, 0, 7]
LENGTHS = {f"e{number}": 12 for number in range(5)}
BUDGET = 16


def size_of(number: int, frame: int) -> int:
    """The tokens of a frame."""
    return SIZES[(frame + 5 * number) % len(SIZES)]


def latent(number: int, frame: int, axis: int = 0) -> np.ndarray[Any, Any]:
    """The latent of a frame, without zeros: [tokens, 3], or [3, tokens]."""
    size = size_of(number, frame)
    values = 1 + 100 * number + frame + np.arange(size * 3, dtype=np.float32).reshape(size, 3)
    return values if axis == 0 else np.ascontiguousarray(values.T)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("padding") / "latents"
    frames = {
        key: columns(
            latent=[latent(number, frame) for frame in range(length)],
            across=[latent(number, frame, 1) for frame in range(length)],
            step=np.arange(length),
            tokens=[np.int64(max(1, size_of(number, frame))) for frame in range(length)],
        )
        for number, (key, length) in enumerate(LENGTHS.items())
    }
    shapes = {"latent": {"shape": (None, 3)}, "across": {"shape": (3, None)}}
    write_dataset(path, frames, features=shapes, chunk_frames=4)
    return path


def with_cost(samples: Any, _epoch: int, _rng: Any) -> Any:
    """The cost of a clip is the tokens of its longest frame."""
    number = np.array([int(key[1:]) for key in samples["episode"]])
    longest = [
        max(1, *(size_of(n, start + i) for i in range(3)))
        for n, start in zip(number.tolist(), samples["start"].tolist(), strict=True)
    ]
    return samples.with_columns(cost=np.array(longest))


def tables(*lengths: int) -> dict[str, Any]:
    """Lists of frames of these lengths in turn."""
    rows = [
        (key, [*range(start, min(start + lengths[start % len(lengths)], length))])
        for key, length in LENGTHS.items()
        for start in range(length)
    ]
    return {"episode": [key for key, _ in rows], "frames": [frames for _, frames in rows]}


def single(samples: Any, _epoch: int, _rng: Any) -> Any:
    return samples.with_columns(cost=samples.feature("tokens"))


def as_numbers(value: Any) -> Any:
    """Tensors of a feature as arrays, in lists too."""
    if isinstance(value, list):
        return [as_numbers(item) for item in value]
    return value.cpu().numpy() if isinstance(value, torch.Tensor) else value


def check_batch(batch: dict[str, Any], *, names: tuple[str, ...] = ("latent", "across")) -> int:
    """All values of frames, and no padding beyond the longest one. Returns its size."""
    episodes = [int(key[1:]) for key in batch["episode"]]
    steps, longest = as_numbers(batch["step"]), 0
    clips = [np.atleast_1d(step).ravel().tolist() for step in steps]
    for number, frames in zip(episodes, clips, strict=True):
        longest = max(longest, *(size_of(number, frame) for frame in frames))
    for name in names:
        values, masks = as_numbers(batch[name]), as_numbers(batch[f"{name}_mask"])
        for number, frames, value, mask in zip(episodes, clips, values, masks, strict=True):
            whole = (longest, 3) if name == "latent" else (3, longest)
            rows, row_masks = value.reshape(-1, *whole), mask.reshape(-1, longest)
            assert len(rows) == len(row_masks) == len(frames)
            for frame, row, row_mask in zip(frames, rows, row_masks, strict=True):
                expected = np.zeros(whole, np.float32)
                size = size_of(number, frame)
                expected[: size if name == "latent" else 3, : 3 if name == "latent" else size] = (
                    latent(number, frame, 0 if name == "latent" else 1)
                )
                np.testing.assert_array_equal(row, expected)
                assert row_mask.tolist() == [place < size for place in range(longest)]
    return longest


OF_FRAMES = {"clip_len": 1, "samples": single, "batch_size": Budget(BUDGET, "cost")}
CASES: dict[str, dict[str, Any]] = {
    "frames": {**OF_FRAMES, "squeeze_time": True},
    "clips": {"clip_len": 3, "samples": with_cost, "batch_size": Budget(BUDGET, "cost")},
    "dict": {**OF_FRAMES, "ragged": {"latent": "pad", "across": "pad"}},
    "numpy": {**OF_FRAMES, "output": "numpy", "squeeze_time": True},
    "in order": {**OF_FRAMES, "shuffle": False},
    "one length": {"clip_len": 2, "batch_size": Budget(BUDGET)},
    "lists": {"samples": tables(1, 4, 2), "batch_size": Budget(9)},
    "lists of one length": {"samples": tables(1), "batch_size": Budget(9)},
    "packed lists": {
        "samples": tables(1, 4, 2),
        "batch_size": Budget(9),
        "ragged": {"latent": "pad", "across": "pad"},
    },
    "drawn lengths": {"clip_len": (1, 4), "batch_size": Budget(8)},
}


@pytest.mark.parametrize("case", CASES)
def test_batches_are_padded_to_their_longest_frame(path: Path, case: str) -> None:
    options: dict[str, Any] = {"ragged": "pad", **CASES[case]}
    longest, num_clips = set[int](), 0
    for batch in SeqRecordPipe(path, **options):
        longest.add(size := check_batch(batch))
        num_clips += len(batch["episode"])
        if "cost" in batch:
            assert size * len(batch["episode"]) <= BUDGET
            assert size in (0, max(batch["cost"].tolist())) or case == "clips"
    assert len(longest) > 1
    assert num_clips >= 40


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("case", ["frames", "packed lists"])
def test_on_a_device(path: Path, case: str, kind: str) -> None:
    options: dict[str, Any] = {"ragged": "pad", **CASES[case]}
    with device_of(kind) as device:
        longest = {check_batch(batch) for batch in SeqRecordPipe(path, device=device, **options)}
    assert len(longest) > 2


@pytest.mark.parametrize("case", ["frames", "numpy", "lists"])
def test_batches_of_workers(path: Path, case: str) -> None:
    options: dict[str, Any] = {"ragged": "pad", **CASES[case]}
    loader = DataLoader(
        SeqRecordIterableDataset(path, **options), None, num_workers=2, collate_fn=dict
    )
    assert len({check_batch(batch) for batch in loader}) > 2


def test_sizes_of_the_caller_and_batches_without_a_budget(path: Path) -> None:
    sizes = {"latent": 20, "across": "pad"}
    for batch in SeqRecordPipe(path, ragged=sizes, **OF_FRAMES):  # type: ignore[arg-type]
        assert batch["latent"].shape[1:] == (1, 20, 3)
        assert batch["latent_mask"].shape[1:] == (1, 20)
        check_batch(batch, names=("across",))
    for batch in SeqRecordPipe(path, clip_len=1, ragged="pad", batch_size=4):
        assert batch["latent"].shape == (4, 1, 16, 3)
        assert batch["across_mask"].shape == (4, 1, 16)


@pytest.mark.parametrize("ragged", ["list", "nested"])
def test_other_forms_have_no_padding(path: Path, ragged: Any) -> None:
    options: dict[str, Any] = {**OF_FRAMES, "features": ["latent", "tokens"], "ragged": ragged}
    for batch in SeqRecordPipe(path, **options):
        assert not [name for name in batch if name.endswith("_mask")]
        if ragged == "nested":
            assert int(batch["latent"].offsets()[-1]) <= BUDGET
        else:
            assert sum(len(frame) for [frame] in batch["latent"]) <= BUDGET


def test_what_functions_of_clips_return(path: Path) -> None:
    """They get rows of one size; what has this size in their results is cut as without them."""

    def made(clip: dict[str, Any], _: np.random.Generator) -> dict[str, Any]:
        assert clip["latent"].shape == (1, 16, 3)
        return {**clip, "across": clip["across"][:, :, :9], "more": clip["latent"] + 1}

    for batch in SeqRecordPipe(path, ragged="pad", clip_transform=made, **OF_FRAMES):  # type: ignore[arg-type]
        check_batch(batch, names=("latent",))
        assert batch["across"].shape[1:] == (1, 3, 9)
        assert batch["across_mask"].shape[1:] == (1, 16)
        assert batch["more"].shape[1:] == (1, 16, 3)


def batches_of_mix(path: Path, **options: Any) -> Iterator[dict[str, Any]]:
    sources = {
        name: SeqRecordPipe(path, clip_len=2, ragged="pad", episodes=episodes)
        for name, episodes in (("a", ["e0", "e1"]), ("b", ["e2", "e3", "e4"]))
    }
    yield from SeqRecordMix(sources, batch_size=Budget(6), **options)


@pytest.mark.parametrize("device", [None, "cpu"])
def test_mixes(path: Path, device: str | None) -> None:
    longest = set[int]()
    for batch in batches_of_mix(path, device=device):
        assert len(batch["episode"]) == 3
        longest.add(check_batch(batch))
    assert len(longest) > 2
