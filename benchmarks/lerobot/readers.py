"""Other readers of video files, in their own process.

`front` decodes files front to back to RGB, one file per thread at a time. `clips` reads random
clips of all cameras by index, one clip per thread at a time, and stacks batches in new tensors.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import local
from typing import Any

import numpy as np
import torch

from benchmarks.lerobot.cell import measure
from benchmarks.timing import Result, answer

_PIECE = 32  # frames per call of torchcodec


def run(do: str, root: str, cameras: Sequence[str], threads: int, **job: Any) -> Result:
    torch.set_num_threads(threads)
    files = [
        [str(path) for path in sorted(Path(root, "videos", camera).rglob("*.mp4"))]
        for camera in cameras
    ]
    return (clips if do == "clips" else front)(files, threads, **job)


def front(files: Sequence[Sequence[str]], threads: int, reader: str, seconds: float) -> Result:
    """Frames per second of all cameras' files."""
    read = _READERS[reader]
    paths = [path for paths in files for path in paths]
    for path in paths:  # warm-up: loads libraries and opens decoders
        read(path, 0)
    begin = time.perf_counter()
    deadline = begin + seconds
    with ThreadPoolExecutor(threads) as pool:
        frames = sum(pool.map(lambda path: read(path, deadline), paths))
    took = time.perf_counter() - begin
    return {"frames_per_second": frames / took, "frames": frames, "seconds": took}


def _read_torchcodec(path: str, deadline: float) -> int:
    """Number of frames decoded until the file ends or `deadline`."""
    from torchcodec.decoders import VideoDecoder

    decoder = VideoDecoder(path, num_ffmpeg_threads=1, dimension_order="NHWC")
    count, total = 0, len(decoder)
    while count < total and time.perf_counter() < deadline:
        stop = min(count + _PIECE, total)
        count += len(decoder.get_frames_in_range(count, stop).data)
        assert count == stop
    return count


def _read_pyav(path: str, deadline: float) -> int:
    """Like `_read_torchcodec`, with PyAV into one array."""
    import av

    count = 0
    out: Any = None
    with av.open(path) as file:
        stream = file.streams.video[0]
        stream.codec_context.thread_count = 1
        for frame in file.decode(stream):
            image = frame.to_ndarray(format="rgb24")
            out = np.empty_like(image) if out is None else out
            np.copyto(out, image)
            count += 1
            if time.perf_counter() >= deadline:
                break
    return count


_READERS: dict[str, Callable[[str, float], int]] = {
    "torchcodec": _read_torchcodec,
    "pyav": _read_pyav,
}


def clips(
    files: Sequence[Sequence[str]], threads: int, images: int, batch: int, seconds: float
) -> Result:
    """Clips per second of torchcodec: `images` frames of each camera, at random positions."""
    from torchcodec.decoders import VideoDecoder

    mine = local()

    def decoder(path: str) -> Any:
        decoders = mine.__dict__.setdefault("decoders", {})
        if path not in decoders:
            decoders[path] = VideoDecoder(path, num_ffmpeg_threads=1, dimension_order="NHWC")
        return decoders[path]

    lengths = [[len(decoder(path)) for path in paths] for paths in files]
    rng = random.Random(0)

    def clip(place: tuple[int, int]) -> list[torch.Tensor]:
        number, start = place
        stop = start + images
        return [decoder(paths[number]).get_frames_in_range(start, stop).data for paths in files]

    def batches() -> Iterator[tuple[int, Any]]:
        with ThreadPoolExecutor(threads) as pool:
            while True:
                places = []
                for _ in range(batch):
                    number = rng.randrange(len(files[0]))
                    length = min(each[number] for each in lengths)
                    places.append((number, rng.randrange(length - images + 1)))
                clips = pool.map(clip, places)
                cameras = [torch.stack(found) for found in zip(*clips, strict=True)]
                assert cameras[0].shape[:2] == (batch, images)
                yield batch, cameras[0][0, -1, 0, 0, 0]

    return measure(batches(), seconds)


if __name__ == "__main__":
    answer(run)
