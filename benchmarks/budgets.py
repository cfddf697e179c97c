"""How full the batches of a budget are: `python -m benchmarks.budgets [CASE …]`.

Writes datasets whose samples are lists of frames, of a length for each episode, to a temporary
folder, and iterates over the loaders of 8 ranks. For each case and budget: the batches of a rank,
and the least number that its part of the costs needs (padded: of clips in batches of one length);
the part of packed batches that is used, and of padded batches that is padding, of the worst rank;
batches beyond the number that the sum of costs needs; |correlation| of mean length and number of a
batch, the mean of all ranks, and its standard error in random orders; decoded frames for each
stored one; buffers in parts of `memory_limit`; episodes in a batch with the budget, and in a batch
of equally many clips without. `--plans` measures the plans of the same loaders, which read no
frame: all but the last three. `--seeds N` has the correlation of packed batches over N seeds, with
its sign: mean and standard deviation. `--memory N` limits the memory of a loader to N frames: those
of a window that have no room are decoded again. `--planning` measures the CPU time of plans.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, nan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import seqrecord
from seqrecord import Budget, SeqRecordPipe, SeqRecordWriter
from seqrecord.loader.clips.tables import IntArray
from seqrecord.loader.pipes.options import LoaderOptions
from seqrecord.loader.pipes.view_order import plan_clips
from seqrecord.loader.sampling.runs import Shard

__all__ = ["CASES", "Case", "Use", "measure", "measure_plans", "planning_seconds", "write"]

RANKS = 8
BUDGETS = (4, 16, 32)  # longest rows
BATCHES = 40  # of each rank, of the largest budget
PLANNED_ROWS = 1_000_000
FRAME_BYTES = 4


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
    trend: float  # correlation of mean length and number of a batch, mean of the ranks
    decodes: float = nan  # from here on: of loaders alone
    buffers: float = nan
    episodes: float = nan
    episodes_before: float = nan

    @property
    def correlation(self) -> float:
        """|correlation|, see above."""
        return abs(self.trend)

    @classmethod
    def of(
        cls, ranks: Sequence[RankUse], lengths: IntArray, size: int, *, padded: bool, **more: float
    ) -> Use:
        """Summarize ranks; `lengths` are the frames of all lists, `size` those of a budget."""
        batches, used, padding, trends = zip(*ranks, strict=True)
        assert {*batches} == {batches[0]}
        parts = 1 / (size // lengths) if padded else lengths / size
        return cls(
            batches[0],
            ceil(float(parts.sum()) / RANKS),
            min(used),
            max(padding),
            sum(batches) * size / int(lengths.sum()) - 1,
            0.0 if np.isnan(trends).all() else float(np.nanmean(trends)),
            **more,
        )


class RankUse(NamedTuple):
    """The batches of a rank, see `Use`; `trend` is NaN if all lists have one length."""

    batches: int
    used: float
    padding: float
    trend: float


def trend_of(mean: npt.NDArray[np.float64]) -> float:
    """The correlation of the mean length, float64[batches], and the number of a batch."""
    return float(np.corrcoef(mean, np.arange(len(mean)))[0, 1]) if mean.std() > 0 else nan


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


def measure(
    case: Case,
    folder: Path,
    table: dict[str, Any],
    budget: int,
    *,
    padded: bool,
    memory_limit: int | None = None,
) -> Use:
    """Iterate over an epoch of the loaders of all ranks; `memory_limit` in bytes."""
    form, size, ranks = "pad" if padded else "list", budget * case.longest, list[RankUse]()
    decoded, buffers, clips = 0, 0.0, 0
    episodes, episodes_before = list[int](), list[int]()
    for rank in range(RANKS):
        options: Any = {"samples": table, "ragged": form, "rank": (rank, RANKS)}
        options["memory_limit"] = memory_limit
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
        used = float((longest * rows if padded else np.array(sums)).mean()) / size
        padding = 1 - sum(sums) / float((longest * rows).sum()) if padded else 0.0
        ranks.append(RankUse(len(rows), used, padding, trend_of(np.array(sums) / rows)))
        same = max(1, round(float(rows.mean())))
        plain = SeqRecordPipe(folder, batch_size=same, output="numpy", **options)
        episodes_before += [len({*batch["episode"]}) for batch in plain]
    assert clips == len(table["frames"])
    lengths = np.array([*map(len, table["frames"])])
    return Use.of(
        ranks,
        lengths,
        size,
        padded=padded,
        decodes=decoded / int(lengths.sum()),
        buffers=buffers,
        episodes=float(np.mean(episodes)),
        episodes_before=float(np.mean(episodes_before)),
    )


def measure_plans(
    case: Case,
    folder: Path,
    table: dict[str, Any],
    budget: int,
    *,
    padded: bool,
    memory_limit: int | None = None,
    seed: int = 0,
) -> Use:
    """Measure the plans of all ranks for an epoch."""
    form: Any = "pad" if padded else "list"
    size, lengths = budget * case.longest, np.array([*map(len, table["frames"])])
    options = LoaderOptions(
        samples=table,
        ragged=form,
        batch_size=Budget(size),
        memory_limit=memory_limit,
        seed=seed,
    )
    planner, ranks = plan_clips(folder, options), list[RankUse]()
    planner.plan_memory(RANKS)
    for rank in range(RANKS):
        plan = planner.plan(0, Shard(rank, RANKS))
        assert plan.budget_use is not None
        assert plan.costs is not None
        clips = plan.clips_between(0, plan.num_clips)
        batch = plan.batches.find(np.arange(len(clips)))[0]
        sums = np.bincount(batch, plan.costs.lengths(clips.sample))
        trend = trend_of(sums / np.bincount(batch))
        padding = plan.budget_use.padding if padded else 0.0
        ranks.append(RankUse(plan.num_batches, plan.budget_use.used, padding, trend))
    return Use.of(ranks, lengths, size, padded=padded)


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


def trend_lines(
    cases: Sequence[Case], num_seeds: int, memory_limit: int | None = None
) -> Iterator[str]:
    """Lines of the table of trends: packed, mean and standard deviation over seeds; and chance."""
    yield f"| lists | episodes | {'; '.join(map(str, BUDGETS))} longest | chance |"
    yield "|---" * 4 + "|"
    for case in cases:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "records"
            table, spreads, chances = write(case, folder), list[str](), list[str]()
            for budget in BUDGETS:
                place = case, folder, table, budget
                limits: Any = {"padded": False, "memory_limit": memory_limit}
                uses = [measure_plans(*place, **limits, seed=n) for n in range(num_seeds)]
                trends = [use.trend for use in uses]
                spreads.append(f"{np.mean(trends):.3f} ± {np.std(trends):.3f}")
                chances.append(f"{(uses[0].batches * RANKS) ** -0.5:.3f}")
        cells = case.name, f"{case.episodes:,}", "; ".join(spreads), "; ".join(chances)
        yield "| " + " | ".join(cells) + " |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table of cases whose names begin with an argument; all by default."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--planning", action="store_true", help="CPU seconds of plans")
    parser.add_argument("--plans", action="store_true", help="from plans; reads no frame")
    parser.add_argument("--seeds", type=int, metavar="N", help="trends over N seeds, from plans")
    parser.add_argument("--memory", type=int, metavar="N", help="frames that memory_limit holds")
    options = parser.parse_args(arguments)
    print(f"seqrecord {seqrecord.__version__}, NumPy {np.__version__}")
    if options.planning:
        for padded in (False, True):
            with tempfile.TemporaryDirectory() as name:
                seconds = planning_seconds(Path(name) / "records", padded=padded)
            print(f"{'padded' if padded else 'packed'}: {seconds:.2f} CPU s for 10^6 rows")
        return
    cases = [case for case in CASES if case.name.startswith(tuple(options.cases) or "")]
    limit = None if options.memory is None else options.memory * FRAME_BYTES
    table = lines(cases, partial(measure_plans if options.plans else measure, memory_limit=limit))
    for line in table if options.seeds is None else trend_lines(cases, options.seeds, limit):
        print(line, flush=True)


if __name__ == "__main__":
    main()
