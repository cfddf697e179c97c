"""Notes of a conversion: files that stay, features that may be poses; the size of inventories."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import seqrecord
from seqrecord import FeatureSpec, Schema, SeqRecordWriter, convert
from seqrecord.sources import Inventory, LeftOut
from seqrecord.store.feature_kinds import unknown_pose_kinds
from seqrecord.store.format.inventory import MAX_INVENTORY_BYTES, PackedFeature, encode_inventories
from tests.kit.faults import abandon, small_writer
from tests.kit.made_source import MadeSource


def spec(name: str, *shape: int, dtype: str = "<f8", kind: str | None = None) -> FeatureSpec:
    return FeatureSpec(name, np.dtype(dtype), shape, kind=kind)


@pytest.mark.parametrize(
    ("feature", "is_noted"),
    [
        (spec("poses", 7), True),
        (spec("traj", 4, 4), True),
        (spec("cameraPose", 3, 4), True),
        (spec("camera.extrinsics", 16), True),
        (spec("poses", 8), True),  # after the time of a row
        (spec("odometry", 13), True),
        (spec("poses", 8, kind="state"), False),
        (spec("poses", 7, kind="pose"), False),
        (spec("poses", 7, dtype="<i8"), False),
        (spec("poses", 51), False),  # joints of a body
        (spec("purpose", 7), False),
        (spec("trajectory", 480, 640), False),
    ],
)
def test_features_that_may_be_poses(feature: FeatureSpec, is_noted: bool) -> None:
    notes = list(unknown_pose_kinds(Schema([feature])))
    assert [f"--kind {feature.name}=pose" in note for note in notes] == [True] * is_noted


@pytest.mark.parametrize("by_convert", [True, False])
def test_a_resume_names_files_that_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, by_convert: bool
) -> None:
    source = MadeSource((3, 5))
    first, folder = source.episodes()[0], tmp_path / "records"
    writer = small_writer(folder, max_file_size=1 << 20)
    with writer.episode(first.key, metadata=first.metadata) as episode:
        for frame in source.frames(first):
            episode.append(frame)
    abandon(writer)
    caplog.set_level(logging.WARNING, "seqrecord")
    if by_convert:
        convert(source, folder, mode="resume", workers=1, codecs="raw")
    else:
        second = source.episodes()[1]
        with (
            SeqRecordWriter(folder, mode="resume", codecs="raw") as writer,
            writer.episode(second.key, metadata=second.metadata) as episode,
        ):
            for frame in source.frames(second):
                episode.append(frame)
    partial = [path for path in (folder / "records").iterdir() if path.suffix == ".partial"]
    lines = [r.getMessage() for r in caplog.records if "seqrecord clean" in r.getMessage()]
    assert len(lines) == 1
    assert partial
    assert partial[0].name.removesuffix(".partial") in lines[0]
    assert seqrecord.verify(folder).ok


def test_the_file_of_inventories_is_at_most_64_kib() -> None:
    many = tuple(LeftOut(f"{'x' * 500}{n}", n, "no reader") for n in range(300))
    notes = tuple(f"note {n}" for n in range(600))
    feature = PackedFeature("x", "float32", (3,), "pose", "m", "*/x.npy")
    long = Inventory("Recording", "long", (feature,), many, notes)
    data = encode_inventories([long] * 3)
    assert len(data) <= MAX_INVENTORY_BYTES
    [one] = json.loads(data)["inventories"]
    found = Inventory.from_json(one)
    assert 10 < len(found.left_out) < 300
    assert "shortened to 64 KiB" in found.notes
    several = [
        replace(long, reason=f"{n}{'y' * 900}", left_out=(), notes=notes[:9]) for n in range(100)
    ]
    data = encode_inventories(several)
    assert len(data) <= MAX_INVENTORY_BYTES
    assert json.loads(data)["inventories"][-1]["reason"].startswith("99")
