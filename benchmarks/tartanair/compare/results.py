"""Write RESULTS.md, results.json and a plot from runs of the comparison.

    python -m benchmarks.tartanair.compare.results FOLDER [--to FOLDER]

FOLDER is the folder of `python -m benchmarks.tartanair.compare`; every figure comes from its
results.json and the other workloads' files, such as FOLDER/audio/results.json. Constant text is in
results_template.md.
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

from benchmarks.tartanair.compare.grid import Cell, differing, system_cells
from benchmarks.tartanair.compare.limits import bound
from benchmarks.tartanair.compare.published import (
    LARGE_MEMORY,
    published_settings,
    published_table,
)
from benchmarks.tartanair.compare.workloads import AUDIO, TARTANAIR, WORKLOADS, Workload
from benchmarks.tartanair.loaders.base import BASELINE, USUAL, Settings
from benchmarks.timing import markdown, number, reason
from seqrecord.store.writing.stored_schema import DEFAULT_CODEC

__all__ = ["table_page", "write"]

TO = Path(__file__).parents[1]
PERFORMANCE = Path(__file__).parents[3] / "docs" / "performance.md"
_SCALED = "\\* scaled from the part of an epoch that was run"

Row = Mapping[str, Any]
Document = Mapping[str, Any]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--to", type=Path, default=TO, help="folder of the page")
    options = parser.parse_args(arguments)
    print(write(options.folder, options.to))
    if options.to == TO:
        summarize(json.loads((TO / "results.json").read_text())[TARTANAIR.name], PERFORMANCE)


def write(folder: Path, to: Path) -> Path:
    """Write RESULTS.md, results.json and audio.svg of the runs in `folder` into `to`."""
    files = {name: folder / name / "results.json" for name in WORKLOADS}
    files[TARTANAIR.name] = folder / "results.json"
    documents = {n: json.loads(file.read_text()) for n, file in files.items() if file.exists()}
    (to / "results.json").write_text(json.dumps(documents, indent=1) + "\n")
    path = to / "RESULTS.md"
    path.write_text(page(documents))
    if AUDIO.name in documents:
        _plot(AUDIO, documents[AUDIO.name], to / "audio.svg")
    return path


def summarize(document: Document, path: Path) -> None:
    """Write the figures of each loader's best row between the two comments of `path`."""
    best = _best(row for row in measured(document) if _is_plain(row))
    lines = [
        [
            f"`{name}`",
            differing(row["settings"], USUAL),
            *(f"{row['clips_per_second']:.1f}", f"{row['bytes_per_second'] / 1e9:.2f}"),
            f"{row['share']:.2f}",
        ]
        for name, row in best.items()
    ]
    columns = ["loader", "settings", "clips/s", "GB/s", "share of the copy limit"]
    text = (
        f"On {_counted(document['settings']['cores'], 'core')}, from files in the page cache, "
        f"`seqrecord` delivers shuffled clips at {best['seqrecord']['share']:.2f} of the machine's "
        "copy rate. Each row is a loader with its best number of workers."
    )
    before, _, rest = path.read_text().partition("<!-- loaders -->\n")
    after = rest.partition("<!-- end of loaders -->")[2]
    figures = f"<!-- loaders -->\n{text}\n\n{markdown(columns, lines)}\n<!-- end of loaders -->"
    path.write_text(before + figures + after)


def table_page(document: Document) -> str:
    """The results of a run: limits, rows and reasons."""
    base = WORKLOADS[document["settings"]["workload"]].base
    parts = [f"Machine: {document['machine']}", _limits(document)]
    parts += [_table(measured(document), base), *_problems(document)]
    return "\n\n".join(parts) + "\n"


