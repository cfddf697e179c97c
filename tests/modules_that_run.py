"""Prints, as JSON, which modules run when frames are written and when batches are read.

    python -m tests.modules_that_run FOLDER

By phase: `frames` in the middle of writing and `write` in all of it, `batches` in the middle of an
epoch and `read` from making the pipe to the epoch's end. Modules that only are imported don't
count.
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
    """Notes the modules whose functions are called; `phases` says under which names."""

    def __init__(self) -> None:
        self.found: dict[str, set[str]] = {}
        self.phases: tuple[str, ...] = ()

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_name != "<module>":
            path = Path(code.co_filename)
            if path.is_relative_to(ROOT):
                name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
                for phase in self.phases:
                    self.found.setdefault(phase, set()).add(name)


def write(folder: str, watch: Watch) -> None:
    rng = np.random.default_rng(0)
    watch.phases = ("write",)
    with seqrecord.SeqRecordWriter(folder) as writer:
        for number in range(EPISODES):
            with writer.episode(f"a/{number}") as episode:
                for i in range(FRAMES):
                    image = rng.integers(0, 255, (48, 64, 3), np.uint8)
                    episode.append({"image": image, "depth": rng.random((48, 64), np.float32)})
                    if (number, i) == (1, 10):
                        watch.phases = ("write", "frames")
                watch.phases = ("write",)


def read(folder: str, watch: Watch) -> None:
    watch.phases = ("read",)
    pipe = SeqRecordPipe(folder, clip_len=8, batch_size=4, seed=0, memory_limit="8MiB")
    for number, _ in enumerate(pipe):
        if number == 10:
            watch.phases = ("read", "batches")
        elif number == 80:
            watch.phases = ("read",)


def main(folder: str) -> None:
    watch = Watch()
    threading.setprofile(watch)
    sys.setprofile(watch)
    write(folder, watch)
    read(folder, watch)
    sys.setprofile(None)
    sys.stdout.write(json.dumps({phase: sorted(names) for phase, names in watch.found.items()}))


if __name__ == "__main__":
    main(sys.argv[1])
