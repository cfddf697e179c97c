"""Write figures and comparisons of README.md and docs from the committed measurements.

    python -m benchmarks.prose

Replaces the text between `<!-- NAME -->` and `<!-- end of NAME -->`. A test fails where a page says
something else, so a comparison follows its table when it is measured again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from benchmarks.pages import PAGES
from benchmarks.tartanair.codec_table import (
    CHAINS,
    cell,
    copied,
    features_of,
    figures,
    layouts_of,
)
from benchmarks.tartanair.compare.grid import differing
from benchmarks.tartanair.compare.results import BY_HAND, best_rows, measured
from benchmarks.tartanair.loaders.base import USUAL
from benchmarks.tartanair.order_report import REFERENCE, effects, errors, runs_of
from benchmarks.timing import ROOT, Result, markdown, median, number, quotient, ranged, relation
from benchmarks.training.decoded_once import HEADLINE, epochs_of, shown_epochs
from benchmarks.training.epochs import ROWS
from benchmarks.training.row import STEPS
from benchmarks.training.shared_frames import CLIP, MAPS, RAW, READ, THREADED, of_clips
from seqrecord.store.codecs.presets import PRESETS

__all__ = ["BLOCKS", "Block", "main", "replaced", "write"]

Row = Mapping[str, Any]
_RATE = "clips_per_second"
_STEPS = "steps_per_second"
_WORDS = {"ahead": "faster", "behind": "slower", "level": "not clearly slower or faster"}


def _read(file: str) -> dict[str, Any]:
    return next(page for page in PAGES if page.file == file).read()


def _age(document: Mapping[str, Any]) -> str:
    return f"measured at `{document['commit'][:12]}`"


# ---- README.md


def measured_block() -> str:
    """Overlapping clips, and later epochs of samples with one image."""
    return f"{_overlapping()}\n\n{_later_epochs()}\n"


def _overlapping() -> str:
    document = _read("tartanair/RESULTS.md")["tartanair"]
    best = best_rows(document)
    ours = best["seqrecord"]
    balanced = replace(ours["settings"], codec="balanced")
    rows = (r for r in measured(document) if r["loader"] == ours["loader"])
    encoded = next((row for row in rows if row["settings"] == balanced), None)
    lines = [
        *(_line(f"`{name}`", best.get(name), ours) for name in ("original", "webdataset", "ffcv")),
        _line(f"`{BY_HAND}`: memmap into reused batches", best.get(BY_HAND), ours),
        _line("**`seqrecord`**, codec `balanced`", encoded, ours),
        _line("**`seqrecord`**, codec `raw`", ours, ours, reads="read"),
    ]
    table = markdown(
        ["loader", "frames", "clips/s, epochs after the first", "/ `seqrecord`, `raw`"], lines
    )
    factor = quotient((encoded or ours)[_RATE], best["original"][_RATE])
    return (
        "**Overlapping clips** of 16 frames, each frame in sixteen of them (TartanAir, 480x640, "
        f"five features, 2 cores), {_age(document)}. A frame is "
        f"decoded once instead of sixteen times: {number(factor, '.0f')} times the clips of the "
        f"dataset's own loader.\n\n{table}"
    )


def _line(label: str, row: Row | None, ours: Row, reads: str = "decoded") -> list[str]:
    if row is None:
        return [label, "", "not measured", ""]
    ratio = number(quotient(row[_RATE], ours[_RATE]), ".2f")
    is_ahead = relation(row["runs"], ours["runs"], _RATE) == "ahead"
    frames = str(row["frames"]).replace("read or decoded", reads)
    return [label, frames, ranged(row["runs"], _RATE, ".1f"), f"**{ratio}**" if is_ahead else ratio]


def _later_epochs() -> str:
    document = _read("training/DECODED_ONCE.md")
    shown = shown_epochs(document)
    rows = document["rows"]
    last = epochs_of(rows, HEADLINE, "seqrecord")[-1]["cpu_seconds"]
    lines = []
    for loader, row in ROWS.items():
        if row.form == "arrays":
            continue  # measured while each sample was copied by itself
        if epochs := epochs_of(rows, HEADLINE, loader):
            cells = [f"{epochs[i]['cpu_seconds']:.2f} ({epochs[i]['decoded']:,.0f})" for i in shown]
            ratio = epochs[-1]["cpu_seconds"] / last
            lines.append([row.name, *cells, f"{ratio:.1f}"])
    columns = ["CPU seconds (frames decoded)", *(f"epoch {i + 1}" for i in shown)]
    return (
        "**Later epochs**: ACT on AV1 video of two cameras, 480x640 resized to 224x224, "
        f"{document['settings']['episodes'] * document['settings']['frames']:,} samples an epoch, "
        f"{_age(document)}.\n\n"
        f"{markdown([*columns, 'last epoch / `seqrecord`'], lines)}\n\n{_by_hand()}"
    )


def _by_hand() -> str:
    """Memory maps by hand beside raw frames, which read the same bytes."""
    document = _read("training/SHARED_FRAMES.md")
    rows: Mapping[str, list[Result]] = document["rows"]
    cpu = quotient(median(rows[MAPS], "later_epoch"), median(rows[RAW], "later_epoch"))
    maps, raw = (median(rows[of_clips(name)], "later_rate") for name in (MAPS, RAW))
    rate = number(quotient(maps, raw), ".2f")
    return (
        f"**NumPy memmaps by hand**, {_age(document)}: with one `take` per feature into one reused "
        f"batch, single images of two cameras take {number(cpu, '.2f')} times the CPU of "
        f"`seqrecord`'s raw frames; clips of {CLIP} frames come at {rate} times its rate. They "
        "have no resume, no checksums, no limit of memory, and one form per size of images. All "
        "rows: `benchmarks/training/SHARED_FRAMES.md`.\n"
    )


# ---- docs/performance.md


def loaders_block() -> str:
    """Each loader's best row."""
    document = _read("tartanair/RESULTS.md")["tartanair"]
    best = best_rows(document)
    ours = best["seqrecord"]
    lines = [
        [
            f"`{name}`",
            differing(row["settings"], USUAL),
            row["frames"],
            ranged(row["runs"], _RATE, ".1f"),
            f"{row['bytes_per_second'] / 1e9:.2f}",
            number(row.get("share"), ".2f"),
        ]
        for name, row in best.items()
    ]
    columns = ["loader", "settings", "frames", "clips/s", "GB/s", "share of the copy limit"]
    return (
        f"On {document['settings']['cores']} cores, from files in the page cache, `seqrecord` "
        f"delivers shuffled clips at {ours['share']:.2f} of the machine's copy rate. Each row is a "
        f"loader with the fastest settings tried. {_others(best)}"
        f"\n\n{markdown(columns, lines)}\n\n"
        f"{_age(document).capitalize()}.\n"
    )


