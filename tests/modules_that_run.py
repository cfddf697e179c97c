"""Prints, as JSON, which modules run when frames are written and when batches are read.

    python -m tests.modules_that_run FOLDER

By phase: `write`, and `read` from making a pipe to an epoch's end. Modules that only are imported
don't count.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from types import FrameType

import numpy as np

import seqrecord
from seqrecord.pipes.loaders import SeqRecordPipe

ROOT = Path(seqrecord.__file__).parent
EPISODES, FRAMES = 3, 150


class Watch:
    """Notes the modules whose functions are called, by phase."""

    def __init__(self) -> None:
        self.found: dict[str, set[str]] = {}

    def begin(self, phase: str) -> None:
        self._names = self.found.setdefault(phase, set())

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_name != "<module>":
            path = Path(code.co_filename)
            if path.is_relative_to(ROOT):
                self._names.add(".".join(path.relative_to(ROOT).with_suffix("").parts))


def write(folder: str) -> None:
    rng = np.random.default_rng(0)
    with seqrecord.SeqRecordWriter(folder) as writer:
        for number in range(EPISODES):
            with writer.episode(f"a/{number}") as episode:
                for _ in range(FRAMES):
                    image = rng.integers(0, 255, (48, 64, 3), np.uint8)
                    episode.append({"image": image, "depth": rng.random((48, 64), np.float32)})


def read(folder: str) -> None:
    for _ in SeqRecordPipe(folder, clip_len=8, batch_size=4, seed=0, memory_limit="8MiB"):
        pass


def main(folder: str) -> None:
    watch = Watch()
    watch.begin("write")
    threading.setprofile(watch)
    sys.setprofile(watch)
    write(folder)
    watch.begin("read")
    read(folder)
    sys.setprofile(None)
    sys.stdout.write(json.dumps({phase: sorted(names) for phase, names in watch.found.items()}))


if __name__ == "__main__":
    main(sys.argv[1])
