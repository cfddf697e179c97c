"""The table of the episodes in the batches of several ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import ranks
from benchmarks.ranks import Case, measure, write


@pytest.mark.parametrize(("size", "limits"), [(8, (1.0, 4.0)), (150, (1.1, 1.1))])
def test_episodes_and_decodes_of_a_case(
    size: int, limits: tuple[float, float], tmp_path: Path
) -> None:
    """Each rank permutes all small frames, and so reads most of them."""
    case = Case("", (40,) * 8, "raw", size, clip_len=2, batch_size=4)
    dataset = write(case, tmp_path / "records")
    for number, most in zip((1, 4), limits, strict=True):
        found = measure(case, dataset, number)
        assert 1 <= found.decodes <= most
        for mixing in (found.first, found.later):
            assert mixing.num_steps == -(-8 * 39 // (4 * number))
            assert 0.8 <= mixing.step_episodes.ratio <= 1.3
            assert 0.8 <= mixing.rank_episodes.ratio <= 1.3


def test_the_table_has_a_row_for_each_case(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = [Case(name, (20,) * 4, "raw", 8, clip_len=2, batch_size=2) for name in ("one", "two")]
    monkeypatch.setattr(ranks, "CASES", cases)
    ranks.main(["two"])
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith("| case | ranks | step | rank |")
    assert [row.split(" | ")[:2] for row in rows] == [["| two", str(n)] for n in ranks.RANKS]
    with pytest.raises(SystemExit):
        ranks.main(["two", "--write"])
