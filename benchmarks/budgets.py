"""How full the batches of a budget are: `python -m benchmarks.budgets [CASE …]`.

Writes datasets whose samples are lists of frames, of a length for each episode, to a temporary
folder, and iterates over the loaders of 8 ranks. For each case and budget: the batches of a rank,
and the least number that its part of the costs needs (padded: of clips in batches of one length);
the part of packed batches that is used, and of padded batches that is padding, of the worst rank;
batches beyond the number that the sum of costs needs; |correlation| of mean length and number of a
batch, the mean of all ranks, and its standard error in random orders; decoded frames for each
stored one; buffers in parts of `memory_limit`; episodes in a batch with the budget, and in a batch
of equally many clips without. `--plans` measures the plans of the same loaders, which read no
frame: all but the last three. `--planning` measures the CPU time of plans instead.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, nan
from pathlib import Path
from typing import Any

import numpy as np

import seqrecord
from seqrecord import Budget, SeqRecordPipe, SeqRecordWriter
from seqrecord.loader.pipes.options import LoaderOptions
from seqrecord.loader.pipes.planning import plan_clips
from seqrecord.loader.sampling.runs import Shard

__all__ = ["CASES", "Case", "Use", "measure", "measure_plans", "planning_seconds", "write"]

RANKS = 8
BUDGETS = (4, 16, 32)  # longest rows
BATCHES = 40  # of each rank, of the largest budget
PLANNED_ROWS = 1_000_000


@dataclass(frozen=True)
class Case:
    """Lists of a length for each episode: from `least` to `most`, or one where `singles`."""

    name: str
    episodes: int
    least: int
    most: int
    singles: bool = False  # but for an eighth of the samples
    batches: int = BATCHES

    def lengths(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The frames of the lists of each episode, int64[episodes]."""
        lengths = np.random.default_rng(0).integers(self.least, self.most + 1, self.episodes)
        if self.singles:
            lengths[np.arange(self.episodes) % 8 != 0] = 1
        return lengths

    @property
    def longest(self) -> int:
        """The frames of the longest list."""
        return int(self.lengths().max())

    @property
    def rows(self) -> int:
        """The samples of each episode, as many in each."""
        frames = RANKS * self.batches * max(BUDGETS) * self.longest
        return max(1, round(frames / int(self.lengths().sum())))


CASES = (
    Case("uniform", 24, 4, 39),
    Case("uniform", 1000, 4, 39),
    Case("video", 24, 8, 40),  # of 2 to 10 s, 4 frames per second
    Case("video", 1000, 8, 40),
    Case("an eighth long", 24, 32, 64, singles=True),
    Case("an eighth long", 1000, 32, 64, singles=True),
)


@dataclass(frozen=True)
class Use:
    """The batches of a budget, see above; `used` and `padding` are of the worst rank."""

    batches: int
    least_batches: int
    used: float
    padding: float
    extra: float
    correlation: float
    decodes: float = nan  # from here on: of loaders alone
    buffers: float = nan
    episodes: float = nan
    episodes_before: float = nan


def write(case: Case, folder: Path) -> dict[str, Any]:
    """Write the dataset of a case; returns its table of samples."""
    table: dict[str, Any] = {"episode": [], "frames": []}
    with SeqRecordWriter(folder, codecs="raw") as writer:
        for number, length in enumerate(case.lengths().tolist()):
            key, count = f"{number:04d}", case.rows * length
            with writer.episode(key) as episode:
                for value in np.arange(count, dtype=np.int32):
                    episode.append({"x": value})
            for start in range(0, count, length):
                table["episode"].append(key)
                table["frames"].append([*range(start, start + length)])
    return table


