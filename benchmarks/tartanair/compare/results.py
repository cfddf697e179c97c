"""Write RESULTS.md, results.json and a plot from runs of the comparison.

    python -m benchmarks.tartanair.compare.results FOLDER [--to FOLDER]

FOLDER is the folder of `python -m benchmarks.tartanair.compare`; every figure comes from its
results.json and the other workloads' files, such as FOLDER/audio/results.json. With `--keep`,
workloads that were not measured there keep their published tables. Constant text is in
results_template.md. `python -m benchmarks.prose` then writes the figures in README.md and docs.
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

from benchmarks.checks import TRIAL, faults, minutes_of
from benchmarks.tartanair.compare.grid import Cell, differing, system_cells
from benchmarks.tartanair.compare.published import (
    LARGE_MEMORY,
    published_settings,
    published_table,
)
from benchmarks.tartanair.compare.workloads import AUDIO, TARTANAIR, WORKLOADS, System, Workload
from benchmarks.tartanair.loaders.base import BASELINE, USUAL, Settings
from benchmarks.timing import markdown, number, ranged, reason, relation
from seqrecord.store.writing.stored_schema import DEFAULT_CODEC

__all__ = ["best_rows", "measured", "page", "table_page", "write"]

TO = Path(__file__).parents[1]
BY_HAND = "by-hand"
_RATE, _FIRST = "clips_per_second", "first_clips_per_second"

Row = Mapping[str, Any]
Document = Mapping[str, Any]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--to", type=Path, default=TO, help="folder of the page")
    parser.add_argument("--draft", action="store_true", help="write without the checks")
    parser.add_argument("--keep", action="store_true", help="keep workloads that were not measured")
    options = parser.parse_args(arguments)
    print(write(options.folder, options.to, is_draft=options.draft, keeps_others=options.keep))


def write(folder: Path, to: Path, *, is_draft: bool = False, keeps_others: bool = False) -> Path:
    """Write RESULTS.md, results.json and audio.svg of the runs in `folder` into `to`."""
    files = {name: folder / name / "results.json" for name in WORKLOADS}
    files[TARTANAIR.name] = folder / "results.json"
    documents = {n: json.loads(file.read_text()) for n, file in files.items() if file.exists()}
    if keeps_others:
        documents = json.loads((to / "results.json").read_text()) | documents
    problems = [f"{name}: {fault}" for name, d in documents.items() for fault in faults(d)]
    problems += [
        f"{loader}: faster from cold files than from warm ones: repeat it, or explain it"
        for document in documents.values()
        for loader in colder(measured(document))
        if loader not in EXPLAINED
    ]
    if len({document["commit"] for document in documents.values()}) > 1:
        problems.append("workloads of several commits")
    if problems and not is_draft:
        raise SystemExit("not published: " + "; ".join(problems))
    (to / "results.json").write_text(json.dumps(documents, indent=1) + "\n")
    path = to / "RESULTS.md"
    path.write_text(page(documents))
    if AUDIO.name in documents:
        _plot(AUDIO, documents[AUDIO.name], to / "audio.svg")
    return path


def table_page(document: Document) -> str:
    """The results of a run: rows and reasons."""
    base = WORKLOADS[document["settings"]["workload"]].base
    parts = [f"Machine: {document['machine']}", _minutes(document), _ceilings(document)]
    parts += [_table(measured(document), base), *_problems(document)]
    return "\n\n".join(parts) + "\n"


def page(documents: Mapping[str, Document]) -> str:
    """The published page; `documents` by workload."""
    document = documents[TARTANAIR.name]
    rows = measured(document)
    best = best_rows(document)
    shown = [row["title"] for row in best.values()]
    apart = {Cell(name, settings) for name, settings in published_settings()}
    by_cell = {_cell(row): row for row in rows}

    def find(loader: str, chosen: Settings) -> Row | str:
        cell = Cell(loader, chosen)
        return by_cell.get(cell) or _why(document, [cell], USUAL)

    def is_other(row: Row) -> bool:
        if _is_plain(row) or row["title"] in shown or _cell(row) in apart:
            return False
        return not any(_is_of(system, row, USUAL) for system in TARTANAIR.systems)

    settings = document["settings"]
    return Template(Path(__file__).with_name("results_template.md").read_text()).substitute(
        **_facts(document),
        features=", ".join(settings["features"]),
        commit=", ".join(sorted({f"`{each['commit']}`" for each in documents.values()})),
        minutes=_minutes(*documents.values()),
        repeats=_counted(document.get("repeats", 1), "repeat"),
        summary=_summary(best),
        published=published_table(find),
        cores=_counted(settings["cores"], "core"),
        codec=DEFAULT_CODEC,
        memory=LARGE_MEMORY,
        ceilings=_ceilings(document),
        main=_table([*best.values()], USUAL),
        colder=_colder(rows),
        rest=_table([row for row in rows if is_other(row)], USUAL),
        reasons="\n\n".join(_problems(document)) or "All rows ran.",
        **{name: _part(workload, documents.get(name)) for name, workload in WORKLOADS.items()},
    )


def measured(document: Document) -> list[dict[str, Any]]:
    """Rows with figures, medians over repeats, fastest first; without those that chose settings."""
    rows = []
    for title, runs in document["rows"].items():
        good = [run for run in runs if "clips_per_second" in run]
        if title.startswith(TRIAL) or not good:
            continue
        row = {**good[-1], "title": title, "runs": good}
        row["settings"] = Settings.of(good[-1]["settings"])
        for name, value in good[-1].items():
            if isinstance(value, (int, float)):
                row[name] = statistics.median(run[name] for run in good)
        rows.append(row)
    return sorted(rows, key=_rate, reverse=True)


def best_rows(document: Document) -> dict[str, Row]:
    """Each loader's best row, shuffled, from warm files, the fastest first."""
    best: dict[str, Row] = {}
    for row in measured(document):
        if _is_plain(row):
            best.setdefault(row["loader"], row)
    return best


