"""Draw the picture of the documentation, docs/view.png.

    python -m benchmarks.tartanair.pictures FOLDER

Renders and packs episodes in FOLDER first, unless they exist.
"""

from __future__ import annotations

import sys
from pathlib import Path

import seqrecord
from benchmarks.tartanair.generate import generate
from seqrecord import open_source

__all__ = ["draw"]

DOCS = Path(__file__).parents[2] / "docs"
FRAMES = 200  # of each of three episodes


def draw(folder: Path, docs: Path, frames: int) -> Path:
    """Write the picture to `docs`; returns its path."""
    records = folder / "records"
    if not (records / "manifest.json").exists():
        generate(folder / "tree", episodes=[frames] * 3)
        seqrecord.convert(open_source(folder / "tree"), records)
    picture = docs / "view.png"
    seqrecord.view(records, start=20, max_columns=8).savefig(picture, dpi=90)
    return picture


if __name__ == "__main__":
    print(draw(Path(sys.argv[1]), DOCS, FRAMES))