def measure(case: Case, folder: Path, table: dict[str, Any], budget: int, *, padded: bool) -> Use:
    """Iterate over an epoch of the loaders of all ranks."""
    form, size, numbers = "pad" if padded else "list", budget * case.longest, list[int]()
    used, padding, means, decoded, buffers = [], [], [], 0, 0.0
    episodes, episodes_before, clips = list[int](), list[int](), 0
    for rank in range(RANKS):
        options: Any = {"samples": table, "ragged": form, "rank": (rank, RANKS)}
        pipe = SeqRecordPipe(folder, batch_size=Budget(size), output="numpy", **options)
        sums, most, counts = [], [], []
        for batch in pipe:
            lengths = (~batch["frames_is_pad"]).sum(axis=1)
            sums.append(int(lengths.sum()))
            most.append(int(lengths.max()))
            counts.append(len(lengths))
            episodes.append(len({*batch["episode"]}))
        stats, clips = pipe.stats(), clips + sum(counts)
        decoded += stats["frames_decoded"]
        buffers = max(buffers, stats["peak_buffer_bytes"] / stats["memory_limit"])
        rows, longest = np.array(counts), np.array(most)
        numbers.append(len(rows))
        used.append(float((longest * rows if padded else np.array(sums)).mean()) / size)
        padding.append(1 - sum(sums) / float((longest * rows).sum()) if padded else 0.0)
        if (mean := np.array(sums) / rows).std() > 0:  # else a rank has one length
            means.append(float(np.corrcoef(mean, np.arange(len(rows)))[0, 1]))
        same = max(1, round(float(rows.mean())))
        plain = SeqRecordPipe(folder, batch_size=same, output="numpy", **options)
        episodes_before += [len({*batch["episode"]}) for batch in plain]
    total = sum(map(len, table["frames"]))
    assert {*numbers} == {numbers[0]}
    assert clips == len(table["frames"])
    lengths = np.array([*map(len, table["frames"])])
    parts = 1 / (size // lengths) if padded else lengths / size
    return Use(
        numbers[0],
        ceil(float(parts.sum()) / RANKS),
        min(used),
        max(padding),
        sum(numbers) * size / total - 1,
        abs(float(np.mean(means))) if means else 0.0,
        decoded / total,
        buffers,
        float(np.mean(episodes)),
        float(np.mean(episodes_before)),
    )


def measure_plans(
    case: Case, folder: Path, table: dict[str, Any], budget: int, *, padded: bool, seed: int = 0
) -> Use:
    """Measure the plans of all ranks for an epoch."""
    form: Any = "pad" if padded else "list"
    size, lengths = budget * case.longest, np.array([*map(len, table["frames"])])
    options = LoaderOptions(samples=table, ragged=form, batch_size=Budget(size), seed=seed)
    planner = plan_clips(folder, options)
    planner.plan_memory(RANKS)
    used, padding, means, numbers = [], [], [], list[int]()
    for rank in range(RANKS):
        plan = planner.plan(0, Shard(rank, RANKS))
        assert plan.budget_use is not None
        assert plan.costs is not None
        used.append(plan.budget_use.used)
        padding.append(plan.budget_use.padding if padded else 0.0)
        numbers.append(plan.num_batches)
        clips = plan.clips_between(0, plan.num_clips)
        count = np.bincount(clips.batch)
        mean = np.bincount(clips.batch, plan.costs.lengths(clips.sample)) / count
        if mean.std() > 0:
            means.append(float(np.corrcoef(mean, np.arange(len(mean)))[0, 1]))
    assert {*numbers} == {numbers[0]}
    parts = 1 / (size // lengths) if padded else lengths / size
    return Use(
        numbers[0],
        ceil(float(parts.sum()) / RANKS),
        min(used),
        max(padding),
        sum(numbers) * size / int(lengths.sum()) - 1,
        abs(float(np.mean(means))) if means else 0.0,
    )


def planning_seconds(folder: Path, *, padded: bool, rows: int = PLANNED_ROWS) -> float:
    """The CPU seconds of the plan of a rank of 8, for 10^6 rows, measured with fewer."""
    rng = np.random.default_rng(0)
    with SeqRecordWriter(folder, codecs="raw") as writer, writer.episode("0") as episode:
        for value in np.arange(2 * rows, dtype=np.int32):
            episode.append({"x": value})
    start = np.sort(rng.permutation(2 * rows - 8)[:rows])
    table = {"episode": ["0"] * rows, "start": start, "tokens": rng.integers(4, 40, rows)}
    budget = Budget(16 * 39, "tokens", padded=padded)
    options = LoaderOptions(clip_len=8, samples=table, batch_size=budget)
    planner = plan_clips(folder, options)
    planner.plan_memory(RANKS)
    begin = time.process_time()
    planner.plan(0, Shard(0, RANKS))
    return (time.process_time() - begin) * 1e6 / rows


def lines(cases: Sequence[Case], measure: Callable[..., Use] = measure) -> Iterator[str]:
    """Lines of the table, as they are measured."""
    names = "batches | of a rank, least | used | padding | extra batches | correlation, by chance"
    names += " | decodes | buffers | episodes, without a budget"
    yield f"| lists | episodes | budget | {names} |"
    yield "|---" * 12 + "|"
    for case in cases:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "records"
            table = write(case, folder)
            for budget in BUDGETS:
                for padded in (False, True):
                    use = measure(case, folder, table, budget, padded=padded)
                    cells = [case.name, f"{case.episodes}", f"{budget} longest"]
                    cells += ["padded" if padded else "packed"]
                    cells += [f"{use.batches}, {use.least_batches}"]
                    cells += [f"{use.used:.1%}", f"{use.padding:.1%}", f"{use.extra:.1%}"]
                    chance = (use.batches * RANKS) ** -0.5
                    cells += [f"{use.correlation:.2f}, {chance:.2f}"]
                    cells += [f"{use.decodes:.3f}", f"{use.buffers:.2f}"]
                    cells += [f"{use.episodes:.1f}, {use.episodes_before:.1f}"]
                    yield "| " + " | ".join(cells) + " |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table of cases whose names begin with an argument; all by default."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--planning", action="store_true", help="CPU seconds of plans")
    parser.add_argument("--plans", action="store_true", help="from plans; reads no frame")
    given = parser.parse_args(arguments)
    print(f"seqrecord {seqrecord.__version__}, NumPy {np.__version__}")
    if given.planning:
        for padded in (False, True):
            with tempfile.TemporaryDirectory() as name:
                seconds = planning_seconds(Path(name) / "records", padded=padded)
            print(f"{'padded' if padded else 'packed'}: {seconds:.2f} CPU s for 10^6 rows")
        return
    cases = [case for case in CASES if case.name.startswith(tuple(given.cases) or "")]
    for line in lines(cases, measure_plans if given.plans else measure):
        print(line, flush=True)


if __name__ == "__main__":
    main()
