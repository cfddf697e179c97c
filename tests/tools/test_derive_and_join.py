"""Derived datasets are joined to their source after edits, updates and merges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import seqrecord
from seqrecord import edit
from seqrecord.errors import JoinError
from tests.kit.datasets import columns, noise, write_dataset

LENGTHS = {"a": 14, "b": 3, "c": 9}


def means(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"mean": batch["image"].float().mean((1, 2, 3))}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    frames = {
        key: columns(image=noise(length, 4, 5, 3, seed=length), step=range(length))
        for key, length in LENGTHS.items()
    }
    metadata = {key: {"a": key * 5 * n} for n, key in enumerate(frames)}
    write_dataset(tmp_path / "source", frames, metadata=metadata, chunk_frames=4)
    seqrecord.derive(tmp_path / "source", means, tmp_path / "means", features=["image"])
    return tmp_path / "source"


def check(source: Path, **options: Any) -> None:
    with seqrecord.open(source, join=[source.with_name("means")], **options) as dataset:
        for episode in dataset.episodes.values():
            frames = episode[:]
            expected = frames["image"].astype("f4").mean((1, 2, 3))
            np.testing.assert_allclose(frames["mean"], expected, rtol=1e-5)


def test_edits_and_updates(source: Path) -> None:
    check(source)
    edit.trim_episodes(source, ["a"], slice(3, 12))
    edit.rename_episodes(source, {"b": "c", "c": "x/b"})
    edit.drop_features(source, "step")
    check(source)
    write_dataset(
        source, {"new": columns(image=noise(5, 4, 5, 3, seed=1))}, mode="append", chunk_frames=4
    )
    with pytest.raises(JoinError) as error:
        check(source)
    assert error.value.episode == "new"
    check(source, missing="drop")
    seqrecord.derive(source, means, source.with_name("means"), features=["image"])
    check(source)
    edit.merge_datasets([source], source.with_name("copy"), prefixes=["m/"])
    check(source.with_name("copy"))


def test_values_per_sample(source: Path) -> None:
    seqrecord.derive(
        source,
        lambda batch: {"z": batch["step"].sum(1)},
        source.with_name("sums"),
        features=["step"],
        clip_len=3,
    )
    with pytest.raises(JoinError, match="values per sample"):
        seqrecord.open(source, join=[source.with_name("sums")])
