"""Lists as text."""

from __future__ import annotations

from pathlib import Path

import pytest

from seqrecord.errors import SourceError
from seqrecord.sources.text_tables import rows_of, table, timed_values


def test_rows_and_tables(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    path.write_bytes(b"#timestamp [ns],x\r\n\r\n1403636579763555584,0.5\r\n  7 , -1e3 # 2\n")
    rows = rows_of(path, ",")
    assert [number for number, _ in rows] == [3, 4]
    whole = table(path, rows, 1, int)
    assert whole.tolist() == [[1403636579763555584], [7]]
    assert table(path, rows, 2)[1].tolist() == [7, -1000]
    with pytest.raises(SourceError, match=r"a bad row in line 3; .*expected: 3 finite numbers"):
        table(path, rows, 3)
    for bad in (b"1 nan", b"1 x", b"1", b"inf 1"):
        path.write_bytes(bad)
        with pytest.raises(SourceError, match="a bad row in line 1"):
            table(path, rows_of(path), 2)
    path.write_bytes(b"99999999999999999999")
    with pytest.raises(SourceError, match="a number that is too large"):
        table(path, rows_of(path), 1, int)
    path.write_bytes(b"1 \xff")
    with pytest.raises(SourceError, match=r"a list that is not text; .*offset: 2"):
        rows_of(path)
    assert table(path, [], 3).shape == (0, 3)


def test_times_that_go_back(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text("1.0 5\n1.0 6\n2.0 7\n")
    times, values = timed_values(path, 1)
    assert (times.tolist(), values.tolist()) == ([1, 1, 2], [[5], [6], [7]])
    path.write_text("1.0 5\n2.0 6\n1.5 7\n")
    with pytest.raises(SourceError, match=r"timestamps that go back; .*frame: 2; .*got: 1.5"):
        timed_values(path, 1)
