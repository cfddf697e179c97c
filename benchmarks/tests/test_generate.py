"""The generated TartanAir: file layout, determinism, and flow that follows from depth and pose."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from click.testing import CliRunner
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
    right_camera,
    rotation,
)
from benchmarks.tartanair.generate import generate, main
from benchmarks.tartanair.geometry import SKY
from benchmarks.tartanair.layouts import CAMERAS, MODALITIES
from benchmarks.tartanair.pictures import draw
from benchmarks.tartanair.png import decode_png16, encode_png
from benchmarks.tartanair.render import render
from benchmarks.tartanair.scene import RING, Scene
from seqrecord import open_source

HEIGHT, WIDTH, FRAMES = 96, 128, 4
REAL = Path(__file__).parents[3] / "shared" / "data"
REAL_V1 = REAL / "tartanair_v1" / "abandonedfactory" / "Easy" / "P000"
REAL_V2 = REAL / "tartanair_v2" / "AbandonedSchool" / "Data_easy" / "P000"


@pytest.fixture(scope="module")
def v1(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("v1")
    return generate(root, episodes=[FRAMES], height=HEIGHT, width=WIDTH, cameras=CAMERAS)[0]


@pytest.fixture(scope="module")
def v2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("v2")
    return generate(root, episodes=[FRAMES], height=128, width=WIDTH, cameras=CAMERAS, layout="v2")[
        0
    ]


def contents(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


def v2_depth(path: Path) -> npt.NDArray[np.float32]:
    with Image.open(path) as image:
        assert image.mode == "RGBA"
        rgba = np.asarray(image)
    depth: npt.NDArray[np.float32] = np.ascontiguousarray(rgba[..., [2, 1, 0, 3]]).view("<f4")
    return depth[..., 0]


class TestLayoutV1:
    def test_exactly_the_real_names(self, v1: Path) -> None:
        assert v1.parts[-3:] == ("abandonedfactory", "Easy", "P000")
        names = {"pose_left.txt", "pose_right.txt"}
        for camera in CAMERAS:
            for frame in range(FRAMES):
                names.add(f"image_{camera}/{frame:06d}_{camera}.png")
                names.add(f"depth_{camera}/{frame:06d}_{camera}_depth.npy")
                names.add(f"seg_{camera}/{frame:06d}_{camera}_seg.npy")
        for frame in range(FRAMES - 1):
            names.add(f"flow/{frame:06d}_{frame + 1:06d}_flow.npy")
            names.add(f"flow/{frame:06d}_{frame + 1:06d}_mask.npy")
        assert names == set(contents(v1))

    @pytest.mark.parametrize(
        ("pattern", "dtype", "shape"),
        [
            ("depth_*/*.npy", "<f4", (HEIGHT, WIDTH)),
            ("seg_*/*.npy", "|u1", (HEIGHT, WIDTH)),
            ("flow/*_flow.npy", "<f4", (HEIGHT, WIDTH, 2)),
            ("flow/*_mask.npy", "|u1", (HEIGHT, WIDTH)),
        ],
    )
    def test_dtypes_and_shapes(
        self, v1: Path, pattern: str, dtype: str, shape: tuple[int, ...]
    ) -> None:
        paths = list(v1.glob(pattern))
        assert paths
        for path in paths:
            array = np.load(path)
            assert (dtype, shape) == (array.dtype.str, array.shape)

    def test_images(self, v1: Path) -> None:
        for path in v1.glob("image_*/*.png"):
            with Image.open(path) as image:
                assert image.mode == "RGB"
                assert image.size == (WIDTH, HEIGHT)
                assert np.asarray(image).std() > 10
            assert path.stat().st_size > HEIGHT * WIDTH * 3  # stored, as the real ones are

    def test_depth_is_metres_in_half_precision(self, v1: Path) -> None:
        for path in v1.glob("depth_*/*.npy"):
            depth = np.load(path)
            np.testing.assert_array_equal(depth.astype(np.float16).astype(np.float32), depth)
            assert depth.min() > 0.3
            assert 1 < np.median(depth) < 25

    def test_poses_are_unit_and_left_and_right_are_a_baseline_apart(self, v1: Path) -> None:
        left, right = (np.loadtxt(v1 / f"pose_{camera}.txt") for camera in CAMERAS)
        assert left.shape == right.shape == (FRAMES, 7)
        np.testing.assert_allclose(np.linalg.norm(left[:, 3:], axis=1), 1, atol=1e-6)
        for one, other in zip(left, right, strict=True):
            step = rotation(one).T @ (other[:3] - one[:3])
            np.testing.assert_allclose(step, [0, 0.25, 0], atol=1e-6)

    def test_stereo_depth_and_colour_agree(self, v1: Path) -> None:
        """What the left camera sees is where depth and baseline say in the right image."""
        intrinsics = Intrinsics.v1(HEIGHT, WIDTH)
        left, right = (np.load(v1 / f"depth_{c}/000000_{c}_depth.npy") for c in CAMERAS)
        column = np.rint(np.arange(WIDTH) - 0.25 * intrinsics.fx / left).astype(int)
        row = np.broadcast_to(np.arange(HEIGHT)[:, None], left.shape)
        inside = column >= 0
        close = np.abs(right[row[inside], column[inside]] / left[inside] - 1) < 0.05
        assert close.mean() > 0.9


class TestLayoutV2:
    def test_exactly_the_real_names(self, v2: Path) -> None:
        assert v2.parts[-3:] == ("abandonedfactory", "Data_easy", "P000")
        names = {"pose_lcam_front.txt", "pose_rcam_front.txt"}
        for camera in ("lcam_front", "rcam_front"):
            for frame in range(FRAMES):
                names.add(f"image_{camera}/{frame:06d}_{camera}.png")
                names.add(f"depth_{camera}/{frame:06d}_{camera}_depth.png")
                names.add(f"seg_{camera}/{frame:06d}_{camera}_seg.png")
        for frame in range(FRAMES - 1):
            names.add(f"flow_lcam_front/{frame:06d}_{frame + 1:06d}_flow.png")
        assert names == set(contents(v2))

    def test_images_and_segmentation(self, v2: Path) -> None:
        for folder, mode in (("image_lcam_front", "RGB"), ("seg_lcam_front", "L")):
            for path in (v2 / folder).iterdir():
                with Image.open(path) as image:
                    assert image.mode == mode
                    assert image.size == (WIDTH, 128)

    def test_flow_is_the_reprojection_in_steps_of_a_64th(self, v2: Path) -> None:
        poses = np.loadtxt(v2 / "pose_lcam_front.txt")
        for frame in range(FRAMES - 1):
            stem = v2 / "flow_lcam_front" / f"{frame:06d}_{frame + 1:06d}_flow.png"
            red, green, blue = np.moveaxis(decode_png16(stem.read_bytes()).astype(np.int64), 2, 0)
            depth, following = (
                v2_depth(v2 / "depth_lcam_front" / f"{n:06d}_lcam_front_depth.png")
                for n in (frame, frame + 1)
            )
            expected = reproject(depth, poses[frame], poses[frame + 1], Intrinsics.v2(128, WIDTH))
            np.testing.assert_array_equal(blue - 32768, np.rint(expected.flow[..., 0] * 64))
            np.testing.assert_array_equal(green - 32768, np.rint(expected.flow[..., 1] * 64))
            np.testing.assert_array_equal(red, flow_mask(expected, following))


class TestFlow:
    def test_agrees_with_points_moved_one_by_one(self) -> None:
        intrinsics = Intrinsics.v1(HEIGHT, WIDTH)
        poses = camera_path(50, seed=3, radius=RING, difficulty="Hard")
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

    def test_no_motion_is_no_flow(self) -> None:
        pose = camera_path(1, seed=0, radius=RING)[0]
        depth = np.full((HEIGHT, WIDTH), 4, np.float32)
        moved = reproject(depth, pose, pose, Intrinsics.v1(HEIGHT, WIDTH))
        np.testing.assert_allclose(moved.flow, 0, atol=1e-10)
        np.testing.assert_array_equal(flow_mask(moved, depth), VALID)

    def test_next_frame_shows_the_same_things_there(self) -> None:
        """Segmentation and colour at the target are those of the pixel, where it is valid."""
        intrinsics = Intrinsics.v1(HEIGHT, WIDTH)
        scene = Scene.from_seed(0)
        start, end = camera_path(9, seed=0, radius=RING)[[0, 8]]
        before, after = (render(scene, pose, intrinsics) for pose in (start, end))
        moved = reproject(before.depth, start, end, intrinsics)
        valid = flow_mask(moved, after.depth) == VALID
        row, column = np.nonzero(valid)
        u = np.rint(column + moved.flow[valid][:, 0]).astype(int)
        v = np.rint(row + moved.flow[valid][:, 1]).astype(int)
        assert (before.seg[valid] == after.seg[v, u]).mean() > 0.97
        difference = np.abs(before.rgb[valid].astype(int) - after.rgb[v, u])
        assert difference.mean() < 0.5 * np.abs(before.rgb[valid].astype(int) - 128).mean()

    @pytest.mark.skipif(not REAL_V1.exists(), reason="no original TartanAir V1 files here")
    def test_gives_the_official_v1_flow_bit_for_bit(self) -> None:
        poses = np.loadtxt(REAL_V1 / "pose_left.txt")
        depth, following = (
            np.load(REAL_V1 / f"depth_left/00000{frame}_left_depth.npy") for frame in (0, 1)
        )
        moved = reproject(depth, poses[0], poses[1], Intrinsics.v1(480, 640))
        np.testing.assert_array_equal(moved.flow, np.load(REAL_V1 / "flow/000000_000001_flow.npy"))
        mask = flow_mask(moved, following)
        official = np.load(REAL_V1 / "flow/000000_000001_mask.npy")
        np.testing.assert_array_equal(mask == OUT_OF_VIEW, official == OUT_OF_VIEW)
        assert (mask == official).mean() > 0.999

    @pytest.mark.skipif(not REAL_V2.exists(), reason="no original TartanAir V2 files here")
    def test_gives_the_official_v2_flow_to_a_step(self) -> None:
        poses = np.loadtxt(REAL_V2 / "pose_lcam_front.txt")
        for frame in (0, 1):
            depth = v2_depth(REAL_V2 / f"depth_lcam_front/{frame:06d}_lcam_front_depth.png")
            path = REAL_V2 / f"flow_lcam_front/{frame:06d}_{frame + 1:06d}_flow.png"
            official = decode_png16(path.read_bytes()).astype(np.int64)[..., :0:-1] - 32768
            moved = reproject(depth, poses[frame], poses[frame + 1], Intrinsics.v2(640, 640))
            steps = np.rint(moved.flow * 64)
            assert np.abs(steps - official).max() <= 1
            assert (steps == official).mean() > 0.99


class TestMask:
    def test_flow_and_codes_of_the_files(self, v1: Path) -> None:
        """Flow is exactly the reprojection; out of view is the target outside; occluded is farther
        than what the next frame sees."""
        poses = np.loadtxt(v1 / "pose_left.txt")
        for frame in range(FRAMES - 1):
            stem = f"{frame:06d}_{frame + 1:06d}"
            flow = np.load(v1 / f"flow/{stem}_flow.npy").astype(np.float64)
            mask = np.load(v1 / f"flow/{stem}_mask.npy")
            depth, following = (
                np.load(v1 / f"depth_left/{n:06d}_left_depth.npy") for n in (frame, frame + 1)
            )
            u = np.rint(np.arange(WIDTH) + flow[..., 0])
            v = np.rint(np.arange(HEIGHT)[:, None] + flow[..., 1])
            outside = (u < 0) | (u >= WIDTH) | (v < 0) | (v >= HEIGHT)
            np.testing.assert_array_equal(mask == OUT_OF_VIEW, outside)

            moved = reproject(depth, poses[frame], poses[frame + 1], Intrinsics.v1(HEIGHT, WIDTH))
            np.testing.assert_array_equal(flow.astype(np.float32), moved.flow)
            own = moved.depth
            seen = following[
                np.clip(v, 0, HEIGHT - 1).astype(int), np.clip(u, 0, WIDTH - 1).astype(int)
            ]
            assert (own > seen)[mask == CROSS_OCCLUDED].all()
            assert (own <= seen * 1.06)[mask == VALID].all()

    def test_all_codes_occur_and_occluded_pixels_are_hidden(self) -> None:
        intrinsics = Intrinsics.v1(HEIGHT, WIDTH)
        scene = Scene.from_seed(0)
        start, end = camera_path(200, seed=0, radius=RING)[[100, 112]]
        before, after = (render(scene, pose, intrinsics) for pose in (start, end))
        moved = reproject(before.depth, start, end, intrinsics)
        mask = flow_mask(moved, after.depth)
        codes = {VALID, CROSS_OCCLUDED, SELF_OCCLUDED, OUT_OF_VIEW}
        assert set(np.unique(mask).tolist()) == codes
        u = np.rint(np.arange(WIDTH) + moved.flow[..., 0]).astype(int)
        v = np.rint(np.arange(HEIGHT)[:, None] + moved.flow[..., 1]).astype(int)
        for code in (CROSS_OCCLUDED, SELF_OCCLUDED):
            for row, column in np.argwhere(mask == code):
                target = u[row, column], v[row, column]
                rivals = moved.depth[(u == target[0]) & (v == target[1])]
                own = moved.depth[row, column]
                nearest = rivals.min() if code == SELF_OCCLUDED else after.depth.T[target]
                assert own > nearest
        # What this frame already shows to be hidden, the next frame confirms.
        hidden = mask == SELF_OCCLUDED
        assert (moved.depth[hidden] > after.depth[v[hidden], u[hidden]]).mean() > 0.8

    def test_behind_the_camera_is_out_of_view(self) -> None:
        pose = np.array([0.0, 0, 0, 0, 0, 0, 1])
        ahead = np.array([5.0, 0, 0, 0, 0, 0, 1])
        depth = np.full((HEIGHT, WIDTH), 2, np.float32)
        moved = reproject(depth, pose, ahead, Intrinsics.v1(HEIGHT, WIDTH))
        assert moved.depth.max() < 0
        np.testing.assert_array_equal(flow_mask(moved, depth), OUT_OF_VIEW)


class TestDeterminism:
    def test_same_bytes_in_another_process(self, v1: Path, tmp_path: Path) -> None:
        arguments = f"{tmp_path} --frames {FRAMES} --episodes 1 --size {HEIGHT}x{WIDTH}"
        code = "import sys; from benchmarks.tartanair.generate import main; main(sys.argv[1:], "
        code += "standalone_mode=False); assert 'torch' not in sys.modules"
        subprocess.run(
            [sys.executable, "-c", code, *arguments.split(), "--cameras=both"], check=True
        )
        assert contents(v1) == contents(tmp_path / "abandonedfactory" / "Easy" / "P000")

    def test_episodes_seeds_and_difficulties_differ(self, tmp_path: Path) -> None:
        def poses(name: str, episodes: int, **settings: Any) -> list[bytes]:
            settings |= {"height": 16, "width": 16}
            folders = generate(tmp_path / name, episodes=[2] * episodes, **settings)
            return [(folder / "pose_left.txt").read_bytes() for folder in folders]

        found = poses("a", 3) + poses("b", 1, seed=2) + poses("c", 1, difficulty="Hard")
        assert len(set(found)) == 5

    def test_seeds_are_different_scenes(self) -> None:
        intrinsics = Intrinsics.v1(48, 64)
        pose = camera_path(1, seed=0, radius=RING)[0]
        frames = {render(Scene.from_seed(seed), pose, intrinsics).rgb.tobytes() for seed in (0, 2)}
        assert len(frames) == 2

    def test_an_episode_starts_with_any_shorter_one(self) -> None:
        np.testing.assert_array_equal(
            camera_path(7, seed=1, radius=RING), camera_path(70, seed=1, radius=RING)[:7]
        )


class TestPath:
    @pytest.mark.parametrize(
        ("difficulty", "metres", "degrees"), [("Easy", 0.1, 3), ("Hard", 0.2, 7)]
    )
    def test_is_smooth_and_stays_on_the_ring(
        self, difficulty: str, metres: float, degrees: float
    ) -> None:
        for episode in range(5):
            poses = camera_path(3000, seed=0, episode=episode, radius=RING, difficulty=difficulty)
            np.testing.assert_array_equal(poses, poses.astype(np.float32))
            assert np.linalg.norm(np.diff(poses[:, :3], axis=0), axis=1).max() < metres
            cosine = np.abs((poses[1:, 3:] * poses[:-1, 3:]).sum(axis=1))
            assert np.degrees(2 * np.arccos(np.minimum(cosine, 1))).max() < degrees
            assert np.abs(np.hypot(poses[:, 0], poses[:, 1]) - RING).max() <= 0.7001
            assert -2.11 < poses[:, 2].min() < poses[:, 2].max() < -0.89

    @pytest.mark.parametrize("seed", [1, 5])
    def test_no_box_is_in_the_way(self, seed: int) -> None:
        scene = Scene.from_seed(seed)
        for episode in range(3):
            for pose in camera_path(900, seed=seed, episode=episode, radius=RING)[::180]:
                for eye in (pose, right_camera(pose)):
                    depth = render(scene, eye, Intrinsics.v1(24, 32)).depth
                    assert depth.min() > 0.25


class TestRender:
    @pytest.mark.parametrize("quaternion", [(0, 0, 0, 1), (0, 0, 1, 0), (0, 0, 0.5**0.5, 0.5**0.5)])
    def test_rays_along_an_axis(self, quaternion: tuple[float, ...]) -> None:
        """The middle row and column look exactly along the axes: nothing there divides by zero."""
        pose = np.array([RING, -0.5, -1.5, *quaternion])
        scene = Scene.from_seed(1)
        rgb, depth, seg = render(scene, pose, Intrinsics.v1(HEIGHT, WIDTH))
        assert np.isfinite(depth).all()
        room = 2 * max(scene.room.half_x, scene.room.half_y)
        assert depth.max() < room
        for image in (rgb.astype(int), depth, seg.astype(int)):
            beside = np.abs(image[:, WIDTH // 2] - image[:, WIDTH // 2 + 1])
            usual = np.abs(np.diff(image[:, WIDTH // 2 - 9 : WIDTH // 2 + 10], axis=1))
            assert beside.mean() <= 5 * usual.mean()

    def test_what_is_seen_lies_on_the_faces(self) -> None:
        """Every pixel's point is on a face with the label that segmentation shows."""
        scene, intrinsics = Scene.from_seed(1), Intrinsics.v1(24, 32)
        faces = scene.faces
        other = np.array([[1, 2], [0, 2], [0, 1]])[faces.axis]  # the axes u and v of each face
        u = (np.arange(32) - intrinsics.cx) / intrinsics.fx
        v = (np.arange(24)[:, None] - intrinsics.cy) / intrinsics.fy
        for pose in camera_path(900, seed=1, radius=RING)[::150]:
            _, depth, seg = render(scene, pose, intrinsics)
            ahead = np.stack(np.broadcast_arrays(1.0, u, v), axis=-1) * depth[..., None]
            points = ahead @ rotation(pose).T + pose[:3]
            for point, metres, label in zip(
                points.reshape(-1, 3), depth.ravel(), seg.ravel(), strict=True
            ):
                slack = metres / 500  # depth has 11 bits
                flat = np.abs(point[faces.axis] - faces.level) < slack
                across = point[other]
                within = (across > faces.low - slack) & (across < faces.high + slack)
                assert label in faces.label[flat & within.all(axis=1)]

    def test_a_box_has_one_label_and_the_sky_is_far(self) -> None:
        scene = Scene.from_seed(2)
        poses = camera_path(200, seed=2, radius=RING)[::20]
        depth, seg = (
            np.stack(images)
            for images in list(
                zip(*(render(scene, pose, Intrinsics.v1(48, 64)) for pose in poses), strict=True)
            )[1:]
        )
        sky = scene.faces.label[SKY]
        assert (depth[seg == sky] > 10_000).all()
        assert (depth[seg != sky] < 200).all()
        assert len(np.unique(seg)) > 10


