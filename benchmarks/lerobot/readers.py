"""Readers of video files: `python -m benchmarks.lerobot.readers`, a job on stdin; prints JSON.

`front` decodes files front to back to RGB, each thread one after the other; `clips` reads random
clips of all cameras by index, each thread one clip, and makes a new tensor of each batch.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import local
from typing import Any

import numpy as np
import torch

from benchmarks.lerobot.cell import measure

_PIECE = 32  # frames that torchcodec is asked for at once


def videos(root: str, camera: str) -> list[str]:
    """The files of a camera, in order."""
    return [str(path) for path in sorted(Path(root, "videos", camera).rglob("*.mp4"))]


def read_torchcodec(path: str, deadline: float) -> int:
    """Frames decoded until the file or the time is over."""
    from torchcodec.decoders import VideoDecoder

    decoder = VideoDecoder(path, num_ffmpeg_threads=1, dimension_order="NHWC")
    count, total = 0, len(decoder)
    while count < total and time.perf_counter() < deadline:
        stop = min(count + _PIECE, total)
        count += len(decoder.get_frames_in_range(count, stop).data)
        assert count == stop
    return count


def read_pyav(path: str, deadline: float) -> int:
    """The same with PyAV, into one array."""
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


def front(job: dict[str, Any], read: Callable[[str, float], int]) -> dict[str, Any]:
    """Frames a second of all cameras' files, on the job's threads."""
    paths = [path for camera in job["cameras"] for path in videos(job["root"], camera)]
    for path in paths:  # libraries are loaded, decoders have been opened
        read(path, 0)
    begin = time.perf_counter()
    deadline = begin + job["seconds"]
    with ThreadPoolExecutor(job["threads"]) as pool:
        frames = sum(pool.map(lambda path: read(path, deadline), paths))
    took = time.perf_counter() - begin
    return {"frames_per_second": frames / took, "frames": frames, "seconds": took}


def clips_of_torchcodec(job: dict[str, Any]) -> dict[str, Any]:
    """Clips a second: `images` frames of each camera, at random places, in batches."""
    from torchcodec.decoders import VideoDecoder

    files = [videos(job["root"], camera) for camera in job["cameras"]]
    mine = local()

    def decoder(path: str) -> Any:
        known = mine.__dict__.setdefault("decoders", {})
        if path not in known:
            known[path] = VideoDecoder(path, num_ffmpeg_threads=1, dimension_order="NHWC")
        return known[path]

    lengths = [[len(decoder(path)) for path in paths] for paths in files]
    rng = random.Random(0)

    def clip(place: tuple[int, int]) -> list[torch.Tensor]:
        number, start = place
        stop = start + job["images"]
        return [decoder(paths[number]).get_frames_in_range(start, stop).data for paths in files]

    def batches() -> Iterator[tuple[int, Any]]:
        with ThreadPoolExecutor(job["threads"]) as pool:
            while True:
                places = []
                for _ in range(job["batch"]):
                    number = rng.randrange(len(files[0]))
                    length = min(each[number] for each in lengths)
                    places.append((number, rng.randrange(length - job["images"] + 1)))
                clips = pool.map(clip, places)
                cameras = [torch.stack(images) for images in zip(*clips, strict=True)]
                assert cameras[0].shape[:2] == (job["batch"], job["images"])
                yield job["batch"], cameras[0][0, -1, 0, 0, 0]

    return measure(batches, job["seconds"])


def clips_of_dali(job: dict[str, Any]) -> dict[str, Any]:
    """The same by DALI's reader, which shuffles clips that begin at every frame."""
    from nvidia.dali import fn, pipeline_def

    gpu = torch.cuda.is_available()
    if not gpu and _codec(job) == "av1":
        return {"skipped": "needs a GPU: on a CPU DALI decodes no AV1"}
    size = job["batch"]

    def outputs() -> Any:
        module = fn.readers if gpu else fn.experimental.readers
        return tuple(
            module.video(
                device="gpu" if gpu else "cpu",
                filenames=videos(job["root"], camera),
                sequence_length=job["images"],
                step=1,
                random_shuffle=True,
                initial_fill=32,
            )
            for camera in job["cameras"]
        )

    make = pipeline_def(outputs)
    made = make(batch_size=size, num_threads=job["threads"], device_id=0 if gpu else None)
    made.build()

    def batches() -> Iterator[tuple[int, Any]]:
        while True:
            images = made.run()[0]
            images = images.as_cpu() if gpu else images
            yield size, np.asarray(images.at(0))[-1, 0, 0, 0]

    return measure(batches, job["seconds"])


def _codec(job: dict[str, Any]) -> str:
    info = json.loads(Path(job["root"], "meta/info.json").read_text())
    return str(info["features"][job["cameras"][0]].get("info", {}).get("video.codec"))


DOES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "torchcodec/front": lambda job: front(job, read_torchcodec),
    "pyav/front": lambda job: front(job, read_pyav),
    "torchcodec/clips": clips_of_torchcodec,
    "dali/clips": clips_of_dali,
}


def main() -> None:
    job = json.load(sys.stdin)
    torch.set_num_threads(job["threads"])
    print(json.dumps(DOES[job["does"]](job)), flush=True)


if __name__ == "__main__":
    main()
