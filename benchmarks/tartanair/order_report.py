"""Results of `order_training` as a table, JSON and plots."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.timing import markdown

__all__ = [
    *("REFERENCE", "STUDENT_T", "Interval", "Run"),
    *("draw", "effects", "errors", "page", "runs_of", "table"),
]

REFERENCE = "full shuffle"

# Two-sided 95 % quantiles of Student's t by the number of values, one more than the degrees of
# freedom; https://www.itl.nist.gov/div898/handbook/eda/section3/eda3672.htm
STUDENT_T = {
    2: 12.706,
    3: 4.303,
    4: 3.182,
    5: 2.776,
    6: 2.571,
    7: 2.447,
    8: 2.365,
    9: 2.306,
    10: 2.262,
}

# Okabe and Ito's colours, distinguishable with any colour vision.
COLOURS = {
    "sequential": "#0072B2",
    "buffer": "#009E73",
    "seqrecord": "#D55E00",
    REFERENCE: "#000000",
}

Run = dict[str, Any]
"""`order`, `seed`, `losses` along the training and `errors` of validation after each epoch."""


class Interval(NamedTuple):
    """A mean, and half the width of its 95 % confidence interval by Student's t."""

    mean: float
    half: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        half = STUDENT_T[len(values)] * statistics.stdev(values) / len(values) ** 0.5
        return cls(statistics.mean(values), half)

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves out zero."""
        return abs(self.mean) > self.half

    def __str__(self) -> str:
        return f"{self.mean:.4f} ± {self.half:.4f}"


def runs_of(document: Mapping[str, Any]) -> list[Run]:
    return [run for runs in document["rows"].values() for run in runs]


def table(runs: Sequence[Run]) -> str:
    """The last validation error by order, and its differences from a full shuffle by seed.

    Means with 95 % intervals; orders differ if the interval of the difference excludes zero.
    """
    above = effects(runs)
    lines = []
    for order, interval in errors(runs).items():
        line = [order, str(interval), "", ""]
        if order in above:
            line[2:] = [str(above[order]), "yes" if above[order].is_clear else "no"]
        lines.append(line)
    return markdown(
        ["order", "validation error", "above a full shuffle, same seed", "differs"], lines
    )


def page(document: Mapping[str, Any]) -> str:
    """The published page."""
    settings, runs = document["settings"], runs_of(document)
    facts = {**settings, "machine": document["machine"]}
    shown = ", ".join(f"{name} {value}" for name, value in facts.items())
    seeds = len({run["seed"] for run in runs})
    drawn = "\n\n".join(f"![{name}]({name}.png)" for name in _DRAWINGS)
    template = Path(__file__).with_name("order_template.md").read_text()
    return template.format(
        commit=document["commit"],
        shown=shown,
        seeds=seeds,
        drawn=drawn,
        table=table(runs),
        buffer=settings["buffer"],
        reference=REFERENCE,
    )


def errors(runs: Sequence[Run]) -> dict[str, Interval]:
    """The last validation error, by order."""
    orders = dict.fromkeys(run["order"] for run in runs)
    return {
        order: Interval.of([run["errors"][-1] for run in runs if run["order"] == order])
        for order in orders
    }


def effects(runs: Sequence[Run]) -> dict[str, Interval]:
    """The last validation error above that of a full shuffle with the same seed, by other order."""
    orders = dict.fromkeys(run["order"] for run in runs)
    return {o: Interval.of(_differences(runs, o)) for o in orders if o != REFERENCE}


def _differences(runs: Sequence[Run], order: str) -> list[float]:
    """Last errors above the error of a full shuffle with the same seed."""
    last = {(run["order"], run["seed"]): run["errors"][-1] for run in runs}
    seeds = [run["seed"] for run in runs if run["order"] == order]
    return [last[order, seed] - last[REFERENCE, seed] for seed in seeds]


# Plots


def draw(folder: Path, document: Mapping[str, Any]) -> None:
    """Write the plots if matplotlib is installed."""
    try:
        import matplotlib
    except ImportError:
        return
    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in _DRAWINGS.items():
        figure = make(runs_of(document), document["settings"]["curve_steps"])
        figure.savefig(folder / f"{name}.png", dpi=150, bbox_inches="tight")


def _figure(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _curves(runs: Sequence[Run], curve_steps: int) -> Any:
    """Training loss along the steps: the mean over seeds, in a band from the least to the most."""
    figure, axes = _figure(8, 4.5)
    for order in dict.fromkeys(run["order"] for run in runs):
        curves = list(zip(*(r["losses"] for r in runs if r["order"] == order), strict=True))
        steps = [(point + 0.5) * curve_steps for point in range(len(curves))]
        means = [statistics.mean(values) for values in curves]
        colour = COLOURS[order]
        band = ([min(values) for values in curves], [max(values) for values in curves])
        axes.fill_between(steps, *band, color=colour, alpha=0.15, linewidth=0)
        axes.plot(steps, means, color=colour, linewidth=1.5, label=order)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.set_xlabel("step")
    axes.set_ylabel("training loss: error of log depth")
    axes.set_title(
        f"Training loss by order: mean of {len({run['seed'] for run in runs})} seeds, "
        "band from the least to the most",
        loc="left",
        fontsize=11,
    )
    axes.legend(frameon=False)
    return figure


def _dots(runs: Sequence[Run], _curve_steps: int) -> Any:
    """The last validation errors, each seed's as a ring, and above them mean and interval."""
    intervals = errors(runs)
    figure, axes = _figure(8, 0.8 + 0.55 * len(intervals))
    for place, (order, interval) in enumerate(intervals.items()):
        colour = COLOURS[order]
        each = [run["errors"][-1] for run in runs if run["order"] == order]
        axes.plot(
            each, [place + 0.22] * len(each), "o", markersize=4, color=colour, fillstyle="none"
        )
        axes.errorbar(interval.mean, place, xerr=interval.half, color=colour, fmt="o", capsize=4)
        axes.annotate(
            f"{order}  {interval}",
            (interval.mean, place),
            (0, 8),
            textcoords="offset points",
            color=colour,
            ha="center",
        )
    axes.set_ylim(len(intervals) - 0.5, -0.6)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("validation error of log depth; below each mean its seeds")
    axes.set_title("Validation error by order, with 95 % intervals", loc="left", fontsize=11)
    return figure


_DRAWINGS = {"order_training": _curves, "order_errors": _dots}
