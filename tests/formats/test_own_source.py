"""User-defined sources; fps and gaps of timestamps; the documented example runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import FeatureSpec, Schema, convert
from seqrecord.errors import SchemaError, SourceError
from seqrecord.sources import EpisodeInfo, Gop, TartanAirSource, undistorted
from seqrecord.store.originals.wrapping import OPTIONAL, Scope, SourceWrapper
from seqrecord.store.schema import Block
from tests.formats.cases import upload
from tests.formats.format_cases.webdataset import write_samples
from tests.formats.timed_originals import GAP, REGULAR, TIMED
from tests.formats.timed_source import CUTS, TIMES, Recording, Timed
from tests.kit import command_line
from tests.kit.datasets import columns, write_dataset
from tests.kit.processes import run_python
from tests.kit.tiny import read_all
from tests.kit.trees import make_frames, write_v1
from tests.video.gops import config_of, gops_of


def _check(path: Path) -> None:
    found = read_all(path)
    expected = {
        key if len(cuts) == 2 else f"{key}/{n}": (key, range(*cuts[n : n + 2]))
        for key, cuts in CUTS.items()
        for n in range(len(cuts) - 1)
    }
    assert list(found) == list(expected)
    with seqrecord.open(path) as dataset:
        for name, (key, span) in expected.items():
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


@pytest.mark.parametrize("kind", [Recording, Timed])
def test_episodes_are_split_at_gaps(tmp_path: Path, kind: type[Recording]) -> None:
    for block in (1, 2, 4, 100):
        source, path = kind(block=block), tmp_path / f"{block}"
        convert(source, path, split_at_gaps=0.5, workers=1)
        _check(path)
        again = convert(source, path, split_at_gaps=0.5, workers=1, mode="append")
        assert (again.written, len(again.skipped)) == ((), 6)


def test_blocks_have_the_time_spans_of_their_frames(tmp_path: Path) -> None:
    stored = []
    for block in (1, 2, 100):
        path = tmp_path / f"{block}"
        convert(Recording(block=block), path, workers=1)
        with seqrecord.open(path) as dataset:
            time_spans = dataset.contents.index.time_spans
            assert time_spans is not None
            bounds = time_spans.frames_within(np.arange(len(TIMES)), 0, 150)
            stored.append([column.tolist() for column in bounds])
    assert stored == [stored[0]] * 3
    assert stored[0][0][1] == 1  # of `b`, with a frame every 100 ms


def test_worker_processes_split_at_gaps(tmp_path: Path) -> None:
    convert(Recording(), tmp_path / "r", split_at_gaps=0.5, workers=2, max_file_size=1000)
    _check(tmp_path / "r")
    report = convert(Recording(), tmp_path / "whole", split_at_gaps=60, workers=1)
    assert list(read_all(tmp_path / "whole")) == [*TIMES]
    assert "split at gaps of more than 60 s: no episode has one" in report.inventory.notes


@pytest.mark.parametrize("codec", ["h264:gop=4", "av1:gop=4"])
def test_video_packets_are_split_within_groups_of_pictures(tmp_path: Path, codec: str) -> None:
    images, shape = [np.full((16, 16, 3), 20 * i, np.uint8) for i in range(6)], (16, 16, 3)
    config, gops = config_of(codec, (16, 16)), gops_of(codec, np.stack(images), 4)

    class Filmed(Timed):
        def schema(self) -> Schema:
            video = FeatureSpec("v", np.dtype("u1"), shape, (config.to_json(),))
            return Schema([*super().schema().values(), video])

        def episodes(self) -> Sequence[EpisodeInfo]:
            return super().episodes()[:1]

        def videos(self, info: EpisodeInfo) -> dict[str, Iterator[Gop]]:
            return {"v": iter(gops)}

    convert(Filmed(), tmp_path / "whole", workers=1)
    convert(Filmed(), tmp_path / "cut", workers=1, split_at_gaps=0.5)
    [whole] = read_all(tmp_path / "whole").values()
    cut = read_all(tmp_path / "cut")
    assert [len(frames) for frames in cut.values()] == [3, 2, 1]
    for got, expected in zip([f for frames in cut.values() for f in frames], whole, strict=True):
        assert np.array_equal(got["v"], expected["v"])
    assert not seqrecord.verify(tmp_path / "cut", deep=True).problems


@pytest.mark.parametrize(
    ("dtype", "times", "cuts"),
    [
        ("<i8", [-(2**63), 2**63 - 1, 2**63 - 2], [1, 2]),
        ("<u8", [2**64 - 2, 2**64 - 1, 0], [2, 1]),
        ("<f8", [-1.7e308, 1.7e308, 1.7e308], [1, 2]),
        ("<i8", [5, 6, 7], [3]),
    ],
)
def test_extreme_timestamps_are_split(
    tmp_path: Path, dtype: str, times: list[Any], cuts: list[int]
) -> None:
    (tmp_path / "raw" / "a").mkdir(parents=True)
    np.save(tmp_path / "raw" / "a" / "t.npy", np.array(times, dtype))
    source = seqrecord.sources.FolderSource(tmp_path / "raw")
    options: dict[str, Any] = {"kinds": {"t": "timestamp"}, "units": {"t": "s"}, "fps": 1}
    convert(source, tmp_path / "r", workers=1, split_at_gaps=2, **options)
    assert [len(frames) for frames in read_all(tmp_path / "r").values()] == cuts
    convert(source, tmp_path / "whole", workers=1, **options)
    with seqrecord.open(tmp_path / "whole") as dataset:  # the timestamps contradict the rate
        assert dataset.episodes["a"].fps == (1 if len(cuts) == 1 else None)


def test_sources_that_cannot_be_split(tmp_path: Path) -> None:
    trajectory = write_v1(tmp_path / "P000", make_frames(0, 3))
    cases: list[tuple[Any, Any, type[Exception], str]] = [
        (Recording(kind=None), {}, SchemaError, "needs timestamps"),
        (TartanAirSource(trajectory), {}, SourceError, "neither timestamps nor a frame rate"),
        (Recording(unit=None), {}, SchemaError, "unit of timestamps"),
        (Recording(wrong=2), {}, SourceError, "lacks its timestamp"),
        (Recording(), {"split_at_gaps": 0}, SourceError, "above 0"),
        (Recording(), {"split_at_gaps": float("nan")}, SourceError, "above 0"),
        (Timed(), {"in_place": True}, SourceError, "in place"),
    ]
    for number, (source, options, error, message) in enumerate(cases):
        path = tmp_path / f"{number}"
        with pytest.raises(error, match=message):
            convert(source, path, **{"split_at_gaps": 0.5, "workers": 1, **options})
        assert not (path / "manifest.json").exists()


def test_episodes_without_their_timestamps_are_left_out(tmp_path: Path) -> None:
    """With `skip_bad_episodes`; one that cannot be read does not end the others."""
    for key, times in {"a": [0.0, 0.1, 9.0], "b": [0.0, np.nan], "c": [0.0, 0.1]}.items():
        (tmp_path / "raw" / key).mkdir(parents=True)
        np.save(tmp_path / "raw" / key / "t.npy", np.array(times))
    options: dict[str, Any] = {"kinds": {"t": "timestamp"}, "units": {"t": "s"}, "workers": 1}
    options["split_at_gaps"] = 0.5
    source = seqrecord.open_source(tmp_path / "raw")
    with pytest.raises(SourceError, match="timestamps do not fit"):
        convert(source, tmp_path / "all", **options)
    report = convert(source, tmp_path / "r", skip_bad_episodes=True, **options)
    assert list(read_all(tmp_path / "r")) == ["a/0", "a/1", "c"]
    assert [episode.key for episode in report.bad] == ["b"]
    assert "timestamps do not fit" in report.bad[0].error
    wrong = Recording(wrong=2)
    options = {"split_at_gaps": 0.5, "workers": 1, "skip_bad_episodes": True}
    assert len(convert(wrong, tmp_path / "w", **options).bad) == 1


def _folders(folder: Path) -> Path:
    for key, times in TIMES.items():
        (folder / key).mkdir(parents=True)
        np.save(folder / key / "t.npy", np.array(times))
        np.save(folder / key / "x.npy", np.arange(len(times), dtype="<i4"))
    return folder


def test_an_original_at_a_url_is_split(tmp_path: Path, memory_url: str) -> None:
    source = seqrecord.open_source(upload(_folders(tmp_path / "raw"), memory_url))
    options: dict[str, Any] = {"kinds": {"t": "timestamp"}, "units": {"t": "s"}}
    convert(source, tmp_path / "r", workers=1, split_at_gaps=0.5, **options)
    assert list(read_all(tmp_path / "r")) == ["a/0", "a/1", "a/2", "b", "c/0", "c/1"]


def test_command_line(tmp_path: Path) -> None:
    folder = _folders(tmp_path / "raw")
    write = ["write", "--src", folder, "--dst", tmp_path / "r", "--kind", "t=timestamp", "--unit"]
    output = command_line.run(*write, "t=s", "--split-at-gaps", 0.5, "--workers", 1).output
    assert "2 episodes into 5" in output
    assert list(read_all(tmp_path / "r")) == ["a/0", "a/1", "a/2", "b", "c/0", "c/1"]
    again = ["write", "--src", tmp_path / "r", "--dst", tmp_path / "s", "--split-at-gaps", 1]
    assert "split its original" in command_line.fail(*again)


@dataclass(frozen=True)
class Filmed(Recording):
    """With an image of a distorted camera, whose frames are counted."""

    reads: list[str] = field(default_factory=list)

    def schema(self) -> Schema:
        image = FeatureSpec("image", np.dtype("u1"), (4, 6, 3), kind="image")
        specs = [*super().schema().values(), image]
        return Schema([s for s in specs if self.features is None or s.name in self.features])

    def episodes(self) -> Sequence[EpisodeInfo]:
        camera = {"fx": 5.0, "fy": 5.0, "cx": 2.5, "cy": 1.5, "distortion_model": "opencv"}
        camera["distortion_coefficients"] = [0.1, 0.0, 0.0, 0.0]
        return [replace(info, metadata={"camera": camera}) for info in super().episodes()]

    def blocks(self, info: EpisodeInfo) -> Iterator[Block]:
        for block in super().blocks(info):
            if "image" not in self.schema():
                yield block
                continue
            self.reads.append(info.key)
            yield Block(1, {**block.columns, "image": np.zeros((1, 4, 6, 3), np.uint8)})


def test_images_are_not_read_for_the_gaps(tmp_path: Path) -> None:
    """Also of a source around another one."""
    source = Filmed()
    convert(undistorted(source), tmp_path / "r", split_at_gaps=0.5, workers=1)
    assert len(read_all(tmp_path / "r")) == 6
    assert source.reads == [key for key, times in TIMES.items() for _ in times]


@pytest.mark.parametrize("scope", Scope)
def test_attributes_that_a_source_around_another_one_has(scope: Scope) -> None:
    class Around(SourceWrapper):
        unchanged = scope

        def __init__(self, source: Any) -> None:
            self.source = source

    around = Around(SimpleNamespace(**{name: name for name in OPTIONAL}))
    names = {name for name in OPTIONAL if hasattr(around, name)}
    assert names == {name for name, needed in OPTIONAL.items() if needed <= scope}
    assert all(getattr(around, name) == name for name in names)
    assert not any(hasattr(Around(Recording()), name) for name in ("videos", "stored", "account"))


# --- timestamps that are not selected -----------------------------------------------------------


@pytest.mark.parametrize("name", TIMED)
def test_fps_is_compared_with_timestamps_that_are_not_selected(tmp_path: Path, name: str) -> None:
    for case, times, fps in (("regular", REGULAR, 10), ("gap", GAP, None)):
        TIMED[name].write(tmp_path / case, times)
        source = TIMED[name].opened(tmp_path / case)
        report = convert(source, tmp_path / f"{case}-packed", workers=1, fps=10)
        assert any("fps ignored for" in note for note in report.inventory.notes) == (fps is None)
        with seqrecord.open(tmp_path / f"{case}-packed") as dataset:
            assert [*dataset.features] == [*TIMED[name].features]
            [episode] = dataset.episodes.values()
            assert episode.fps == (None if fps is None else pytest.approx(fps))


@pytest.mark.parametrize("name", [name for name in TIMED if name != "dataset"])
def test_gaps_in_timestamps_that_are_not_selected(tmp_path: Path, name: str) -> None:
    TIMED[name].write(tmp_path / "in", GAP)
    source = TIMED[name].opened(tmp_path / "in")
    whole = convert(source, tmp_path / "whole", workers=1)
    report = convert(source, tmp_path / "r", workers=1, split_at_gaps=0.5, fps=10)
    key = whole.written[0]
    assert report.written == (f"{key}/0", f"{key}/1")
    parts, [frames] = read_all(tmp_path / "r"), read_all(tmp_path / "whole").values()
    assert [len(part) for part in parts.values()] == [4, 5]
    np.testing.assert_equal([frame for part in parts.values() for frame in part], frames)
    with seqrecord.open(tmp_path / "r") as dataset:  # no part has a gap
        assert [episode.fps for episode in dataset.episodes.values()] == [10, 10]


@pytest.mark.parametrize("name", ["dataset", "exported"])
def test_another_timestamp_is_not_the_clock(tmp_path: Path, name: str) -> None:
    """Also if it alone is selected: the times of the original still count."""
    stamped = {"kind": "timestamp", "unit": "s"}
    frames = columns(x=range(9), timestamp=GAP, sent=REGULAR)
    root, described = tmp_path / "dataset", {"timestamp": stamped, "sent": stamped}
    write_dataset(root, {"e": frames}, features=described)
    if name == "exported":
        seqrecord.export.to_files(root, None, tmp_path / name)
        root = tmp_path / name
    source = seqrecord.open_source(root, features=["x", "sent"])
    report = convert(source, tmp_path / "whole", workers=1, fps=10)
    assert any("fps ignored for 1 episode" in note for note in report.inventory.notes)
    with seqrecord.open(tmp_path / "whole") as dataset:
        assert ([*dataset.features], dataset.episodes["e"].fps) == (["x", "sent"], None)
    if name == "exported":
        report = convert(source, tmp_path / "parts", workers=1, fps=10, split_at_gaps=0.5)
        assert report.written == ("e/0", "e/1")
        with seqrecord.open(tmp_path / "parts") as dataset:
            assert [episode.fps for episode in dataset.episodes.values()] == [10, 10]


def test_names_that_are_no_times(tmp_path: Path) -> None:
    """In all episodes, or in one."""
    (tmp_path / "in" / "a" / "rgb").mkdir(parents=True)
    for number in range(3):
        np.save(tmp_path / "in" / "a" / "rgb" / f"{number}.npy", np.zeros((4, 5), np.float32))
    write_samples(tmp_path / "tars" / "a.tar")
    options: dict[str, Any] = {"workers": 1, "split_at_gaps": 0.5}
    for name in ("in", "tars"):
        source = seqrecord.open_source(tmp_path / name, features=["rgb"])
        with pytest.raises(SchemaError, match="needs timestamps"):
            convert(source, tmp_path / "r", **options)
        convert(source, tmp_path / f"{name}-packed", workers=1, fps=10)
        with seqrecord.open(tmp_path / f"{name}-packed") as dataset:
            assert [episode.fps for episode in dataset.episodes.values()] == [10]
    TIMED["folders"].write(tmp_path / "timed", GAP)
    (tmp_path / "timed" / "e").rename(tmp_path / "in" / "e")
    source = seqrecord.open_source(tmp_path / "in", features=["rgb"])
    with pytest.raises(SourceError, match=r"has no times.*episode: a; expected: 3 times"):
        convert(source, tmp_path / "r", **options)
    report = convert(source, tmp_path / "r", skip_bad_episodes=True, **options)
    assert report.written == ("e/0", "e/1")
    assert [episode.key for episode in report.bad] == ["a"]


def test_exported_frames_without_their_timestamp(tmp_path: Path) -> None:
    """The others are compared with the fps; gaps need all."""
    frames: Any = [{"x": n} | ({"t": 0.1 * n} if n != 2 else {}) for n in range(6)]
    stamped = {"t": {"kind": "timestamp", "unit": "s"}}
    write_dataset(tmp_path / "a", {"e": frames}, features=stamped)
    seqrecord.export.to_files(tmp_path / "a", None, tmp_path / "files")
    source = seqrecord.open_source(tmp_path / "files", features=["x"])
    for fps, kept in ((10, 10), (20, None)):
        convert(source, tmp_path / f"{fps}", workers=1, fps=fps)
        assert seqrecord.open(tmp_path / f"{fps}").episodes["e"].fps == kept
    with pytest.raises(SourceError, match=r"has no times.*got: 5 finite numbers"):
        convert(source, tmp_path / "r", workers=1, split_at_gaps=0.5)


# --- the example of docs/reference/writing.md --------------------------------------------------


ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "writing.md"


def test_the_documented_example_runs(tmp_path: Path) -> None:
    page = PAGE.read_text()
    page = page[page.index("## A source of your own") :]
    (script,) = re.findall(r"```python\n(.*?if __name__.*?)```", page, re.DOTALL)
    (tmp_path / "pack.py").write_text(script)
    folder = tmp_path / "recordings"
    folder.mkdir()
    rng = np.random.default_rng(0)
    recordings = {}
    for name, length in (("a", 5), ("b", 3), ("c", 1)):
        recordings[name] = {
            "image": rng.integers(0, 255, (length, 48, 64, 3), np.uint8),
            "action": rng.normal(size=(length, 7)).astype("<f4"),
        }
        np.savez(folder / f"{name}.npz", **recordings[name])  # type: ignore[arg-type]
    np.savez(folder / "broken.npz", action=np.zeros((2, 7), np.float32))
    done = run_python("pack.py", cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "3 episodes, 1 left out"
    with seqrecord.open(tmp_path / "records") as dataset:
        assert list(dataset.episodes) == ["a", "b", "c"]
        for key, expected in recordings.items():
            got = dataset.episodes[key][:]
            for feature, array in expected.items():
                np.testing.assert_array_equal(got[feature], array)
        assert dataset.episodes["a"].metadata == {"file": "a.npz"}
