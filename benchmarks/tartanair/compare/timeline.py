"""What each thread does in one second: the baseline's two workers, and below it ours.

    python -m benchmarks.tartanair.compare.timeline FOLDER [--png FILE]

FOLDER is one of `python -m benchmarks.tartanair.compare`, with a tree.
"""

from __future__ import annotations

import argparse
import io
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.utils.data import DataLoader, default_collate, get_worker_info

from benchmarks.tartanair.compare.measure import to_device
from benchmarks.tartanair.compare.plot_style import new_figure, save
from benchmarks.tartanair.compare.prepared import folder_of, prepare
from benchmarks.tartanair.compare.tree import Tree
from benchmarks.tartanair.loaders.base import Settings
from benchmarks.tartanair.loaders.raw_files import RawFilesDataset, file_name
from benchmarks.tartanair.loaders.registry import all_loaders
from seqrecord import EngineOptions

__all__ = ["SteppedDataset", "Timeline", "Track", "draw", "naive_timeline", "our_timeline"]

PNG = Path(__file__).parents[1] / "plots" / "timeline.png"
WORKERS = 2
CODEC = "balanced"  # the default of the package
SECONDS = 1.0

Span = tuple[str, float, float]
"""What is done, and from when to when, in seconds."""

# Okabe and Ito's, and a light grey for nothing at all.
_COLOURS = {
    "read": "#56B4E9",
    "decode": "#E69F00",
    "copy": "#009E73",
    "consumer at work": "#CC79A7",
    "wait": "#DDDDDD",
    "consumer waits": "#D55E00",
}
_KINDS = {
    "fetch": "read",
    "decode": "decode",
    "gather": "copy",
    "device": "copy",
    "consumer": "consumer at work",
    "wait": "wait",
    "starve": "consumer waits",
}
_CPU = torch.device("cpu")


@dataclass
class Track:
    """A thread or a process."""

    name: str
    spans: list[Span] = field(default_factory=list)


@dataclass
class Timeline:
    """A window of `seconds`, from 0, and how many clips the consumer was given in it."""

    title: str
    seconds: float
    tracks: list[Track]
    clips: int


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--png", type=Path, default=PNG)
    options = parser.parse_args(arguments)
    settings = Settings(shuffle="buffer", codec=CODEC)
    tree = Tree.open(options.folder / "tree", settings.features, options.folder)
    loader = all_loaders()["seqrecord"]
    prepare(loader, tree, options.folder, settings)
    records = folder_of(loader, tree, options.folder, settings) / "records"
    options.png.parent.mkdir(parents=True, exist_ok=True)
    draw([naive_timeline(tree.root, settings), our_timeline(records, settings)], options.png)
    print(options.png)


class SteppedDataset(RawFilesDataset):
    """The baseline's samples, made one step after the other, with the steps' times as `spans`."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        number, start = self._clips[index]
        episode = self._episodes[number]
        clock = time.perf_counter
        spans: list[Span] = []
        sample: dict[str, Any] = {"episode": episode.key, "start": start, "spans": spans}
        for name in self.features:
            frames = []
            for row in range(start, start + self.clip_len * self.dilation, self.dilation):
                path = episode.folder / file_name(episode, name, row)
                begin = clock()
                data = path.read_bytes()
                read = clock()
                frames.append(_decoded(data, path.suffix))
                spans += [("read", begin, read), ("decode", read, clock())]
            begin = clock()
            sample[name] = torch.from_numpy(np.stack(frames))
            spans.append(("copy", begin, clock()))
        return sample


def naive_timeline(root: Path, settings: Settings, seconds: float = SECONDS) -> Timeline:
    """The baseline with two workers, from when its first batch is there."""
    dataset = SteppedDataset(
        root, clip_len=settings.clip_len, stride=settings.stride, features=settings.features
    )
    batches = DataLoader(
        dataset,
        batch_size=settings.batch_size,
        shuffle=True,
        num_workers=WORKERS,
        prefetch_factor=settings.prefetch,
        collate_fn=_collate,
    )
    consumer = Track("consumer")
    workers = {number: Track(f"worker {number}") for number in range(WORKERS)}
    clock = time.perf_counter
    begin = first = clock()
    for batch in batches:
        came = clock()
        if not consumer.spans:
            first = came
        worker, spans = batch.pop("spans")
        workers[worker].spans += spans
        to_device(batch, _CPU)
        done = clock()
        consumer.spans += [("consumer waits", begin, came), ("consumer at work", came, done)]
        begin = done
        # A worker's steps are known once it has sent the batch that they were for.
        if all(track.spans and track.spans[-1][2] > first + seconds for track in workers.values()):
            break
    seconds = min(seconds, begin - first)
    title = f"original, {WORKERS} workers: every clip reads and decodes all of its frames"
    return _window(title, [consumer, *workers.values()], first, seconds, settings)


def our_timeline(records: Path, settings: Settings, seconds: float = SECONDS) -> Timeline:
    """Ours in the middle of its second epoch, from the engine's own trace."""
    import seqrecord
    from seqrecord.tools.drawing.spans import KINDS, read_spans

    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "epoch.json"
        pipe = seqrecord.SeqRecordPipe(
            records,
            clip_len=settings.clip_len,
            stride=settings.stride,
            batch_size=settings.batch_size,
            features=list(settings.features),
            engine=EngineOptions(trace=trace),
        )
        for _ in range(2):
            for batch in pipe:
                to_device(batch, _CPU)
        spans = read_spans([trace])
    tracks = [
        Track(
            track.name.removeprefix("seqrecord-engine-").replace("_", " "),
            [
                (_KINDS[KINDS[kind]], float(begin), float(end))
                for kind, begin, end in zip(track.kind, track.begin, track.end, strict=True)
                if KINDS[kind] in _KINDS
            ],
        )
        for track in spans.tracks
    ]
    for track in tracks:
        if any(kind.startswith("consumer") for kind, _, _ in track.spans):
            track.name = "consumer"
    tracks.sort(key=lambda track: (track.name != "consumer", track.name != "scheduler", track.name))
    start = max(0.0, (spans.seconds - seconds) / 2)
    seconds = min(seconds, spans.seconds)
    title = "seqrecord, threads: every frame is read and decoded once"
    return _window(title, tracks, start, seconds, settings)


