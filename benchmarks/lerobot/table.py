"""The page of the benchmark's results: the figures, what limits them, then all rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.lerobot.cell import CELLS, Cell
from benchmarks.lerobot.rows import PLACES
from benchmarks.tartanair.timing import Results, markdown, median

__all__ = ["Figure", "best_settings", "figures", "page"]

_CLIPS, _FRAMES = "clips_per_second", "frames_per_second"
_FRONT = ("torchcodec/front", "pyav/front")


class Figure(NamedTuple):
    """A figure, and what it is to be: at least, or at most."""

    what: str
    value: float | None
    target: float
    least: bool = True

    @property
    def is_reached(self) -> bool | None:
        if self.value is None:
            return None
        return self.value >= self.target if self.least else self.value <= self.target


def best_settings(results: Results) -> dict[str, tuple[str, int]]:
    """LeRobot's decoder and number of workers that gave the most clips, by cell."""
    best: dict[str, tuple[float, str, int]] = {}
    for name, runs in results.items():
        if name.startswith("try/") and (rate := median(runs, _CLIPS)) is not None:
            _, cell, decoder, workers = name.split("/")
            best[cell] = max(best.get(cell, (0.0, "", 0)), (rate, decoder, int(workers)))
    return {cell: (decoder, workers) for cell, (_, decoder, workers) in best.items()}


def figures(document: Mapping[str, Any]) -> Iterator[Figure]:
    """Those of the issue, each of medians."""
    results: Results = document["rows"]
    for images, target in ((16, 40), (2, 10)):
        name = f"{Cell(images, 16, 'uint8')}/warm"
        what = f"windows of {images} images and 16 actions, uint8: clips/s to LeRobot's"
        yield Figure(what, _quotient(_ours(results, name), _theirs(results, name)), target)
    decoded = _decoding(results)
    what = "2 images: frames decoded/s to decoding front to back on all cores"
    yield Figure(what, _quotient(decoded, _front(results)), 0.8)
    conversion = results.get("conversion", [])
    stored = _quotient(median(conversion, "bytes"), median(conversion, "source_bytes"))
    yield Figure("bytes on disk to the source's", stored, 1.02, least=False)
    dataset = document["dataset"]
    runs = [run for images in (16, 2) for run in results.get(_name(images), []) if "clips" in run]
    each = [
        run["video_frames_decoded"] / dataset["cameras"] / dataset["frames"]
        for run in runs
        if run["clips"] > dataset["frames"] - document["settings"]["batch"]  # a whole epoch
    ]
    yield Figure("frames decoded for each frame", max(each, default=None), 1.05, least=False)
    what = "conversion: rate to copying the files"
    yield Figure(what, median(conversion, "rate_to_copying"), 0.5)


def page(document: Mapping[str, Any]) -> str:
    """The published page."""
    dataset, settings, results = (document[name] for name in ("dataset", "settings", "rows"))
    versions = ", ".join(f"{name} {number}" for name, number in document["versions"].items())
    height, width, _ = dataset["shape"]
    return _PAGE.format(
        machine=document["machine"],
        commit=document["commit"],
        versions=versions or "none: no row of it ran",
        frames=f"{dataset['frames']:,}",
        episodes=dataset["episodes"],
        cameras=dataset["cameras"],
        height=height,
        width=width,
        codec=dataset["codec"],
        size=f"{dataset['bytes'] / 1e6:.1f}",
        raw=f"{dataset['frames'] * dataset['frame_bytes'] / 1e6:.0f}",
        **{name: settings[name] for name in ("batch", "memory", "threads", "seconds", "repeats")},
        figures=_figures(document),
        limits=_limits(document),
        clips=_clips(results),
        readers=_readers(results),
        conversion=_conversion(results.get("conversion", [])),
        trials=_trials(results),
        reasons=_reasons(results),
    )


