"""Figures and comparisons in README.md and docs follow the committed measurements."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import prose
from benchmarks.prose import BLOCKS, Block, replaced
from benchmarks.timing import ROOT


@pytest.mark.page
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{block.file}-{block.name}")
def test_pages_say_what_was_measured(block: Block) -> None:
    """After a change: `python -m benchmarks.prose`."""
    text = (ROOT / block.file).read_text()
    assert text == replaced(text, block.name, block.text())


@pytest.mark.page
def test_readme_begins_with_the_overlap() -> None:
    text = (ROOT / "README.md").read_text().partition("<!-- measured -->\n")[2]
    overlap, later = text.index("**Overlapping clips**"), text.index("**Later epochs**")
    assert overlap < text.index("`by-hand`") < later < text.index("NumPy memmaps")


def test_comparisons_follow_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def runs_of(rates: tuple[float, ...], **more: float) -> list[dict[str, Any]]:
        figures = {"steps": 40, "waiting": 0.1, "slower": 1.2, "bytes_per_sample": 10.0}
        return [figures | {"steps_per_second": rate, **more} for rate in rates]

    rows = {
        "act/8 ms/webdataset/warm": runs_of((30.0, 31.0), bytes_per_sample=50.0),
        "act/8 ms/seqrecord/warm": runs_of((36.0, 37.0)),
        "act/8 ms/webdataset/s3": runs_of((26.0, 40.0)),
        "act/8 ms/seqrecord/s3": runs_of((37.0, 38.0)),
        "act/8 ms/seqrecord, resident/warm": runs_of((90.0, 91.0), slower=1.04),
        "act/8 ms/seqrecord, one worker/warm": runs_of((73.0, 73.0)),
    }
    monkeypatch.setattr(prose, "_read", lambda _file: {"commit": "abc", "rows": rows})
    text = prose.trainings_block()
    assert (
        "5 times the bytes, is slower from disk (30.5 against 36.5 steps/s), and not clearly "
        "slower or faster from the emulator of S3 (33.0 against 37.5 steps/s)" in text
    )
    assert "1.04 to 1.04 times as long as alone" in text
    assert "it gives 2.00 to 2.00 times the steps/s" in text
    rows["act/8 ms/webdataset/warm"] = runs_of((50.0, 51.0))
    assert "is faster from disk (50.5 against 36.5 steps/s)" in prose.trainings_block()


@pytest.mark.page
def test_overlap_follows_the_best_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ours with either codec; a loader that was not measured is not another one's sentence."""
    read = prose._read

    def changed(file: str) -> dict[str, Any]:
        document = read(file)
        if file != "tartanair/RESULTS.md":
            return document
        rows = document["tartanair"]["rows"]
        rows = {title: runs for title, runs in rows.items() if not title.startswith("ffcv")}
        for title, runs in rows.items():
            for run in runs:
                if title.startswith("seqrecord shuffle=buffer") and "settings" in run:
                    run["settings"]["workers"] += 1
        document["tartanair"]["rows"] = rows
        return document

    plain = prose.measured_block()
    monkeypatch.setattr(prose, "_read", changed)
    text = prose.measured_block()
    lines = {line.split(" | ")[0]: line for line in text.splitlines()}
    assert lines["| `ffcv`"] == "| `ffcv` |  | not measured |  |"
    balanced = "| **`seqrecord`**, codec `balanced`"
    assert lines[balanced] in plain
    assert lines[balanced] != f"{balanced} |  | not measured |  |"


def test_marks_must_exist() -> None:
    text = "a\n<!-- x -->\nold\n<!-- end of x -->\nb\n"
    assert replaced(text, "x", "new\n") == "a\n<!-- x -->\nnew\n<!-- end of x -->\nb\n"
    with pytest.raises(ValueError, match="no marks of y"):
        replaced(text, "y", "new\n")
