"""Scenes: corners of a rendered cube project to their pixels in every layout and convention."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import open_source
from seqrecord.indexing.originals import index_source
from seqrecord.sources import SceneSource, inventory_of
from tests.scene_data import CORNERS, Truth, spot_errors, write_nerfstudio
from tests.source_faults import check_refused

Scenes: dict[str, Callable[[Path], Truth]] = {
    "nerfstudio": write_nerfstudio,
    "nerfstudio, intrinsics per frame": lambda f: write_nerfstudio(f, varies=True),
}

VIEWS: dict[str, dict[str, Any]] = {
    "whole": {"clip_transform": seqrecord.CenterCrop((72, 96))},
    "crop": {"clip_transform": seqrecord.CenterCrop((61, 70))},
    "crop, flip": {
        "clip_transform": [seqrecord.RandomCrop((64, 80)), seqrecord.HorizontalFlip(1.0)]
    },
    "resize": {"clip_transform": seqrecord.Resize((108, 120))},
    "resize as decoded": {"resize": (48, 64)},
    "crop, resize": {"clip_transform": [seqrecord.CenterCrop((60, 80)), seqrecord.Resize(90)]},
}


FAST = {("packed", "crop, flip"), ("packed", "resize as decoded"), ("index", "crop, resize")}


@pytest.mark.parametrize("layout", Scenes)
def test_corners_are_at_their_pixels(tmp_path: Path, layout: str, *, thorough: bool) -> None:
    """Packed and in place, through crops, resizing and flips."""
    found = Scenes[layout](tmp_path / "scene")
    source = open_source(tmp_path / "scene")
    assert isinstance(source, SceneSource)
    seqrecord.convert(source, tmp_path / "packed", workers=1)
    index_source(open_source(tmp_path / "scene"), tmp_path / "index", workers=1)
    for place in ("packed", "index"):
        with seqrecord.open(tmp_path / place) as dataset:
            assert len(dataset.episodes["scene"]) == len(found.poses)
        for name, options in VIEWS.items():
            if not thorough and (place, name) not in FAST:
                continue
            checked = 0
            for at, (image, points) in enumerate(projected(tmp_path / place, options)):
                errors = spot_errors(image, points)
                assert max(errors, default=0) < 0.2, (layout, place, name, at)
                checked += len(errors)
            assert checked >= 2 * len(found.poses), (layout, place, name)


def projected(path: Path, options: dict[str, Any]) -> Any:
    """Images of clips, and where their poses and intrinsics project the corners."""
    kept = [n for n in seqrecord.open(path).features if n in ("image", "pose") or "intrins" in n]
    clips = seqrecord.SeqRecordMapDataset(path, clip_len=1, features=kept, **options)
    for clip in map(clips.__getitem__, range(len(clips))):
        [column] = [name for name in clip if name.endswith("intrinsics")]
        fx, fy, cx, cy = clip[column].reshape(4).tolist()
        to_camera = np.linalg.inv(clip["pose"][0].numpy())
        seen = CORNERS @ to_camera[:3, :3].T + to_camera[:3, 3]
        if "flipped" in clip and bool(clip["flipped"]):
            seen[:, 0] *= -1
        yield clip["image"][0].numpy(), seen[:, :2] / seen[:, 2:] * (fx, fy) + (cx, cy)


def edited(path: Path, **values: Any) -> None:
    """Changes values of the scene, or of the first frame (`frame_NAME`); `None` removes one."""
    whole = json.loads(path.read_text())
    for name, value in values.items():
        at = whole["frames"][0] if name.startswith("frame_") else whole
        at[name.removeprefix("frame_")] = value
        if value is None:
            del at[name.removeprefix("frame_")]
    path.write_text(json.dumps(whole))


def test_the_account_of_a_nerfstudio_scene(tmp_path: Path) -> None:
    write_nerfstudio(tmp_path, depth_scale=4)
    source = open_source(tmp_path, keep_encoded=True)
    [info] = source.episodes()
    camera = info.metadata["camera"]
    assert camera["image"] == camera["mask"]
    assert camera["image"] == {
        "fx": 88,
        "fy": 90,
        "cx": 45.8,
        "cy": 36.7,
        "width": 96,
        "height": 72,
    }
    assert camera["depth"] == {"fx": 22, "fy": 22.5, "cx": 46.3 / 4 - 0.5, "cy": 37.2 / 4 - 0.5,
                               "width": 24, "height": 18}  # fmt: skip
    assert info.metadata["views_without_image"] == 1
    assert [(str(s), s.kind, s.unit) for s in source.schema().values()] == [
        ("image: uint8 [72, 96, 3]", "image", None),
        ("depth: uint16 [18, 24]", "depth", "mm"),
        ("mask: uint8 [72, 96]", "mask", None),
        ("pose: float64 [4, 4]", "pose", "m"),
        ("frame_number: int64 []", "frame_number", None),
    ]
    assert [frame["frame_number"] for frame in source.frames(info)] == [1, 2, 3, 4, 5]
    found = inventory_of(source)
    assert [each.pattern for each in found.left_out] == ["sparse_pc.ply"]
    assert "1 views without image" in found.notes
    assert any("sharpness" in note for note in found.notes)
    assert any("mm, and so m" in note for note in found.notes)
    assert any("order of frames" in note for note in found.notes)


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "aspect": ({"w": 64}, "another aspect ratio"),
    "model": ({"camera_model": "EQUIRECTANGULAR"}, "unsupported camera model"),
    "k4": ({"k4": 0.1}, "unsupported camera model"),
    "outside": ({"frame_file_path": "../a.png"}, "leads out of the scene"),
    "absolute": ({"frame_file_path": "/data/a.png"}, "leads out of the scene"),
    "no pose": ({"frame_transform_matrix": None}, "missing or wrong value"),
    "scaled": ({"frame_transform_matrix": (2 * np.eye(4)).tolist()}, "not a rigid pose"),
    "focal length": ({"fl_x": -3.0}, "invalid camera"),
    "text": ({"fl_x": "wide"}, "missing or wrong value"),
    "twice": ({"frame_file_path": "images/frame_00001.png"}, "listed twice"),
    "contradiction": ({"frame_fl_x": 99.0}, "contradict"),
    "frames": ({"frames": 3}, "missing or wrong value"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_scenes_are_refused(tmp_path: Path, case: str) -> None:
    write_nerfstudio(tmp_path / "a")
    values, match = BROKEN[case]
    write_nerfstudio(tmp_path / "b", 2)
    edited(tmp_path / "b/transforms.json", **values)
    source = open_source(tmp_path)
    check_refused(source, ["b"], match)
