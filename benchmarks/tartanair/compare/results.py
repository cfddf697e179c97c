"""Write RESULTS.md and results.json from runs of the comparison.

    python -m benchmarks.tartanair.compare.results FOLDER [--to FOLDER]

FOLDER is the folder of `python -m benchmarks.tartanair.compare`; every figure comes from its
results.json. Constant text is in results_template.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from string import Template
from typing import Any

from benchmarks.tartanair.compare.grid import differing
from benchmarks.tartanair.compare.limits import bound
from benchmarks.tartanair.loaders.base import BASELINE, USUAL, Settings
from benchmarks.timing import markdown, number, reason
from seqrecord.writing.stored_schema import DEFAULT_CODEC

__all__ = ["table_page", "write"]

TO = Path(__file__).parents[1]
_SCALED = "\\* scaled from the part of an epoch that was run"

Row = Mapping[str, Any]
Document = Mapping[str, Any]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--to", type=Path, default=TO, help="folder of the page")
    options = parser.parse_args(arguments)
    print(write(options.folder, options.to))


def write(folder: Path, to: Path) -> Path:
    """Write RESULTS.md and results.json of the runs in `folder` into `to`."""
    document = json.loads((folder / "results.json").read_text())
    (to / "results.json").write_text(json.dumps(document, indent=1) + "\n")
    path = to / "RESULTS.md"
    path.write_text(page(document))
    return path


def table_page(document: Document) -> str:
    """The results of a run: limits, rows and reasons."""
    parts = [f"Machine: {document['machine']}", _limits(document)]
    parts += [_table(measured(document)), *_problems(document)]
    return "\n\n".join(parts) + "\n"


def page(document: Document) -> str:
    """The published page."""
    rows = measured(document)
    plain = [row for row in rows if _is_plain(row)]
    settings = document["settings"]
    return Template(Path(__file__).with_name("results_template.md").read_text()).substitute(
        **_facts(document),
        features=", ".join(settings["features"]),
        summary=_summary(plain),
        cut=f"{settings['max_seconds']:g}",
        codec=DEFAULT_CODEC,
        limits=_limits(document),
        main=_table(plain),
        rest=_table([row for row in rows if row not in plain]),
        reasons="\n\n".join(_problems(document)) or "All rows ran.",
    )


def measured(document: Document) -> list[dict[str, Any]]:
    """Rows with figures, medians over repeats, fastest first; with the limit that binds each."""
    rows = []
    for title, runs in document["rows"].items():
        if good := [run for run in runs if "clips_per_second" in run]:
            row = {**good[-1], "title": title, "settings": Settings.of(good[-1]["settings"])}
            for name, value in good[-1].items():
                if isinstance(value, (int, float)):
                    row[name] = statistics.median(run[name] for run in good)
            row["bound"], row["share"] = bound(row, document["limits"], row["settings"].storage)
            rows.append(row)
    return sorted(rows, key=_rate, reverse=True)


def _rate(row: Row) -> float:
    return float(row["clips_per_second"])


def _is_plain(row: Row) -> bool:
    """Whether the row is shuffled and differs from `USUAL` in the number of workers at most."""
    settings = row["settings"]
    usual = replace(USUAL, shuffle=settings.shuffle, workers=settings.workers)
    return bool(settings.shuffle != "off" and settings == usual)


def _best(plain: Iterable[Row]) -> dict[str, Row]:
    """The row of each loader with its best number of workers, the best first."""
    best: dict[str, Row] = {}
    for row in plain:
        best.setdefault(row["loader"], row)
    return best


def _best_other(best: Mapping[str, Row]) -> str | None:
    return next((name for name in best if not name.startswith("seqrecord")), None)


# ---- parts of the page


def _table(rows: Sequence[Row]) -> str:
    if not rows:
        return "No row ran."
    columns: dict[str, Callable[[Row], str]] = {
        "loader": lambda row: str(row["loader"]),
        "settings": lambda row: differing(row["settings"]),
        "clips/s": lambda row: f"{row['clips_per_second']:.1f}",
        "GB/s": lambda row: f"{row['bytes_per_second'] / 1e9:.2f}",
        "epoch s": lambda row: f"{row['epoch_seconds']:.1f}" + "*" * (row["complete"] != 1),
        "first batch s": lambda row: f"{row['first_batch_seconds']:.2f}",
        "peak MB": lambda row: f"{row['peak_memory_bytes'] / 1e6:.0f}",
        "CPU s": lambda row: f"{row['cpu_seconds']:.1f}",
        "waiting": lambda row: f"{1 - row['busy']:.0%}",
        "bound by": lambda row: str(row["bound"]),
        "share": lambda row: f"{row['share']:.2f}",
    }
    lines = [[show(row) for show in columns.values()] for row in rows]
    return f"{markdown([*columns], lines)}\n\n{_SCALED}"


def _limits(document: Document) -> str:
    lines = [[n, number(rate, ".2f", 1e9) or "unknown"] for n, rate in document["limits"].items()]
    return markdown(["limit", "GB/s"], lines)


def _problems(document: Document) -> list[str]:
    """Why rows did not run, and rows that delivered wrong clips."""
    counts: dict[tuple[str, str], int] = {}
    for title, runs in document["rows"].items():
        if why := reason(runs):
            key = title.split()[0], why
            counts[key] = counts.get(key, 0) + 1
    parts = []
    if counts:
        lines = [[*key, str(count)] for key, count in counts.items()]
        parts.append(markdown(["did not run", "why", "rows"], lines))
    if wrong := [row for row in measured(document) if row["problems"]]:
        lines = [[row["title"], "; ".join(row["problems"])] for row in wrong]
        parts.append(markdown(["wrong clips", "problems"], lines))
    return parts


def _facts(document: Document) -> dict[str, str]:
    settings = document["settings"]
    episodes = settings["episodes"]
    lengths = [f"{length:,}" for length in sorted({min(episodes), max(episodes)})]
    nbytes = sum(episodes) * settings["frame_bytes"]
    commits = sorted({f"`{row['commit']}`" for row in measured(document)})
    return {
        "machine": f"{document['machine']}, {settings['memory_bytes'] / 1e9:.0f} GB of memory",
        "commits": ", ".join(commits) or "none",
        "frames": f"{sum(episodes):,}",
        "episodes": _counted(len(episodes), "episode"),
        "lengths": " to ".join(lengths),
        "size": f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.1f} MB",
    }


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _shown(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 9.95 else f"{rate:.1f}"


def _summary(plain: Sequence[Row]) -> str:
    """Ours, the best of the others and the baseline, shuffled and from a warm disk."""
    best = _best(plain)
    other = _best_other(best)
    if "seqrecord" not in best or other is None:
        return "Too few loaders ran to compare them."
    ours = best["seqrecord"]
    words = (
        "Shuffled, from a warm disk, each with its best number of workers: `seqrecord` gives "
        f"{_shown(_rate(ours))} clips a second of {ours['settings'].codec} records, "
        f"{ours['share']:.0%} of the machine's copy rate. The best of other loaders is `{other}` "
        f"with {_shown(_rate(best[other]))}"
    )
    if BASELINE in best:
        words += f", the dataset's own loader gives {_shown(_rate(best[BASELINE]))}"
    return f"{words}."


if __name__ == "__main__":
    main()