def _others(best: Mapping[str, Row]) -> str:
    """Loaders ahead of ours, and those with a higher median whose repeats overlap with ours."""
    ours, names = best["seqrecord"], dict[str, list[str]]()
    for name, row in best.items():
        if not name.startswith("seqrecord") and row[_RATE] > ours[_RATE]:
            names.setdefault(relation(row["runs"], ours["runs"], _RATE), []).append(f"`{name}`")
    ahead, level = (", ".join(names.get(kind, ())) for kind in ("ahead", "level"))
    first = f"Faster than `seqrecord`: {ahead}." if ahead else "None is clearly faster."
    return f"{first} Level with it, at a higher median: {level}." if level else first


_TRAININGS = {
    "odometry": ("no loader", "original", "webdataset", "by hand", "seqrecord"),
    "depth": (
        *("no loader", "original", "webdataset", "by hand"),
        *("seqrecord", "seqrecord, resident"),
    ),
    "act": (
        *("no loader", "lerobot", "webdataset", "by hand"),
        *("seqrecord", "seqrecord, resident"),
    ),
}


def trainings_block() -> str:
    """Steps of the network and of 8 ms with each loader, and what the rows show."""
    document = _read("training/RESULTS.md")
    rows: Mapping[str, list[Result]] = document["rows"]

    def runs(training: str, loader: str, step: str = "8 ms", place: str = "warm") -> list[Result]:
        found = rows.get(f"{training}/{step}/{loader}/{place}", [])
        return [run for run in found if "steps" in run]

    lines = []
    for training, loaders in _TRAININGS.items():
        for loader in loaders:
            cells = [
                cell for step in STEPS for cell in _training_cells(runs(training, loader, step))
            ]
            if any(cells):
                lines.append([training, loader, *cells])
    three = ("waiting, %", "slowdown")
    columns = ["training", "loader"]
    for step in STEPS:
        columns += [f"{step}: steps/s", *three]
    text = "\n".join(f"- {line}" for line in _training_sentences(runs))
    return f"{markdown(columns, lines)}\n\n{_age(document).capitalize()}.\n\n{text}\n"


