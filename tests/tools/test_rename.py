"""`rename=` in all loaders gives the same clips under other names."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import seqrecord
from seqrecord import (
    CenterCrop,
    ClipError,
    FeatureSpec,
    Latest,
    Seconds,
    SeqRecordIterableDataset,
    SeqRecordMapDataset,
    SeqRecordMix,
    SeqRecordNode,
    SeqRecordPipe,
    StateError,
)
from seqrecord.errors import SchemaError, SeqRecordError
from tests.kit.clip_data import digest
from tests.kit.datasets import write_dataset, written_once

SCHEMA = seqrecord.Schema(
    [
        FeatureSpec("image_left", np.dtype("u1"), (6, 8, 3)),
        FeatureSpec("points", np.dtype("<f4"), (None, 2)),
        FeatureSpec("note", np.dtype("u1"), (None,), value="text"),
        FeatureSpec("stamp", np.dtype("<f8"), (), kind="timestamp", unit="s"),
        FeatureSpec("gps", np.dtype("<f8"), (3,), group=1),
    ]
)
NAMES = {"image_left": "image", "points": "lidar", "gps": "position", "stamp": "time"}


def frame(number: int, i: int) -> dict[str, Any]:
    rng = np.random.default_rng([number, i])
    found = {
        "image_left": rng.integers(0, 255, (6, 8, 3), np.uint8),
        "points": rng.normal(size=(i % 3, 2)).astype("<f4"),
        "note": f"note {number} {i}",
        "stamp": np.float64(i / 10),
    }
    return found | ({"gps": rng.normal(size=3)} if i % 3 == 0 else {})


path = written_once(
    write_dataset,
    {f"e/{n}": [frame(n, i) for i in range(length)] for n, length in enumerate((14, 9, 3))},
    metadata={f"e/{n}": {"task": n} for n in range(3)},
    schema=SCHEMA,
    chunk_frames=5,
)


def by_stored_names(clip: Mapping[str, Any]) -> dict[str, Any]:
    """The clip with its stored names."""
    found = {}
    for name, value in clip.items():
        for old, new in NAMES.items():
            name = re.sub(f"^{new}(?=$|_mask$|_is_pad$|_age$|_is_missing$)", old, name)
        found[name] = value
    return found


def brighter(clip: dict[str, Any], _: np.random.Generator) -> dict[str, Any]:
    """Change images; other items are texts, and columns such as `crop`, which stay."""
    return {n: v + 1 if getattr(v, "dtype", None) == np.uint8 else v for n, v in clip.items()}


OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "all": ({"clip_len": 3}, {"windows": {"gps": Latest()}, "metadata": ["task"]}),
    "chosen": ({"clip_len": 3, "features": ["points", "note", "stamp"]}, {"ragged": "pad"}),
    "windows": (
        {"features": ["image_left", "points", "gps"], "pad": "edge"},
        {
            "windows": {
                "image_left": [-1, 0],
                "points": Seconds([-0.1, 0.2], timestamps="stamp"),
                "gps": Latest([0], max_age=2),
            },
            "ragged": {"points": 4},
        },
    ),
    "crops": (
        {"clip_len": 2, "features": ["image_left", "note"]},
        {"clip_transform": [CenterCrop((4, 4), features=["image_left"]), brighter]},
    ),
}


def renamed(options: Any) -> Any:
    """The options with the features' new names."""
    if isinstance(options, CenterCrop):
        return CenterCrop((4, 4), features=[NAMES[name] for name in options.features or ()])
    if isinstance(options, Seconds):
        return Seconds([-0.1, 0.2], timestamps=NAMES["stamp"])
    if isinstance(options, list):
        return [renamed(one) for one in options]
    if isinstance(options, dict):
        return {NAMES.get(name, name): renamed(value) for name, value in options.items()}
    return options


def same(old: Any, new: Any) -> None:
    olds, news = list(old), [by_stored_names(clip) for clip in new]
    assert len(olds) > 3
    assert [*map(list, olds)] == [*map(list, news)]
    assert [*map(digest, olds)] == [*map(digest, news)]


@pytest.mark.parametrize("name", OPTIONS)
def test_the_same_clips_under_other_names(path: Path, name: str) -> None:
    plain, feature_options = OPTIONS[name]
    for loader in (SeqRecordPipe, SeqRecordNode, SeqRecordMapDataset):
        old: Any = loader(path, **plain, **feature_options)
        new: Any = loader(path, **plain, rename=NAMES, **renamed(feature_options))
        if loader is SeqRecordMapDataset:
            old, new = ([each[i] for i in range(len(each))] for each in (old, new))
        same(old, new)


