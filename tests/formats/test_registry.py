"""Detection of formats, formats of other packages, and errors."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import seqrecord
from seqrecord import FeatureSpec, Schema, open_source
from seqrecord.errors import LocationError, SourceError
from seqrecord.sources import (
    EpisodeInfo,
    FolderSource,
    Hdf5Source,
    LeRobotSource,
    RldsSource,
    SourceFormat,
    TartanAirSource,
    VideoSource,
    WebDatasetSource,
    ZarrSource,
    format_names,
)
from tests.formats.cases import upload
from tests.formats.format_cases.replay_buffers import write_buffer
from tests.kit.command_line import fail, run
from tests.kit.lerobot_video_data import unpack
from tests.kit.tiny import write_tiny
from tests.kit.trees import make_frames, write_v1

Install = Callable[..., None]
DATASET, *BUILT_IN = format_names()


@dataclass(frozen=True)
class Numbers:
    """One episode: `numbers.txt`, one number per line. `base` is added."""

    root: Path
    features: Sequence[str] | None = None
    keep_encoded: bool = False
    base: int = 0

    def exists(self) -> bool:
        return self._path.is_file() and self._path.name == "numbers.txt"

    def schema(self) -> Schema:
        return Schema([FeatureSpec("number", np.dtype("<i8"), ())])

    def episodes(self) -> list[EpisodeInfo]:
        return [EpisodeInfo("numbers", len(self._path.read_text().split()))]

    def frames(self, info: EpisodeInfo) -> Iterator[dict[str, Any]]:
        for word in self._path.read_text().split():
            yield {"number": np.int64(int(word) + self.base)}

    @property
    def _path(self) -> Path:
        return self.root if self.root.is_file() else self.root / "numbers.txt"


NUMBERS = SourceFormat("numbers", "numbers.txt", Numbers, options=("base",), takes_files=True)
SAME = SourceFormat("same", "numbers.txt, too", Numbers)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a package with the given entry points: name to object."""
    site = tmp_path / "site"
    monkeypatch.syspath_prepend(str(site))

    def add(package: str = "plug", **points: str) -> None:
        info = site / f"{package}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = "\n".join(f"{name} = {value}" for name, value in points.items())
        (info / "entry_points.txt").write_text(f"[seqrecord.sources]\n{lines}\n")

    return add


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "numbers.txt").write_text("3\n5\n8\n")
    return folder


def test_names_of_formats_are_plain_and_in_the_docs() -> None:
    assert DATASET == "seqrecord"
    assert all(name == name.lower() and name.replace("_", "a").isalnum() for name in BUILT_IN)
    page = Path(seqrecord.__file__).parents[1] / "docs" / "reference" / "sources.md"
    table = page.read_text().partition("| format |")[2].partition("\n\n")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    assert sorted(row.split("`")[1] for row in rows) == sorted(format_names())


