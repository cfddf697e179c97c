"""What memory allows: clips copied from frames that are all resident, into batches used again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt

import seqrecord
from benchmarks.tartanair.throughput.data import VECTOR

__all__ = ["Arrays", "MakeEpoch", "copying", "taking"]

Arrays = dict[str, npt.NDArray[np.generic]]
MakeEpoch = Callable[[], Iterator[Arrays]]


def copying(
    records: str, clip_len: int, batch_size: int, stride: int = 1
) -> Callable[[Path], MakeEpoch]:
    """Two threads, one `copyto` for each clip and feature."""

    def make(folder: Path) -> MakeEpoch:
        episodes: list[Arrays] = []
        for episode in seqrecord.open(folder / records).episodes.values():
            read = episode.read(range(len(episode) - 1))  # the last frame of TartanAir has no flow
            episodes.append({name: np.asarray(array) for name, array in read.items()})
        clips = [
            (number, start)
            for number, episode in enumerate(episodes)
            for start in range(0, len(next(iter(episode.values()))) - clip_len + 1, stride)
        ]
        order = np.random.default_rng(0).permutation(len(clips))
        batches = [
            [clips[i] for i in order[at : at + batch_size]]
            for at in range(0, len(clips) - batch_size + 1, batch_size)
        ]
        buffers = [
            {
                name: np.zeros((batch_size, clip_len, *array.shape[1:]), array.dtype)
                for name, array in episodes[0].items()
            }
            for _ in range(4)
        ]

        def fill(number: int) -> Arrays:
            buffer = buffers[number % len(buffers)]
            for place, (episode, start) in enumerate(batches[number]):
                for name, array in episodes[episode].items():
                    np.copyto(buffer[name][place], array[start : start + clip_len])
            return buffer

        def epoch() -> Iterator[Arrays]:
            with ThreadPoolExecutor(2) as pool:
                ahead: list[Future[Arrays]] = []
                for number in range(len(batches)):
                    ahead.append(pool.submit(fill, number))
                    if len(ahead) > 2:
                        yield ahead.pop(0).result()
                for future in ahead:
                    yield future.result()

        return epoch

    return make


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
