"""LeRobot datasets that lerobot wrote, and one with H.264 in the same layout."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.formats.cases import Case, Episodes, cut
from tests.kit.lerobot_data import FEATURES, FPS, ROWS, at, column, episodes, rewrite
from tests.kit.lerobot_video_data import CAMERAS, LENGTHS, unpack
from tests.kit.video_file_data import decoded


def row_frames() -> Episodes:
    """Frames of the datasets with images in tables: lerobot's input."""
    found = Episodes()
    for number, frames in enumerate(episodes()):
        rows = found[f"episode_{number:06d}"] = []
        for i, frame in enumerate(frames):
            row = dict(frame)
            for name, feature in FEATURES.items():
                if feature["shape"] == (1,) and feature["dtype"] != "string":
                    row[name] = frame[name][0]
            rows.append(row | {"timestamp": np.float32(i / FPS)})
    return found


def _rows(folder: Path, version: str) -> Episodes:
    unpack(folder.parent, f"lerobot_{version}").rename(folder)
    return row_frames()


def _videos(folder: Path, version: str) -> Episodes:
    unpack(folder.parent, f"lerobot_video_{version}").rename(folder)
    images = {
        name: np.concatenate(
            [decoded(path)[1] for path in sorted(folder.glob(f"videos/**/{name}/**/*.mp4"))]
        )
        for name in CAMERAS
    }
    found, row = Episodes(), 0
    for number, length in enumerate(LENGTHS):
        frames = found[f"episode_{number:06d}"] = []
        for i in range(length):
            frame: dict[str, Any] = {name: images[name][row + i] for name in CAMERAS}
            frame["observation.state"] = np.array([number, i], np.float32)
            frames.append(frame | {"timestamp": np.float32(i / FPS), "task": "look"})
        row += length
    return found


def _one_time_back(path: Path) -> None:
    rewrite(path, column("timestamp", at(6, 0.0)))


_V21 = "data/chunk-000/episode_000001.parquet"


def _case(version: int, tasks: str, **more: Any) -> Case:
    return Case(
        source="LeRobotSource",
        bad="episode_000001",
        fps=FPS,
        kept={"observation.image": "png"},
        inventory=f"""
format    lerobot: meta/info.json of LeRobot v{version}, 3 episodes
feature   observation.state  float32 [3]  state  from data/*/*.parquet, column observation.state
feature   action  float64 [2]  action  from data/*/*.parquet, column action
feature   observation.image  uint8 [6, 8, 3]  image  from data/*/*.parquet, column observation.image
feature   next.reward  float32 []  from data/*/*.parquet, column next.reward
feature   next.done  bool []  from data/*/*.parquet, column next.done
feature   tactile  int16 [2, 4]  from data/*/*.parquet, column tactile
feature   note  text []  text  from data/*/*.parquet, column note
feature   timestamp  float32 []  timestamp, s  from data/*/*.parquet, column timestamp
feature   task  text []  text  from data/*/*.parquet, column task_index; meta/tasks.{tasks}
left out  features frame_index, episode_index, index: 3 features, follows from the frame's position
""",
        **more,
    )


def _video_case(version: int, tasks: str, place: str, **options: Any) -> Case:
    more = "\nleft out  meta/episodes_stats.jsonl: 1 file, recomputed" if version == 2 else ""
    return Case(
        source="LeRobotSource",
        bad="episode_000001",
        fps=FPS,
        referred=dict.fromkeys(CAMERAS, "video"),
        opens=True,
        inventory=f"""
format    lerobot: meta/info.json of LeRobot v{version}, 3 episodes
feature   observation.images.front  uint8 [32, 48, 3]  image  from {place.format(CAMERAS[0])}
feature   observation.images.wrist  uint8 [32, 48, 3]  image  from {place.format(CAMERAS[1])}
feature   observation.state  float32 [2]  state  from data/*/*.parquet, column observation.state
feature   timestamp  float32 []  timestamp, s  from data/*/*.parquet, column timestamp
feature   task  text []  text  from data/*/*.parquet, column task_index; meta/tasks.{tasks}
left out  frames.npz: 1 file, no reader{more}
left out  features frame_index, episode_index, index: 3 features, follows from the frame's position
""",
        **options,
    )


CASES = {
    "lerobot v2.1": _case(2, "jsonl", write=partial(_rows, version="v21"), file=_V21),
    "lerobot v3.0": _case(
        3, "parquet", write=partial(_rows, version="v3"), file=ROWS, damage=_one_time_back
    ),
    "lerobot v2.1 with video": _video_case(
        2,
        "jsonl",
        "videos/*/{}/*.mp4",
        write=partial(_videos, version="v21"),
        file=f"videos/chunk-000/{CAMERAS[0]}/episode_000001.mp4",
        damage=cut,
    ),
    "lerobot with video": _video_case(
        3,
        "parquet",
        "videos/{}/*/*.mp4",
        write=partial(_videos, version="v3"),
        file=ROWS,
        damage=_one_time_back,
    ),
}
