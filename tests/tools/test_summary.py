"""Summaries of datasets against counts of the written frames."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import seqrecord
from seqrecord import ClipSpec, edit, summarize
from seqrecord.loader.clips.layouts import find_clips
from seqrecord.types import ClipSummary
from tests.kit.command_line import run
from tests.kit.datasets import EPISODES, SmallFrame, small_frames, write_dataset, write_small
from tests.kit.tiny import change_manifest, change_table


def _all_frames() -> list[SmallFrame]:
    """All frames of `small`."""
    return [frame for i, count in enumerate(EPISODES.values()) for frame in small_frames(i, count)]


def test_counts_and_sizes(small: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(small, tmp_path / "records")
    sizes = [file.stat().st_size for file in (copy / "records").glob("*.seqrec")]
    shutil.rmtree(copy / "records")  # must not be read
    dataset = seqrecord.open(copy)
    summary = summarize(dataset)
    assert (summary.num_episodes, summary.num_frames) == (3, 17)
    [group] = summary.groups
    assert (group.num_chunks, group.min_chunk_frames, group.max_chunk_frames) == (6, 4, 4)
    assert (summary.fps, summary.splits, summary.clips) == (None, {}, None)
    assert (summary.shortest_episode, summary.median_episode, summary.longest_episode) == (1, 5, 11)
    assert summary.num_record_files == len(sizes) > 2
    assert summary.record_bytes == sum(sizes)
    assert summary.index_bytes == sum(f.stat().st_size for f in copy.glob("index/*.arrow"))
    assert summary.fingerprint == dataset.fingerprint
    assert summary.created_by.startswith("seqrecord ")
    index = dataset.contents.index
    for feature in summary.features:
        name = feature.spec.name
        arrays = [frame[name] for frame in _all_frames() if name in frame]
        assert feature.num_frames == len(arrays), name
        assert feature.num_missing == 17 - len(arrays), name
        nbytes = sum(array.nbytes for array in arrays)
        assert feature.raw_bytes == (nbytes if feature.spec.is_fixed else None), name
        column = index.groups[0].page_length[:, index.schema.position(name)]
        assert feature.stored_bytes == int(column.sum())
    assert summary.raw_bytes is None
    sized = [f for f in summary.features if f.raw_bytes is not None]
    raw = sum(f.raw_bytes or 0 for f in sized)
    assert summary.ratio == pytest.approx(raw / sum(f.stored_bytes for f in sized))


def test_raw_bytes_of_a_variable_dimension_need_raw_storage(tmp_path: Path) -> None:
    write_small(tmp_path, codecs={"range": "raw", "note": "raw"})
    by_name = {f.spec.name: f for f in summarize(seqrecord.open(tmp_path)).features}
    for name in ("range", "note"):
        assert by_name[name].raw_bytes == sum(f[name].nbytes for f in _all_frames() if name in f)


def test_raw_bytes_of_trimmed_episodes(tmp_path: Path) -> None:
    """Unknown if a page has remaining and hidden frames of different sizes."""
    path = tmp_path / "records"
    described = {name: {"shape": (None, 3)} for name in ("steps", "growing", "early")}
    points = {size: np.zeros((size, 3), np.float32) for size in range(14)}
    frames: list[dict[str, Any]] = [
        {"steps": points[i // 4 + 1], "growing": points[i + 1], "task": "open", "note": "x" * i}
        | ({"early": points[i]} if i < 6 else {})
        for i in range(12)
    ]
    write_dataset(path, {"e": frames}, features=described, codecs="raw", chunk_frames=4)

    def unknown_features() -> set[str]:
        with seqrecord.open(path) as dataset:
            remaining_frames = frames[-len(dataset.episodes["e"]) :]
        unknown_names = set[str]()
        for feature in summarize(path).features:
            name = feature.spec.name
            values = [frame[name] for frame in remaining_frames if name in frame]
            sizes = [len(v.encode()) if isinstance(v, str) else v.nbytes for v in values]
            assert feature.num_frames == len(values), name
            if feature.raw_bytes is None:
                unknown_names.add(name)
            else:
                assert feature.raw_bytes == sum(sizes), name
        return unknown_names

    assert unknown_features() == set()
    edit.trim_episodes(path, "e", slice(6, None))
    assert unknown_features() == {"growing", "note"}
    assert "?" in run("info", path).stdout
    edit.trim_episodes(path, "e", slice(2, None))
    assert unknown_features() == set()


def test_clips_against_brute_force(small: Path) -> None:
    written = [small_frames(i, count) for i, count in enumerate(EPISODES.values())]
    for spec in (ClipSpec(2), ClipSpec(3, stride=2), ClipSpec(3, dilation=3)):
        complete = incomplete = short = 0
        episodes = set()
        for number, frames in enumerate(written):
            starts = range(0, len(frames) - spec.span + 1, spec.stride)
            short += not starts
            for start in starts:
                used = frames[start : start + spec.span : spec.dilation]
                whole = all("flow" in frame and "note" in frame for frame in used)
                complete, incomplete = complete + whole, incomplete + (not whole)
                episodes |= {number} if whole else set()
        clips = summarize(seqrecord.open(small, features=["note", "flow"]), clip=spec).clips
        settings = (spec.length, spec.stride, spec.dilation, spec.span)
        assert clips == ClipSummary(*settings, complete, len(episodes), short, incomplete)
        assert min(complete, incomplete) > 0
    summary = summarize(seqrecord.open(small, features=["pose", "step"]), clip=ClipSpec(5))
    assert [feature.spec.name for feature in summary.features] == ["pose", "step"]
    assert summary.raw_bytes == 17 * (7 + 1) * 8
    assert summary.clips is not None
    assert (summary.clips.num_clips, summary.clips.num_incomplete) == (7 + 1, 0)


def test_json_and_text(small: Path) -> None:
    summary = summarize(seqrecord.open(small), clip=ClipSpec(4, dilation=2, stride=3))
    value = json.loads(json.dumps(summary.to_json(), allow_nan=False))
    assert (value["num_frames"], value["clips"]["span"]) == (17, 7)
    assert value["ratio"] == pytest.approx(summary.ratio)
    [flow] = [feature for feature in value["features"] if feature["name"] == "flow"]
    assert (flow["shape"], flow["dtype"], flow["num_missing"]) == ([32, 40, 2], "<f4", 3)
    assert flow["codec"] == list(map(dict, summary.features[2].spec.codec))
    text = str(summary)
    lines = text.splitlines()
    assert lines[0] == str(small)
    [depth] = [line.split() for line in lines if line.startswith("  depth_left")]
    assert depth[:5] == ["depth_left", "float32", "32", "x", "40"]
    assert depth[-1] == "0"
    assert f"{summary.features[1].ratio:.2f}x" in depth
    assert "clips of 4 frames, 2 frames apart (span 7), stride 3" in text
    table = [line for line in lines if line.startswith("  ") and line.endswith(("0", "3", "g"))]
    assert len({len(line) for line in table if "codec" in line or "zstd" in line}) == 1


def test_an_episode_against_its_frames(small: Path) -> None:
    dataset = seqrecord.open(small)
    for key, count in EPISODES.items():
        summary = json.loads(run("info", small, key, "--clip-len", 3, "--json").stdout)
        assert (summary["num_frames"], summary["fps"]) == (count, None)
        assert summary["num_clips"] == find_clips(dataset.contents, ClipSpec(3), [key]).num_clips
        assert summary["metadata"] == dataset.episodes[key].metadata


def test_episodes_are_listed_row_by_row(tmp_path: Path) -> None:
    """The first row is printed before the second one, with invalid JSON, is read."""
    write_small(tmp_path)

    def damage(table: pa.Table) -> pa.Table:
        column = table.schema.get_field_index("metadata")
        texts = table["metadata"].to_pylist()
        texts[1] = "{" + texts[1]
        values = pa.array(texts, table.schema.field(column).type)
        return table.set_column(column, table.schema.field(column), values)

    change_table(tmp_path, "episodes", damage)
    result = run("info", tmp_path, "--episodes", code=1)
    assert result.stdout.split("\n")[1].startswith("alpha/Easy/P000")
    assert "JSON" in result.stderr


def test_a_key_that_looks_like_a_glob(tmp_path: Path) -> None:
    write_dataset(tmp_path, {key: [{"x": np.zeros(3)}] for key in ("z[1]", "z1")})
    for options in ([], ["--episodes"], ["--episodes", "--json"]):
        text = run("info", tmp_path, "z[1]", *options).stdout
        assert "z[1]" in text
        assert "z1" not in text


def test_control_characters_of_an_episode_are_escaped(tmp_path: Path) -> None:
    nasty = "\x1b[2J\x9b\u202e\n"
    metadata = {nasty: nasty * 30, "measured_fps": 10**400}
    write_dataset(tmp_path, {"a\u202eb": [{"x": np.zeros(3)}]}, metadata={"a\u202eb": metadata})
    assert seqrecord.summarize(tmp_path).measured_fps is None
    change_manifest(tmp_path, lambda manifest: manifest.update(command=f"add(key='{nasty[-2]}')"))
    [key] = seqrecord.open(tmp_path).episodes
    shown = "".join(
        run("info", tmp_path, *more).stdout for more in (["--episodes"], [key], ["--versions"])
    )
    lines = shown.removesuffix("\n").split("\n")
    assert all(line.isprintable() for line in lines)
    assert all(len(line) < 130 for line in lines[:3])
    assert lines[1].startswith("a\\u202eb")
