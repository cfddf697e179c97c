"""Ratios and speeds of codecs, on generated frames."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.tartanair import codec_table
from benchmarks.tartanair.codec_table import CHAINS, read_frames
from benchmarks.tartanair.generate import generate
from seqrecord.store.codecs.presets import PRESETS


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tartanair")
    generate(folder, env="office", episodes=[2], height=32, width=48, seed=0)
    return folder


def test_every_codec_has_a_row_for_every_feature(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    codec_table.main([str(tmp_path), "--data", str(data), "--runs", "1", "--repeats", "2"])
    rows = json.loads((tmp_path / "codecs.json").read_text())["rows"]
    features = read_frames(data)["V1"]
    assert {*features} == {"image", "depth", "flow", "mask", "seg"}
    for feature, frames in features.items():
        for codec in (*PRESETS, *CHAINS["all"], *CHAINS.get(feature, {})):
            for run in rows[f"V1/{feature}/{codec}"]:
                assert run["bytes"] == np.mean([frame.nbytes for frame in frames])
                assert (run["encoded"] == run["bytes"]) == (codec == "raw")
                assert min(run["encode"], run["decode"]) > 0
    page = capsys.readouterr().out
    assert page == (tmp_path / "CODECS.md").read_text() + "\n"
    for codec in (*PRESETS, *(name for chains in CHAINS.values() for name in chains)):
        assert f"\n| {codec} | " in page


def test_the_first_chain_of_a_feature_is_that_of_balanced(data: Path, tmp_path: Path) -> None:
    """In bytes; the pages compare the others with it."""
    codec_table.main([str(tmp_path), "--data", str(data), "--runs", "1", "--repeats", "1"])
    rows = json.loads((tmp_path / "codecs.json").read_text())["rows"]
    for feature in CHAINS.keys() - {"all"}:
        first = next(iter(CHAINS[feature]))
        encoded = [rows[f"V1/{feature}/{codec}"][0]["encoded"] for codec in (first, "balanced")]
        assert encoded[0] == encoded[1]
