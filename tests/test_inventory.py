"""Inventories: a conversion reports the whole original, and the dataset keeps the report."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import FeatureSpec, Schema, SeqRecordWriter
from seqrecord.edit import delete_episodes, merge_datasets
from seqrecord.errors import FormatError, SourceError
from seqrecord.format.inventory import (
    MAX_INVENTORY_BYTES,
    Inventory,
    LeftOut,
    PackedFeature,
    encode_inventories,
)
from seqrecord.sources import Account, EpisodeInfo, inventory_of, unread_files
from tests.command_line import run

CLOUDS = LeftOut("lidar/*.pcd", 1000, "no reader")
CHOSEN = LeftOut("feature depth", 1, "not selected by features=", "features", is_data=False)


ACCOUNT = Account("2 recordings", {"x": "*/x.npy"}, (CLOUDS, CHOSEN), ("unit of x assumed: m",))


@dataclass(frozen=True)
class Recording:
    """A source of one feature that reports what it is given."""

    account_of: Account = ACCOUNT
    keys: tuple[str, ...] = ("a", "b")

    def schema(self) -> Schema:
        return Schema([FeatureSpec("x", np.dtype("<f4"), (3,), kind="pose", unit="m")])

    def episodes(self) -> Sequence[EpisodeInfo]:
        return [EpisodeInfo(key, 2) for key in self.keys]

    def frames(self, info: EpisodeInfo) -> Iterator[dict[str, Any]]:
        yield from ({"x": np.zeros(3, "<f4")} for _ in range(info.num_frames))

    def account(self) -> Account:
        return self.account_of


class Plain:
    """A source with the three methods of the protocol only."""

    def __init__(self) -> None:
        self.schema = Recording().schema
        self.episodes = Recording().episodes
        self.frames = Recording().frames


EXPECTED = Inventory(
    "Recording",
    "2 recordings",
    (PackedFeature("x", "float32", (3,), "pose", "m", "*/x.npy"),),
    (CLOUDS, CHOSEN),
    ("unit of x assumed: m",),
)


def test_the_dataset_keeps_the_inventory_and_info_shows_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A damaged one is an error, and `info` goes on."""
    report = seqrecord.convert(Recording(), tmp_path / "records", workers=1)
    assert report.inventory == EXPECTED
    assert seqrecord.open(tmp_path / "records").inventories == (EXPECTED,)
    text = run("info", str(tmp_path / "records")).stdout
    assert "lidar/*.pcd: 1,000 files, no reader" in text
    assert "from */x.npy" in text
    assert "unit of x assumed: m" in text
    shown = json.loads(run("info", str(tmp_path / "records"), "--json").stdout)
    assert [Inventory.from_json(each) for each in shown["inventories"]] == [EXPECTED]
    [file] = (tmp_path / "records" / "index").glob("*-inventory.json")
    file.write_bytes(file.read_bytes().replace(b"lidar", b"radar"))
    with pytest.raises(FormatError, match="inventories"):
        _ = seqrecord.open(tmp_path / "records").inventories
    with caplog.at_level(logging.WARNING, "seqrecord"):
        assert seqrecord.summarize(tmp_path / "records").inventories == ()
    assert "inventories not shown" in caplog.text


def test_a_strict_conversion_refuses_data_that_is_left_out(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"lidar/\*\.pcd: 1,000 files, no reader") as caught:
        seqrecord.convert(Recording(), tmp_path / "records", workers=1, strict=True)
    assert "depth" not in str(caught.value)
    assert not (tmp_path / "records").exists()
    chosen = Recording(Account("all of it", left_out=(CHOSEN,)))
    seqrecord.convert(chosen, tmp_path / "records", workers=1, strict=True)


def test_an_append_adds_an_inventory_unless_it_is_equal(tmp_path: Path) -> None:
    other = Recording(Account("more of it", {"x": "x.npy"}), ("c",))
    seqrecord.convert(Recording(), tmp_path / "r", workers=1)
    seqrecord.convert(
        replace(Recording(), keys=("a", "b", "z")), tmp_path / "r", workers=1, mode="append"
    )
    assert seqrecord.open(tmp_path / "r").inventories == (EXPECTED,)
    seqrecord.convert(other, tmp_path / "r", workers=1, mode="append")
    first, second = seqrecord.open(tmp_path / "r").inventories
    assert (first, second.reason) == (EXPECTED, "more of it")


def test_edits_and_merges_keep_inventories(tmp_path: Path) -> None:
    for name, keys in (("one", ("a", "b")), ("two", ("c", "d"))):
        source = Recording(Account(f"recordings {name}"), keys)
        seqrecord.convert(source, tmp_path / name, workers=1)
    delete_episodes(tmp_path / "one", ["a"])
    [kept] = seqrecord.open(tmp_path / "one").inventories
    assert kept.reason == "recordings one"
    merge_datasets([tmp_path / "one", tmp_path / "two"], tmp_path / "both")
    found = seqrecord.open(tmp_path / "both").inventories
    assert [each.reason for each in found] == ["recordings one", "recordings two"]


