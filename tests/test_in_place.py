"""Originals read in place: random ones, changed ones, and those that somebody made to do harm."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import seqrecord
from seqrecord.sources import open_source
from tests.video_file_data import decoded, pictures, write_video


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEQRECORD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_indexes_are_merged(tmp_path: Path) -> None:
    for number, name in enumerate("ab"):
        write_video(tmp_path / f"{name}.mp4", pictures(3, 9 * number))
        source = open_source(tmp_path / f"{name}.mp4")
        seqrecord.convert(source, tmp_path / name, workers=1, reference=True)
    seqrecord.edit.merge_datasets([tmp_path / "a", tmp_path / "b"], tmp_path / "both")
    with seqrecord.open(tmp_path / "both") as dataset:
        for name in "ab":
            frames = dataset.episodes[name][:]["image"]
            assert np.array_equal(frames, decoded(tmp_path / f"{name}.mp4")[1])


def test_a_feature_is_dropped_whose_pages_refer(tmp_path: Path) -> None:
    source = open_source(write_video(tmp_path / "a.mp4", pictures(40)))
    seqrecord.convert(source, tmp_path / "index", workers=1, reference=True)
    seqrecord.edit.drop_features(tmp_path / "index", ["image"])
    seqrecord.edit.rewrite_files(tmp_path / "index", least_dead=0.01)
    with seqrecord.open(tmp_path / "index") as dataset:
        assert len(dataset.episodes["a"][:]["timestamp"]) == 40
    assert seqrecord.summarize(tmp_path / "index").external_bytes == 0
