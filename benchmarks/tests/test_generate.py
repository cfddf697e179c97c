"""The generated TartanAir: files, determinism, and flow that follows from depth and pose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import seqrecord
from benchmarks.tartanair.camera import (
    CROSS_OCCLUDED,
    OUT_OF_VIEW,
    SELF_OCCLUDED,
    VALID,
    Intrinsics,
    camera_path,
    flow_mask,
    reproject,
    rotation,
)
from benchmarks.tartanair.generate import MODALITIES, generate
from benchmarks.tartanair.pictures import draw
from benchmarks.tartanair.render import render
from benchmarks.tartanair.scene import RING, Scene
from seqrecord import open_source

HEIGHT, WIDTH, FRAMES = 96, 128, 4
REAL = Path(__file__).parents[3] / "shared" / "data" / "tartanair_v1"
REAL_V1 = REAL / "abandonedfactory" / "Easy" / "P000"


@pytest.fixture(scope="module")
def episode(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    return generate(root, episodes=[FRAMES], height=HEIGHT, width=WIDTH)[0]


def contents(root: Path) -> dict[str, bytes]:
    files = [path for path in root.rglob("*") if path.is_file()]
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def test_files_of_an_episode(episode: Path) -> None:
    assert episode.parts[-3:] == ("abandonedfactory", "Easy", "P000")
    names = {"pose_left.txt"}
    for i in range(FRAMES):
        names.add(f"image_left/{i:06d}_left.png")
        names |= {f"{name}_left/{i:06d}_left_{name}.npy" for name in ("depth", "seg")}
    for i in range(FRAMES - 1):
        names |= {f"flow/{i:06d}_{i + 1:06d}_{name}.npy" for name in ("flow", "mask")}
    assert names == set(contents(episode))
    with Image.open(episode / "image_left" / "000000_left.png") as image:
        assert (image.mode, image.size) == ("RGB", (WIDTH, HEIGHT))
        assert np.asarray(image).std() > 10
    depth = np.load(episode / "depth_left" / "000000_left_depth.npy")
    np.testing.assert_array_equal(depth.astype(np.float16).astype(np.float32), depth)
    assert 1 < np.median(depth) < 25


def test_same_arguments_write_the_same_bytes(episode: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"episodes": [FRAMES], "height": HEIGHT, "width": WIDTH}
    again, other = (generate(tmp_path / f"{i}", **options, seed=i)[0] for i in (0, 2))
    assert contents(again) == contents(episode) != contents(other)
    for name in MODALITIES:
        options = {"episodes": [2], "height": 16, "width": 16, "modalities": [name]}
        folder = generate(tmp_path / name, **options)[0]
        assert len(contents(folder)) == (1 if name in ("flow", "mask", "pose") else 2)


def test_flow_and_mask_match_depth(episode: Path) -> None:
    """Flow is the reprojection; occluded pixels are farther than the next frame's depth."""
    poses = np.loadtxt(episode / "pose_left.txt")
    for i in range(FRAMES - 1):
        flow, mask = (
            np.load(episode / f"flow/{i:06d}_{i + 1:06d}_{name}.npy") for name in ("flow", "mask")
        )
        depth, following = (
            np.load(episode / f"depth_left/{n:06d}_left_depth.npy") for n in (i, i + 1)
        )
        u = np.rint(np.arange(WIDTH) + flow[..., 0].astype(np.float64))
        v = np.rint(np.arange(HEIGHT)[:, None] + flow[..., 1].astype(np.float64))
        outside = (u < 0) | (u >= WIDTH) | (v < 0) | (v >= HEIGHT)
        np.testing.assert_array_equal(mask == OUT_OF_VIEW, outside)
        moved = reproject(depth, poses[i], poses[i + 1], Intrinsics.v1(HEIGHT, WIDTH))
        np.testing.assert_array_equal(flow, moved.flow)
        place = np.clip(v, 0, HEIGHT - 1).astype(int), np.clip(u, 0, WIDTH - 1).astype(int)
        assert (moved.depth > following[place])[mask == CROSS_OCCLUDED].all()
        assert (moved.depth <= following[place] * 1.06)[mask == VALID].all()