_PAGE = """\
# LeRobot's data, by LeRobot and by seqrecord

<!-- Written by `python -m benchmarks.lerobot`; change table.py. -->

By `make lerobot-env` and `python -m benchmarks.lerobot FOLDER --to benchmarks/lerobot`, which
writes this page; raw results are in [results.json](results.json).

- Machine: {machine}. Commit: {commit}. LeRobot's environment: {versions}.
- Data: {frames} frames in {episodes} episodes, {cameras} cameras of {height}x{width}, {codec},
  written by LeRobot: {size} MB, of which the images would take {raw} MB raw.
- Clips of 16 or 2 images of each camera and 16 actions, one for each frame, shuffled, in batches of
  {batch}. `uint8`: images as they are decoded. `float`: 0 to 1, channels first; LeRobot converts
  in its workers, ours in the loop, into tensors that are reused.
- LeRobot has the best of its decoders and numbers of workers, tried for each row; its rows are
  timed for {seconds:g} s after a warm-up. seqrecord has {threads} threads and `memory_limit`
  {memory}; after an epoch of another pipe its first epoch is timed from the beginning, with the
  filling of its window. Medians of {repeats}, all rows in turn, each in a process of its own.
- All rows are of epochs in which frames are decoded. Frames that fit into `memory_limit` are
  [decoded in the first epoch only](../training/DECODED_ONCE.md).
- `warm`: files are in the page cache; `cold`: they were dropped from it after the warm-up;
  `azurite`: Azure Blob's emulator on the same machine.
- torchvision here is a stand-in with the steps of its last `VideoReader`: newer ones have none, and
  LeRobot's decoder `pyav` needs it.

{figures}

**Bold** is what is not reached.

## Clips

{clips}

## What limits

{limits}

`decoding`: clips/s if decoding front to back on all cores were all there is to do. `copying`: if
copying clips into batches that are reused were. `both`: one after the other. `ratio at both` is
that to LeRobot's clips/s: with each frame decoded once and each clip copied once, this machine
allows no more.

## Readers of video

{readers}

`front to back`: frames/s to RGB, a file on each thread. `clips`: from random places, all cameras.
`data_cacher`, of the TartanAir tools, is a class of its own: it repeats clips from a buffer in
memory while it fills another from PNG files (images alone; frames/s are those that are new).

{conversion}

## LeRobot's settings

{trials}

## Rows that did not run

{reasons}
"""


def _figures(document: Mapping[str, Any]) -> str:
    lines = []
    for figure in figures(document):
        shown = _shown(figure.value)
        if figure.is_reached is False:
            shown = f"**{shown}**"
        lines.append([figure.what, f"{'>=' if figure.least else '<='} {figure.target:g}", shown])
    return markdown(["figure", "to reach", "reached"], lines)


def _clips(results: Results) -> str:
    lines = []
    best = best_settings(results)
    for place in PLACES:
        for cell in CELLS:
            name = f"{cell}/{place}"
            theirs, ours = _theirs(results, name), _ours(results, name)
            runs = results.get(f"seqrecord/{name}", [])
            peaks = [median(results.get(f"{who}/{name}", []), "peak_memory_bytes") for who in _WHO]
            lines.append(
                [
                    str(cell),
                    place,
                    _shown(theirs),
                    "{}, {} workers".format(*best[str(cell)])
                    if theirs and str(cell) in best
                    else "",
                    _shown(ours),
                    _shown(_quotient(ours, theirs)),
                    *["" if peak is None else f"{peak / 1e6:.0f}" for peak in peaks],
                    str(runs[-1].get("bottleneck", "")).split(":")[0] if runs else "",
                ]
            )
    columns = ["clips", "files", "LeRobot, clips/s", "with", "seqrecord, clips/s", "ratio"]
    return markdown([*columns, "LeRobot, peak MB", "seqrecord, peak MB", "bound by"], lines)


_WHO = ("lerobot", "seqrecord")


