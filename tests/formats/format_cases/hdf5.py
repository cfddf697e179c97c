"""HDF5 files as ALOHA, robomimic and DROID write them, by h5py as they do."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from PIL import Image

from tests.formats.cases import Case, Episodes
from tests.kit import datasets
from tests.kit.bags import jpeg
from tests.kit.video_file_data import decoded, pictures, write_video


def write_aloha(path: Path, seed: int = 0, length: int = 5, *, compress: bool = False) -> None:
    """As record_episodes.py does: JPEGs of OpenCV, which was given RGB, padded to the longest."""
    rng = np.random.default_rng(seed)
    cameras = {name: rng.integers(0, 256, (length, 6, 8, 3), np.uint8) for name in ("high", "low")}
    with h5py.File(path, "w", rdcc_nbytes=1024**2 * 2) as root:
        root.attrs["sim"] = False
        root.attrs["compress"] = compress
        obs = root.create_group("observations")
        images = obs.create_group("images")
        if compress:
            jpegs = {n: [jpeg(image[..., ::-1]) for image in each] for n, each in cameras.items()}
            lengths = np.array([[len(data) for data in each] for each in jpegs.values()])
            for name, each in jpegs.items():
                padded = images.create_dataset(
                    f"cam_{name}", (length, lengths.max()), "uint8", chunks=(1, lengths.max())
                )
                padded[...] = [np.pad(list(j), (0, lengths.max() - len(j))) for j in each]
            root.create_dataset("compress_len", lengths.shape, "<f4")[...] = lengths
        else:
            for name, array in cameras.items():
                images.create_dataset(f"cam_{name}", data=array, chunks=(1, 6, 8, 3))
        for name in ("qpos", "qvel", "effort"):
            obs[name] = rng.normal(size=(length, 14)).astype("<f4")
        root["action"] = rng.normal(size=(length, 14)).astype("<f4")
        root.create_dataset("language_raw", data=["fold the towel"])


def write_robomimic(path: Path, lengths: tuple[int, ...] = (3, 5), images: bool = True) -> None:
    rng = np.random.default_rng(len(lengths))
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["total"] = sum(lengths)
        arguments = {"env_name": "Lift", "type": 1, "env_kwargs": {"control_freq": 20}}
        data.attrs["env_args"] = json.dumps(arguments, indent=4)
        for number, length in enumerate(lengths):
            demo = data.create_group(f"demo_{number}")
            demo.attrs["num_samples"] = length
            demo.attrs["model_file"] = "<mujoco/>" * 1000
            demo.create_dataset("actions", data=rng.normal(size=(length, 7)))
            demo.create_dataset("rewards", data=rng.normal(size=length))
            demo.create_dataset("dones", data=np.arange(length) == length - 1)
            for obs in ("obs", "next_obs"):
                demo.create_dataset(f"{obs}/robot0_eef_pos", data=rng.normal(size=(length, 3)))
                if images:
                    pixels = rng.integers(0, 256, (length, 6, 6, 3), np.uint8)
                    demo.create_dataset(f"{obs}/agentview_image", data=pixels, compression="gzip")
        file.create_dataset("mask/train", data=np.array([b"demo_0"], dtype="S8"))
        file.create_dataset("mask/valid", data=np.array([b"demo_1"], dtype="S8"))


def write_droid(folder: Path, seed: int = 0, length: int = 4, *, metadata: bool = True) -> None:
    """As TrajectoryWriter does: a row is added to each dataset at every step."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    serials = {"wrist": f"1{seed}", "ext1": f"2{seed}", "ext2": f"3{seed}"}
    with h5py.File(folder / "trajectory.h5", "w") as file:

        def write(name: str, value: Any) -> None:
            row = np.asarray(value)
            if name not in file:
                file.create_dataset(name, (1, *row.shape), row.dtype, maxshape=(None, *row.shape))
            else:
                file[name].resize(len(file[name]) + 1, axis=0)
            file[name][-1] = row

        for step in range(length):
            write("action/cartesian_position", rng.normal(size=6))
            write("action/gripper_position", rng.normal())
            write("observation/robot_state/joint_positions", rng.normal(size=7))
            write("observation/timestamp/skip_action", step % 2 == 0)
            for serial in serials.values():
                write(f"observation/camera_extrinsics/{serial}_left", rng.normal(size=6))
                write(f"observation/camera_type/{serial}", 1)
            if step:
                write("observation/controller_info/movement_enabled", True)
        file.attrs["success"] = True
    if metadata:
        labels = {f"{camera}_cam_serial": serial for camera, serial in serials.items()}
        text = json.dumps({**labels, "lab": "AUTOLab", "current_task": "stack", "extra": {"a": 1}})
        (folder / "metadata_AUTOLab+1.json").write_text(text)