class TestArguments:
    def test_first_frame_id(self, tmp_path: Path) -> None:
        for layout in ("v1", "v2"):
            folder = generate(
                tmp_path / layout,
                episodes=[2],
                height=16,
                width=16,
                layout=layout,
                first_frame_id=998,
                difficulty="Hard",
            )[0]
            numbers = {name.name.split("_")[0] for name in folder.glob("image_*/*")}
            assert numbers == {"000998", "000999"}
            assert [name.name[:13] for name in folder.glob("flow*/*_flow.*")] == ["000998_000999"]

    def test_only_some_modalities(self, tmp_path: Path) -> None:
        for modality in MODALITIES:
            folder = generate(
                tmp_path / modality, episodes=[2], height=16, width=16, modalities=[modality]
            )[0]
            count = 1 if modality in ("flow", "mask", "pose") else 2
            names = list(contents(folder))
            assert len(names) == count
            assert all(modality in name for name in names)

    def test_right_camera_alone_has_no_flow(self, tmp_path: Path) -> None:
        folder = generate(tmp_path, episodes=[2], height=16, width=16, cameras=["right"])[0]
        assert {path.name for path in folder.iterdir()} == {
            "image_right",
            "depth_right",
            "seg_right",
            "pose_right.txt",
        }

    def test_a_single_frame_has_no_flow(self, tmp_path: Path) -> None:
        folder = generate(tmp_path, episodes=[1], height=16, width=16)[0]
        assert not list(folder.glob("flow/*"))
        assert np.loadtxt(folder / "pose_left.txt", ndmin=2).shape == (1, 7)

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            ({"episodes": []}, "episodes"),
            ({"episodes": [3, 0]}, "episodes"),
            ({"layout": "v3"}, "layout must be of v1, v2"),
            ({"difficulty": "Medium"}, "difficulty must be of Easy, Hard"),
            ({"cameras": ["front"]}, "cameras must be of left, right"),
            ({"cameras": []}, "cameras"),
            ({"cameras": ["left", "left"]}, "each once"),
            ({"modalities": ["lidar"]}, "modalities"),
            ({"layout": "v2", "modalities": ["mask"]}, "ask for flow too"),
            ({"height": 8}, "16 to 8192"),
            ({"seed": -1}, "seed"),
            ({"first_frame_id": 999_999}, "frame ids"),
        ],
    )
    def test_mistakes(self, tmp_path: Path, wrong: dict[str, Any], message: str) -> None:
        settings: dict[str, Any] = {"episodes": [2], "height": 16, "width": 16}
        with pytest.raises(ValueError, match=message):
            generate(tmp_path, **{**settings, **wrong})
        assert not list(tmp_path.iterdir())

    def test_existing_episodes_are_left_alone(self, tmp_path: Path) -> None:
        settings: dict[str, Any] = {"episodes": [1], "height": 16, "width": 16}
        before = contents(generate(tmp_path, **settings)[0])
        with pytest.raises(FileExistsError, match="P000"):
            generate(tmp_path, **settings)
        assert before == contents(tmp_path / "abandonedfactory" / "Easy" / "P000")