def test_transforms_use_the_new_names(path: Path) -> None:
    def small(frame: dict[str, Any]) -> dict[str, Any]:
        return {"image": frame["image"][:2], "x": frame["image"].mean()}

    options: dict[str, Any] = {"features": ["image_left"], "rename": {"image_left": "image"}}
    windows: dict[str, Any] = {"image": [-1, 0]}
    for clip in SeqRecordPipe(path, **options, frame_transform=small, windows=windows):
        number, start = int(clip["episode"][2:]), int(clip["start"])
        expected = [frame(number, i)["image_left"][:2] for i in (start - 1, start)]
        np.testing.assert_array_equal(clip["image"].numpy(), np.stack(expected))


def test_workers_and_open_datasets(path: Path) -> None:
    """A pickled dataset keeps its new names."""
    stream = SeqRecordIterableDataset(
        path, clip_len=3, batch_size=2, features=["image_left"], rename=NAMES
    )
    expected = [digest(batch) for batch in DataLoader(stream, batch_size=None)]
    stream.set_epoch(0)
    processes: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "forkserver"}
    assert [digest(batch) for batch in DataLoader(stream, batch_size=None, **processes)] == expected
    dataset = pickle.loads(pickle.dumps(stream.dataset))
    assert list(dataset.features) == list(stream.dataset.features) == ["image"]
    assert set(dataset.schema) == {"image", "lidar", "position", "time", "note"}
    np.testing.assert_array_equal(dataset.episodes["e/1"][4]["image"], frame(1, 4)["image_left"])
    twice = pickle.loads(pickle.dumps(stream.dataset.renamed({"image": "rgb"})))
    assert list(twice.select(["rgb", "lidar"]).features) == ["rgb", "lidar"]
    assert next(iter(SeqRecordPipe(twice, clip_len=2)))["rgb"].shape == (2, 6, 8, 3)
    old, new = seqrecord.open(path).statistics, dataset.statistics
    assert new["image"].mean.tolist() == old["image_left"].mean.tolist()
    assert set(new) == {NAMES.get(name, name) for name in old}


def test_a_mix_joins_renamed_features(path: Path, tmp_path: Path) -> None:
    frames = [{"image": np.zeros((6, 8, 3), np.uint8), "pose": np.zeros(2)}] * 8
    write_dataset(tmp_path / "other", {"a": frames})
    sources = {
        "a": SeqRecordIterableDataset(
            path, clip_len=2, rename=NAMES, windows={"position": Latest()}
        ),
        "b": SeqRecordIterableDataset(tmp_path / "other", clip_len=2),
    }
    mix = SeqRecordMix(sources, batch_size=4, features="intersection")
    for batch in mix:
        assert batch["image"].shape == (4, 2, 6, 8, 3)
        assert not {"position", "image_left", "pose"} & batch.keys()


def test_a_state_resumes_under_other_names(path: Path) -> None:
    """The order follows the stored features."""
    options: dict[str, Any] = {"clip_len": 2, "features": ["image_left", "gps"], "seed": 3}
    old = SeqRecordPipe(path, **options, windows={"gps": Latest()})
    clips = iter(old)
    for _ in range(4):
        next(clips)
    new = SeqRecordPipe(path, **options, rename=NAMES, windows={"position": Latest()})
    new.load_state_dict(old.state_dict())
    same(clips, new)
    other = SeqRecordPipe(path, **options, rename=NAMES, windows={"position": Latest(max_age=1)})
    with pytest.raises(StateError, match="windows"):
        other.load_state_dict(old.state_dict())


def test_invalid_names_are_refused(path: Path) -> None:
    options: dict[str, Any] = {"features": ["image_left", "points"], "metadata": ["task"]}
    cases: list[tuple[dict[str, str], type[SeqRecordError], str]] = [
        ({"image": "x"}, SchemaError, "image"),
        *(({"points": name}, SchemaError, name) for name in ("note", "no name", "~1")),
        *(({"points": name}, ClipError, name) for name in ("episode", "image_left_is_pad", "task")),
    ]
    for loader, (rename, error, got) in product((SeqRecordPipe, SeqRecordMapDataset), cases):
        with pytest.raises(error) as caught:
            loader(path, clip_len=2, pad="edge", **options, rename=rename)
        assert got in str(caught.value.got)
    rename = {"image_left": "stamp", "stamp": "image_left"}  # swapping names is allowed
    clip = next(iter(SeqRecordPipe(path, clip_len=2, features=[*rename], rename=rename)))
    assert (clip["stamp"].dtype, clip["image_left"].dtype) == (torch.uint8, torch.float64)
