"""Compare items of a LeRobot dataset read in place with items of LeRobot's own class.

::

    python -m benchmarks.lerobot.equal write FOLDER    # datasets of the version that lerobot writes
    python -m benchmarks.lerobot.equal compare ROOT…   # prints one JSON line per dataset

Both commands need a Python with lerobot and seqrecord; both sides decode with the same PyAV.
`.venv/lerobot/bin/python` writes and reads v3.0 and, with `PYTHONPATH=.venv/lerobot/v2`, v2.1.
`compare` checks each item, with and without windows: images, numbers, masks, timestamps and tasks
must be equal bit for bit. Images made by `write` encode their camera, episode and frame, so the
result names the side with the wrong image.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.kit.lerobot_data import FPS, write_dataset
from tests.kit.video_file_data import hide_first

__all__ = ["VARIANTS", "compare", "number_of", "picture", "write"]

CAMERAS = {
    "observation.images.front": (96, 128),
    "observation.images.wrist": (64, 64),
    "observation.images.top": (64, 96),
}
LENGTHS = (9, 4, 12, 7, 1, 9, 6)
VARIANTS = ("own", "b_frames", "hidden")
WINDOWS = {
    **dict.fromkeys(CAMERAS, range(-2, 2)),
    "observation.images.wrist": range(-9, 10, 3),
    "observation.state": range(-3, 1),
    "action": range(6),
}
_BLOCK, _BITS = 16, 16
_NOISE = (48, 48, 16)  # so that the cameras' files grow differently
_HIDDEN = 3  # frames


def picture(camera: int, episode: int, frame: int, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Image, uint8 [H, W, 3], that encodes its number in black and white blocks under noise."""
    height, width = size
    number = camera << 14 | episode << 8 | frame
    bits = [number >> i & 1 for i in range(_BITS)]
    blocks = np.resize(bits, (height // _BLOCK, width // _BLOCK)) * 150 + 50
    rng = np.random.default_rng(number)
    noise = rng.integers(-_NOISE[camera], _NOISE[camera], (height, width, 3))
    image: npt.NDArray[np.uint8] = (
        blocks.repeat(_BLOCK, 0).repeat(_BLOCK, 1)[..., None] + noise
    ).astype(np.uint8)
    return image


def number_of(image: npt.NDArray[Any]) -> tuple[int, int, int]:
    """Camera, episode and frame of an image, uint8 [H, W, 3]."""
    height, width, _ = image.shape
    blocks = image.reshape(height // _BLOCK, _BLOCK, width // _BLOCK, _BLOCK, 3).mean((1, 3, 4))
    number = sum(int(mean > 125) << i for i, mean in enumerate(blocks.reshape(-1)[:_BITS]))
    return number >> 14, number >> 8 & 63, number & 255


def write(folder: Path) -> None:
    """Write `FOLDER/VARIANT` for each variant: lerobot's default encoding; H.264 with B-frames; the
    same with frames before the first one, hidden by edit lists.

    In v3.0 some files have several episodes, and cameras start new files at different episodes.
    """
    sizes = {"video_files_size_in_mb": 0.055, "data_files_size_in_mb": 0.012}
    names = ["height", "width", "channels"]
    features: dict[str, dict[str, Any]] = {
        name: {"dtype": "video", "shape": (*size, 3), "names": names}
        for name, size in CAMERAS.items()
    }
    features["observation.state"] = {"dtype": "float32", "shape": (3,), "names": None}
    features["action"] = {"dtype": "float64", "shape": (2,), "names": None}
    features["tactile"] = {"dtype": "int16", "shape": (4,), "names": None}
    write_dataset(folder / "own", features, map(_frames, range(len(LENGTHS))), file_sizes=sizes)
    for variant, hidden in (("b_frames", 0), ("hidden", _HIDDEN)):
        shutil.copytree(folder / "own", folder / variant)
        for path in (folder / variant).rglob("*.mp4"):
            encode_again(path, hidden)


def _frames(episode: int) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(episode)
    for frame in range(LENGTHS[episode]):
        yield {
            **{
                name: picture(camera, episode, frame, size)
                for camera, (name, size) in enumerate(CAMERAS.items())
            },
            "observation.state": rng.normal(size=3).astype(np.float32),
            "action": rng.normal(size=2),
            "tactile": rng.integers(-300, 300, 4).astype(np.int16),
            "task": ("pick", "place")[frame // 3 % 2],
        }


def encode_again(path: Path, hidden: int = 0, **options: str) -> None:
    """Reencode as H.264: B-frames, a keyframe every eight frames, `hidden` leading frames."""
    import av

    with av.open(str(path)) as file:
        images = [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]
    images = [255 - images[0]] * hidden + images
    options = {"g": "8", "bf": "3", "crf": "10", "x264-params": "b-adapt=0:scenecut=0"} | options
    with av.open(str(path), "w") as file:
        stream: Any = file.add_stream("libx264", rate=FPS, options=options)
        stream.height, stream.width = images[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        stream.codec_context.thread_count = 1
        for i, image in enumerate(images):
            frame = av.VideoFrame.from_ndarray(image)
            frame.pts, frame.time_base = i, Fraction(1, FPS)
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    if hidden:
        hide_first(path, hidden, FPS)


def compare(root: Path) -> dict[str, Any]:
    """Differences and numbers of compared values, by column.

    Compares every item, and every clip of a shuffled epoch of the iterable loader (`clips`).
    """
    import torch

    import seqrecord

    torch.set_num_threads(1)
    found = _Found()
    for windows in ({}, WINDOWS):
        theirs = _theirs(root, windows)
        options: dict[str, Any] = {"clip_len": 1}
        if windows:
            options = {"windows": windows, "pad": "edge"}
        ours = seqrecord.SeqRecordMapDataset(root, **options)
        assert len(ours) == sum(LENGTHS)
        items, rows = [], {}
        for row in range(len(ours)):  # both order rows by episode, then frame
            items.append(theirs(row))
            clip = ours[row]
            rows[clip["episode"], int(clip["start"])] = row
            found.add(row, clip, items[row], windows)
        pipe = seqrecord.SeqRecordPipe(ours.dataset, **options, batch_size=5, memory_limit="256MiB")
        for batch in pipe:
            for i, place in enumerate(zip(batch["episode"], batch["start"].tolist(), strict=True)):
                row = rows[place]
                clip = {name: values[i] for name, values in batch.items()}
                found.add(row, clip, items[row], windows)
                found.clips += 1
    return {"compared": found.compared, "clips": found.clips, "differ": found.differ}


def _theirs(root: Path, windows: dict[str, range]) -> Callable[[int], dict[str, Any]]:
    """LeRobot's items by index; an error becomes an item without images."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    deltas = {name: [i / FPS for i in window] for name, window in windows.items()} or None
    dataset = LeRobotDataset("a/test", root=root, video_backend="pyav", delta_timestamps=deltas)

    def item(row: int) -> dict[str, Any]:
        try:
            return dict(dataset[row])
        except (RuntimeError, ValueError, AssertionError, IndexError) as error:
            return {"error": f"{type(error).__name__}: {error}".split("\n")[0][:200]}

    return item


class _Found:
    def __init__(self) -> None:
        self.compared: Counter[str] = Counter()
        self.differ: Counter[str] = Counter()
        self.clips = 0

    def add(
        self, row: int, ours: dict[str, Any], theirs: dict[str, Any], windows: dict[str, range]
    ) -> None:
        """Compare two items of a row."""
        if "error" in theirs:
            self.differ[f"LeRobot raises {theirs['error']}"] += 1
        ends = np.cumsum(LENGTHS)
        episode = int(np.searchsorted(ends, row, side="right"))
        length = LENGTHS[episode]
        begin = int(ends[episode]) - length
        for camera, name in enumerate(CAMERAS):
            frames = row - begin + np.array(windows.get(name, range(1)))
            truth = [(camera, episode, n) for n in frames.clip(0, length - 1).tolist()]
            images = ours[name].numpy()
            if [number_of(image) for image in images] != truth:
                self.differ[f"{name}: ours is wrong"] += 1
            if "error" in theirs:
                continue
            same = ours[name].movedim(-1, -3) / 255
            its = theirs[name] if name in windows else theirs[name][None]
            self.compared[name] += 1
            if not bool((same == its).all()):
                numbers = [
                    number_of(image) for image in (its.movedim(-3, -1) * 255).round().numpy()
                ]
                right = "right" if numbers == truth else "wrong"
                self.differ[f"{name}: differs, LeRobot's is {right}"] += 1
        if "error" in theirs:
            return
        for name, its in theirs.items():
            if name in CAMERAS or name in ("episode_index", "frame_index", "index", "task_index"):
                continue
            own = ours[name]
            if name == "task":
                is_same = own == [its] or own == its
            else:
                own = own if name in windows or name.endswith("_is_pad") else own[0]
                is_same = own.shape == its.shape and bool((own.to(its.dtype) == its).all())
            self.compared[name] += 1
            if not is_same:
                self.differ[f"{name}: {own} is not {its}"[:200]] += 1


def main() -> None:
    """Run the command."""
    command, *folders = sys.argv[1:]
    for folder in map(Path, folders):
        if command == "write":
            write(folder)
        else:
            print(json.dumps(compare(folder)), flush=True)


if __name__ == "__main__":
    main()
