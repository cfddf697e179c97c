"""`data_cacher` of the TartanAir tools: `python -m benchmarks.lerobot.cacher`, a job on stdin.

It has two buffers of frames in memory: clips come from one, again and again, while the other is
filled from PNG files. So clips a second say little of how fast new frames come, which is reported
beside them. The videos' first frames are written as PNGs of its layout first, not timed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.lerobot.cell import measure
from benchmarks.lerobot.readers import videos

_KINDS = ("lcam_front", "rcam_front")  # its names for two cameras
_BUFFER = 64  # frames in a buffer


def write_pngs(job: dict[str, Any], folder: Path) -> Path:
    """Four buffers' worth of frames, as far as there are so many; and the list that it reads."""
    import av

    counts = []
    shape = [0, 0]
    for kind, camera in zip(_KINDS, job["cameras"], strict=True):
        to = folder / "P000" / f"image_{kind}"
        to.mkdir(parents=True)
        count = 0
        with av.open(videos(job["root"], camera)[0]) as file:
            for frame in file.decode(video=0):
                if count == 4 * _BUFFER:
                    break
                frame.to_image().save(to / f"{count:06d}_{kind}.png", compress_level=1)
                count += 1
                shape = [frame.height, frame.width]
        counts.append(count)
    job["shape"] = shape
    names = [f"{i:06d}" for i in range(min(counts))]
    listed = folder / "frames.txt"
    listed.write_text("\n".join([f"P000 {len(names)}", *names]) + "\n")
    return listed


def open_cacher(job: dict[str, Any], folder: Path, listed: Path) -> Any:
    """Its loader, as its own README configures it."""
    found = importlib.util.find_spec("tartanair")
    assert found is not None  # see `run`
    package = types.ModuleType("tartanair")  # its own __init__ imports what needs CUDA
    package.__path__ = list(found.submodule_search_locations or ())
    sys.modules["tartanair"] = package
    from tartanair.data_cacher.MultiDatasets import MultiDatasets

    size = {"cacher_size": job["shape"], "length": job["images"]}
    data = {
        "file": str(listed),
        "modality": {f"image_{kind}": {kind: size} for kind in _KINDS},
        "cacher": {
            "data_root_path_override": str(folder),
            "subset_framenum": min(_BUFFER, len(listed.read_text().splitlines()) - 1),
            "worker_num": job["threads"],
        },
        "dataset": {"frame_skip": 0, "seq_stride": 1, "frame_dir": False},
        "parameter": {},
    }
    spec = {"task": "tartanair", "data": {"frames": data}}
    return MultiDatasets(spec, "local", batch=job["batch"], workernum=0, shuffle=True)


def run(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Clips a second, and how many frames a second were new in a buffer."""
    if importlib.util.find_spec("tartanair") is None:
        return {"skipped": "no package tartanair beside lerobot: make lerobot-env"}
    loader = open_cacher(job, folder, write_pngs(job, folder))
    buffers = 0

    def batches() -> Iterator[tuple[int, Any]]:
        nonlocal buffers
        while True:
            sample = loader.load_sample(fullbatch=True, notrepeat=False, maxrepeatnum=1 << 30)
            info = sample["dataset_info"]
            buffers += info["new_buffer"] and info["buffer_repeat"] == 0
            images = sample[_KINDS[0]]
            assert images.shape[1] == job["images"], images.shape
            yield len(images), images[0].reshape(-1)[0]

    def begin() -> None:
        nonlocal buffers
        buffers = 0  # what was there before is not counted

    found = measure(batches, job["seconds"], before=begin)
    loader.stop_cachers()
    new = buffers * loader.datalens[0] * len(_KINDS)
    return found | {"new_frames_per_second": new / found["seconds"]}


def main() -> None:
    job = json.load(sys.stdin)
    import torch

    torch.set_num_threads(job["threads"])
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        made = run(job, Path(folder))
    print(json.dumps(made), flush=True)
    os._exit(0)  # its thread may be waiting


if __name__ == "__main__":
    main()
