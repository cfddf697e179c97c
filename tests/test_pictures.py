"""The pictures of the documentation can be drawn again."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from benchmarks.tartanair.pictures import draw


@pytest.mark.slow
def test_the_pictures_of_the_docs(tmp_path: Path) -> None:
    paths = draw(tmp_path / "work", tmp_path, 40)
    assert [path.name for path in paths] == ["view.png", "timeline.png"]
    for path in paths:
        with Image.open(path) as image:
            assert image.width > 1000
    before = paths[0].read_bytes()
    assert draw(tmp_path / "work", tmp_path, 40) == paths  # from what was packed before
    assert paths[0].read_bytes() == before