class TestCommand:
    def test_writes_what_is_asked(self, tmp_path: Path) -> None:
        arguments = f"{tmp_path} --frames 2 --episodes 2 --size 16x32 --layout v2 --cameras both"
        result = CliRunner().invoke(
            main, [*arguments.split(), "--difficulty", "Hard", "--env", "x"]
        )
        assert result.exit_code == 0, result.output
        folders = [tmp_path / "x" / "Data_hard" / name for name in ("P000", "P001")]
        assert [str(folder) for folder in folders] == result.stdout.split()
        with Image.open(folders[1] / "image_rcam_front" / "000001_rcam_front.png") as image:
            assert image.size == (32, 16)

    @pytest.mark.parametrize("arguments", ["--size 480", "--size 4x4", "--layout v3", "--frames 0"])
    def test_mistakes_are_one_line(self, tmp_path: Path, arguments: str) -> None:
        result = CliRunner().invoke(main, [str(tmp_path), *arguments.split()])
        assert result.exit_code != 0
        assert result.output.strip().splitlines()[-1].startswith("Error: ")
        assert "Traceback" not in result.output


class TestPng:
    @pytest.mark.parametrize("compress", [False, True])
    @pytest.mark.parametrize("row_filter", ["sub", "paeth"])
    @pytest.mark.parametrize("shape", [(5, 7), (5, 7, 3), (1, 1, 3), (6, 4, 4)])
    def test_pillow_reads_it_back(
        self, shape: tuple[int, ...], row_filter: Any, compress: bool
    ) -> None:
        pixels = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
        data = encode_png(pixels, row_filter=row_filter, compress=compress)
        with Image.open(io.BytesIO(data)) as image:
            np.testing.assert_array_equal(np.asarray(image), pixels)

    def test_sixteen_bits(self) -> None:
        pixels = np.random.default_rng(0).integers(0, 1 << 16, (9, 11, 3)).astype(np.uint16)
        data = encode_png(pixels, row_filter="sub", compress=True)
        np.testing.assert_array_equal(decode_png16(data), pixels)


# The picture of the documentation can be drawn again


def test_the_picture_of_the_docs(tmp_path: Path) -> None:
    """From what was packed before: rendering takes long, and has tests of its own."""
    generate(tmp_path / "tree", episodes=[40], height=48, width=64)
    seqrecord.convert(open_source(tmp_path / "tree"), tmp_path / "work" / "records", workers=1)
    path = draw(tmp_path / "work", tmp_path, 40)
    assert path.name == "view.png"
    with Image.open(path) as image:
        assert image.width > 1000
