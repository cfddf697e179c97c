"""The pictures of the documentation can be drawn again."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

import seqrecord
from benchmarks.tartanair.generate import generate
from benchmarks.tartanair.pictures import draw
from seqrecord.sources import open_source


def test_the_pictures_of_the_docs(tmp_path: Path) -> None:
    """From what was packed before: rendering takes long, and has tests of its own."""
    generate(tmp_path / "tree", episodes=[40], height=48, width=64)
    seqrecord.convert(open_source(tmp_path / "tree"), tmp_path / "work" / "records", workers=1)
    paths = draw(tmp_path / "work", tmp_path, 40)
    assert [path.name for path in paths] == ["view.png", "timeline.png"]
    for path in paths:
        with Image.open(path) as image:
            assert image.width > 1000
