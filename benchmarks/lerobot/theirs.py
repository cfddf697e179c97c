"""LeRobot's rows, in a process of a Python with lerobot.

LeRobot converts all images to floats. For uint8, its decoders are patched to skip the conversion.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.lerobot.cell import Cell, measure
from benchmarks.timing import Result, answer, drop_page_cache

BUFFER = 100  # the default, 1000, takes 15 GB with 2 images of two cameras


def batches(
    root: str, cameras: Sequence[str], cell: Cell, decoder: str, workers: int, batch: int
) -> Iterator[tuple[int, Any]]:
    """Endless batches: whole epochs, each reshuffled. The decoder `streaming` means LeRobot's
    streaming dataset, which decodes to floats with torchcodec and shuffles in a buffer of `BUFFER`
    samples.
    """
    from lerobot.datasets import lerobot_dataset, video_utils

    is_streaming = decoder == "streaming"
    if cell.numbers == "uint8" and not is_streaming:
        lerobot_dataset.decode_video_frames = undivided(video_utils)
    name = "seqrecord/benchmark"
    fps = lerobot_dataset.LeRobotDatasetMetadata(name, root).fps
    times = [i / fps for i in range(1 - cell.images, 1)]
    windows = {
        **dict.fromkeys(cameras, times),
        "action": [i / fps for i in range(cell.actions)],
    }
    if is_streaming:
        from lerobot.datasets.streaming_dataset import StreamingLeRobotDataset

        dataset = StreamingLeRobotDataset(
            name, root=root, delta_timestamps=windows, buffer_size=BUFFER
        )
    else:
        dataset = lerobot_dataset.LeRobotDataset(
            name, root=root, video_backend=decoder, delta_timestamps=windows
        )
    loader = torch.utils.data.DataLoader(
        dataset,
        batch,
        shuffle=None if is_streaming else True,
        drop_last=True,
        num_workers=workers,
        multiprocessing_context="spawn" if workers else None,
        persistent_workers=bool(workers),
        worker_init_fn=_Patch(cell) if workers else None,
    )
    while True:
        for found in loader:
            images = found[cameras[0]]
            assert images.shape[:3] == (batch, cell.images, 3), images.shape
            assert (images.dtype == torch.uint8) == (cell.numbers == "uint8" and not is_streaming)
            yield batch, images[0, -1, 0, 0, 0]


class _Patch:
    """Patches the decoder in a worker process, as the main process does."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell

    def __call__(self, _worker: int) -> None:
        torch.set_num_threads(1)
        if self._cell.numbers == "uint8":
            from lerobot.datasets import lerobot_dataset, video_utils

            lerobot_dataset.decode_video_frames = undivided(video_utils)


def undivided(video_utils: Any) -> Any:
    """lerobot's `decode_video_frames` without the division."""

    def decode(path: Any, timestamps: list[float], tolerance: float, backend: str) -> torch.Tensor:
        if backend == "torchcodec":
            decoder = video_utils._default_decoder_cache.get_decoder(str(path))
            fps = decoder.metadata.average_fps
            found = decoder.get_frames_at(indices=[round(time * fps) for time in timestamps])
            images, times = found.data, found.pts_seconds.to(torch.float64)
        else:
            reader = video_utils.torchvision.io.VideoReader(str(path), "video")
            reader.seek(min(timestamps), keyframes_only=True)
            frames = []
            for frame in reader:
                frames.append(frame)
                if frame["pts"] >= max(timestamps):
                    break
            reader.container.close()
            images = [frame["data"] for frame in frames]
            times = torch.tensor([frame["pts"] for frame in frames], dtype=torch.float64)
        wanted = torch.tensor(timestamps, dtype=torch.float64)
        distance, nearest = torch.cdist(wanted[:, None], times[:, None], p=1).min(1)
        assert bool((distance < tolerance).all())
        return torch.stack([images[i] for i in nearest])

    return decode


def run(
    root: str,
    cell: Mapping[str, Any],
    cameras: Sequence[str],
    batch: int,
    threads: int,
    seconds: float,
    cold: bool,
    decoder: str,
    workers: int,
) -> Result:
    torch.set_num_threads(threads)
    return measure(
        batches(root, cameras, Cell(**cell), decoder, workers, batch),
        seconds,
        warm_batches=1 + 2 * workers,
        before=(lambda: drop_page_cache(Path(root))) if cold else lambda: None,
    )


if __name__ == "__main__":
    answer(run)
