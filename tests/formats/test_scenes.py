"""Scenes: corners of a rendered cube project to their pixels in every layout and convention."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import seqrecord
from seqrecord import open_source
from seqrecord.errors import ClipError, SourceError
from seqrecord.sources import FolderSource, SceneSource, inventory_of, undistorted
from tests.formats.cases import index_source
from tests.formats.format_cases.scenes import (
    CORNERS,
    SIZE,
    Truth,
    co3d_depth,
    iphone_depth,
    pack_depth,
    save,
    spot_errors,
    write_arkitscenes,
    write_co3d,
    write_colmap,
    write_nerfstudio,
    write_realestate10k,
    write_scannet,
    write_scannetpp,
)
from tests.golden.sources import make_colmap
from tests.kit.command_line import run
from tests.kit.datasets import encoded
from tests.kit.lerobot_video_data import unpack
from tests.kit.source_faults import Damage, check_refused, cut, edit, write

Scenes: dict[str, Callable[[Path], Truth]] = {
    "nerfstudio": write_nerfstudio,
    "nerfstudio, intrinsics per frame": lambda f: write_nerfstudio(f, varies=True),
    "colmap": write_colmap,
    "colmap, text, larger cameras": lambda f: write_colmap(f, text=True, scale=2),
    "scannet": write_scannet,
    "scannetpp": write_scannetpp,
    **{f"scannetpp, {n}": partial(write_scannetpp, packed=n) for n in ("lz4", "deflate")},
    "arkitscenes": write_arkitscenes,
    "realestate10k": write_realestate10k,
    "co3d": write_co3d,
}

VIEWS: dict[str, dict[str, Any]] = {
    "whole": {"clip_transform": seqrecord.CenterCrop((72, 96))},
    "crop": {"clip_transform": seqrecord.CenterCrop((61, 70))},
    "crop, flip": {
        "clip_transform": [seqrecord.RandomCrop((64, 80)), seqrecord.HorizontalFlip(1.0)]
    },
    "resize": {"clip_transform": seqrecord.Resize((108, 120))},
    "resize as decoded": {"resize": (48, 64)},
    "crop, resize": {
        "clip_transform": [seqrecord.CenterCrop((60, 80)), seqrecord.Resize((90, 90))]
    },
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
            for episode in dataset.episodes.values():
                assert len(episode) == len(found.poses)
                assert np.isin(["image", "pose"], list(episode.features)).all()
        for name, options in VIEWS.items():
            if not thorough and (place, name) not in FAST:
                continue
            checked = 0
            for at, (image, points) in enumerate(projected(tmp_path / place, options)):
                errors = spot_errors(image, points)
                assert max(errors, default=0) < 0.2, (layout, place, name, at)
                checked += len(errors)
            assert checked >= len(found.poses), (layout, place, name)


def test_corners_of_frames_resized_when_they_are_stored(tmp_path: Path) -> None:
    """Also features of the same camera; resized alone, an image is refused."""
    write_nerfstudio(tmp_path / "scene", varies=True)
    source = open_source(tmp_path / "scene")
    with pytest.raises(ClipError, match="several cameras or sizes"):
        seqrecord.convert(source, tmp_path / "no", resize={"image": (48, 64)})
    sizes = dict.fromkeys(("image", "depth", "mask"), (48, 64))
    seqrecord.convert(source, tmp_path / "packed", resize=sizes, workers=1)
    errors = [spot_errors(*each) for each in projected(tmp_path / "packed", {})]
    assert sum(map(len, errors)) >= 5
    assert max(map(max, filter(None, errors))) < 0.2


def projected(path: Path, options: dict[str, Any]) -> Any:
    """Images of clips, and where their poses and intrinsics project the corners."""
    images = ("image", "pose", "intrinsics", "image_intrinsics")
    kept = [name for name in seqrecord.open(path).features if name in images]
    options = {"camera": seqrecord.Camera(dtype="float64"), **options}
    clips = seqrecord.SeqRecordMapDataset(path, clip_len=1, features=kept, **options)
    for clip in map(clips.__getitem__, range(len(clips))):
        fx, fy, cx, cy = clip["image_K"][0, [0, 1, 0, 1], [0, 1, 2, 2]].tolist()
        for column in [name for name in clip if name.endswith("intrinsics")]:
            np.testing.assert_allclose(clip[column].reshape(4), [fx, fy, cx, cy])
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


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("name", ["images", "masks"])
def test_an_image_of_another_size_than_its_cameras(
    tmp_path: Path, name: str, *, in_place: bool
) -> None:
    """The first image's intrinsics would be wrong for it, where sizes vary between scenes."""
    for number, folder in enumerate("abc"):
        write_nerfstudio(tmp_path / folder, number)
    path = tmp_path / f"b/{name}/frame_00003.png"
    for enlarged in (path, *(tmp_path / "c").glob("*/*.png")):
        with Image.open(enlarged) as image:  # of the camera's aspect ratio
            image.resize((2 * SIZE[1], 2 * SIZE[0]), Image.Resampling.NEAREST).save(enlarged)
    check_refused(
        SceneSource(tmp_path, in_place=in_place),
        ["b"],
        "another size than the first image of its camera",
        file=path,
        expected="height 72, width 96",
    )


