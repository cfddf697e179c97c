"""A recorder that a test kills: `python -m tests.killed_recorder FOLDER FLUSH_SECONDS MODE`.

It tells what it is sure of: `safe KEY FRAMES` for an episode that is open, `ended KEY`.
"""

from __future__ import annotations

import os
import sys
import time

import numpy as np
import numpy.typing as npt

from seqrecord import SeqRecordRecorder

__all__ = ["EPISODE_FRAMES", "made_frame"]

EPISODE_FRAMES = 40


def made_frame(episode: int, number: int) -> dict[str, npt.NDArray[np.generic]]:
    """What is recorded as frame `number` of an episode."""
    rng = np.random.default_rng([episode, number])
    return {
        "image": rng.integers(0, 256, (24, 32, 3), np.uint8),
        "state": np.array([episode, number], np.float32),
    }


def _record(folder: str, flush_seconds: float, mode: str) -> None:
    with SeqRecordRecorder(folder, flush_seconds=flush_seconds, mode=mode) as recorder:  # type: ignore[arg-type]
        before = 0
        for episode in range(1000):
            key = f"{mode}/{episode:03d}"
            with recorder.episode(key, metadata={"episode": episode}) as recording:
                for number in range(EPISODE_FRAMES):
                    recording.append(made_frame(episode, number))
                    time.sleep(0.002)
                    safe = recorder.stats().durable_frames - before
                    _tell("safe", key, str(safe))
            before += EPISODE_FRAMES
            _tell("ended", key)


def _tell(*words: str) -> None:
    os.write(1, f"{' '.join(words)}\n".encode())


if __name__ == "__main__":
    _record(sys.argv[1], float(sys.argv[2]), sys.argv[3])
