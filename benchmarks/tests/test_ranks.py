"""The table of the episodes in the batches of several ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import ranks
from benchmarks.ranks import Case, measure, write


def test_episodes_and_decodes_of_a_case(tmp_path: Path) -> None:
    case = Case("", (40,) * 8, "raw", 8, clip_len=2, batch_size=4)
    dataset = write(case, tmp_path / "records")
    alone, together = (measure(case, dataset, number) for number in (1, 4))
    assert alone.decodes == 1
    assert 1 <= together.decodes <= 1.1
    for mixing in (alone, together):
        assert 0.8 <= mixing.first_epoch <= 1.3
        assert 0.8 <= mixing.later_epochs <= 1.3


def test_the_table_has_a_row_for_each_case(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = [Case(name, (20,) * 4, "raw", 8, clip_len=2, batch_size=2) for name in ("one", "two")]
    monkeypatch.setattr(ranks, "CASES", cases)
    ranks.main(["two"])
    head, _, row = capsys.readouterr().out.splitlines()
    assert head.count("decodes") == 3
    assert row.startswith("| two |")
