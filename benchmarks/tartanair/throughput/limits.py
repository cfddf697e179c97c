"""What memory allows: clips copied from frames that are all resident, into batches used again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

import seqrecord
from seqrecord.reading.raw_frames import FrameRun

__all__ = ["VECTOR", "Arrays", "MakeEpoch", "copying", "taking"]

VECTOR = 1600  # int16, as 0.1 s of sound

Arrays = dict[str, npt.NDArray[np.generic]]
MakeEpoch = Callable[[], Iterator[Arrays]]


def copying(
    records: str,
    clip_len: int,
    batch_size: int,
    stride: int = 1,
    *,
    side: int | None = None,
    reads: bool = False,
) -> Callable[[Path], MakeEpoch]:
    """Two threads, one `copyto` for each clip and feature.

    With `side`, of windows of so many pixels in height and width, at random places. With `reads`,
    these threads read all chunks anew in each epoch, and check them, before they copy.
    """

    def make(folder: Path) -> MakeEpoch:
        dataset = seqrecord.open(folder / records)
        episodes: list[Arrays] = []
        for episode in dataset.episodes.values():
            read = episode.read(range(len(episode) - 1))  # the last frame of TartanAir has no flow
            episodes.append({name: np.asarray(array) for name, array in read.items()})
        loads = list(_loads(dataset, episodes)) if reads else []
        clips = [
            (number, start)
            for number, episode in enumerate(episodes)
            for start in range(0, len(next(iter(episode.values()))) - clip_len + 1, stride)
        ]
        rng = np.random.default_rng(0)
        order = rng.permutation(len(clips))
        batches = [
            [clips[i] for i in order[at : at + batch_size]]
            for at in range(0, len(clips) - batch_size + 1, batch_size)
        ]
        buffers = [
            {
                name: np.zeros((batch_size, clip_len, *_window(array, side).shape[1:]), array.dtype)
                for name, array in episodes[0].items()
            }
            for _ in range(4)
        ]
        corners = rng.random((len(clips), 2)).tolist()

        def fill(number: int) -> Arrays:
            buffer = buffers[number % len(buffers)]
            for place, (episode, start) in enumerate(batches[number]):
                corner = corners[number * batch_size + place]
                for name, array in episodes[episode].items():
                    frames = array[start : start + clip_len]
                    np.copyto(buffer[name][place], _window(frames, side, corner))
            return buffer

        def epoch() -> Iterator[Arrays]:
            with ThreadPoolExecutor(2) as pool:
                for done in [pool.submit(load) for load in loads]:
                    done.result()
                ahead: list[Future[Arrays]] = []
                for number in range(len(batches)):
                    ahead.append(pool.submit(fill, number))
                    if len(ahead) > 2:
                        yield ahead.pop(0).result()
                for future in ahead:
                    yield future.result()

        return epoch

    return make


def _window(
    frames: npt.NDArray[np.generic], side: int | None, corner: Sequence[float] = (0.0, 0.0)
) -> npt.NDArray[np.generic]:
    """Of frames [n, H, W, …] a window, whose corner is given as a share of where it may be."""
    if side is None:
        return frames
    top, left = (int(at * (n - side)) for at, n in zip(corner, frames.shape[1:3], strict=True))
    return frames[:, top : top + side, left : left + side]


def _loads(
    dataset: seqrecord.Dataset, episodes: Sequence[Arrays]
) -> Iterator[Callable[[], object]]:
    """What reads a chunk into the arrays of its episode."""
    reader, keys = dataset.contents.chunks, list(dataset.episodes)
    for group in sorted({spec.group for spec in dataset.features.values()}):
        for row in range(len(dataset.contents.index.groups[group].num_frames)):
            chunk = reader.chunk_at(group, row)
            arrays = episodes[keys.index(dataset.contents.index.key(chunk.episode))]
            count = min(chunk.num_frames, min(map(len, arrays.values())) - chunk.first_frame)
            run = FrameRun(row, 0, count, chunk.first_frame)
            names = reader.raw[group].specs
            yield partial(reader.raw[group].read, [run], {n: arrays[n] for n in names})


def taking(clip_len: int, batch_size: int) -> Callable[[Path], MakeEpoch]:
    """One thread, one `numpy.take` for each batch of vectors; its rows are known before."""

    def make(_folder: Path) -> MakeEpoch:
        rng = np.random.default_rng(0)
        frames = rng.integers(-9999, 9999, (20_000, VECTOR), np.int16)
        starts = rng.permutation(len(frames) - clip_len)
        starts = starts[: len(starts) // batch_size * batch_size].reshape(-1, batch_size, 1)
        rows = (starts + np.arange(clip_len)).reshape(len(starts), -1)
        buffers = [np.zeros((rows.shape[1], VECTOR), np.int16) for _ in range(3)]

        def epoch() -> Iterator[Arrays]:
            for number, chosen in enumerate(rows):
                out = buffers[number % len(buffers)]
                np.take(frames, chosen, axis=0, out=out, mode="clip")
                yield {"vector": out.reshape(batch_size, clip_len, VECTOR)}

        return epoch

    return make