def draw(timelines: Sequence[Timeline], path: Path) -> Path:
    """One below the other, with the same seconds."""
    heights = [len(timeline.tracks) for timeline in timelines]
    figure, axes = new_figure(
        10, 1.8 + 0.4 * sum(heights), rows=len(timelines), sharex=True, height_ratios=heights
    )
    for one, timeline in zip(np.atleast_1d(axes), timelines, strict=True):
        for place, track in enumerate(timeline.tracks):
            for kind, colour in _COLOURS.items():
                bars = [(begin, end - begin) for name, begin, end in track.spans if name == kind]
                one.broken_barh(bars, (place - 0.4, 0.8), color=colour, linewidth=0)
            words = _shares(track, timeline.seconds)
            one.text(timeline.seconds * 1.01, place, words, va="center", fontsize=9)
        one.set_ylim(len(timeline.tracks) - 0.5, -0.5)
        one.set_yticks(range(len(timeline.tracks)), [track.name for track in timeline.tracks])
        one.spines["left"].set_visible(False)
        one.spines["bottom"].set_bounds(0, timeline.seconds)
        one.tick_params(axis="y", length=0)
        one.set_xlim(0, max(t.seconds for t in timelines) * 1.3)
        one.set_title(f"{timeline.title}; {timeline.clips} clips", loc="left", fontsize=11)
    last = np.atleast_1d(axes)[-1]
    last.set_xticks(np.linspace(0, max(t.seconds for t in timelines), 6))
    last.set_xlabel("seconds", x=0.39)
    _legend(figure)
    return save(figure, path)


def _window(
    title: str, tracks: Sequence[Track], start: float, seconds: float, settings: Settings
) -> Timeline:
    """The part of the spans from `start` on, which becomes 0."""
    cut = [
        Track(
            track.name,
            [
                (kind, max(begin - start, 0.0), min(end - start, seconds))
                for kind, begin, end in track.spans
                if end > start and begin < start + seconds
            ],
        )
        for track in tracks
    ]
    batches = sum(
        kind == "consumer at work" and start <= begin < start + seconds
        for track in tracks
        for kind, begin, _ in track.spans
    )
    return Timeline(title, seconds, cut, batches * settings.batch_size)


def _collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    begin = time.perf_counter()
    spans = [span for sample in samples for span in sample.pop("spans")]
    batch: dict[str, Any] = default_collate(samples)
    spans.append(("copy", begin, time.perf_counter()))
    info = get_worker_info()
    return {**batch, "spans": (0 if info is None else info.id, spans)}


def _decoded(data: bytes, suffix: str) -> npt.NDArray[Any]:
    if suffix == ".npy":
        array: npt.NDArray[Any] = np.load(io.BytesIO(data))
        return array
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image)


def _shares(track: Track, seconds: float) -> str:
    """What takes at least a twentieth of the time, the longest first."""
    taken: dict[str, float] = {}
    for kind, begin, end in track.spans:
        taken[kind] = taken.get(kind, 0.0) + (end - begin) / seconds
    longest = sorted(taken.items(), key=lambda item: -item[1])
    parts = [f"{kind} {share:.0%}" for kind, share in longest if share >= 0.05]
    return ", ".join(parts).replace("consumer ", "")


def _legend(figure: Any) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(color=colour, label=kind) for kind, colour in _COLOURS.items()]
    figure.legend(
        handles=patches, loc="outside upper left", ncols=len(patches), frameon=False, fontsize=9
    )


if __name__ == "__main__":
    main()
