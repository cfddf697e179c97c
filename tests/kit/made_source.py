"""A source without files: frames are a function of episode and number."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord import FeatureSpec, Schema
from seqrecord.errors import SourceError
from seqrecord.sources import EpisodeInfo


@dataclass(frozen=True)
class MadeSource:
    """Episodes `made/000`, `made/001`, … with the given numbers of frames.

    `bad` maps failing episodes to a frame, at which `error` is raised, or the process is killed if
    it is a `SystemExit`; `lies` maps episodes to the number of yielded frames if
    it differs from the listed one. Every frame takes `delay` seconds; last frames have no `flow`.
    """

    lengths: Sequence[int] = (9, 3, 14, 1, 6, 11, 2, 8)
    delay: float = 0.0
    bad: Mapping[int, int] = field(default_factory=dict)
    lies: Mapping[int, int] = field(default_factory=dict)
    error: BaseException | None = None

    def schema(self) -> Schema:
        return Schema(
            [
                FeatureSpec("image", np.dtype("u1"), (24, 32, 3)),
                FeatureSpec("flow", np.dtype("<f4"), (24, 32, 2)),
            ]
        )

    def episodes(self) -> list[EpisodeInfo]:
        return [
            EpisodeInfo(f"made/{i:03d}", length, {"number": i})
            for i, length in enumerate(self.lengths)
        ]

    def frames(self, info: EpisodeInfo) -> Iterator[dict[str, npt.NDArray[Any]]]:
        episode = int(info.metadata["number"])
        for number in range(self.lies.get(episode, info.num_frames)):
            if self.bad.get(episode) == number:
                if isinstance(self.error, SystemExit):
                    os.kill(os.getpid(), signal.SIGKILL)
                raise self.error or SourceError("made to fail", episode=info.key, frame=number)
            if self.delay:
                time.sleep(self.delay)
            frame = made_frame(info.key, number)
            if number == info.num_frames - 1:
                del frame["flow"]
            yield frame


@dataclass(frozen=True)
class EndlessSource(MadeSource):
    """`MadeSource` whose last episode never ends.

    After two frames of that episode, the main process waits for an interrupt; a worker continues,
    or waits as well if it `stops`. Empty files in `folder` show progress: an episode's number when
    its frames are requested, and `endless` after these two frames.
    """

    folder: str = ""
    stops: bool = False

    def episodes(self) -> list[EpisodeInfo]:
        *others, last = super().episodes()
        return [*others, replace(last, num_frames=1_000_000)]

    def frames(self, info: EpisodeInfo) -> Iterator[dict[str, npt.NDArray[Any]]]:
        (Path(self.folder) / str(info.metadata["number"])).touch()
        for number, frame in enumerate(super().frames(info)):
            if number == 2 and info.num_frames == 1_000_000:
                (Path(self.folder) / "endless").touch()
                if self.stops or multiprocessing.parent_process() is None:
                    threading.Event().wait()
            yield frame

    def is_endless(self) -> bool:
        """Whether all episodes have been requested, and the last one does not end."""
        reported = {path.name for path in Path(self.folder).iterdir()}
        return reported == {"endless", *map(str, range(len(self.lengths)))}


@dataclass(frozen=True)
class GivenSource:
    """A source of the given features, and of frames and packets or decoded video by key."""

    features: Schema
    content: Mapping[str, Sequence[Mapping[str, Any]]]
    packets: Mapping[str, Mapping[str, Sequence[Any]]] = field(default_factory=dict)

    def schema(self) -> Schema:
        return self.features

    def episodes(self) -> list[EpisodeInfo]:
        return [EpisodeInfo(key, len(frames)) for key, frames in self.content.items()]

    def videos(self, info: EpisodeInfo) -> Mapping[str, Sequence[Any]]:
        return self.packets.get(info.key, {})

    def frames(self, info: EpisodeInfo) -> Iterator[Mapping[str, Any]]:
        yield from self.content[info.key]


def made_frame(key: str, number: int) -> dict[str, npt.NDArray[Any]]:
    """`image` u1 [24, 32, 3] and `flow` f4 [24, 32, 2], random by a hash of episode and number."""
    seed = hashlib.sha256(f"{key} {number}".encode()).digest()
    rng = np.random.default_rng(list(seed))
    return {
        "image": rng.integers(0, 256, (24, 32, 3), np.uint8),
        "flow": rng.normal(size=(24, 32, 2)).astype(np.float32),
    }