def page(documents: Mapping[str, Document]) -> str:
    """The published page; `documents` by workload."""
    document = documents[TARTANAIR.name]
    rows = measured(document)
    plain = [row for row in rows if _is_plain(row)]
    apart = {Cell(name, settings) for name, settings in published_settings()}
    apart |= {cell for system in TARTANAIR.systems for cell in system_cells(system, TARTANAIR)}
    found = {_cell(row): row for row in rows}

    def find(loader: str, chosen: Settings) -> Row | str:
        cell = Cell(loader, chosen)
        return found.get(cell) or _why(document, [cell], USUAL)

    settings = document["settings"]
    return Template(Path(__file__).with_name("results_template.md").read_text()).substitute(
        **_facts(document),
        features=", ".join(settings["features"]),
        commits=_commits(*documents.values()),
        summary=_summary(plain),
        published=published_table(find),
        cores=_counted(settings["cores"], "core"),
        cut=f"{settings['max_seconds']:g}",
        codec=DEFAULT_CODEC,
        memory=LARGE_MEMORY,
        limits=_limits(document),
        main=_table(plain, USUAL),
        rest=_table([row for row in rows if row not in plain and _cell(row) not in apart], USUAL),
        reasons="\n\n".join(_problems(document)) or "All rows ran.",
        **{name: _part(WORKLOADS[name], documents.get(name)) for name in WORKLOADS},
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


def _cell(row: Row) -> Cell:
    return Cell(row["loader"], row["settings"])


def _why(document: Document, cells: Iterable[Cell], base: Settings) -> str:
    """The reason that none of these cells has a row."""
    reasons = (reason(document["rows"].get(cell.title(base), ())) for cell in cells)
    return next(filter(None, reasons), "not measured")


def _best(plain: Iterable[Row]) -> dict[str, Row]:
    """The row of each loader with its best number of workers, the best first."""
    best: dict[str, Row] = {}
    for row in plain:
        best.setdefault(row["loader"], row)
    return best


def _best_other(best: Mapping[str, Row]) -> str | None:
    return next((name for name in best if not name.startswith("seqrecord")), None)


# ---- parts of the page


def _part(workload: Workload, document: Document | None) -> str:
    """A line per system: its best row, or the reason that none ran."""
    if document is None:
        return "Not measured."
    facts, rows, base = _facts(document), measured(document), workload.base
    about = (
        f"Data: {facts['frames']} frames in {facts['episodes']} of {facts['lengths']}, "
        f"{facts['size']}. Batches of {base.batch_size} clips, shuffled. CPU seconds are "
        "scaled to an epoch."
    )
    lines = []
    for system in workload.systems:
        cells = system_cells(system, workload)
        row = next((row for row in rows if _cell(row) in cells), None)
        if row is None:
            why = f"not run: {_why(document, cells, base)}"
            lines.append([system.label, *[""] * (len(_SYSTEM_COLUMNS) - 2), why])
        else:
            figures = [show(row) for show in [*_SYSTEM_COLUMNS.values()][1:-1]]
            lines.append([system.label, *figures, system.note])
    problems = [part for part in _problems(document) if "wrong clips" in part]
    return "\n\n".join([about, markdown([*_SYSTEM_COLUMNS], lines), *problems])


_SYSTEM_COLUMNS: dict[str, Callable[[Row], str]] = {
    "system": lambda row: str(row["loader"]),
    "steps/s": lambda row: f"{_rate(row) / row['settings'].batch_size:.1f}",
    "clips/s": lambda row: f"{_rate(row):.1f}",
    "waiting": lambda row: f"{1 - row['busy']:.0%}",
    "workers": lambda row: str(row["settings"].workers),
    "first batch s": lambda row: f"{row['first_batch_seconds']:.2f}",
    "CPU s": lambda row: f"{row['cpu_seconds']:.1f}",
    "peak MB": lambda row: f"{row['peak_memory_bytes'] / 1e6:.0f}",
    "note": lambda _row: "",
}


def _plot(workload: Workload, document: Document, to: Path) -> None:
    """Bars of each system's steps per second, the fastest first."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    rates: dict[str, float] = {}
    for system in workload.systems:
        cells = system_cells(system, workload)
        ran = [_rate(row) for row in measured(document) if _cell(row) in cells]
        if ran:
            rates[system.label] = ran[0] / workload.base.batch_size
    ordered = sorted(rates.items(), key=lambda item: item[1])
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "seqrecord"}):
        figure = Figure(figsize=(8, 0.35 * len(ordered) + 1), layout="tight")
        axes = figure.add_subplot(xlabel="training steps per second")
        bars = axes.barh([name for name, _ in ordered], [rate for _, rate in ordered])
        axes.bar_label(bars, fmt="%.0f", padding=3)
        figure.savefig(to, metadata={"Date": None})


def _table(rows: Sequence[Row], base: Settings) -> str:
    if not rows:
        return "No row ran."
    columns: dict[str, Callable[[Row], str]] = {
        "loader": lambda row: str(row["loader"]),
        "settings": lambda row: differing(row["settings"], base),
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
    return {
        "machine": f"{document['machine']}, {settings['memory_bytes'] / 1e9:.0f} GB of memory",
        "frames": f"{sum(episodes):,}",
        "episodes": _counted(len(episodes), "episode"),
        "lengths": " to ".join(lengths),
        "size": f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.1f} MB",
    }


def _commits(*documents: Document) -> str:
    found = {f"`{row['commit']}`" for document in documents for row in measured(document)}
    return ", ".join(sorted(found)) or "none"


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
