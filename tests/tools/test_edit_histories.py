"""Random histories of edits and writes, compared with a model; see `test_versions` for examples."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.kit.edit_histories import run_history


@pytest.mark.parametrize("seed", range(3))
def test_random_history(tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        run_history(tmp_path / "records", seed, 6)
    assert "interrupted" not in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 108))
def test_long_random_histories(tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        run_history(tmp_path / "records", seed, 25)
    assert "interrupted" not in caplog.text
