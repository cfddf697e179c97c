"""What `order_training` found, as a table, as JSON and as pictures."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.tartanair.timing import markdown

__all__ = ["REFERENCE", "STUDENT_T", "Interval", "Run", "spread", "table", "write_report"]

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

# Okabe and Ito's colours, which people with any colour vision tell apart.
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

    def __str__(self) -> str:
        return f"{self.mean:.4f} ± {self.half:.4f}"


def write_report(folder: Path, settings: Mapping[str, Any], runs: Sequence[Run]) -> list[Path]:
    """Write order_training.json and .md, and the pictures where matplotlib is; the paths."""
    document = {**settings, "runs": list(runs)}
    written = [folder / "order_training.json"]
    written[0].write_text(json.dumps(document, indent=1) + "\n")
    pictures = _draw(folder, settings["curve_steps"], runs)
    written.append(folder / "order_training.md")
    written[1].write_text(_text(settings, runs, pictures))
    return written + pictures


def table(runs: Sequence[Run]) -> str:
    """The last validation error by order, and its differences from a full shuffle by seed.

    Means with 95 % intervals. Below the mean difference, whether its interval holds zero.
    """
    lines = []
    for order, interval in _errors(runs).items():
        line = [order, str(interval)]
        if order == REFERENCE:
            line += ["", ""]
        else:
            above = Interval.of(_differences(runs, order))
            line += [str(above), "yes" if abs(above.mean) > above.half else "no"]
        lines.append(line)
    return markdown(
        ["order", "validation error", "above a full shuffle, same seed", "differs"], lines
    )


def _text(settings: Mapping[str, Any], runs: Sequence[Run], pictures: Sequence[Path]) -> str:
    shown = ", ".join(f"{name} {value}" for name, value in settings.items())
    seeds = len({run["seed"] for run in runs})
    drawn = "\n\n".join(f"![{path.stem}]({path.name})" for path in pictures)
    return f"""\
# Effect of the order of clips on training

By `python -m benchmarks.tartanair.order_training FOLDER --seeds {seeds} --docs`: a small network \
learns depth from colour on rendered episodes and is validated on other episodes of the same \
scenes. With one seed the initial weights and an epoch's clips are the same for all orders; only \
the order differs. Settings: {shown}. Raw results are in \
[order_training.json](order_training.json).

- `sequential`: episode after episode, front to back. `buffer`: the same through a buffer of \
{settings["buffer"]} clips, of which a random one is taken. `seqrecord`: `SeqRecordPipe` with its \
defaults. `{REFERENCE}`: every clip may follow every other.
- *Validation error*: the mean absolute error of log depth after the last epoch, over {seeds} \
seeds. *Above a full shuffle*: the mean of the differences, seed by seed. Both with their 95 % \
intervals by Student's t. *Differs*: whether the interval of the differences leaves out zero.

{table(runs)}

{drawn}

Do not compare training losses: with little mixing, the loss is measured on the recording being \
read, which the network fits closely. Compare validation errors.
"""


def _errors(runs: Sequence[Run]) -> dict[str, Interval]:
    orders = dict.fromkeys(run["order"] for run in runs)
    return {
        order: Interval.of([run["errors"][-1] for run in runs if run["order"] == order])
        for order in orders
    }


def _differences(runs: Sequence[Run], order: str) -> list[float]:
    """The last errors above those of a full shuffle with the same seed."""
    last = {(run["order"], run["seed"]): run["errors"][-1] for run in runs}
    seeds = [run["seed"] for run in runs if run["order"] == order]
    return [last[order, seed] - last[REFERENCE, seed] for seed in seeds]


# Pictures


def _draw(folder: Path, curve_steps: int, runs: Sequence[Run]) -> list[Path]:
    """None without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return []
    matplotlib.use("Agg")
    drawings = {
        "order_training": _curves(runs, curve_steps),
        "order_errors": _dots(runs),
    }
    for name, figure in drawings.items():
        figure.savefig(folder / f"{name}.png", dpi=150, bbox_inches="tight")
    return [folder / f"{name}.png" for name in drawings]


def _figure(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _curves(runs: Sequence[Run], curve_steps: int) -> Any:
    """Training loss along the steps: the mean over seeds, in a band from the least to the most."""
    figure, axes = _figure(8, 4.5)
    ends = {}
    for order in dict.fromkeys(run["order"] for run in runs):
        curves = list(zip(*(r["losses"] for r in runs if r["order"] == order), strict=True))
        steps = [(point + 0.5) * curve_steps for point in range(len(curves))]
        means = [statistics.mean(values) for values in curves]
        colour = COLOURS[order]
        band = ([min(values) for values in curves], [max(values) for values in curves])
        axes.fill_between(steps, *band, color=colour, alpha=0.15, linewidth=0)
        axes.plot(steps, means, color=colour, linewidth=1.5)
        ends[order] = (steps[-1], means[-1])
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
    _label(figure, axes, ends)
    return figure


def _label(figure: Any, axes: Any, ends: Mapping[str, tuple[float, float]]) -> None:
    """The names of curves at their right ends, moved apart where they would overlap."""
    figure.draw_without_rendering()  # so that the axes know their place
    heights = [float(axes.transData.transform(end)[1]) for end in ends.values()]
    line = 14 * figure.dpi / 72  # of 10 point text, in pixels
    for (order, end), height, place in zip(
        ends.items(), heights, spread(heights, line), strict=True
    ):
        axes.annotate(
            order,
            end,
            (28, (place - height) * 72 / figure.dpi),
            textcoords="offset points",
            color=COLOURS[order],
            va="center",
            arrowprops={"arrowstyle": "-", "color": COLOURS[order], "linewidth": 0.6},
        )


def spread(places: Sequence[float], gap: float) -> list[float]:
    """Places at least `gap` apart, in the same order, those too near moved around their mean."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    groups: list[list[int]] = []
    centres: list[float] = []
    for index in order:
        groups.append([index])
        centres.append(places[index])
        while len(groups) > 1:
            needed = gap * (len(groups[-2]) + len(groups[-1])) / 2
            if centres[-1] - centres[-2] >= needed:
                break
            crowded = groups.pop()
            groups[-1] += crowded
            centres.pop()
            centres[-1] = statistics.mean(places[i] for i in groups[-1])
    moved = list(places)
    for group, centre in zip(groups, centres, strict=True):
        for number, index in enumerate(group):
            moved[index] = centre + gap * (number - (len(group) - 1) / 2)
    return moved


def _dots(runs: Sequence[Run]) -> Any:
    """The last validation errors, each seed's as a ring, and above them mean and interval."""
    intervals = _errors(runs)
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
