"""Episodes of originals that are cut where their timestamps jump."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import FeatureSpec, Schema, convert
from seqrecord.codecs.video.config import VideoConfig
from seqrecord.codecs.video.encoding import encode_gop
from seqrecord.codecs.video.gops import Gop
from seqrecord.errors import SchemaError, SourceError
from seqrecord.schema import Block
from seqrecord.sources import EpisodeInfo
from tests import command_line
from tests.tiny import read_all

_TIMES = {
    "a": [0.0, 0.1, 0.2, 1.3, 1.4, 9.0],  # cut before frames 3 and 5
    "b": [5.0, 5.1, 5.2],
    "c": [7.0, 7.1, 3.0, 3.1],  # a clock that was set back
}
_CUTS = {"a": [0, 3, 5, 6], "b": [0, 3], "c": [0, 2, 4]}


@dataclass(frozen=True)
class Recording:
    """`clock` says where times are: a feature, or the method; `reads` counts frames."""

    clock: str = "feature"
    features: tuple[str, ...] | None = None
    block: int = 1
    kind: str | None = "timestamp"
    unit: str | None = "ms"
    wrong: int = -1  # frame of `c` without a timestamp

    def schema(self) -> Schema:
        f8 = np.dtype("<f8")
        specs = [
            FeatureSpec("x", np.dtype("<i4"), (2,)),
            FeatureSpec("word", np.dtype("u1"), (None,), value="text"),
        ]
        if self.clock == "feature":
            specs.append(FeatureSpec("t", f8, (), kind=self.kind, unit=self.unit))
        return Schema(
            [spec for spec in specs if self.features is None or spec.name in self.features]
        )

    def episodes(self) -> Sequence[EpisodeInfo]:
        return [EpisodeInfo(k, len(t), {"of": k}, 10.0, "train") for k, t in _TIMES.items()]

    def frames(self, info: EpisodeInfo) -> Iterator[Any]:
        for block in self.blocks(info):
            yield from block.frames()

    def blocks(self, info: EpisodeInfo) -> Iterator[Block]:
        names = self.schema()
        for start in range(0, info.num_frames, self.block):
            rows = range(start, min(start + self.block, info.num_frames))
            columns: dict[str, Any] = {
                "x": np.array([[i, -i] for i in rows], "<i4"),
                "word": [f"{info.key} {i}" for i in rows],
                "t": np.array(_TIMES[info.key])[rows] * 1000,
            }
            if self.wrong in rows and info.key == "c":
                del columns["t"]
            yield Block(len(rows), {n: c for n, c in columns.items() if n in names})


class Timed(Recording):
    def timestamps(self, info: EpisodeInfo) -> Any:
        return np.array(_TIMES[info.key])


def _check(path: Path) -> None:
    found = read_all(path)
    wanted = {
        key if len(cuts) == 2 else f"{key}/{n}": (key, range(*cuts[n : n + 2]))
        for key, cuts in _CUTS.items()
        for n in range(len(cuts) - 1)
    }
    assert list(found) == list(wanted)
    with seqrecord.open(path) as dataset:
        for name, (key, span) in wanted.items():
            episode = dataset.episodes[name]
            assert episode.metadata == {"of": key}
            assert [str(frame["word"]) for frame in found[name]] == [f"{key} {i}" for i in span]
            assert [frame["x"].tolist() for frame in found[name]] == [[i, -i] for i in span]
        [inventory] = dataset.inventories
        assert (
            "split at gaps of more than 0.5 s: 2 episodes into 5; the first gap: a before frame 3, "
            "1.1 s" in inventory.notes
        )
        assert dataset.contents.manifest.splits == ("train",)


@pytest.mark.parametrize("block", [1, 2, 4, 100])
@pytest.mark.parametrize("kind", [Recording, Timed])
def test_parts_of_episodes(tmp_path: Path, kind: type[Recording], block: int) -> None:
    source = kind(clock="feature" if kind is Recording else "method", block=block)
    convert(source, tmp_path / "r", split_at_gaps=0.5, workers=1)
    _check(tmp_path / "r")
    again = convert(source, tmp_path / "r", split_at_gaps=0.5, workers=1, mode="append")
    assert not again.written
    assert len(again.skipped) == 6


def test_parts_that_other_processes_write(tmp_path: Path) -> None:
    convert(Recording(), tmp_path / "r", split_at_gaps=0.5, workers=2, max_file_size=1000)
    _check(tmp_path / "r")
    report = convert(Recording(), tmp_path / "whole", split_at_gaps=60, workers=1)
    assert list(read_all(tmp_path / "whole")) == [*_TIMES]
    assert "split at gaps of more than 60 s: no episode has one" in report.inventory.notes


@pytest.mark.parametrize("codec", ["h264:gop=4", "av1:gop=4"])
def test_packets_of_cut_groups_of_pictures(tmp_path: Path, codec: str) -> None:
    images = [np.full((16, 16, 3), 20 * i, np.uint8) for i in range(6)]
    shape = (16, 16, 3)
    config = VideoConfig.from_json(seqrecord.codecs.resolve(codec, np.uint8, shape, feature="v")[0])
    config = config.encoding(16, 16)
    gops = [encode_gop(config, images[a : a + 4]) for a in (0, 4)]

    class Filmed(Timed):
        def schema(self) -> Schema:
            return Schema(
                [
                    *super().schema().values(),
                    FeatureSpec("v", np.dtype("u1"), shape, (config.to_json(),)),
                ]
            )

        def episodes(self) -> Sequence[EpisodeInfo]:
            return super().episodes()[:1]

        def videos(self, info: EpisodeInfo) -> dict[str, Iterator[Gop]]:
            return {"v": iter(gops)}

    convert(Filmed(clock="method"), tmp_path / "whole", workers=1)
    convert(Filmed(clock="method"), tmp_path / "cut", workers=1, split_at_gaps=0.5)
    [whole] = read_all(tmp_path / "whole").values()
    cut = read_all(tmp_path / "cut")
    assert [len(frames) for frames in cut.values()] == [3, 2, 1]
    for got, want in zip([f for frames in cut.values() for f in frames], whole, strict=True):
        assert np.array_equal(got["v"], want["v"])
    assert not seqrecord.verify(tmp_path / "cut", deep=True).problems


@pytest.mark.parametrize(
    ("source", "options", "error", "says"),
    [
        (Recording(kind=None), {}, SchemaError, "needs timestamps"),
        (Recording(unit=None), {}, SchemaError, "unit of timestamps"),
        (Recording(wrong=2), {}, SourceError, "lacks its timestamp"),
        (Recording(), {"split_at_gaps": 0}, SourceError, "above 0"),
        (Recording(), {"split_at_gaps": float("nan")}, SourceError, "above 0"),
        (Timed(), {"in_place": True}, SourceError, "in place"),
    ],
)
def test_what_cannot_be_cut(
    tmp_path: Path, source: Any, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        convert(source, tmp_path / "r", **{"split_at_gaps": 0.5, "workers": 1, **options})
    assert not (tmp_path / "r" / "manifest.json").exists()


def test_timestamps_that_differ_when_read_again(tmp_path: Path) -> None:
    """A source of one feature has other frames than the same source of all."""

    class Shifting(Recording):
        def blocks(self, info: EpisodeInfo) -> Iterator[Block]:
            for block in super().blocks(info):
                shift = 0 if self.features else 1
                columns: dict[str, Any] = dict(block.columns)
                yield Block(block.num_frames, {**columns, "t": columns["t"] + shift})

    source = replace(Shifting(), kind="timestamp")
    with pytest.raises(SourceError, match="timestamps differ"):
        convert(source, tmp_path / "r", split_at_gaps=0.5, workers=1)


def test_command_line(tmp_path: Path) -> None:
    folder = tmp_path / "raw"
    for key, times in _TIMES.items():
        (folder / key).mkdir(parents=True)
        np.save(folder / key / "t.npy", np.array(times))
        np.save(folder / key / "x.npy", np.arange(len(times), dtype="<i4"))
    write = ["write", "--src", folder, "--dst", tmp_path / "r", "--kind", "t=timestamp", "--unit"]
    output = command_line.run(*write, "t=s", "--split-at-gaps", 0.5, "--workers", 1).output
    assert "2 episodes into 5" in output
    assert list(read_all(tmp_path / "r")) == ["a/0", "a/1", "a/2", "b", "c/0", "c/1"]
    again = ["write", "--src", tmp_path / "r", "--dst", tmp_path / "s", "--split-at-gaps", 1]
    assert "split its original" in command_line.fail(*again)
