"""`python -m tests.loader.digests` repeats its digests, and finds a difference."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.loader.digests import main


def test_digests_repeat_and_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "digests.jsonl"
    options = ["--count", "3", "--seed", "5"]
    assert main([*options, "--to", str(path)]) == 0
    assert main([*options, "--compare", str(path)]) == 0
    lines = path.read_text("utf-8").splitlines()
    start = lines[1].index('"batches": "') + len('"batches": "')
    lines[1] = f"{lines[1][:start]}x{lines[1][start + 1 :]}"
    path.write_text("\n".join(lines[:2]), "utf-8")
    assert main([*options, "--compare", str(path)]) == 1
    report = capsys.readouterr().out.splitlines()
    assert report[-3].endswith("2 configurations")
    assert report[-2].startswith("1: batches: {")
    assert report[-1].endswith("2 differ")
