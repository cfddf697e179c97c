"""Identities of episodes: found again after edits of the source, refused after other changes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import edit
from seqrecord.companions.episode_identity import episode_identity, match_identity
from seqrecord.errors import FormatError
from tests.kit.datasets import columns, noise, write_dataset
from tests.kit.lerobot_video_data import unpack
from tests.kit.video_file_data import pictures, write_video

Identities = dict[str, dict[str, Any]]


def frames(length: int, seed: int = 0) -> list[dict[str, Any]]:
    images = noise(length, 4, 5, 3, seed=seed)
    return columns(image=images, step=np.arange(length, dtype="<i4") + 1000 * seed)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Episodes in chunks of four frames."""
    path = tmp_path / "source"
    write_dataset(path, {f"e{i}": frames(14 + i, i) for i in range(4)}, chunk_frames=4)
    return path


def identities(path: Path, **options: Any) -> Identities:
    with seqrecord.open(path, **options) as dataset:
        stored = {key: episode_identity(dataset, i) for i, key in enumerate(dataset.episodes)}
    parsed: Identities = json.loads(json.dumps(stored))
    return parsed


def matches(stored: Mapping[str, Any], path: Path, **options: Any) -> dict[str, range | str]:
    """The match of each present episode with the first of the identities that fits, by key."""
    with seqrecord.open(path, **options) as dataset:
        matches_by_key: dict[str, range | str] = {}
        for number, key in enumerate(dataset.episodes):
            for identity in stored.values():
                matches_by_key[key] = match_identity(identity, dataset, number)
                if isinstance(matches_by_key[key], range):
                    break
        return matches_by_key


def append(path: Path) -> None:
    write_dataset(path, {"new": frames(9, 9)}, mode="append")


WHOLE = {f"e{i}": range(14 + i) for i in range(4)}
NO_FRAMES = "other frames of image, step"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (append, WHOLE | {"new": NO_FRAMES}),
        (lambda path: edit.trim_episodes(path, ["e1"], slice(5, 9)), WHOLE | {"e1": range(5, 9)}),
        (lambda path: edit.trim_episodes(path, ["e1"], slice(4, 8)), WHOLE | {"e1": range(4, 8)}),
        (lambda path: edit.trim_episodes(path, ["e2"], slice(0, 3)), WHOLE | {"e2": range(3)}),
        (
            lambda path: edit.trim_episodes(path, ["e2"], slice(13, None)),
            WHOLE | {"e2": range(13, 16)},
        ),
        (
            lambda path: edit.delete_episodes(path, ["e1"]),
            {key: match for key, match in WHOLE.items() if key != "e1"},
        ),
        (
            lambda path: edit.rename_episodes(path, {"e1": "e9", "e2": "e1"}),
            {"e0": range(14), "e9": range(15), "e1": range(16), "e3": range(17)},
        ),
        (lambda path: edit.drop_features(path, "step"), WHOLE),
        (lambda path: edit.rename_features(path, {"step": "tick"}), WHOLE),
    ],
)
def test_episodes_are_found_after_an_edit(
    source: Path, change: Callable[[Path], object], expected: dict[str, Any]
) -> None:
    stored = identities(source)
    change(source)
    assert matches(stored, source) == expected
    edit.rewrite_files(source, min_unused=0.01)
    edit.clean(source, older_than=0)
    assert matches(stored, source) == expected


def test_a_restored_episode_is_longer_than_its_identity(source: Path) -> None:
    version = edit.list_versions(source)[0].id
    edit.trim_episodes(source, ["e3"], slice(5, 11))
    stored = {"e3": identities(source)["e3"]}
    assert stored["e3"]["frames"] == [5, 11]
    edit.restore_version(source, version)
    assert matches(stored, source)["e3"] == range(-5, 12)
    edit.trim_episodes(source, ["e3"], slice(0, 6))  # as many frames, but others
    assert matches(stored, source)["e3"] == range(-5, 1)


@pytest.mark.parametrize("span", [(0, 14), (5, 12), (4, 8), (3, 14)])
def test_merged_episodes_are_found_by_their_pages(
    source: Path, tmp_path: Path, span: tuple[int, int]
) -> None:
    stored = identities(source)
    edit.trim_episodes(source, ["e0"], slice(*span))
    write_dataset(tmp_path / "more", {"e0": frames(8, 7)}, chunk_frames=4)
    places = [source, tmp_path / "more"]
    edit.merge_datasets(places, tmp_path / "both", prefixes=["a/", "b/"])
    merged = matches(stored, tmp_path / "both")
    assert merged["a/e0"] == range(*span)
    assert merged["a/e3"] == range(17)
    assert merged["b/e0"] == NO_FRAMES


