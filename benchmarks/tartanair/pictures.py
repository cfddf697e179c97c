"""Draw the pictures of the documentation: docs/view.png and docs/timeline.png.

    python -m benchmarks.tartanair.pictures FOLDER

Renders and packs episodes in FOLDER first, unless it has done that before.
"""

from __future__ import annotations

from pathlib import Path

import click

import seqrecord
from benchmarks.tartanair.generate import generate
from seqrecord import EngineOptions
from seqrecord.sources import open_source

__all__ = ["draw"]

DOCS = Path(__file__).parents[2] / "docs"
FRAMES = 200  # of each of three episodes
FEATURES = ["image_left", "depth_left", "flow", "mask", "seg_left"]
SHOWN_SECONDS = 0.6


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--docs", type=click.Path(path_type=Path), default=DOCS, help="Where pictures go.")
@click.option("--frames", type=click.IntRange(min=40), default=FRAMES, help="Of an episode.")
def main(folder: Path, docs: Path, frames: int) -> None:
    """Draw the pictures of the documentation from episodes in FOLDER."""
    for path in draw(folder, docs, frames):
        click.echo(path)


def draw(folder: Path, docs: Path, frames: int) -> list[Path]:
    """Write the pictures to `docs`; returns their paths."""
    records, trace = folder / "records", folder / "epoch.json"
    if not (records / "manifest.json").exists():
        generate(folder / "tree", episodes=[frames] * 3)
        seqrecord.convert(open_source(folder / "tree"), records)
    picture = docs / "view.png"
    seqrecord.view(records, start=20, max_columns=8).savefig(picture, dpi=90)

    report = seqrecord.bench(records, features=FEATURES, engine=EngineOptions(trace=trace))
    middle = report.seconds / 2
    timeline = docs / "timeline.png"
    seqrecord.draw_timeline(trace, start=middle, stop=middle + SHOWN_SECONDS).savefig(timeline)
    return [picture, timeline]


if __name__ == "__main__":
    main()