IMAGES_OF_ONE_NAME: dict[str, tuple[Callable[..., Any], str, str]] = {
    "scannet": (write_scannet, "b", "color/0.png"),
    "scannet, depth": (write_scannet, "b", "depth/0.png"),
    "scannetpp": (write_scannetpp, "b/iphone", "rgb/frame_000001.png"),
    "arkitscenes": (write_arkitscenes, "b", "lowres_wide/41069021_305.365.png"),
}


@pytest.mark.parametrize("case", IMAGES_OF_ONE_NAME)
def test_two_images_of_one_name(tmp_path: Path, case: str) -> None:
    write, key, file = IMAGES_OF_ONE_NAME[case]
    for number, folder in enumerate("ab"):
        write(tmp_path / folder, number)
    path = tmp_path / key / file
    shutil.copy(path, path.with_suffix(".jpg"))
    names = f"{path.with_suffix('.jpg').name} and {path.name}"
    check_refused(open_source(tmp_path), [key], "the same name", file=path.parent, got=names)


def test_folders_with_names_of_scenes_are_no_scenes(tmp_path: Path) -> None:
    """Their features are read; beside scenes they are listed as unread."""
    for folder in ("a", "b"):
        for name in ("images", "sparse", "color", "pose", "intrinsic"):
            save(tmp_path / folder / name / "0001.png", np.zeros((4, 6, 3), np.uint8))
        (tmp_path / folder / "transforms.json").write_text('{"base": []}')
    source = open_source(tmp_path)
    assert isinstance(source, FolderSource)
    assert "sparse" in source.schema()
    write_colmap(tmp_path / "c")
    source = open_source(tmp_path)
    assert isinstance(source, SceneSource)
    assert [info.key for info in source.episodes()] == ["c"]
    assert sum(each.count for each in inventory_of(source).left_out) == 12


def test_a_scene_of_two_layouts(tmp_path: Path) -> None:
    """The first layout, or the named one; the files of the other one are listed."""
    write_nerfstudio(tmp_path)
    write_colmap(tmp_path)
    for options, dataset, count in (({}, "nerfstudio", 5), ({"layout": "colmap"}, "colmap", 5)):
        source = open_source(tmp_path, **options)  # type: ignore[arg-type]
        [info] = source.episodes()
        assert (info.metadata["dataset"], info.num_frames) == (dataset, count)
        patterns = " ".join(each.pattern for each in inventory_of(source).left_out)
        assert ("sparse/0" in patterns) == (dataset == "nerfstudio")
        assert ("transforms.json" in patterns) == (dataset == "colmap")
    with pytest.raises(SourceError, match=r"unknown layout of scenes; .*got: blender"):
        open_source(tmp_path, layout="blender")