def _training_cells(runs: Sequence[Result]) -> list[str]:
    return [
        number(median(runs, _STEPS), ".2f"),
        number(median(runs, "waiting"), ".0f", 0.01),
        number(median(runs, "slower"), ".2f"),
    ]


def _training_sentences(runs: Callable[..., list[Result]]) -> Iterator[str]:
    words = []
    for place, name in (("warm", "disk"), ("s3", "the emulator of S3")):
        cut, ours = (runs("act", loader, place=place) for loader in ("webdataset", "seqrecord"))
        if cut and ours:
            figures = (number(median(each, _STEPS), ".1f") for each in (cut, ours))
            is_ = _WORDS[relation(cut, ours, _STEPS)]
            words.append(f"{is_} from {name} ({' against '.join(figures)} steps/s)")
    cut, ours = runs("act", "webdataset"), runs("act", "seqrecord")
    if words:
        nbytes = quotient(median(cut, "bytes_per_sample"), median(ours, "bytes_per_sample"))
        yield (
            "**With one image of AV1 video per sample**, for example ACT, decoding is the limit: "
            f"JPEG cut in advance, with {number(nbytes, '.0f')} times the bytes, is "
            f"{', and '.join(words)} beside `seqrecord`."
        )
    resident = [
        median(each, "slower")
        for training in _TRAININGS
        for step in STEPS
        if (each := runs(training, "seqrecord, resident", step))
    ]
    slower = [value for value in resident if value is not None]
    if slower:
        yield (
            "**While frames are resident** (`seqrecord, resident`), the loader only copies: steps "
            f"take {min(slower):.2f} to {max(slower):.2f} times as long as alone."
        )
    ratios = [
        quotient(median(runs(training, "seqrecord, one worker"), _STEPS), median(own, _STEPS))
        for training in _TRAININGS
        if (own := runs(training, "seqrecord"))
    ]
    both = [ratio for ratio in ratios if ratio is not None]
    if both:
        yield (
            "**Threads in the training's process** take the GIL for moments and share its cores, "
            "most with large batches (`depth`). One worker of a DataLoader keeps the threads out "
            f"of the process: on two cores it gives {min(both):.2f} to {max(both):.2f} times the "
            "steps/s."
        )


