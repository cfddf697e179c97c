"""Folders of video files."""

from __future__ import annotations

from pathlib import Path

from tests.formats.cases import Case, Episodes
from tests.kit import datasets
from tests.kit.video_file_data import decoded, pictures, write_video


def _videos(folder: Path) -> Episodes:
    found = Episodes()
    for number, name in enumerate("ab"):
        path = write_video(folder / f"{name}.mp4", pictures(6 - number, 30 * number))
        times, images = decoded(path)
        found[name] = datasets.columns(image=images, timestamp=times)
    return found


CASES = {
    "videos": Case(
        source="VideoSource",
        write=_videos,
        bad="b",
        file="b.mp4",
        fps=30,
        referred={"image": "video"},
        opens=True,
        inventory="""
format    videos: 2 files *.mp4
feature   image  uint8 [48, 64, 3]  image  from *.mp4
feature   timestamp  float64 []  timestamp, s  from *.mp4
""",
    )
}