def _rate(row: Row) -> float:
    return float(row[_RATE])


_TUNED = ("shuffle", "workers", "prefetch", "threads", "reused")


def _is_plain(row: Row) -> bool:
    """Whether the row is shuffled and differs from `USUAL` at most in what is tried for each."""
    settings = row["settings"]
    usual = replace(USUAL, **{name: getattr(settings, name) for name in _TUNED})
    return bool(settings.shuffle != "off" and settings == usual)


def _cell(row: Row) -> Cell:
    return Cell(row["loader"], row["settings"])


def _why(document: Document, cells: Iterable[Cell], base: Settings) -> str:
    """The reason that none of these cells has a row."""
    titles = [prefix + cell.title(base) for cell in cells for prefix in ("", TRIAL)]
    reasons = (reason(document["rows"].get(title, ())) for title in titles)
    return next(filter(None, reasons), "not measured")


# ---- parts of the page


def _part(workload: Workload, document: Document | None) -> str:
    """A line per system: its best row, or the reason that none ran."""
    if document is None:
        return "Not measured."
    facts, rows, base = _facts(document), measured(document), workload.base
    about = (
        f"Data: {facts['frames']} frames in {facts['episodes']} of {facts['lengths']}, "
        f"{facts['size']}. Batches of {base.batch_size} clips, shuffled."
    )
    lines = []
    for system in workload.systems:
        row = next((row for row in rows if _is_of(system, row, base)), None)
        if row is None:
            why = f"not run: {_why(document, system_cells(system, workload), base)}"
            lines.append([system.label, *[""] * (len(_SYSTEM_COLUMNS) - 2), why])
        else:
            figures = [show(row) for show in [*_SYSTEM_COLUMNS.values()][1:-1]]
            lines.append([system.label, *figures, system.note])
    problems = [part for part in _problems(document) if "wrong clips" in part]
    return "\n\n".join([about, markdown([*_SYSTEM_COLUMNS], lines), *problems])


def _is_of(system: System, row: Row, base: Settings) -> bool:
    """Whether the row is the system's, with any of the settings that are tried."""
    settings = row["settings"]
    usual = replace(base, **{name: getattr(settings, name) for name in _TUNED})
    is_same = settings == replace(usual, **system.changes)
    return bool(row["loader"] == system.loader and settings.shuffle != "off" and is_same)


_SYSTEM_COLUMNS: dict[str, Callable[[Row], str]] = {
    "system": lambda row: str(row["loader"]),
    "frames": lambda row: str(row.get("frames", "")),
    "steps/s": lambda row: f"{_rate(row) / row['settings'].batch_size:.1f}",
    "clips/s": lambda row: _ranged(row, _RATE, ".1f"),
    "epoch 1: clips/s": lambda row: _ranged(row, _FIRST, ".1f"),
    "waiting": lambda row: f"{row['waiting']:.0%}",
    "workers": lambda row: str(row["settings"].workers),
    "threads, reused": lambda row: _threads(row["settings"]),
    "first batch s": lambda row: f"{row['first_batch_seconds']:.2f}",
    "CPU ms a batch": lambda row: _milliseconds(row, "cpu_seconds_per_batch"),
    "peak MB": lambda row: f"{row['peak_memory_bytes'] / 1e6:.0f}",
    "note": lambda _row: "",
}


def _threads(settings: Settings) -> str:
    if not (settings.threads or settings.reused):
        return ""
    return f"{settings.threads}, {'yes' if settings.reused else 'no'}"


def _ranged(row: Row, key: str, form: str) -> str:
    return ranged(row["runs"], key, form)


def _milliseconds(row: Row, key: str) -> str:
    return number(row.get(key), ".0f", 1e-3)