def packed(count: int, form: str, height: int = 192) -> bytes:
    return pack_depth([np.zeros((height, 256), np.uint16)] * count, form)


def _with_quaternion(quaternion: list[float], data: bytes) -> bytes:
    """Replace the quaternion of the first image of a binary model."""
    return data[:12] + struct.pack("<4d", *quaternion) + data[44:]


IMAGES, CAMERAS = "sparse/0/images.bin", "sparse/0/cameras.bin"
CO3D_DEPTH = "apple/0_isot/depths/frame000002.jpg.geometric.png"
DEPTH_BIN = "iphone/depth.bin"
PINCAM = "lowres_wide_intrinsics/41069021_305.465.pincam"
DAMAGED: dict[str, tuple[str, Damage, str, str]] = {  # layout, damage, file of the error, message
    "cut": ("colmap", cut(IMAGES, -9), IMAGES, "truncated"),
    "longer": ("colmap", edit(IMAGES, lambda d: d + b"1"), IMAGES, "truncated"),
    "model": ("colmap", edit(CAMERAS, lambda d: d[:12] + b"\7" + d[13:]), CAMERAS, "camera model"),
    "camera": ("colmap", edit(CAMERAS, lambda d: d[:8] + b"\4" + d[9:]), IMAGES, "camera of an im"),
    "name": ("colmap", edit(IMAGES, lambda d: d.replace(b"IMG_", b"../G")), IMAGES, "leads out"),
    **{
        f"quaternion of {size}": (
            *("colmap", edit(IMAGES, partial(_with_quaternion, [size] * 4))),
            *(IMAGES, "not a rigid pose"),
        )
        for size in (0.0, 1e-161, 1e-200, 1e155, 1e200)
    },
    "pose": ("scannet", write("pose/3.txt", b"1 2 3 4\n" * 4), "pose/3.txt", "rigid"),
    "pincam": ("arkitscenes", edit(PINCAM, lambda d: d + b" 7"), PINCAM, "not a camera"),
    "co3d depth": ("co3d", write(CO3D_DEPTH, encoded(np.zeros(SIZE, "u1"))), CO3D_DEPTH, "not a d"),
    "no pose": (
        "scannetpp",
        edit("iphone/pose_intrinsic_imu.json", lambda d: d.replace(b"aligned_pose", b"aligned", 1)),
        *("iphone/pose_intrinsic_imu.json", "missing or wrong"),
    ),
    **{
        f"depth, {name}": (f"scannetpp, {form}", edit(DEPTH_BIN, change), DEPTH_BIN, match)
        for name, form, change, match in (
            ("cut", "lz4", lambda d: d[:-9], "damaged or truncated depth"),
            ("cut length", "lz4", lambda d: d + b"\1", "damaged or truncated depth"),
            ("length", "deflate", lambda d: b"\xff" * 4 + d[4:], "damaged or truncated depth"),
            ("length 0", "lz4", lambda d: d + bytes(4), "damaged or truncated depth"),
            ("frame", "lz4", lambda d: d[:-9] + bytes(9), "damaged depth"),
            ("more", "lz4", lambda d: d * 2, "another number .*expected: 10; got: 20"),
            ("other size", "lz4", lambda _: packed(10, "lz4", 128), "damaged depth"),
            ("bomb", "deflate", lambda _: packed(10, "deflate", 400), "damaged depth"),
            ("one stream", "lz4", lambda _: packed(10, "stream"), "truncated depth.*toolbox"),
        )
    },
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_scenes_are_refused(tmp_path: Path, case: str) -> None:
    layout, damage, file, match = DAMAGED[case]
    for name in ("a", "b"):
        Scenes[layout](tmp_path / name)
    damage(tmp_path / "b")
    source = open_source(tmp_path)
    bad = next(info.key for info in source.episodes() if info.key.startswith("b"))
    check_refused(source, [bad], match, file=tmp_path / "b" / file)


FACTS: dict[str, tuple[str, dict[str, Any]]] = {
    "scannet": ("scene", {"frames_without_pose": 1, "frames_without_depth": 1}),
    "scannetpp": ("scene/iphone", {"views_without_image": 5}),
    "arkitscenes": ("scene", {"frames_without_pose": 1}),
    "realestate10k": ("scene/0000000000000000", {"views_without_image": 1}),
    "co3d": ("scene/apple/0_isot", {}),
}
UNITS = {"scannet": "m", "scannetpp": "m", "arkitscenes": "m", "realestate10k": None, "co3d": None}


@pytest.mark.parametrize("layout", FACTS)
def test_the_account_of_a_dataset(tmp_path: Path, layout: str) -> None:
    Scenes[layout](tmp_path / "scene")
    source = open_source(tmp_path, keep_encoded=True)
    info, *_ = source.episodes()
    key, expected = FACTS[layout]
    assert info.key == key
    facts = {n: value for n, value in info.metadata.items() if "_without_" in n}
    assert facts == expected
    assert info.metadata["dataset"] == layout
    schema = source.schema()
    assert schema["pose"].unit == UNITS[layout]
    assert ("intrinsics" in schema or "image_intrinsics" in schema) == (layout != "scannet")
    if "depth" in schema:
        assert schema["depth"].unit == (None if layout == "co3d" else "mm")
    frames: list[Any] = list(source.frames(info))
    if layout == "co3d":
        assert (schema["depth"].kind, schema["depth"].dtype.name) == ("depth", "float32")
        for i, frame in enumerate(frames):
            depth = co3d_depth(i).astype(np.float32) * (1.5 + i)
            depth[0, :2] = 0
            np.testing.assert_array_equal(frame["depth"], depth)
        assert any("depth_mask: listed, but" in note for note in inventory_of(source).notes)
    if layout == "arkitscenes":
        times = [int(frame["timestamp"]) for frame in frames]
        assert times == [305_365_000_000 + i * 100_000_000 for i in range(5)]
    if layout == "realestate10k":
        assert int(frames[1]["timestamp"]) == (45979267 + 33367) * 1000
    if layout == "scannet":
        camera: Any = info.metadata["camera"]
        assert [camera[name]["width"] for name in ("image", "depth")] == [96, 48]
        assert ["pose" in frame for frame in frames] == [True, False, True, True, True]


@pytest.mark.parametrize("form", ["lz4", "deflate"])
def test_depth_in_one_file(tmp_path: Path, form: str) -> None:
    """Of each second frame, as uint16 mm; in place it is left out, or refused if it is named."""
    found = write_scannetpp(tmp_path, packed=form)
    source = open_source(tmp_path)
    assert str(source.schema()["depth"]) == "depth: uint16 [192, 256]"
    assert ("whole millimetres" in " ".join(inventory_of(source).notes)) == (form != "lz4")
    [info] = source.episodes()
    for _ in range(2):
        frames: Any = list(source.frames(info))
        for i in range(5):
            np.testing.assert_array_equal(frames[i]["depth"], iphone_depth(found, i + 0.5))
    index_source(source, tmp_path / "index", workers=1)
    assert "depth" not in seqrecord.open(tmp_path / "index").features
    with pytest.raises(SourceError, match=r"large features .*got: depth"):
        index_source(open_source(tmp_path, features=["depth"]), tmp_path / "no", workers=1)


# --- COLMAP ---------------------------------------------------------------------------------------


def colmap_scenes(folder: Path, models: Path) -> dict[str, Any]:
    """Models of pycolmap, with a black image for each listed one; returns pixels of points."""
    expected: dict[str, Any] = json.loads((models / "expected.json").read_text())
    for name in expected["pixels"]:
        for end in ("text", "binary"):
            kind = "fisheye" if "fisheye" in name else "perspective"
            save(folder / f"{kind}_{end}" / "images" / name, np.zeros((*SIZE, 3), np.uint8))
    shutil.copytree(models, folder, dirs_exist_ok=True)
    return expected


def distorted(plane: Any, model: str | None, k: Any) -> Any:
    """OpenCV's formulas for points [N, 2] of the image plane."""
    if model is None or not len(k):
        return plane
    x, y = plane.T
    r2 = x * x + y * y
    if model == "opencv_fisheye":
        r, angle = np.sqrt(r2), np.arctan(np.sqrt(r2))
        series = sum(k[i] * angle ** (2 * i + 2) for i in range(4))
        return plane * (angle * (1 + series) / r)[:, None]
    k1, k2, p1, p2, k3, k4, k5, k6 = [*k, *[0] * 8][:8]
    scale = (1 + k1 * r2 + k2 * r2**2 + k3 * r2**3) / (1 + k4 * r2 + k5 * r2**2 + k6 * r2**3)
    return np.stack(
        [
            x * scale + 2 * p1 * x * y + p2 * (r2 + 2 * x * x),
            y * scale + p1 * (r2 + 2 * y * y) + 2 * p2 * x * y,
        ],
        axis=1,
    )


def pixels_of(frame: dict[str, Any], camera: dict[str, Any], points: Any) -> Any:
    """Pixels of points in the world by a frame's values, or the metadata `camera`."""
    to_camera = np.linalg.inv(frame["pose"])
    seen = points @ to_camera[:3, :3].T + to_camera[:3, 3]
    numbers = frame.get("intrinsics", [camera.get(name) for name in ("fx", "fy", "cx", "cy")])
    coefficients = frame.get("distortion", camera.get("distortion_coefficients", ()))
    model = camera.get("distortion_model")
    plane = distorted(seen[:, :2] / seen[:, 2:], model, coefficients)
    return plane * numbers[:2] + numbers[2:]


@pytest.fixture(params=["golden", "pycolmap"])
def models(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Models of COLMAP: committed, or written by an installed pycolmap."""
    if request.param == "golden":
        return unpack(tmp_path, "colmap")
    pytest.importorskip("pycolmap")
    make_colmap.write(tmp_path / "models")
    return tmp_path / "models"


def test_projections_equal_pycolmaps(models: Path, tmp_path: Path) -> None:
    """All camera models, text and binary, within 1e-3 pixels; COLMAP's first pixel is at 0.5."""
    expected = colmap_scenes(tmp_path / "scenes", models)
    source = open_source(tmp_path / "scenes")
    infos = source.episodes()
    assert [info.key for info in infos] == [
        f"{kind}_{end}" for kind in ("fisheye", "perspective") for end in ("binary", "text")
    ]
    for info in infos:
        camera: Any = info.metadata["camera"]
        for frame in source.frames(info):
            wanted = expected["pixels"][str(frame["frame_name"]) + ".png"]
            found = pixels_of(dict(frame), camera, np.array(expected["points"]))
            np.testing.assert_allclose(found + 0.5, wanted, atol=1e-3)
    assert source.schema()["pose"].unit is None
    left_out = [each.pattern for each in inventory_of(source).left_out]
    assert any("points3D" in pattern for pattern in left_out)


LENSES: dict[str, tuple[str, tuple[float, ...]]] = {
    "opencv": ("OPENCV", (-0.28, 0.09, 0.004, -0.006)),
    "opencv_fisheye": ("OPENCV_FISHEYE", (0.05, -0.02, 0.01, -0.004)),
}


@pytest.mark.parametrize("lens", LENSES)
def test_undistorted_corners_are_at_their_pixels(tmp_path: Path, lens: str) -> None:
    _, numbers = LENSES[lens]
    options: Any = {"text": True, "lens": LENSES[lens]}
    found = write_colmap(
        tmp_path / "scene", **options, distort=lambda plane: distorted(plane, lens, numbers)
    )
    packed = str(tmp_path / "packed")
    run("write", "--src", str(tmp_path / "scene"), "--dst", packed, "--undistort", "--quiet")
    with seqrecord.open(packed) as dataset:
        metadata = dataset.episodes["scene"].metadata
        camera: Any = metadata["undistorted"]
        assert camera["distortion_model"] == lens
        assert metadata["camera"] == {n: v for n, v in camera.items() if "distortion" not in n}
        notes = [note for each in dataset.inventories for note in each.notes]
        assert "image: lens distortion removed" in notes
    checked = 0
    for image, points in projected(Path(packed), VIEWS["crop, flip"]):
        errors = spot_errors(image, points)
        assert max(errors, default=0) < 0.25
        checked += len(errors)
    assert checked >= len(found.poses)
    with pytest.raises(SourceError, match="no camera with a distortion"):
        undistorted(open_source(packed))


def test_undistorting_equals_opencv(tmp_path: Path) -> None:
    """Random images, masks and intrinsics per frame, by OpenCV's own remap; encoded images are
    refused."""
    cv2 = pytest.importorskip("cv2")
    write_nerfstudio(tmp_path, varies=True)
    lens = {"k1": -0.2, "k2": 0.05, "p1": 0.003, "p2": -0.002}
    edited(tmp_path / "transforms.json", **lens)
    with pytest.raises(SourceError, match="cannot be undistorted"):
        undistorted(open_source(tmp_path, keep_encoded=True))
    source = open_source(tmp_path)
    [info] = source.episodes()
    made = undistorted(source)
    [changed] = made.episodes()
    assert "distortion" not in str(changed.metadata.get("camera"))
    for frame, plain in zip(source.frames(info), made.frames(changed), strict=True):
        before: Any = frame
        after: Any = plain
        fx, fy, cx, cy = before["intrinsics"].tolist()
        for name in ("pose", "intrinsics", "frame_number"):
            np.testing.assert_array_equal(before[name], after[name])
        matrix = np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1]])
        maps = cv2.initUndistortRectifyMap(
            matrix, np.array([*lens.values()]), None, matrix, SIZE[::-1], cv2.CV_32FC1
        )
        wanted = cv2.remap(before["image"], *maps, cv2.INTER_LINEAR)
        inner = np.s_[2:-2, 2:-2]
        difference = np.abs(wanted.astype(int) - after["image"])[inner]
        assert difference.max() <= 4  # OpenCV's weights have 5 bits
        depth = cv2.remap(before["depth"], *maps, cv2.INTER_NEAREST)
        np.testing.assert_array_equal(depth[inner], after["depth"][inner])