def test_equal_pages_at_several_places_are_ambiguous(tmp_path: Path) -> None:
    write_dataset(tmp_path / "a", {"e": columns(x=np.zeros((16, 2), "f4"))}, chunk_frames=4)
    stored = identities(tmp_path / "a")
    assert matches(stored, tmp_path / "a") == {"e": range(16)}
    edit.trim_episodes(tmp_path / "a", ["e"], slice(4, 12))
    assert matches(stored, tmp_path / "a") == {"e": range(4, 12)}  # by uid and edits
    edit.merge_datasets([tmp_path / "a"], tmp_path / "b")
    ambiguous = "trimmed, and equal pages at several places"
    assert matches(stored, tmp_path / "b") == {"e": ambiguous}


def test_other_values_of_a_feature_are_no_match(source: Path) -> None:
    stored = identities(source)
    edit.add_feature(source, "step", lambda episode: [np.int32(7)] * len(episode), overwrite=True)
    assert matches({"e0": stored["e0"]}, source)["e0"] == "feature step has changed"
    # Values that depend on images alone are still right.
    images = identities(source, features=["image"])
    edit.add_feature(source, "step", lambda episode: [np.int32(8)] * len(episode), overwrite=True)
    assert matches(images, source) == WHOLE


def test_other_values_in_shorter_chunks_are_no_match(tmp_path: Path) -> None:
    """Each is within a chunk of the identity, like the chunk of a trimmed copy."""
    path = tmp_path / "source"
    write_dataset(path, {"e": frames(14)}, chunk_frames=7)
    version = edit.list_versions(path)[0].id
    edit.add_feature(path, "step", lambda episode: [np.int32(7)] * len(episode), overwrite=True)
    stored = identities(path)
    assert [chunks for group in stored["e"]["groups"] for chunks in group["chunks"]] == [
        [7, 2],
        [14, 1],
    ]
    edit.restore_version(path, version)
    assert matches(stored, path) == {"e": "feature step has changed"}


def test_gaps_are_part_of_an_identity(tmp_path: Path) -> None:
    rows = [1, None, 3, 4, None, 6]
    write_dataset(tmp_path / "a", {"e": columns(y=range(6), x=rows)})
    write_dataset(tmp_path / "b", {"e": columns(y=range(6), x=[1, None, 3, None, 4, 6])})
    stored = identities(tmp_path / "a")
    assert matches(stored, tmp_path / "a") == {"e": range(6)}
    assert matches(stored, tmp_path / "b") == {"e": "other frames of x, y"}


def test_invalid_identities_are_refused(source: Path) -> None:
    [identity, *_] = identities(source).values()
    for wrong in (
        {},
        {**identity, "frames": [0, 3]},
        {**identity, "num_frames": "14"},
        {**identity, "uid": "x"},
        {**identity, "groups": [{}]},
        {**identity, "groups": [{"first": 0, "chunks": [[4, -1]], "digests": {}}]},
        {**identity, "groups": [{"first": 0, "chunks": [[4, 2]], "digests": {"x": "00"}}]},
        {**identity, "groups": [{"first": 3, "chunks": [[4, 1]], "digests": {}}]},
    ):
        with seqrecord.open(source) as dataset, pytest.raises(FormatError):
            match_identity(wrong, dataset, 0)


def test_originals_are_identified_by_content(tmp_path: Path) -> None:
    original = unpack(tmp_path / "a", "lerobot_video_v3")
    stored = identities(original)
    assert "uid" not in next(iter(stored.values()))
    copy = tmp_path / "b"
    shutil.copytree(original, copy)
    for file in copy.rglob("*"):
        os.utime(file, (10**9, 10**9))
    assert identities(copy) == stored
    expected = {key: range(item["num_frames"]) for key, item in stored.items()}
    assert matches(stored, copy) == expected
    some = next(name for name in seqrecord.open(copy).features)
    assert matches(stored, copy, features=[some]) == expected


def test_videos_in_place_are_identified_by_their_packets(tmp_path: Path) -> None:
    for name, shift in (("a", 0), ("c", 5)):
        (tmp_path / name).mkdir()
        write_video(tmp_path / name / "clip.mp4", pictures(20, first=shift))
    shutil.copytree(tmp_path / "a", tmp_path / "b", copy_function=shutil.copyfile)
    stored = identities(tmp_path / "a")
    assert identities(tmp_path / "b") == stored
    assert matches(stored, tmp_path / "c") == {"clip": "other frames of image, timestamp"}