def shared_frames_block() -> str:
    """Raw frames beside frames that are read, and beside memory maps by hand."""
    document = _read("training/SHARED_FRAMES.md")
    rows: Mapping[str, list[Result]] = document["rows"]

    def times(one: str, other: str, figure: str, form: str) -> str:
        return number(quotient(median(rows[one], figure), median(rows[other], figure)), form)

    cpu = [times(RAW, other, "later_epoch", ".2f") for other in (READ, MAPS)]
    own = [number(median(rows[name], "own"), ".0f") for name in (RAW, READ)]
    rates = [
        " and ".join(
            times(of_clips(RAW, features), of_clips(other, features), "later_rate", ".2f")
            for other in (MAPS, THREADED)
        )
        for features in ("", "five features")
    ]
    return (
        f"- **Figures**, {_age(document)}: later epochs of raw frames take {cpu[0]} times the CPU "
        f"of epochs that read them, and {cpu[1]} times that of memory maps by hand; a process has "
        f"{own[0]} MiB of its own instead of {own[1]}. Clips of {CLIP} frames come at {rates[0]} "
        "times the rate of memory maps by hand with one thread and with two, those of five "
        f"features of 480x640 at {rates[1]} times. `benchmarks/training/SHARED_FRAMES.md` has all "
        "rows.\n"
    )


def order_block() -> str:
    """Validation errors of a small network by the order of its clips."""
    document = _read("tartanair/order_training.md")
    runs = runs_of(document)
    by_order, above = errors(runs), effects(runs)
    names = {"buffer": f"a buffer of {document['settings']['buffer']} clips"}
    names |= {"sequential": "sequential reading", "seqrecord": "the default order"}
    words = []
    for order, effect in sorted(above.items(), key=lambda item: item[1].mean):
        word = "worse" if effect.mean > 0 else "better"
        word = word if effect.is_clear else "the same within chance"
        words.append(f"{names[order]} {by_order[order].mean:.3f} ({word})")
    seeds = len({run["seed"] for run in runs})
    return (
        f"A small network was trained in each order with {seeds} seeds. Its validation error is "
        f"{by_order[REFERENCE].mean:.3f} with a full shuffle; {', '.join(words)}: "
        "`benchmarks/tartanair/order_training.md` of the repository.\n"
    )


# ---- docs/codecs.md


def codecs_block() -> str:
    """Presets, and codecs of all features, by layout."""
    document = _read("tartanair/CODECS.md")
    rows = document["rows"]
    layouts = layouts_of(rows)
    lines = [
        [name, *(cell(figures(rows, layout, name)) for layout in layouts)]
        for name in (*PRESETS, *CHAINS["all"])
    ]
    columns = [f"{layout}: {', '.join(features_of(rows, layout))}" for layout in layouts]
    return (
        "On real TartanAir frames, all features together (times smaller / encode MB/s / decode "
        f"GB/s, one thread), {_age(document)}, where a copy of 4 MiB has {copied(rows):.0f} "
        f"GB/s:\n\n{markdown(['codec', *columns], lines)}\n"
    )


# ---- blocks


class Block(NamedTuple):
    """A marked part of a file, and what writes it."""

    file: str
    name: str
    text: Callable[[], str]


BLOCKS = [
    Block("README.md", "measured", measured_block),
    Block("docs/performance.md", "loaders", loaders_block),
    Block("docs/performance.md", "shared frames", shared_frames_block),
    Block("docs/codecs.md", "codecs", codecs_block),
    Block("docs/order.md", "orders", order_block),
    Block("docs/performance.md", "trainings", trainings_block),
]


def replaced(text: str, name: str, block: str) -> str:
    """The text with the block between the marks of its name; raises `ValueError` without them."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    before, first_mark, rest = text.partition(begin)
    _, last_mark, after = rest.partition(end)
    if not (first_mark and last_mark):
        raise ValueError(f"no marks of {name}")
    return f"{before}{begin}{block}{end}{after}"


def write(file: str, name: str, block: str) -> None:
    """Replace a marked part of a file of the repository."""
    path = ROOT / file
    path.write_text(replaced(path.read_text(), name, block))


def main() -> None:
    for block in BLOCKS:
        write(block.file, block.name, block.text())


if __name__ == "__main__":
    main()