def _limits(document: Mapping[str, Any]) -> str:
    """The clips/s that this machine allows, beside those that came."""
    results, dataset = document["rows"], document["dataset"]
    front = _front(results)
    lines = []
    for images in (16, 2):
        ours = _ours(results, f"{Cell(images, 16, 'uint8')}/warm")
        theirs = _theirs(results, f"{Cell(images, 16, 'uint8')}/warm")
        copying = document["copy_rate"] / (images * dataset["frame_bytes"])
        decoding = _quotient(front, dataset["cameras"])
        both = None if not decoding else 1 / (1 / copying + 1 / decoding)
        lines.append(
            [
                f"{images}+16 uint8",
                *map(_shown, (decoding, copying, both, ours)),
                *map(_shown, (_quotient(ours, both), _quotient(both, theirs))),
            ]
        )
    columns = ["clips", "decoding", "copying", "both", "seqrecord, clips/s", "share of both"]
    return markdown([*columns, "ratio at both"], lines)


def _readers(results: Results) -> str:
    front = {"seqrecord, 2 images": _decoding(results)}
    front |= {name.split("/")[0]: median(results.get(name, []), _FRAMES) for name in _FRONT}
    lines = [[name, "front to back", _shown(value), ""] for name, value in front.items()]
    for name, runs in results.items():
        if name.endswith(" images"):
            reader, what = name.split("/")
            rate = median(runs, _CLIPS)
            said = _shown(rate) or str(runs[-1].get("skipped", ""))
            new = median(runs, "new_frames_per_second")  # of data_cacher
            lines.append([reader, f"clips of {what}", _shown(new), said])
    return markdown(["reader", "what", "frames/s", "clips/s"], lines)


def _conversion(runs: Sequence[dict[str, Any]]) -> str:
    copied, converted = median(runs, "copy_seconds"), median(runs, "convert_seconds")
    if copied is None or converted is None:
        return "Conversion was not run."
    return (
        f"Conversion took {converted:.2f} s, and copying the files {copied:.2f} s, each until all "
        f"was on the disk; the process that converts starts anew."
    )


def _trials(results: Results) -> str:
    lines = []
    for name, runs in results.items():
        if name.startswith("try/") and "skipped" not in runs[-1]:
            _, cell, decoder, workers = name.split("/")
            lines.append([cell, decoder, workers, _shown(median(runs, _CLIPS)) or _why(runs)])
    if not lines:
        return "None was tried."
    return markdown(["clips", "decoder", "workers", "clips/s"], lines)


def _reasons(results: Results) -> str:
    lines = [[name, _why(runs)] for name, runs in results.items() if _why(runs)]
    return markdown(["row", "why"], lines) if lines else "All rows ran."


def _why(runs: Sequence[dict[str, Any]]) -> str:
    said = [run.get("skipped") or run.get("error") for run in runs]
    return str(next((text for text in said if text), "")).replace("|", "/")


def _ours(results: Results, name: str) -> float | None:
    return median(results.get(f"seqrecord/{name}", []), _CLIPS)


def _theirs(results: Results, name: str) -> float | None:
    return median(results.get(f"lerobot/{name}", []), _CLIPS)


def _name(images: int) -> str:
    return f"seqrecord/{Cell(images, 16, 'uint8')}/warm"


def _decoding(results: Results) -> float | None:
    """Frames a second that ours decodes where decoding is most of the work."""
    runs = [run for run in results.get(_name(2), []) if "clips" in run]
    rates = [{"rate": run["video_frames_decoded"] / run["seconds"]} for run in runs]
    return median(rates, "rate")


def _front(results: Results) -> float | None:
    """Frames a second of the fastest reader from front to back."""
    rates = [median(results.get(name, []), _FRAMES) for name in _FRONT]
    return max((rate for rate in rates if rate is not None), default=None)


def _quotient(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other else one / other


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}" if value < 10 else f"{value:.0f}"
