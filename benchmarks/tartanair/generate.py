"""Generate episodes that look, compress and are filed like TartanAir's, at any size.

    python -m benchmarks.tartanair.generate DEST --frames 60 --episodes 2 --layout v1

Images are rendered from a scene of textured boxes along a smooth camera path. Flow and mask follow
exactly from depth and pose, as they do in the real data. The same arguments give the same bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import numpy as np
from tqdm import tqdm

from benchmarks.tartanair.camera import (
    Intrinsics,
    Reprojection,
    camera_path,
    flow_mask,
    reproject,
    right_camera,
)
from benchmarks.tartanair.layouts import CAMERAS, LAYOUTS, MODALITIES
from benchmarks.tartanair.render import Rendering, render
from benchmarks.tartanair.scene import RING, Scene

__all__ = [
    "MODALITIES",
    "Intrinsics",
    "Rendering",
    "Reprojection",
    "Scene",
    "camera_path",
    "flow_mask",
    "generate",
    "render",
    "reproject",
]

DIFFICULTIES = ("Easy", "Hard")

_SIDES = (16, 8192)  # pixels
_LAST_FRAME_ID = 999_999  # file names have six digits


def generate(
    root: Path,
    *,
    env: str = "abandonedfactory",
    difficulty: str = "Easy",
    episodes: Sequence[int],
    height: int = 480,
    width: int = 640,
    cameras: Sequence[str] = ("left",),
    layout: str = "v1",
    seed: int = 0,
    modalities: Sequence[str] | None = None,
    first_frame_id: int = 0,
    on_frame: Callable[[], object] | None = None,
) -> list[Path]:
    """Write one episode for each of `episodes`, which are their numbers of frames.

    Returns the episodes' folders, `root/env/Easy/P000` and so on (`Data_easy` in V2). `modalities`
    are some of `MODALITIES`, all by default. Flow and mask are the left camera's, as in the real
    data, one fewer than frames; V2 keeps the mask inside the flow's file. `first_frame_id` is the
    number of the first file. `on_frame` is called after each frame.

    An odd `seed` gives a hall, an even one a yard. All episodes of a seed show one scene.

    Raises `ValueError` for an argument that makes no sense and `FileExistsError` if an episode's
    folder is already there.
    """
    chosen = _check(
        difficulty, episodes, (height, width), cameras, layout, seed, modalities, first_frame_id
    )
    writer = LAYOUTS[layout]
    intrinsics = writer.intrinsics(height, width)
    folders = [writer.folder(root, env, difficulty, number) for number in range(len(episodes))]
    for folder in folders:
        if folder.exists():
            raise FileExistsError(f"there is already an episode in {folder}")
    scene = _scene(seed)
    for number, (folder, frames) in enumerate(zip(folders, episodes, strict=True)):
        folder.mkdir(parents=True)
        left = camera_path(frames, seed=seed, episode=number, radius=RING, difficulty=difficulty)
        paths = {"left": left, "right": np.array([right_camera(pose) for pose in left])}
        if "pose" in chosen:
            for camera in cameras:
                writer.write_poses(folder, camera, paths[camera])
        wants_flow = "left" in cameras and not chosen.isdisjoint({"flow", "mask"})
        before: Rendering | None = None
        for index in range(frames):
            frame = first_frame_id + index
            for camera in cameras:
                rendering = render(scene, paths[camera][index], intrinsics)
                writer.write_frame(folder, camera, frame, rendering, chosen)
                if camera != "left" or not wants_flow:
                    continue
                if before is not None:
                    moved = reproject(before.depth, left[index - 1], left[index], intrinsics)
                    mask = flow_mask(moved, rendering.depth)
                    writer.write_flow(folder, frame - 1, moved.flow, mask, chosen)
                before = rendering
            if on_frame is not None:
                on_frame()
    return folders


@functools.lru_cache(maxsize=4)
def _scene(seed: int) -> Scene:
    return Scene.from_seed(seed)


def _check(
    difficulty: str,
    episodes: Sequence[int],
    size: tuple[int, int],
    cameras: Sequence[str],
    layout: str,
    seed: int,
    modalities: Sequence[str] | None,
    first_frame_id: int,
) -> frozenset[str]:
    """The modalities to write, if all arguments make sense."""
    chosen = frozenset(MODALITIES if modalities is None else modalities)
    for name, values, allowed in (
        ("difficulty", [difficulty], DIFFICULTIES),
        ("layout", [layout], tuple(LAYOUTS)),
        ("cameras", cameras, CAMERAS),
        ("modalities", sorted(chosen), MODALITIES),
    ):
        wrong = [value for value in values if value not in allowed]
        if wrong or not values or len(set(values)) != len(values):
            got = ", ".join(wrong or values) or "none"
            raise ValueError(f"{name} must be of {', '.join(allowed)}, each once, not {got}")
    if layout == "v2" and "mask" in chosen and "flow" not in chosen:
        raise ValueError("layout v2 keeps the mask inside the flow's file: ask for flow too")
    if not episodes or min(episodes) < 1:
        raise ValueError("episodes must be one or more numbers of frames, each at least 1")
    if not all(_SIDES[0] <= side <= _SIDES[1] for side in size):
        raise ValueError(
            f"height and width must be {_SIDES[0]} to {_SIDES[1]} pixels, not {size[0]}x{size[1]}"
        )
    if seed < 0:
        raise ValueError(f"seed must not be negative: {seed}")
    if not 0 <= first_frame_id <= _LAST_FRAME_ID + 1 - max(episodes):
        raise ValueError(f"frame ids must be 0 to {_LAST_FRAME_ID}: the first is {first_frame_id}")
    return chosen


def _parse_size(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[int, int] | None:
    if value is None:
        return None
    height, _, width = value.partition("x")
    if not (height.isdecimal() and width.isdecimal()):
        raise click.BadParameter(
            f"write it as HEIGHTxWIDTH, such as 480x640, not {value!r}", context, parameter
        )
    return int(height), int(width)


@click.command(context_settings={"show_default": True})
@click.argument("dest", type=click.Path(file_okay=False, path_type=Path))
@click.option("--frames", default=60, type=click.IntRange(min=1), help="Frames of each episode.")
@click.option("--episodes", default=2, type=click.IntRange(min=1), help="Number of episodes.")
@click.option(
    "--size", callback=_parse_size, help="HEIGHTxWIDTH.  [default: 480x640, 640x640 for v2]"
)
@click.option("--layout", default="v1", type=click.Choice(list(LAYOUTS)))
@click.option("--cameras", default="left", type=click.Choice([*CAMERAS, "both"]))
@click.option("--seed", default=0, type=click.IntRange(min=0), help="Odd: a hall. Even: a yard.")
@click.option("--difficulty", default="Easy", type=click.Choice(DIFFICULTIES))
@click.option("--env", default="abandonedfactory", help="Name of the environment's folder.")
@click.option("--first-frame-id", default=0, type=click.IntRange(min=0))
def main(
    dest: Path,
    frames: int,
    episodes: int,
    size: tuple[int, int] | None,
    layout: str,
    cameras: str,
    seed: int,
    difficulty: str,
    env: str,
    first_frame_id: int,
) -> None:
    """Write generated episodes in TartanAir's layout under DEST."""
    height, width = size or {"v1": (480, 640), "v2": (640, 640)}[layout]
    try:
        with tqdm(total=frames * episodes, unit="frame", delay=0.5) as progress:
            folders = generate(
                dest,
                env=env,
                difficulty=difficulty,
                episodes=[frames] * episodes,
                height=height,
                width=width,
                cameras=CAMERAS if cameras == "both" else (cameras,),
                layout=layout,
                seed=seed,
                first_frame_id=first_frame_id,
                on_frame=progress.update,
            )
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    for folder in folders:
        click.echo(folder)


if __name__ == "__main__":
    main()
