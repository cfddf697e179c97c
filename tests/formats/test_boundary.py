"""Errors that no check of a reader expects: they cost an episode, and never a whole conversion."""

from __future__ import annotations

import re
import struct
import zlib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import seqrecord
from seqrecord.errors import SourceError
from seqrecord.sources import inventory_of
from tests.formats.cases import index_source, upload
from tests.formats.failing_source import Counting, failing, write_scenes
from tests.kit.command_line import fail
from tests.kit.lerobot_video_data import unpack

RAW = [
    *(ZeroDivisionError("x"), KeyError("x"), IndexError("x"), TypeError("x"), ValueError("x")),
    *(UnicodeDecodeError("utf-8", b"x", 0, 1, "x"), AttributeError("x"), RecursionError("x")),
    *(EOFError("x"), zlib.error("x"), struct.error("x"), OverflowError("x")),
]


pytestmark = pytest.mark.usefixtures("users_boundary")


@pytest.mark.parametrize("error", RAW, ids=lambda error: type(error).__name__)
def test_one_episode_with_an_unexpected_error(tmp_path: Path, error: Exception) -> None:
    write_scenes(tmp_path / "scenes", 3)
    source = failing(tmp_path / "scenes", {1: error})
    infos = source.episodes()
    assert inventory_of(source).features
    assert len(list(source.frames(infos[2]))) == 1
    with pytest.raises(SourceError) as caught:
        list(source.frames(infos[1]))
    assert caught.value.__cause__ is error
    assert caught.value.episode == "scene01"
    assert caught.value.file == str(tmp_path / "scenes")
    kind = type(error).__name__ if type(error).__name__ != "error" else r"(zlib|struct)\.error"
    assert re.search(rf"cannot be read \({kind} at seqrecord\.[\w.]+:\d+\)", caught.value.message)
    assert "please report" in str(caught.value)
    with pytest.raises(SourceError, match="--skip-bad-episodes"):
        seqrecord.convert(source, tmp_path / "r", workers=1)
    report = seqrecord.convert(source, tmp_path / "s", workers=1, skip_bad_episodes=True)
    assert (report.written, [bad.key for bad in report.bad]) == (
        ("scene00", "scene02"),
        ["scene01"],
    )
    index_source(source, tmp_path / "index", workers=1, skip_bad_episodes=True)
    with seqrecord.open(tmp_path / "index") as dataset:
        assert [*dataset.episodes] == ["scene00", "scene02"]


@pytest.mark.parametrize("error", [AssertionError("x"), MemoryError("x"), OSError(28, "full")])
def test_errors_of_the_program_and_the_machine_pass(tmp_path: Path, error: Exception) -> None:
    write_scenes(tmp_path / "scenes", 2)
    with pytest.raises(type(error)) as caught:
        failing(tmp_path / "scenes", {1: error}).episodes()
    assert caught.value is error


def test_many_unexpected_errors_of_one_type_end_a_conversion(tmp_path: Path) -> None:
    """Ten of each type are skipped; of other errors any number is."""
    scenes, most = tmp_path / "scenes", 10
    count = 2 * most + 3
    write_scenes(scenes, count)
    errors: dict[int, Exception] = {n: KeyError("x") for n in range(most)}
    errors |= {n: TypeError("x") for n in range(most, 2 * most)}
    options: dict[str, Any] = {"workers": 1, "skip_bad_episodes": True}
    report = seqrecord.convert(failing(scenes, errors), tmp_path / "r", **options)
    assert len(report.written) == 3
    errors[count - 1] = TypeError("x")
    with pytest.raises(SourceError, match="11 episodes fail with an unexpected TypeError") as one:
        seqrecord.convert(failing(scenes, errors), tmp_path / "s", **options)
    assert "please report" in str(one.value)
    assert not (tmp_path / "s" / "manifest.json").exists()
    errors = {number: SourceError("no pose") for number in range(count - 1)}
    report = seqrecord.convert(failing(scenes, errors), tmp_path / "t", **options)
    assert report.written == (f"scene{count - 1}",)


@pytest.mark.parametrize("count", [1, 3])
def test_a_conversion_without_a_readable_episode_is_an_error(tmp_path: Path, count: int) -> None:
    write_scenes(tmp_path / "scenes", count)
    source = failing(tmp_path / "scenes", {number: KeyError("x") for number in range(count)})
    with pytest.raises(SourceError, match="KeyError"):
        seqrecord.convert(source, tmp_path / "r", skip_bad_episodes=True)


@pytest.mark.parametrize("is_remote", [False, True])
def test_an_original_that_is_not_converted(
    tmp_path: Path, memory_url: str, monkeypatch: pytest.MonkeyPatch, is_remote: bool
) -> None:
    """Opening it in place, `info` and `doctor` have the boundary too."""
    root = unpack(tmp_path, "lerobot_video_v3")
    place = upload(root, memory_url) if is_remote else root
    layout = import_module("seqrecord.formats.sources.lerobot.layout")

    def no_feature(*_: Any, **__: Any) -> Any:
        raise KeyError("x")

    monkeypatch.setattr(layout, "LeRobotFeature", no_feature)
    for command in (["info", place], ["doctor", place], ["index", place, "-o", tmp_path / "i"]):
        assert "KeyError" in fail(*command)
    with pytest.raises(SourceError, match="KeyError"):
        seqrecord.open(place, skip_bad_episodes=True)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_source_of_a_user(tmp_path: Path, workers: int) -> None:
    options: dict[str, Any] = {"workers": workers, "max_file_size": 1 << 10}
    with pytest.raises(SourceError, match=r"KeyError at tests\.formats\.failing_source:\d+") as one:
        seqrecord.convert(Counting(), tmp_path / "r", **options)
    assert one.value.episode == "e2"
    report = seqrecord.convert(Counting(), tmp_path / "s", skip_bad_episodes=True, **options)
    assert report.written == ("e0", "e1", "e3")