def write_video_of_droid(root: Path, episode: str, seed: int, *counts: int) -> list[Path]:
    """DROID with videos of so many frames of its first cameras; returns their paths."""
    write_droid(root / episode, seed)
    folder = root / episode / "recordings" / "MP4"
    folder.mkdir(parents=True)
    return [
        write_video(folder / f"{number}{seed}.mp4", pictures(count, 10 * seed + number))
        for number, count in enumerate(counts, 1)
    ]


def _columns(path: Path, group: str, *names: str) -> dict[str, Any]:
    """Columns of the file, by the names that features have."""
    with h5py.File(path) as file:
        return {name: file[f"{group}/{name.replace('.', '/')}"][()] for name in names}


_ALOHA = [
    *("action", "observations.effort", "observations.images.cam_high"),
    *("observations.images.cam_low", "observations.qpos", "observations.qvel"),
]


def _aloha(folder: Path) -> Episodes:
    found = Episodes()
    for number in range(3):
        path = folder / f"episode_{number}.hdf5"
        write_aloha(path, number, 4 + number, compress=number == 1)
        columns = _columns(path, "", *_ALOHA)
        for name in _ALOHA[2:4] if number == 1 else ():
            images = (Image.open(io.BytesIO(row.tobytes())) for row in columns[name])
            columns[name] = [np.asarray(image) for image in images]
        found[path.stem] = datasets.columns(**columns)
    return found


def _robomimic(folder: Path) -> Episodes:
    path = folder / "demos.hdf5"
    write_robomimic(path)
    names = ("actions", "dones", "obs.agentview_image", "obs.robot0_eef_pos", "rewards")
    return {
        f"demos/demo_{i}": datasets.columns(**_columns(path, f"data/demo_{i}", *names))
        for i in (0, 1)
    }


def _declares_more(path: Path) -> None:
    with h5py.File(path, "a") as file:
        file["data/demo_1"].attrs["num_samples"] = 6


def _droid(folder: Path) -> Episodes:
    found = Episodes()
    for seed, key in ((1, "Fri"), (2, "Sat")):
        videos = write_video_of_droid(folder, key, seed, 4, 4)
        names = [
            *("action.cartesian_position", "action.gripper_position"),
            *("observation.robot_state.joint_positions", "observation.timestamp.skip_action"),
        ]
        path = folder / key / "trajectory.h5"
        columns = _columns(path, "", *names)
        for number, camera in enumerate(("wrist", "ext1", "ext2"), 1):
            for kind, side in (("extrinsics", "_left"), ("type", "")):
                name = f"observation.camera_{kind}"
                [values] = _columns(path, "", f"{name}.{number}{seed}{side}").values()
                columns[f"{name}.{camera}{side}"] = values
        for camera, video in zip(("wrist", "ext1"), videos, strict=True):
            columns[f"observation.image.{camera}"] = decoded(video)[1]
        found[key] = datasets.columns(**columns)
    return found


def _raw(folder: Path) -> Episodes:
    """Images without compression, in chunks and in one piece."""
    rng, found = np.random.default_rng(5), Episodes()
    for name in "ab":
        columns: dict[str, Any] = {
            "action": rng.random((4, 3), np.float32),
            "observations.images.top": rng.integers(0, 256, (4, 48, 64, 3), np.uint8),
            "observations.qpos": rng.random((4, 3), np.float32),
        }
        chunks = {"observations.images.top": (2, 48, 64, 3)} if name == "a" else {}
        with h5py.File(folder / f"{name}.hdf5", "w") as file:
            for each, values in columns.items():
                options = {"chunks": chunks[each]} if each in chunks else {}
                file.create_dataset(each.replace(".", "/"), data=values, **options)
        found[name] = datasets.columns(**columns)
    return found