def _plot(workload: Workload, document: Document, to: Path) -> None:
    """Bars of each system's steps per second, the fastest first."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    rates: dict[str, float] = {}
    for system in workload.systems:
        rows = measured(document)
        ran = [_rate(row) for row in rows if _is_of(system, row, workload.base)]
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
        "frames": lambda row: str(row.get("frames", "")),
        "later epochs: clips/s": lambda row: "" if _is_cold(row) else _rates(row),
        "epoch 1: clips/s": lambda row: _rates(row) if _is_cold(row) else _first_rates(row),
        "GB/s": lambda row: f"{row['bytes_per_second'] / 1e9:.2f}",
        "opening s": lambda row: number(row.get("opening_seconds"), ".2f"),
        "first batch s": lambda row: f"{row['first_batch_seconds']:.2f}",
        "peak MB": lambda row: f"{row['peak_memory_bytes'] / 1e6:.0f}",
        "CPU ms a batch": lambda row: _milliseconds(row, "cpu_seconds_per_batch"),
        "waiting": lambda row: f"{row['waiting']:.0%}",
        "bound by": lambda row: str(row.get("bound", "")),
        "share": lambda row: number(row.get("share"), ".2f"),
    }
    lines = [[show(row) for show in columns.values()] for row in rows]
    return markdown([*columns], lines)


EXPLAINED: dict[str, str] = {}
"""Loaders whose files are read faster when they are not in the page cache, and why."""


def colder(rows: Sequence[Row]) -> list[str]:
    """Loaders whose only epoch from cold files is ahead of the first one from warm files."""
    warm = {(row["loader"], row["settings"]): row["runs"] for row in rows if not _is_cold(row)}
    names = []
    for row in filter(_is_cold, rows):
        runs = warm.get((row["loader"], replace(row["settings"], storage="local")), [])
        if any(_FIRST in run for run in runs):
            firsts = [{_RATE: run[_FIRST]} for run in runs]
            if relation(row["runs"], firsts, _RATE) == "ahead":
                names.append(row["loader"])
    return names


def _colder(rows: Sequence[Row]) -> str:
    names = [f"`{name}` ({EXPLAINED.get(name, 'not explained')})" for name in colder(rows)]
    return f"Faster from cold files than from warm ones in epoch 1: {', '.join(names) or 'none'}."


def _is_cold(row: Row) -> bool:
    """Whether the row has one epoch only, of files that are not in the page cache."""
    return bool(row["settings"].storage == "cold")


def _rates(row: Row) -> str:
    return _ranged(row, _RATE, ".1f")


def _first_rates(row: Row) -> str:
    return _ranged(row, _FIRST, ".1f")


def _ceilings(document: Document) -> str:
    """The range of the machine's best rates, over all measurements."""
    runs = [
        run["ceiling"] for runs in document["rows"].values() for run in runs if "ceiling" in run
    ]
    names = dict.fromkeys(name for run in runs for name in run)
    lines = [[name, ranged(runs, name, ".2f", 1e9)] for name in names]
    return markdown(["ceiling", "GB/s"], lines)


def _minutes(*documents: Document) -> str:
    parts: dict[str, float] = {}
    for document in documents:
        workload = document["settings"]["workload"]
        prefix = "" if workload == TARTANAIR.name else f"{workload} "
        minutes = document.get("minutes", {})
        parts |= {f"{prefix}{name}": count for name, count in minutes.items()}
    return minutes_of({"minutes": parts})


def _problems(document: Document) -> list[str]:
    """Why rows did not run, and rows that delivered wrong clips."""
    counts: dict[tuple[str, str], int] = {}
    for title, runs in document["rows"].items():
        if why := reason(runs):
            key = title.removeprefix(TRIAL).split()[0], why
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


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _shown(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 9.95 else f"{rate:.1f}"


def _summary(best: Mapping[str, Row]) -> str:
    """Ours, those ahead of it or the best of the others, and the baseline."""
    others = {name: row for name, row in best.items() if not name.startswith("seqrecord")}
    if "seqrecord" not in best or not others:
        return "Too few loaders ran to compare them."
    ours = best["seqrecord"]
    words = (
        "Shuffled, from a warm disk, each with the best of its settings, in epochs after the "
        f"first: `seqrecord` gives {_shown(_rate(ours))} clips a second of "
        f"{ours['settings'].codec} records, {ours['share']:.0%} of the machine's copy rate. "
    )
    relations = {name: relation(ours["runs"], row["runs"], _RATE) for name, row in others.items()}
    for kind, text in (("behind", "Ahead of it"), ("level", "Level with it")):
        names = [
            f"`{n}` ({_shown(_rate(others[n]))})" for n, is_ in relations.items() if is_ == kind
        ]
        words += f"{text}: {', '.join(names)}. " if names else ""
    if "ahead" in relations.values():
        name = next(name for name, is_ in relations.items() if is_ == "ahead")
        words += f"The best of the others is `{name}` with {_shown(_rate(others[name]))}. "
    if BASELINE in best:
        words += f"The dataset's own loader gives {_shown(_rate(best[BASELINE]))}."
    return words.rstrip()


if __name__ == "__main__":
    main()