def test_flow_equals_reprojection_of_single_points() -> None:
    intrinsics = Intrinsics.v1(HEIGHT, WIDTH)
    poses = camera_path(50, seed=3, radius=RING)
    depth = np.random.default_rng(0).uniform(1, 30, (HEIGHT, WIDTH)).astype(np.float32)
    moved = reproject(depth, poses[0], poses[49], intrinsics)
    for v, u in [(0, 0), (17, 100), (95, 127), (48, 64)]:
        x, y = (u - intrinsics.cx) / intrinsics.fx, (v - intrinsics.cy) / intrinsics.fy
        forward_right_down = float(depth[v, u]) * np.array([1.0, x, y])
        world = rotation(poses[0]) @ forward_right_down + poses[0, :3]
        forward, right, down = rotation(poses[49]).T @ (world - poses[49, :3])
        target = (
            right / forward * intrinsics.fx + intrinsics.cx - u,
            down / forward * intrinsics.fy + intrinsics.cy - v,
        )
        np.testing.assert_allclose(moved.flow[v, u], target, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(moved.depth[v, u], forward, rtol=1e-9)


@pytest.mark.skipif(not REAL_V1.exists(), reason="no original TartanAir V1 files here")
def test_flow_equals_the_official_flow_bit_for_bit() -> None:
    poses = np.loadtxt(REAL_V1 / "pose_left.txt")
    depth, following = (np.load(REAL_V1 / f"depth_left/00000{i}_left_depth.npy") for i in (0, 1))
    moved = reproject(depth, poses[0], poses[1], Intrinsics.v1(480, 640))
    np.testing.assert_array_equal(moved.flow, np.load(REAL_V1 / "flow/000000_000001_flow.npy"))
    official = np.load(REAL_V1 / "flow/000000_000001_mask.npy")
    assert (flow_mask(moved, following) == official).mean() > 0.999


def test_flow_leads_to_the_same_objects() -> None:
    """Segmentation and colour of valid pixels equal those at their targets."""
    intrinsics, scene = Intrinsics.v1(HEIGHT, WIDTH), Scene.from_seed(0)
    start, end = camera_path(200, seed=0, radius=RING)[[100, 112]]
    before, after = (render(scene, pose, intrinsics) for pose in (start, end))
    moved = reproject(before.depth, start, end, intrinsics)
    mask = flow_mask(moved, after.depth)
    codes = {VALID, CROSS_OCCLUDED, SELF_OCCLUDED, OUT_OF_VIEW}
    assert set(np.unique(mask).tolist()) == codes
    row, column = np.nonzero(mask == VALID)
    u = np.rint(column + moved.flow[row, column, 0]).astype(int)
    v = np.rint(row + moved.flow[row, column, 1]).astype(int)
    assert (before.seg[row, column] == after.seg[v, u]).mean() > 0.95
    colours = before.rgb[row, column].astype(int)
    assert np.abs(colours - after.rgb[v, u]).mean() < 0.5 * np.abs(colours - 128).mean()


@pytest.mark.parametrize("seed", [1, 5])
def test_no_box_blocks_the_camera(seed: int) -> None:
    scene = Scene.from_seed(seed)
    for pose in camera_path(900, seed=seed, radius=RING)[::180]:
        assert render(scene, pose, Intrinsics.v1(24, 32)).depth.min() > 0.25


def test_picture_of_the_docs_is_drawn(tmp_path: Path) -> None:
    """From existing records, as rendering is slow."""
    generate(tmp_path / "tree", episodes=[40], height=48, width=64)
    seqrecord.convert(open_source(tmp_path / "tree"), tmp_path / "work" / "records", workers=1)
    path = draw(tmp_path / "work", tmp_path, 40)
    assert path.name == "view.png"
    with Image.open(path) as image:
        assert image.width > 1000