def test_a_named_format_is_the_only_one_tried(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    write_v1(one / "a" / "Easy" / "P000", make_frames(0, 2))
    assert isinstance(open_source(one), TartanAirSource)
    assert isinstance(open_source(one, format="tartanair"), TartanAirSource)
    assert isinstance(open_source(one, format="folders"), FolderSource)
    with pytest.raises(SourceError, match="no data in the format folders") as caught:
        open_source(one / "a" / "Easy" / "P000" / "image_left", format="folders")
    assert "000000_left.png" in str(caught.value.got)
    with pytest.raises(SourceError, match=r"unknown format; .*one of seqrecord, tartan.*folders"):
        open_source(one, format="tartan")
    options: dict[str, Any] = {"cameras": ["left"], "difficulty": "easy"}
    chosen = open_source(str(one), features=["flow"], **options)
    assert list(chosen.schema()) == ["flow"]
    (two / "episode").mkdir(parents=True)
    np.save(two / "episode" / "actions.npy", np.zeros((5, 2)))
    with pytest.raises(SourceError, match="the format folders has no option cameras"):
        open_source(two, cameras=["left"])
    with pytest.raises(LocationError, match="a URL; expected: a path of this machine"):
        TartanAirSource("az://container/tartanair")


def test_the_error_of_an_unknown_folder_lists_all_formats(tmp_path: Path, install: Install) -> None:
    install(numbers="tests.formats.test_registry:NUMBERS", broken="tests.no_such_module:FORMAT")
    folder = tmp_path / "unknown"
    folder.mkdir()
    for name in "abcdefgh":
        (folder / f"{name}.bin").write_bytes(b"?")
    with pytest.raises(SourceError, match="no supported dataset found") as caught:
        open_source(folder)
    for text in (
        f"{DATASET} (manifest.json of a dataset)",
        *(f"{name} (" for name in BUILT_IN),
        "numbers (numbers.txt)",
        "broken (cannot load the format broken of another package",
    ):
        assert text in str(caught.value.expected)
    assert caught.value.got == "a.bin, b.bin, c.bin, d.bin, e.bin, f.bin and 2 more"
    with pytest.raises(SourceError, match=r"no supported dataset found.*got: a file"):
        open_source(folder / "a.bin")
    with pytest.raises(SourceError, match="no such file or folder"):
        open_source(folder / "gone")
    for name in "abcdefghi":
        with pytest.raises(SourceError, match="no supported dataset found"):
            open_source(folder)
        (folder / f"{name}.JPG").write_bytes(b"?")
    with pytest.raises(SourceError, match=r"move them .*`mkdir image; mv \*\.JPG") as caught:
        open_source(folder)
    assert caught.value.got == "9 images such as a.JPG"


def test_another_package_adds_a_format(numbers: Path, install: Install) -> None:
    install(numbers="tests.formats.test_registry:NUMBERS")
    assert format_names()[-1] == "numbers"
    for path in (numbers, numbers / "numbers.txt"):
        source = open_source(path)
        assert isinstance(source, Numbers)
        assert [frame["number"] for frame in source.frames(source.episodes()[0])] == [3, 5, 8]
    assert open_source(numbers, format="numbers", base=4) == Numbers(numbers, base=4)
    with pytest.raises(SourceError, match="the format numbers has no option colour") as e:
        open_source(numbers, colour="red")
    assert e.value.expected == "base"
    write = partial(run, "write", "--src", numbers)
    out = ("--dst", numbers / "out", "--workers", "1")
    write("--format", "numbers", "--source-option", "base=10", *out)
    with seqrecord.open(numbers / "out") as dataset:
        np.testing.assert_array_equal(dataset.episodes["numbers"][:]["number"], [13, 15, 18])
    for options, code, message in (
        (("--source-option", "cameras=left"), 2, "cameras is not valid; use --cameras"),
        (("--map", "image"), 2, "expected FEATURE=PATH"),
        (("--map", "image=a", "--map", "image=b"), 2, "two values for image"),
        (("--map", "image=a"), 1, "the format numbers has no option map"),
    ):
        assert message in write(*options, code=code).stderr


def test_a_folder_that_fits_two_formats_is_ambiguous(numbers: Path, install: Install) -> None:
    install(numbers="tests.formats.test_registry:NUMBERS", same="tests.formats.test_registry:SAME")
    with pytest.raises(SourceError, match="several formats match") as caught:
        open_source(numbers)
    assert caught.value.expected == "numbers (numbers.txt); same (numbers.txt, too)"
    tried = str(caught.value.got).partition(" of ")[2].split(", ")
    assert tried == [*BUILT_IN, "numbers", "same"]
    assert isinstance(open_source(numbers, format="same"), Numbers)


def test_unusable_formats_of_other_packages(numbers: Path, install: Install) -> None:
    install(
        gone="tests.no_such_module:FORMAT",
        function="tests.formats.test_registry:install",
        other="tests.formats.test_registry:NUMBERS",
        tartanair="tests.no_such_module:FORMAT",
    )
    for name in ("gone", "function", "other"):
        with pytest.raises(SourceError, match=f"cannot load the format {name} of another package"):
            open_source(numbers, format=name)
    with pytest.raises(SourceError, match="no data in the format tartanair"):
        open_source(numbers, format="tartanair")  # this package's format has priority
    install("second", gone="tests.formats.test_registry:NUMBERS")
    with pytest.raises(SourceError, match="two packages add a format named gone"):
        open_source(numbers, format="gone")


# Folders above datasets, and parts of datasets


def test_a_folder_of_several_datasets(tmp_path: Path, memory_url: str) -> None:
    """LeRobot datasets, also on a URL, packed datasets and replay buffers."""
    pytest.importorskip("zarr")  # it needs Python 3.11
    places: dict[Any, str] = {}
    for version in ("v21", "v3"):
        original = unpack(tmp_path / version / "x", f"lerobot_video_{version}")
        for name in ("org/one", "org/two"):
            shutil.copytree(original, tmp_path / version / "y" / name)
        places[tmp_path / version / "y"] = "org/one, org/two"
    upload(tmp_path / "v21" / "y" / "org" / "one", f"{memory_url}/org/one")
    places[memory_url] = "org/one"
    for name in ("a", "b"):
        write_tiny(tmp_path / "records" / name)
        write_buffer(tmp_path / "buffers" / name / "x.zarr")
    places |= {tmp_path / "records": "a, b", tmp_path / "buffers": "a/x.zarr, b/x.zarr"}
    for place, names in places.items():
        for use in (open_source, seqrecord.open):
            with pytest.raises(SourceError, match=f"contains {len(names.split(','))} dataset") as e:
                use(place)
            assert e.value.got == names
            assert "org" not in names or f"write --src {place}/org/one" in e.value.message
    root = tmp_path / "v3" / "y"
    assert "org/one, org/two" in fail("write", "--src", root, "--dst", tmp_path / "r")


def test_a_part_of_a_lerobot_dataset(tmp_path: Path) -> None:
    root = unpack(tmp_path, "lerobot_video_v3")
    for part in ("videos", "videos/*", "videos/*/*", "data", "meta"):
        with pytest.raises(SourceError, match="part of a LeRobot dataset") as caught:
            open_source(next(root.glob(part)))
        assert caught.value.expected == str(root)
    assert isinstance(open_source(root / "videos", format="videos"), VideoSource)
    with pytest.raises(SourceError, match="part of a LeRobot dataset"):
        open_source(next(root.rglob("*.mp4")))


def test_switches_may_be_texts(tmp_path: Path) -> None:
    """`--source-option` passes any text that is not JSON, and each text is true in Python."""
    folder = tmp_path / "in" / "episode" / "rgb"
    folder.mkdir(parents=True)
    for number in (0, 1, 5):
        Image.fromarray(np.zeros((4, 5, 3), np.uint8)).save(folder / f"{number}.png")
    for value, is_on in ((True, 1), ("True", 1), ("yes", 1), ("on", 1), (1, 1), (False, 0)):
        source = open_source(tmp_path / "in", allow_gaps=value)
        assert source.allow_gaps is bool(is_on)  # type: ignore[attr-defined]
    write = partial(run, "write", "--src", tmp_path / "in", "--workers", "1")
    for value in ("false", "False", "no", "OFF", "0"):
        option = ("--source-option", f"allow_gaps={value}", "--dst", tmp_path / value)
        assert "gap in the frame numbers" in write(*option, code=1).output
    for wrong in ("none", "", "2", "[]"):
        option = ("--source-option", f"allow_gaps={wrong}", "--dst", tmp_path / "wrong")
        message = r"invalid option allow_gaps; expected: true or false; got: '?"
        assert re.search(message + re.escape(wrong), write(*option, code=1).output)
    switches: list[tuple[Any, str]] = [
        *(
            (WebDatasetSource, "allow_gaps"),
            (VideoSource, "by_folder"),
            (RldsSource, "keep_encoded"),
        ),
        *(
            (LeRobotSource, "without_video"),
            (Hdf5Source, "without_video"),
            (ZarrSource, "keep_encoded"),
        ),
    ]
    for source_class, name in switches:
        assert getattr(source_class(tmp_path, **{name: "no"}), name) is False
        with pytest.raises(SourceError, match=f"invalid option {name}"):
            source_class(tmp_path, **{name: "maybe"})
