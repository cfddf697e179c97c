"""LitData: frames, of which a clip takes several, and clips cut before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.tartanair.compare.tree import Clip, Tree
from benchmarks.tartanair.loaders.base import Batches, Loader, Place, Settings, one_format
from benchmarks.tartanair.loaders.map_style import loader_arguments, map_style
from benchmarks.tartanair.loaders.precut import CutBatches, cut_clips, cut_name, save_keys

CHUNK_BYTES = "64MB"


def items(_: int, tree: Tree, settings: Settings | None) -> Iterator[dict[str, Any]]:
    yield from tree.rows() if settings is None else cut_clips(tree, settings)


def write(tree: Tree, folder: Path, settings: Settings | None) -> None:
    from litdata import optimize

    save_keys(tree, folder)
    optimize(
        partial(items, tree=tree, settings=settings),
        [0],
        output_dir=str(folder / "chunks"),
        chunk_bytes=CHUNK_BYTES,
        num_workers=1,  # items keep their order
        start_method="fork",
        verbose=False,
    )


def prepare_frames(tree: Tree, folder: Path, _settings: Settings) -> None:
    write(tree, folder, None)


class Reader:
    """Frames by their rows."""

    def __init__(self, folder: Path, features: Sequence[str]) -> None:
        self._folder = folder
        self._features = features
        self._frames: Any = None

    def read(self, clip: Clip) -> Mapping[str, Any]:
        import numpy as np

        if self._frames is None:
            from litdata import StreamingDataset

            self._frames = StreamingDataset(str(self._folder / "chunks"))
        frames = [self._frames[clip.row + i] for i in range(clip.stop - clip.start)]
        return {name: np.stack([frame[name] for frame in frames]) for name in self._features}


def open_frames(place: Place, clips: Sequence[Clip], settings: Settings) -> Batches:
    return map_style(Reader(place.folder, settings.features), clips, settings)


def open_clips(place: Place, _clips: Sequence[Clip], settings: Settings) -> Batches:
    from litdata import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(
        str(place.folder / "chunks"),
        shuffle=settings.shuffle != "off",
        seed=settings.seed,
        drop_last=False,
    )
    batches = StreamingDataLoader(
        dataset, batch_size=settings.batch_size, **loader_arguments(settings)
    )
    return CutBatches(place.folder, settings.features, batches)


LOADERS = [
    Loader(
        name="litdata",
        format=one_format("litdata"),
        prepare=prepare_frames,
        open=open_frames,
        needs=("litdata",),
        alone=True,
        note="an item a frame with all features, by number",
    ),
    Loader(
        name="litdata-cut",
        format=partial(cut_name, "litdata-cut"),
        prepare=write,
        open=open_clips,
        shuffles=("off", "buffer"),
        needs=("litdata",),
        alone=True,
        precut=True,
        note="an item a clip; buffer: chunks shuffled, and the clips in each",
    ),
]
