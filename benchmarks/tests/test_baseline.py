"""Every clip of an epoch, bit for bit, against a loader that opens the original files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.tartanair.generate import generate
from benchmarks.tartanair.loaders.raw_files import RawFilesDataset
from seqrecord import SeqRecordDataset, SeqRecordPipe, convert
from seqrecord.sources import TartanAir
from tests.clip_data import names
from tests.trees import REAL_DATA

PRESETS = ["raw", "fast", "balanced", "small"]


@pytest.fixture(scope="module", params=["v1", "v2"])
def tree(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rendered episodes, the second too short for a clip of 4."""
    root = tmp_path_factory.mktemp("baseline") / str(request.param)
    generate(root, episodes=[9, 3], height=64, width=96, layout=request.param)
    return root


def pack(source: Path, destination: Path, *, codec: str | None, **settings: Any) -> Path:
    convert(TartanAir(source, **settings), destination, codecs=codec, workers=1, chunk_frames=4)
    return destination


def same(clip: dict[str, Any], original: dict[str, Any]) -> None:
    assert (clip["episode"], clip["start"]) == (original["episode"], original["start"])
    assert set(clip) == set(original)
    for name, expected in original.items():
        if isinstance(expected, torch.Tensor):
            assert clip[name].dtype == expected.dtype, name
            assert clip[name].shape == expected.shape, name
            assert clip[name].numpy().tobytes() == expected.numpy().tobytes(), name


def compare(records: Path, root: Path, clip_len: int, **settings: Any) -> None:
    """One epoch of each kind of loader against the original files."""
    features = list(SeqRecordDataset(records, clip_len=1).dataset.features)
    baseline = RawFilesDataset(root, clip_len=clip_len, features=features, **settings)
    originals = {
        (c["episode"], c["start"]): c for c in map(baseline.__getitem__, range(len(baseline)))
    }
    assert originals
    for shuffle in (False, True):
        for batch_size in (None, 3):
            seen = []
            pipe = SeqRecordPipe(
                records, clip_len=clip_len, shuffle=shuffle, batch_size=batch_size, **settings
            )
            for batch in pipe:
                for i, name in enumerate(names(batch)):
                    clip = batch
                    if batch_size is not None:
                        clip = {feature: batch[feature][i] for feature in batch}
                    same(clip, originals[name])
                    seen.append(name)
            assert sorted(seen) == sorted(originals)
            assert shuffle or seen == list(originals)
    dataset = SeqRecordDataset(records, clip_len=clip_len, **settings)
    for number, original in enumerate(originals.values()):
        same(dataset[number], original)


@pytest.mark.parametrize("codec", PRESETS)
def test_rendered_tree(tree: Path, tmp_path: Path, codec: str) -> None:
    records = pack(tree, tmp_path / "records", codec=codec)
    compare(records, tree, 4)
    compare(records, tree, 2, stride=2, dilation=2)


def test_rendered_tree_with_images_kept_encoded(tree: Path, tmp_path: Path) -> None:
    compare(pack(tree, tmp_path / "records", codec=None, keep_encoded=True), tree, 4)


@pytest.mark.parametrize("codec", [*PRESETS, "kept"])
@pytest.mark.parametrize(("version", "clip_len"), [("tartanair_v1", 1), ("tartanair_v2", 2)])
def test_real_data(tmp_path: Path, version: str, clip_len: int, codec: str) -> None:
    root = REAL_DATA / version
    if not root.is_dir():
        pytest.skip("the real samples are not on this machine")
    kept = codec == "kept"
    records = pack(root, tmp_path / "records", codec=None if kept else codec, keep_encoded=kept)
    compare(records, root, clip_len)