@pytest.mark.parametrize("varies", [False, True])
def test_masks_beside_smaller_depth_are_undistorted(tmp_path: Path, varies: bool) -> None:
    """They have the image's camera; another size of depth changes nothing for them."""
    frames: dict[str, list[Any]] = {}
    for name, scale in (("equal", 1), ("smaller", 2)):
        write_nerfstudio(tmp_path / name, varies=True, depth_scale=scale)
        lens = {"k1": None, "frame_k1": -0.2} if varies else {"k1": -0.2}
        edited(tmp_path / name / "transforms.json", **lens)
        for number, path in enumerate(sorted((tmp_path / name).glob("masks/*.png"))):
            save(path, 255 * np.random.default_rng(number).integers(0, 2, SIZE, np.uint8))
        source = open_source(tmp_path / name)
        [info] = source.episodes()
        made = undistorted(source)
        frames[name] = list(made.frames(made.episodes()[0]))
        stored: list[Any] = list(source.frames(info))
        changed = [
            (a["mask"] != b["mask"]).any() for a, b in zip(stored, frames[name], strict=True)
        ]
        assert sum(changed) == (1 if varies else 5)
    for equal, smaller in zip(frames["equal"], frames["smaller"], strict=True):
        np.testing.assert_array_equal(smaller["mask"], equal["mask"])
        np.testing.assert_array_equal(smaller["image"], equal["image"])
        np.testing.assert_array_equal(smaller["mask_intrinsics"], equal["intrinsics"])