def test_the_file_of_inventories_is_at_most_64_kib() -> None:
    many = tuple(LeftOut(f"{'x' * 500}{n}", n, "no reader") for n in range(900))
    notes = tuple(f"note {n}" for n in range(600))
    data = encode_inventories([replace(EXPECTED, left_out=many, notes=notes)] * 3)
    assert len(data) <= MAX_INVENTORY_BYTES
    [one] = json.loads(data)["inventories"]
    found = Inventory.from_json(one)
    assert 10 < len(found.left_out) < 900
    assert "shortened to 64 KiB" in found.notes
    several = [replace(EXPECTED, reason=f"{n}{'y' * 900}", notes=notes) for n in range(200)]
    data = encode_inventories(several)
    assert len(data) <= MAX_INVENTORY_BYTES
    assert json.loads(data)["inventories"][-1]["reason"].startswith("199")


def test_text_has_at_most_so_many_lines_and_data_first() -> None:
    found = replace(
        EXPECTED,
        features=tuple(replace(EXPECTED.features[0], name=f"f{n}") for n in range(12)),
        left_out=(CHOSEN, *(LeftOut(f"*.{n}", 2, "no reader") for n in range(20))),
    )
    lines = found.lines(10)
    assert len(lines) == 10
    assert lines[0] == "format    Recording: 2 recordings"
    assert lines[1].startswith("features  12: f0, f1, ")
    assert lines[2] == "left out  *.0: 2 files, no reader"
    assert lines[-1] == "more      15 lines; `seqrecord info` shows all"
    assert len(found.lines()) == 1 + 12 + 21 + 1


@pytest.mark.parametrize(
    "change",
    [
        {"format": 1},
        {"features": [{}]},
        {"left_out": [{"pattern": "a", "count": -1, "reason": "", "unit": "", "is_data": True}]},
        {"left_out": [{"pattern": "a", "count": 1, "reason": "", "unit": "", "is_data": 1}]},
        {"notes": "text"},
        {"more": 1},
    ],
)
def test_json_that_is_no_inventory_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(FormatError):
        Inventory.from_json({**EXPECTED.to_json(), **change})


def test_unread_files_are_grouped_by_pattern(tmp_path: Path) -> None:
    names = [
        *(f"seq-01/frame-{n:06d}.pose.txt" for n in range(3)),
        *(f"seq-02/frame-{n:06d}.pose.txt" for n in range(2)),
        *(f"seq-01/lidar/{n:06d}.pcd" for n in range(4)),
        *("seq-01/rgb/1305031102.175304.png", "seq-01/rgb/1305031102.211214.png"),
        *("calib.yaml", "README.md", "LICENSE", ".hidden", "seq-01/._frame-000000.pose.txt"),
    ]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    found = unread_files(tmp_path, lambda path: path.suffix == ".png")
    assert found == [
        LeftOut("*.pose.txt", 5, "no reader"),
        LeftOut("lidar/*.pcd", 4, "no reader"),
        LeftOut("calib.yaml", 1, "no reader"),
    ]
    assert LeftOut("rgb/*.png", 2, "x") in unread_files(tmp_path, lambda _: False, "x")
    assert str(found[0]) == "*.pose.txt: 5 files, no reader"
    assert str(found[-1]) == "calib.yaml: 1 file, no reader"


@dataclass(frozen=True)
class HalfEmpty(Recording):
    """A source whose second feature no frame has."""

    features: tuple[str, ...] | None = None

    def schema(self) -> Schema:
        return Schema([*super().schema().values(), FeatureSpec("y", np.dtype("<f4"), (2,))])


def test_a_requested_feature_without_any_value_is_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(SourceError, match="no value in any frame") as caught:
        seqrecord.convert(HalfEmpty(features=("x", "y")), tmp_path / "refused", workers=1)
    assert caught.value.feature == "y"
    assert not (tmp_path / "refused" / "manifest.json").exists()
    with caplog.at_level(logging.WARNING, "seqrecord"):
        seqrecord.convert(HalfEmpty(), tmp_path / "records", workers=1)
    assert "feature y has no value in any frame" in caplog.text


def test_a_source_of_three_methods_has_an_inventory_of_its_features(tmp_path: Path) -> None:
    """It may have anything called features; a writer makes no inventory."""

    class Own(Plain):
        def features(self) -> None:
            raise AssertionError

    for source in (Plain(), Own()):
        found = inventory_of(source)
        assert (found.format, found.left_out) == (type(source).__name__, ())
        assert [each.name for each in found.features] == ["x"]
    report = seqrecord.convert(Own(), tmp_path / "records", workers=1)
    assert report.manifest.num_episodes == 2
    with SeqRecordWriter(tmp_path / "written") as writer, writer.episode("a") as episode:
        episode.append({"x": np.zeros(3, "<f4")})
    assert seqrecord.open(tmp_path / "written").inventories == ()
