"""How well the loaders of several ranks mix: `python -m benchmarks.ranks [CASE …] [--write]`.

Writes small datasets to a temporary folder, and iterates over the loaders of 1, 2 and 8 ranks with
default settings. For each case and number of ranks: figures of `benchmarks.mixing`, of epoch 0 and
of the later ones, and the frames that loaders decode (of video with the frames since the keyframe)
for each frame of the dataset, in the epoch that decodes most. `--write` writes the table into
ORDER.md. All cases take about ten minutes on one core.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import seqrecord
from benchmarks.mixing import EpochRows, Mixing, mean
from benchmarks.mixing import measure as measure_rows
from benchmarks.prose import write as write_block
from benchmarks.tartanair.shuffle_quality import PAGE, commit_line
from benchmarks.timing import markdown
from seqrecord import EngineOptions, SeqRecordPipe, SeqRecordWriter
from seqrecord.samples import Samples, every

__all__ = ["CASES", "Case", "Figures", "measure", "write"]

RANKS = (1, 2, 8)
EPOCHS = 3
STREAMED: dict[str, Any] = {"memory_limit": "6 MiB"}  # less than the frames of a rank


@dataclass(frozen=True)
class Case:
    """Episodes of one feature, and the clips of a loader."""

    name: str
    lengths: tuple[int, ...]
    codec: str = "h264:gop=2"
    size: int = 32  # pixels of a frame's side
    chunk_frames: int | None = None
    clip_len: int = 16
    batch_size: int = 16
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Figures:
    """Mixing of the first and of the later epochs, and decodes of each frame."""

    first: Mixing
    later: Mixing
    decodes: float


def odd_or_even(samples: Samples, epoch: int, _: Any) -> Samples:
    """The samples with odd or even starts, in turn."""
    return samples.filter((samples["start"] + epoch) % 2 == 0)


LONG, SHORT, FILTER = (600,) * 30, (100,) * 50, {"samples": odd_or_even}
CASES = (
    Case("GOP 250", LONG, "h264:gop=250"),
    Case("GOP 250, streamed", LONG, "h264:gop=250", options=STREAMED),
    Case("GOP 50, streamed", LONG, "h264:gop=50", options=STREAMED),
    Case("large raw frames", SHORT, "raw", 150),
    Case("large raw frames, batches of 32", SHORT, "raw", 150, batch_size=32),
    Case("large raw frames, chunks of 8", SHORT, "raw", 150, chunk_frames=8),
    Case("clips of 64", (200,) * 50, clip_len=64),
    Case("clips of 64, batches of 8", (200,) * 50, clip_len=64, batch_size=8),
    Case("50 short episodes", SHORT),
    Case("50 short episodes, images", SHORT, "balanced", 32, chunk_frames=8),
    Case("50 short episodes, clips of 4", SHORT, clip_len=4),
    Case("200 short episodes", (60,) * 200, clip_len=8),
    Case("a function, GOP 2", SHORT, options=FILTER),
    Case("a function, GOP 50", LONG, "h264:gop=50", options=FILTER),
    Case("a function, large raw frames", SHORT, "raw", 150, options=FILTER),
    Case("rotating starts", SHORT, options={"samples": every(4, rotate=True)}),
    Case(
        "50 short episodes, explicit num_cursors",
        SHORT,
        options={"engine": EngineOptions(num_cursors=32)},
    ),
    Case("many long episodes", (1000,) * 40, clip_len=8, options=STREAMED),
)


def write(case: Case, folder: Path) -> seqrecord.Dataset:
    """Write the dataset of a case."""
    rng = np.random.default_rng(0)
    shape = (case.size, case.size, 3)
    picture = rng.integers(255, size=shape, dtype=np.uint8)
    with SeqRecordWriter(
        folder, codecs={"image": case.codec}, chunk_frames=case.chunk_frames
    ) as writer:
        for number, length in enumerate(case.lengths):
            with writer.episode(f"{number:04d}") as episode:
                for place in range(length):
                    episode.append({"image": np.roll(picture, place, 0)})
    # Else raw frames are mapped, and only the first rank of a process loads them, to check them.
    return seqrecord.open(folder, verify="always")


def measure(case: Case, dataset: seqrecord.Dataset, ranks: int, epochs: int = EPOCHS) -> Figures:
    """Iterate over the loaders of all ranks."""
    decodes = np.zeros(epochs)
    batches: list[list[tuple[int, int, int, int]]] = [[] for _ in range(epochs)]
    for rank in range(ranks):
        pipe = SeqRecordPipe(
            dataset,
            clip_len=case.clip_len,
            batch_size=case.batch_size,
            rank=(rank, ranks),
            output="numpy",
            last_batch="keep",
            **case.options,
        )
        for epoch in range(epochs):
            for step, batch in enumerate(pipe):
                for key, start in zip(batch["episode"], batch["start"], strict=True):
                    batches[epoch].append((step, rank, int(key), int(start)))
            stats = pipe.stats()
            decodes[epoch] += stats["video_frames_decoded"] or stats["frames_decoded"]
    mixings = []
    for clips in batches:
        step, rank_of, episode, start = np.array(clips, np.int64).T
        rows = EpochRows(step, rank_of, episode, start)
        mixings.append(measure_rows(rows, case.lengths, case.clip_len))
    most = float(decodes.max()) / sum(case.lengths)
    return Figures(mixings[0], mean(mixings[1:]), most)


def table(cases: Sequence[Case]) -> str:
    """Figures in parts of a full shuffle's: epoch 0, later."""
    columns = ["case", "ranks", "step", "rank", "last steps", "phase", "neighbours", "decodes"]
    names = ("step_episodes", "rank_episodes", "tail_episodes", "phase", "neighbours")
    lines = []
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            dataset = write(case, Path(folder) / "records")
            for ranks in RANKS:
                found = measure(case, dataset, ranks)
                cells = [
                    ", ".join(f"{getattr(m, name).ratio:.2f}" for m in (found.first, found.later))
                    for name in names
                ]
                lines.append([case.name, str(ranks), *cells, f"{found.decodes:.3f}"])
            dataset.close()
    return markdown(columns, lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ranks")
    parser.add_argument("case", nargs="*", help="parts of names of cases; by default all")
    parser.add_argument("--write", action="store_true", help="write ORDER.md")
    options = parser.parse_args(arguments)
    if options.case and options.write:
        parser.error("--write measures all cases")
    chosen = [c for c in CASES if not options.case or any(part in c.name for part in options.case)]
    measured_code = commit_line()
    found = table(chosen)
    print(found)
    if options.write:
        write_block(PAGE, "ranks", f"{measured_code}\n\n{found}\n")


if __name__ == "__main__":
    main()
