"""MCAP files and rosbag2 folders."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.formats.cases import Case, Episodes, Frames
from tests.kit.bags import image, imu, joints, write_bag, write_mcap

START = 1_790_000_000_000_000_000
MS = 1_000_000
CAMERA = "/camera/image_raw"


def pictures(count: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (count, 6, 8, 3), np.uint8)


def recording(count: int = 5, seed: int = 0) -> list[tuple[str, int, Any]]:
    """A camera at 10 Hz, an IMU at 100 Hz with a delay of 20 ms, and joints at 4 Hz."""
    first = 1000 * seed
    messages: list[tuple[str, int, Any]] = [
        (CAMERA, START + 100 * MS * i, image(picture, "rgb8"))
        for i, picture in enumerate(pictures(count, seed))
    ]
    messages += [
        (
            "/imu/data",
            START + 20 * MS + 10 * MS * i,
            imu([*range(first + 10 * i, first + 10 * i + 10)]),
        )
        for i in range(10 * count)
    ]
    messages += [
        (
            "/joint_states",
            START + 250 * MS * i,
            joints(["a", "b"], [first + i, i + 0.5], [7.0, 8.0]),
        )
        for i in range(2 * count // 5 + 1)
    ]
    return sorted(messages, key=lambda each: each[1])


def recorded_frames(count: int = 5, seed: int = 0) -> Frames:
    """Frames of `recording` at the camera's times, with the nearest message of each topic."""
    frames: Frames = []
    for i, picture in enumerate(pictures(count, seed)):
        joint = min(round(100 * i / 250), 2 * count // 5)
        values = np.arange(10.0) + 1000 * seed + 10 * max(0, 10 * i - 2)  # delayed by 20 ms
        frames.append(
            {
                "camera.image_raw": picture,
                "imu.data.orientation": values[:4],
                "imu.data.angular_velocity": values[4:7],
                "imu.data.linear_acceleration": values[7:],
                "joint_states.position": np.array([1000 * seed + joint, joint + 0.5]),
                "joint_states.effort": np.array([7.0, 8.0]),
                "log_time": np.int64(START + 100 * MS * i),
            }
        )
    return frames


def _files(folder: Path) -> Episodes:
    for number, name in enumerate("abc"):
        write_mcap(folder / f"{name}.mcap", recording(3 + number, number))
    return {name: recorded_frames(3 + number, number) for number, name in enumerate("abc")}


def _sqlite(folder: Path) -> Episodes:
    for number in range(3):
        write_bag(folder / f"run_{number}", recording(3 + number, number), sqlite=True)
    return {f"run_{number}": recorded_frames(3 + number, number) for number in range(3)}


def _inventory(kind: str) -> str:
    return f"""
format    mcap: 3 {kind} of messages
feature   camera.image_raw  uint8 [6, 8, 3]  image  from /camera/image_raw
feature   imu.data.orientation  float64 [4]  imu  from /imu/data orientation
feature   imu.data.angular_velocity  float64 [3]  imu, rad/s  from /imu/data angular_velocity
feature   imu.data.linear_acceleration  float64 [3]  imu, m/s^2  from /imu/data linear_acceleration
feature   joint_states.position  float64 [2]  state  from /joint_states position
feature   joint_states.effort  float64 [2]  state  from /joint_states effort
feature   log_time  int64 []  timestamp, ns  from /camera/image_raw: log time
note      108 of 120 messages of /imu/data dropped: in no frame
note      times are log times; --source-option time=header uses header stamps
note      /imu/data: covariances are not packed
"""


_case = partial(Case, source="McapSource", options={"clock": CAMERA}, fps=10)

CASES = {
    "mcap": _case(
        write=_files,
        bad="b",
        file="b.mcap",
        inventory=_inventory("files"),
        packages={"mcap": "mcap"},
    ),
    "rosbag2 of sqlite": _case(
        write=_sqlite,
        bad="run_1",
        file="run_1/run_1.db3",
        inventory=_inventory("rosbag2 folders"),
    ),
}
