"""MosaicML Streaming: frames, of which a clip takes several, and clips cut before."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from benchmarks.tartanair.compare.recordings import Clip, Recordings
from benchmarks.tartanair.loaders.base import Batches, Loader, Place, Settings, one_format
from benchmarks.tartanair.loaders.map_style import loader_arguments, map_style
from benchmarks.tartanair.loaders.precut import CutBatches, cut_clips, cut_name, save_keys
from benchmarks.tartanair.loaders.rootless import without_roots

NOTE = "Azure: only of ACCOUNT.blob.core.windows.net, which Azurite is not"


def load_base() -> Any:
    """`streaming.base`; the package's root imports vision and text models."""
    spec = importlib.util.find_spec("streaming")
    assert spec is not None
    [path] = spec.submodule_search_locations or []
    with without_roots(Path(path).parent, "streaming"):
        return importlib.import_module("streaming.base")


def write(recordings: Recordings, folder: Path, settings: Settings | None) -> None:
    columns = {
        name: f"ndarray:{np.dtype(feature.dtype).name}:"
        + ",".join(map(str, (*([settings.clip_len] if settings else []), *feature.shape)))
        for name, feature in recordings.features.items()
    }
    if settings:
        columns |= {"episode": "int", "start": "int"}
    save_keys(recordings, folder)
    with load_base().MDSWriter(out=str(folder / "shards"), columns=columns) as out:
        for sample in cut_clips(recordings, settings) if settings else recordings.rows():
            out.write({**sample})


def prepare_frames(recordings: Recordings, folder: Path, _settings: Settings) -> None:
    write(recordings, folder, None)


class Reader:
    """Frames by their rows."""

    def __init__(self, folder: Path, features: Sequence[str]) -> None:
        self._features = features
        self._frames = load_base().StreamingDataset(local=str(folder / "shards"), batch_size=1)

    def read(self, clip: Clip) -> Mapping[str, Any]:
        frames = [self._frames[clip.row + i] for i in range(clip.stop - clip.start)]
        return {name: np.stack([frame[name] for frame in frames]) for name in self._features}


def open_frames(place: Place, clips: Sequence[Clip], settings: Settings) -> Batches:
    return map_style(Reader(place.folder, settings.features), clips, settings)


def open_clips(place: Place, _clips: Sequence[Clip], settings: Settings) -> Batches:
    dataset = load_base().StreamingDataset(
        local=str(place.folder / "shards"),
        batch_size=settings.batch_size,
        shuffle=settings.shuffle != "off",
        shuffle_seed=settings.seed,
    )
    batches = DataLoader(dataset, batch_size=settings.batch_size, **loader_arguments(settings))
    return CutBatches(place.folder, settings.features, batches)


LOADERS = [
    Loader(
        name="mosaic",
        format=one_format("mosaic"),
        prepare=prepare_frames,
        open=open_frames,
        needs=("streaming",),
        note=f"a sample a frame with all features, by number; {NOTE}",
    ),
    Loader(
        name="mosaic-cut",
        format=partial(cut_name, "mosaic-cut"),
        prepare=write,
        open=open_clips,
        shuffles=("off", "buffer"),
        needs=("streaming",),
        precut=True,
        note=f"a sample a clip; buffer: its default shuffle; {NOTE}",
    ),
]
