"""What a dataset holds, against counting the frames that were written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import seqrecord
from seqrecord import ClipSpec, SeqRecordWriter, summarize
from seqrecord.text import codec_text
from seqrecord.types import ClipSummary, Summary
from tests.command_line import run
from tests.datasets import SmallFrame, write_small
from tests.tiny import change_table


def _all_frames(written: dict[str, list[SmallFrame]]) -> list[SmallFrame]:
    return [frame for frames in written.values() for frame in frames]


def test_counts_and_sizes(tmp_path: Path) -> None:
    written = write_small(tmp_path)
    dataset = seqrecord.open(tmp_path)
    files = list((tmp_path / "records").glob("*.seqrec"))
    sizes = [file.stat().st_size for file in files]
    shutil.rmtree(tmp_path / "records")  # nothing of them may be read
    summary = summarize(dataset)
    assert (summary.num_episodes, summary.num_frames) == (3, 17)
    [group] = summary.groups
    assert (group.num_chunks, group.min_chunk_frames, group.max_chunk_frames) == (6, 4, 4)
    assert (summary.fps, summary.splits) == (None, {})
    assert (summary.shortest_episode, summary.median_episode, summary.longest_episode) == (1, 5, 11)
    assert summary.num_record_files == len(files) > 2
    assert summary.record_bytes == sum(sizes)
    assert summary.index_bytes == sum(
        f.stat().st_size for f in (tmp_path / "index").glob("*.arrow")
    )
    assert summary.fingerprint == dataset.fingerprint
    assert summary.created_by.startswith("seqrecord ")
    assert summary.clips is None
    for feature in summary.features:
        name = feature.spec.name
        arrays = [frame[name] for frame in _all_frames(written) if name in frame]
        assert feature.num_frames == len(arrays), name
        assert feature.num_missing == 17 - len(arrays), name
        nbytes = sum(array.nbytes for array in arrays)
        assert feature.raw_bytes == (nbytes if feature.spec.is_fixed else None), name
        column = dataset.contents.index.groups[0].page_length[
            :, dataset.contents.index.schema.position(name)
        ]
        assert feature.stored_bytes == int(column.sum())
    assert summary.raw_bytes is None
    known = [f for f in summary.features if f.raw_bytes is not None]
    raw = sum(f.raw_bytes or 0 for f in known)
    assert summary.ratio == pytest.approx(raw / sum(f.stored_bytes for f in known))


def test_raw_bytes_of_a_variable_dimension_are_known_without_a_codec(tmp_path: Path) -> None:
    frames = _all_frames(write_small(tmp_path, codecs={"range": "raw", "note": "raw"}))
    by_name = {f.spec.name: f for f in summarize(seqrecord.open(tmp_path)).features}
    for name in ("range", "note"):
        assert by_name[name].raw_bytes == sum(f[name].nbytes for f in frames if name in f)


@pytest.mark.parametrize("spec", [ClipSpec(2), ClipSpec(3, stride=2), ClipSpec(3, dilation=3)])
def test_clips_against_brute_force(tmp_path: Path, spec: ClipSpec) -> None:
    written = write_small(tmp_path)
    complete = incomplete = short = 0
    holders = set()
    for key, frames in written.items():
        starts = range(0, len(frames) - spec.span + 1, spec.stride)
        short += not starts
        for start in starts:
            used = frames[start : start + spec.span : spec.dilation]
            whole = all("flow" in frame and "note" in frame for frame in used)
            complete, incomplete = complete + whole, incomplete + (not whole)
            holders |= {key} if whole else set()
    with seqrecord.open(tmp_path, features=["note", "flow"]) as dataset:
        clips = summarize(dataset, clip=spec).clips
    assert clips == ClipSummary(
        length=spec.length,
        stride=spec.stride,
        dilation=spec.dilation,
        span=spec.span,
        num_clips=complete,
        num_episodes=len(holders),
        num_short_episodes=short,
        num_incomplete=incomplete,
    )
    assert complete
    assert incomplete


def test_only_the_chosen_features_count(tmp_path: Path) -> None:
    write_small(tmp_path)
    with seqrecord.open(tmp_path, features=["pose", "step"]) as dataset:
        summary = summarize(dataset, clip=ClipSpec(5))
    assert [feature.spec.name for feature in summary.features] == ["pose", "step"]
    assert summary.raw_bytes == 17 * (7 + 1) * 8
    assert summary.clips is not None
    assert (summary.clips.num_clips, summary.clips.num_incomplete) == (7 + 1, 0)


def test_json_has_what_the_attributes_have(tmp_path: Path) -> None:
    write_small(tmp_path)
    summary = summarize(seqrecord.open(tmp_path), clip=ClipSpec(4, dilation=2))
    value = json.loads(json.dumps(summary.to_json(), allow_nan=False))
    assert value["num_frames"] == 17
    assert value["clips"]["span"] == 7
    assert value["ratio"] == pytest.approx(summary.ratio)
    [flow] = [feature for feature in value["features"] if feature["name"] == "flow"]
    assert flow["shape"] == [32, 40, 2]
    assert flow["dtype"] == "<f4"
    assert flow["num_missing"] == 3
    assert flow["codec"] == list(map(dict, summary.features[2].spec.codec))


def test_text_is_a_table(tmp_path: Path) -> None:
    write_small(tmp_path)
    summary = summarize(seqrecord.open(tmp_path), clip=ClipSpec(4, dilation=2, stride=3))
    text = str(summary)
    lines = text.splitlines()
    assert lines[0] == str(tmp_path)
    [depth] = [line.split() for line in lines if line.startswith("  depth_left")]
    assert depth[:5] == ["depth_left", "float32", "32", "x", "40"]
    assert depth[-1] == "0"
    assert f"{_feature(summary, 'depth_left'):.2f}x" in depth
    assert "clips of 4 frames, 2 frames apart (span 7), stride 3" in text
    table = [line for line in lines if line.startswith("  ") and line.endswith(("0", "3", "g"))]
    assert len({len(line) for line in table if "codec" in line or "zstd" in line}) == 1


def _feature(summary: Summary, name: str) -> float:
    ratio = next(f.ratio for f in summary.features if f.spec.name == name)
    assert ratio is not None
    return ratio


def test_codec_text() -> None:
    assert codec_text(()) == "raw"
    chain = ({"id": "seqrecord.delta", "axis": -1}, {"id": "zstd", "level": 3})
    assert codec_text(chain) == "delta(-1) + zstd(3)"


def test_an_episode_against_its_frames(tmp_path: Path) -> None:
    written = write_small(tmp_path)
    dataset = seqrecord.open(tmp_path)
    summaries = []
    for key, frames in written.items():
        summary = json.loads(run("info", tmp_path, key, "--clip-len", 3, "--json").stdout)
        summaries.append(summary)
        assert summary["num_frames"] == len(frames)
        assert summary["num_chunks"] == [-(-len(frames) // 4)]
        assert (summary["uid"], summary["fps"]) == (dataset.episodes[key].uid, None)
        assert summary["num_clips"] == dataset.contents.clips(ClipSpec(3), [key]).num_clips
        assert summary["metadata"] == dataset.episodes[key].metadata
        for feature in summary["features"]:
            lacking = [i for i, frame in enumerate(frames) if feature["name"] not in frame]
            assert [i for run in feature["missing"] for i in range(*run)] == lacking
            assert feature["num_frames"] == len(frames) - len(lacking)
    assert sum(s["stored_bytes"] for s in summaries) == summarize(dataset).stored_bytes
    files = {path for summary in summaries for path in summary["record_files"]}
    assert files == {file.path for file in dataset.contents.manifest.record_files}
    assert len(summaries[0]["record_files"]) > 1


def test_a_list_is_made_one_row_at_a_time(tmp_path: Path) -> None:
    """The second row is not looked at when the first is given: its metadata are no JSON."""
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
    with SeqRecordWriter(tmp_path) as writer:
        for key in ("z[1]", "z1"):
            with writer.episode(key) as episode:
                episode.append({"x": np.zeros(3)})
    for options in ([], ["--episodes"], ["--episodes", "--json"]):
        text = run("info", tmp_path, "z[1]", *options).stdout
        assert "z[1]" in text
        assert "z1" not in text


def test_text_of_an_episode_moves_no_cursor(tmp_path: Path) -> None:
    nasty = "\x1b[2J\x9b\u202e\n"
    with (
        SeqRecordWriter(tmp_path) as writer,
        writer.episode("a\u202eb", metadata={nasty: nasty * 30}) as episode,
    ):
        episode.append({"x": np.zeros(3)})
    [key] = seqrecord.open(tmp_path).episodes
    shown = run("info", tmp_path, "--episodes").stdout + run("info", tmp_path, key).stdout
    lines = shown.removesuffix("\n").split("\n")
    assert all(line.isprintable() for line in lines)
    assert all(len(line) < 130 for line in lines[:3])
    assert lines[1].startswith("a\\u202eb")
