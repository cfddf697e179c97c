"""The table of the use of budgets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import budgets
from benchmarks.budgets import Case, measure, planning_seconds, write

SMALL = Case("small", 8, 2, 9, batches=3)


def test_batches_are_full(tmp_path: Path) -> None:
    table = write(SMALL, tmp_path / "records")
    use = measure(SMALL, tmp_path / "records", table, 4, padded=False)
    assert use.used > 0.8
    assert use.least_batches <= use.batches <= use.least_batches + 3
    assert use.decodes == pytest.approx(1, abs=0.02)
    assert use.buffers <= 1
    planned = budgets.measure_plans(SMALL, tmp_path / "records", table, 4, padded=False)
    of_plan = planned.batches, planned.used, planned.extra, planned.correlation
    assert of_plan == pytest.approx((use.batches, use.used, use.extra, use.correlation))


def test_plans_are_timed(tmp_path: Path) -> None:
    assert planning_seconds(tmp_path / "records", padded=True, rows=100) > 0


def test_rows_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(budgets, "CASES", (SMALL,))
    monkeypatch.setattr(budgets, "BUDGETS", (4,))
    budgets.main(["small"])
    row = r"\| small \| 8 \| 4 longest \| (packed|padded) \| \d+, \d+ \| \d+\.\d% \| "
    assert len(re.findall(row, capsys.readouterr().out)) == 2


def test_trends_of_seeds_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(budgets, "CASES", (SMALL,))
    monkeypatch.setattr(budgets, "BUDGETS", (4, 8))
    budgets.main(["--seeds", "2"])
    spread, chance = r"-?0\.\d{3} ± 0\.\d{3}", r"0\.\d{3}"
    row = rf"\| small \| 8 \| {spread}; {spread} \| {chance}; {chance} \|"
    assert len(re.findall(row, capsys.readouterr().out)) == 1
