"""CPU per batch of a mix of two robots: placement and normalization by arguments and by functions.

    python -m benchmarks.robots FOLDER [--repeats 15] [--write]

Both sides make the same batches: states and actions of 6 and 14 values, normalized by the
statistics of their robot and padded to 32, 50 actions per clip as for pi0, and masks of padded
values. One side passes `vectors` to the mix, the other a `clip_transform` to each
source. Frames stay in memory, so an epoch gathers batches and decodes nothing. Epochs of both sides
alternate; figures are medians. `--write` writes those without images into docs/mixing.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import seqrecord
from benchmarks.prose import write as write_block
from benchmarks.timing import commit, machine, markdown, once
from seqrecord import SeqRecordIterableDataset, SeqRecordMix, SeqRecordWriter, Vector

__all__ = ["Padded", "measure", "mix_by_arguments", "mix_by_functions", "sentence", "write"]

SIZES = {"arm": 6, "humanoid": 14}
VECTORS = ("observation.state", "action")
PADDED, BATCH, ACTIONS, SIDE = 32, 64, 50, 96


class Padded:
    """The `clip_transform` that a user would write without the arguments."""

    def __init__(self, found: Any) -> None:
        self.numbers = {
            name: (found[name].mean.astype("f4"), found[name].std.astype("f4")) for name in VECTORS
        }

    def __call__(self, clip: dict[str, Any], _: np.random.Generator) -> dict[str, Any]:
        made: dict[str, npt.NDArray[Any]] = {n: v for n, v in clip.items() if n not in VECTORS}
        for name in VECTORS:
            mean, std = self.numbers[name]
            whole = np.zeros((len(clip[name]), PADDED), np.float32)
            whole[:, : len(mean)] = (clip[name] - mean) / std
            made[name] = whole
            made[f"{name}_dim_is_pad"] = np.arange(PADDED) >= len(mean)
        return made


def write(folder: Path, size: int, episodes: int = 20, length: int = 150) -> None:
    """Write a robot's dataset with one camera."""
    rng = np.random.default_rng(size)
    with SeqRecordWriter(folder, codecs="raw") as writer:
        for number in range(episodes):
            with writer.episode(f"{number:03d}") as episode:
                for _ in range(length):
                    values = {name: rng.normal(2, 3, size).astype("f4") for name in VECTORS}
                    image = rng.integers(0, 256, (SIDE, SIDE, 3), np.uint8)
                    episode.append({**values, "image": image})


def _mix(folder: Path, features: list[str], functions: bool, **options: Any) -> SeqRecordMix:
    sources = {}
    for name in SIZES:
        function = Padded(seqrecord.open(folder / name).statistics) if functions else None
        sources[name] = SeqRecordIterableDataset(
            folder / name,
            features=features,
            windows={"action": range(ACTIONS)},
            pad="edge",
            clip_transform=function,
        )
    weights = dict.fromkeys(SIZES, 1)
    return SeqRecordMix(sources, weights=weights, batch_size=BATCH, memory_limit="4GiB", **options)


def mix_by_arguments(folder: Path, features: list[str]) -> SeqRecordMix:
    """The mix that places and normalizes during the gather."""
    vectors = dict.fromkeys(VECTORS, Vector(pad_to=PADDED, normalize="mean_std"))
    return _mix(folder, features, functions=False, vectors=vectors)


def mix_by_functions(folder: Path, features: list[str]) -> SeqRecordMix:
    """The mix with a `clip_transform` for each source."""
    return _mix(folder, features, functions=True)


def _epoch(mix: SeqRecordMix) -> tuple[float, float]:
    """CPU and wall-clock milliseconds per batch of the next epoch."""
    cpu, begin = time.process_time(), time.perf_counter()
    count = sum(1 for _ in mix)
    spent = time.process_time() - cpu, time.perf_counter() - begin
    return spent[0] / count * 1e3, spent[1] / count * 1e3


def measure(folder: Path, features: list[str], repeats: int) -> dict[str, tuple[float, float]]:
    """CPU and wall-clock milliseconds per batch of both sides: medians of alternating epochs."""
    sides = {
        "arguments": mix_by_arguments(folder, features),
        "clip_transform": mix_by_functions(folder, features),
    }
    for one, other in zip(*sides.values(), strict=True):  # also reads the frames
        assert one["dataset"] == other["dataset"]
        assert (one["start"] == other["start"]).all()
        for name in VECTORS:
            assert np.allclose(one[name], other[name], atol=1e-5)
            mask = f"{name}_dim_is_pad"
            assert (one[mask] == other[mask]).all()
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, mix in sides.items():
            spent[name].append(_epoch(mix))
    return {
        name: (statistics.median(one for one, _ in all_), statistics.median(w for _, w in all_))
        for name, all_ in spent.items()
    }


def sentence(spent: Mapping[str, tuple[float, float]]) -> str:
    """The costs of vectors in docs/mixing.md."""
    arguments, function = (spent[name][0] for name in ("arguments", "clip_transform"))
    return (
        f"`vectors` cost a few calls of NumPy per source and batch: {arguments:.1f} ms of CPU for "
        f"{BATCH} clips of two robots with {ACTIONS} actions, against {function:.1f} ms with a "
        "function of `clip_transform` (`python -m benchmarks.robots FOLDER`, measured at "
        f"`{commit()}`).\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="data")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--write", action="store_true", help="write docs/mixing.md")
    options = parser.parse_args()
    for name, size in SIZES.items():
        once(options.folder / name, partial(write, size=size))
    rows, sentences = [], []
    for features in ([*VECTORS], [*VECTORS, "image"]):
        found = measure(options.folder, features, options.repeats)
        sentences.append(sentence(found))
        cells = [f"{value:.2f}" for name in found for value in found[name]]
        ratio = found["clip_transform"][0] / found["arguments"][0]
        rows.append([", ".join(features), *cells, f"{ratio:.1f}"])
    columns = ["features", "arguments: CPU, ms per batch", "wall", "clip_transform: CPU", "wall"]
    if options.write:
        write_block("docs/mixing.md", "vectors", sentences[0])
    print(f"Batches of {BATCH} clips; {machine()}\n")
    print(markdown([*columns, "ratio of CPU"], rows))


if __name__ == "__main__":
    main()
