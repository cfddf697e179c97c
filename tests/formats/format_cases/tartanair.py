"""TartanAir V1 and V2."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from tests.formats.cases import Case, Episodes
from tests.kit.trees import make_frames, write_v1, write_v2


def _trajectories(folder: Path, *, v2: bool = False) -> Episodes:
    write, found = (write_v2 if v2 else write_v1), Episodes()
    for number, level in enumerate(("Data_easy", "Data_hard") if v2 else ("Easy", "Hard")):
        key, frames = f"house/{level}/P000", make_frames(number, 2 + number, v2=v2)
        write(folder / key, frames)
        found[key] = [dict[str, Any](frame) for frame in frames]
    return found


_SIDES = ("lcam_front", "rcam_front")

CASES = {
    "tartanair": Case(
        source="TartanAirSource",
        write=_trajectories,
        bad="house/Hard/P000",
        file="house/Hard/P000/image_right/000001_right.png",
        kept={"image_left": "png", "image_right": "png"},
        referred=dict.fromkeys(("image_left", "image_right"), "png"),
        inventory="""
format    tartanair: 2 sequences: ENV/Easy/P000/image_left/000000_left.png, or ENV/Data_easy/P000/image_lcam_front/000000_lcam_front.png
feature   image_left  uint8 [6, 8, 3]  image  from image_left/*_left.png
feature   depth_left  float32 [6, 8]  depth, m  from depth_left/*_left_depth.npy
feature   flow  float32 [6, 8, 2]  flow, px  from flow/*_flow.npy
feature   mask  uint8 [6, 8]  mask  from flow/*_mask.npy
feature   seg_left  uint8 [6, 8]  segmentation  from seg_left/*_left_seg.npy
feature   image_right  uint8 [6, 8, 3]  image  from image_right/*_right.png
feature   depth_right  float32 [6, 8]  depth, m  from depth_right/*_right_depth.npy
feature   seg_right  uint8 [6, 8]  segmentation  from seg_right/*_right_seg.npy
feature   pose_left  float64 [7]  pose, m  from pose_left.txt
feature   pose_right  float64 [7]  pose, m  from pose_right.txt
note      TartanAir V1: frame rate not documented; poses in NED (2 of 2 sequences)
""",  # noqa: E501
    ),
    "tartanair 2": Case(
        source="TartanAirSource",
        write=partial(_trajectories, v2=True),
        bad="house/Data_hard/P000",
        file="house/Data_hard/P000/flow_lcam_front/000001_000002_flow.png",
        fps=10,
        kept={f"image_{side}": "png" for side in _SIDES},
        referred={f"{kind}_{side}": "png" for side in _SIDES for kind in ("image", "seg")},
        packages={"imagecodecs": "imagecodecs"},
        inventory="""
format    tartanair: 2 sequences: ENV/Easy/P000/image_left/000000_left.png, or ENV/Data_easy/P000/image_lcam_front/000000_lcam_front.png
feature   image_lcam_front  uint8 [6, 8, 3]  image  from image_lcam_front/*_lcam_front.png
feature   depth_lcam_front  float32 [6, 8]  depth, m  from depth_lcam_front/*_lcam_front_depth.png
feature   seg_lcam_front  uint8 [6, 8]  segmentation  from seg_lcam_front/*_lcam_front_seg.png
feature   flow_lcam_front  float32 [6, 8, 2]  flow, px  from flow_lcam_front/*_flow.png
feature   mask_lcam_front  uint8 [6, 8]  mask  from flow_lcam_front/*_flow.png
feature   image_rcam_front  uint8 [6, 8, 3]  image  from image_rcam_front/*_rcam_front.png
feature   depth_rcam_front  float32 [6, 8]  depth, m  from depth_rcam_front/*_rcam_front_depth.png
feature   seg_rcam_front  uint8 [6, 8]  segmentation  from seg_rcam_front/*_rcam_front_seg.png
feature   flow_rcam_front  float32 [6, 8, 2]  flow, px  from flow_rcam_front/*_flow.png
feature   mask_rcam_front  uint8 [6, 8]  mask  from flow_rcam_front/*_flow.png
feature   pose_lcam_front  float64 [7]  pose, m  from pose_lcam_front.txt
feature   pose_rcam_front  float64 [7]  pose, m  from pose_rcam_front.txt
feature   imu_acc  float64 [10, 3]  imu, m/s^2  from imu/acc.npy
feature   imu_gyro  float64 [10, 3]  imu, rad/s  from imu/gyro.npy
note      TartanAir V2: depth PNGs decoded as bytes of float32, flow PNGs as (value - 32768) / 64 and a mask; 10 frames per second; poses in NED (2 of 2 sequences)
""",  # noqa: E501
    ),
}