_H5PY = {"h5py": "h5py"}

CASES = {
    "aloha": Case(
        source="Hdf5Source",
        write=_aloha,
        bad="episode_1",
        file="episode_1.hdf5",
        options={"jpeg_order": "rgb"},
        packages=_H5PY,
        inventory="""
format    hdf5: 3 HDF5 files, 3 episodes of ALOHA
feature   action  float32 [14]  action  from /action
feature   observations.effort  float32 [14]  state  from /observations/effort
feature   observations.images.cam_high  uint8 [6, 8, 3]  image  from /observations/images/cam_high
feature   observations.images.cam_low  uint8 [6, 8, 3]  image  from /observations/images/cam_low
feature   observations.qpos  float32 [14]  state  from /observations/qpos
feature   observations.qvel  float32 [14]  state  from /observations/qvel
left out  compress_len: 1 dataset, lengths of encoded images
""",
    ),
    "robomimic": Case(
        source="Hdf5Source",
        write=_robomimic,
        bad="demos/demo_1",
        file="demos.hdf5",
        damage=_declares_more,
        fps=20,
        packages=_H5PY,
        inventory="""
format    hdf5: 1 HDF5 file, 2 episodes of robomimic
feature   actions  float64 [7]  action  from /data/demo_*/actions
feature   dones  bool []  from /data/demo_*/dones
feature   obs.agentview_image  uint8 [6, 6, 3]  image  from /data/demo_*/obs/agentview_image
feature   obs.robot0_eef_pos  float64 [3]  state  from /data/demo_*/obs/robot0_eef_pos
feature   rewards  float64 []  from /data/demo_*/rewards
left out  data/demo_*/next_obs/*: 4 datasets, observations of the next frame, not selected by features=
""",  # noqa: E501
    ),
    "droid": Case(
        source="Hdf5Source",
        write=_droid,
        bad="Sat",
        file="Sat/trajectory.h5",
        referred=dict.fromkeys(("observation.image.wrist", "observation.image.ext1"), "video"),
        packages=_H5PY,
        inventory="""
format    hdf5: 2 HDF5 files, 2 episodes of DROID
feature   action.cartesian_position  float64 [6]  action  from /action/cartesian_position
feature   action.gripper_position  float64 []  action  from /action/gripper_position
feature   observation.camera_extrinsics.wrist_left  float64 [6]  from /observation/camera_extrinsics/11_left
feature   observation.camera_extrinsics.ext1_left  float64 [6]  from /observation/camera_extrinsics/21_left
feature   observation.camera_extrinsics.ext2_left  float64 [6]  from /observation/camera_extrinsics/31_left
feature   observation.camera_type.wrist  int64 []  from /observation/camera_type/11
feature   observation.camera_type.ext1  int64 []  from /observation/camera_type/21
feature   observation.camera_type.ext2  int64 []  from /observation/camera_type/31
feature   observation.robot_state.joint_positions  float64 [7]  state  from /observation/robot_state/joint_positions
feature   observation.timestamp.skip_action  bool []  from /observation/timestamp/skip_action
feature   observation.image.wrist  uint8 [48, 64, 3]  image  from */recordings/MP4/*.mp4
feature   observation.image.ext1  uint8 [48, 64, 3]  image  from */recordings/MP4/*.mp4
left out  observation/controller_info/movement_enabled: 2 datasets, not one value or text per frame
""",  # noqa: E501
    ),
    "hdf5": Case(
        source="Hdf5Source",
        write=_raw,
        bad="b",
        file="b.hdf5",
        packages=_H5PY,
        inventory="""
format    hdf5: 2 HDF5 files, 2 episodes of ALOHA
feature   action  float32 [3]  action  from /action
feature   observations.images.top  uint8 [48, 64, 3]  image  from /observations/images/top
feature   observations.qpos  float32 [3]  state  from /observations/qpos
""",
    ),
}
