"""verify finds every broken byte that a reader would read, all in one run."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import seqrecord
from seqrecord import FormatError, NotFoundError, StorageError, edit, reindex, verify
from seqrecord.errors import ChecksumError, CodecError
from seqrecord.store.storage.local import LocalStorage
from seqrecord.types import Progress
from tests.kit.datasets import columns, flip, nth_chunk, write_dataset, write_small
from tests.kit.faults import damages_once
from tests.kit.tiny import (
    KEY,
    RecordParts,
    change_manifest,
    change_record,
    change_table,
    record_path,
    split_record,
    write_tiny,
)


@pytest.fixture
def dataset(small: Path, tmp_path: Path) -> Path:
    return shutil.copytree(small, tmp_path / "records")


def _pages(dataset: Path) -> list[tuple[Path, int, int, str, str]]:
    """File, start, stop, episode and feature of every page that is not empty."""
    opened = seqrecord.open(dataset)
    reader = opened.contents.chunks
    found = []
    for number, key in enumerate(opened.episodes):
        for chunk in range(int(opened.contents.index.groups[0].num_chunks[number])):
            for page in reader.pages(nth_chunk(opened, number, chunk)):
                if page.num_present:
                    file = dataset / page.chunk.path
                    found.append((file, page.start, page.stop, key, page.feature))
    opened.close()
    return found


@pytest.mark.parametrize("deep", [False, True])
def test_a_sound_dataset(small: Path, deep: bool) -> None:
    seen: list[Progress] = []
    report = verify(small, deep=deep, progress=seen.append)
    assert report.ok
    assert (report.problems, report.notes) == ((), ())
    skipped = "decoded frames; --deep decodes every frame"
    assert report.skipped == (() if deep else (skipped,))
    assert deep or "not checked: decoded frames" in str(report)
    pages = _pages(small)
    assert report.num_record_files == len({file for file, *_ in pages})
    assert (report.num_chunks, report.num_pages) == (6, len(pages))
    assert report.page_bytes == sum(stop - start for _, start, stop, *_ in pages)
    assert report.num_frames == (9 * 17 - 3 - 3 - 3 if deep else 0)
    done = [progress.done for progress in seen]
    assert done == sorted(done)
    assert len(seen) == 6
    assert done[-1] == seen[-1].total == report.page_bytes
    assert "no problem" in str(report)


def test_every_byte_that_is_read_is_checked(tmp_path: Path, thorough: bool) -> None:
    write_small(tmp_path, episodes={"a/Easy/b": 2})
    [file] = (tmp_path / "records").iterdir()
    size = file.stat().st_size
    read = np.zeros(size, bool)
    read[:64] = True
    for _, start, stop, *_ in (pages := _pages(tmp_path)):
        read[start:stop] = True
    tables = -(-max(stop for _, _, stop, *_ in pages) // 64) * 64  # of slices
    footer = 64 + len(split_record(file.read_bytes()).pages)
    chunk = len(file.read_bytes()[:footer].rstrip(b"\0"))
    assert tables < chunk
    read[tables:chunk] = read[footer:] = True
    assert not read.all()  # there is padding
    offsets = [*range(0, 64, 9), *range(64, size, 41), *range(size - 24, size)]
    offsets += range(tables, chunk)
    for offset in offsets if thorough else [*offsets[::12], tables]:
        flip(file, offset)
        report = verify(tmp_path, num_threads=1)
        assert report.ok != read[offset], offset
        assert all(isinstance(problem, FormatError) for problem in report.problems)
        flip(file, offset)
    assert verify(tmp_path).ok


@pytest.mark.parametrize("ending", [".seqrec", ".arrow"])
def test_damage_in_a_single_read_is_no_problem(small: Path, ending: str) -> None:
    """For storages other than a local disk, in any read."""
    for number in itertools.count():
        storage = damages_once(LocalStorage(small), ending, number=number)
        assert verify(storage, num_threads=1).ok
        if not storage.injected:  # there are no more reads
            break
    assert number > 2


def test_all_problems_are_found_in_the_same_order(dataset: Path) -> None:
    pages = _pages(dataset)
    chosen = [pages[i] for i in (0, 2, 9, 20, -1)]
    keys: dict[Any, str] = {(str(file), start): key for file, start, _, key, _ in chosen}
    for file, _, stop, *_ in chosen:
        flip(file, stop - 1)
    reports = [verify(dataset, deep=True, num_threads=n) for n in (1, 1, 4)]
    for report in reports:
        assert not report.ok
        texts = [str(problem) for problem in report.problems]
        assert texts == [str(problem) for problem in reports[0].problems]
        # By file and offset, which is also the order of the episodes here.
        order = sorted(chosen, key=lambda page: (page[0], page[1]))
        found = [(p.file, p.offset, p.feature) for p in report.problems]
        by_place = [(str(file), start, feature) for file, start, _, _, feature in order]
        assert sorted(found, key=str) == sorted(by_place, key=str)
        for problem in report.problems:
            assert isinstance(problem, ChecksumError)
            assert keys[problem.file, problem.offset] in str(problem.episode)
    # Frames of sound pages are decoded nonetheless.
    assert 0 < reports[0].num_frames < 9 * 17 - 9
    assert "5 problems" in str(reports[0])


def test_replaced_and_missing_record_files(dataset: Path, tmp_path: Path) -> None:
    """Cut, missing, a copy of another, or a link out of the dataset."""
    first, second, *_ = sorted((dataset / "records").iterdir())
    data = first.read_bytes()
    first.write_bytes(data[: len(data) // 2])
    report = verify(dataset)
    messages = [problem.message for problem in report.problems]
    assert "the length of a record file differs from the manifest" in messages
    assert "the file ended early" in messages
    assert {problem.file for problem in report.problems} == {str(first)}
    assert all(p.episode for p in report.problems if p.message == "the file ended early")
    assert report.num_chunks == 6
    first.unlink()
    report = verify(dataset)
    [problem] = report.problems
    assert isinstance(problem, NotFoundError)
    assert problem.file == str(first)
    assert 0 < report.num_chunks < 6
    first.write_bytes(second.read_bytes())
    messages = [problem.message for problem in verify(dataset).problems]
    assert "record file was replaced (id differs from the manifest)" in messages
    assert "a chunk of the index is missing in the record file's footer" in messages
    first.unlink()
    (tmp_path / "elsewhere").write_bytes(data)
    first.symlink_to(tmp_path / "elsewhere")
    [problem] = verify(dataset).problems
    assert isinstance(problem, StorageError)
    assert problem.message.startswith("a link leads out of the folder")


def test_a_broken_manifest_or_index_does_not_hide_broken_pages(dataset: Path) -> None:
    file, start, *_ = _pages(dataset)[3]
    flip(file, start)
    manifest = dataset / "manifest.json"
    text = manifest.read_bytes()
    for content in (b"", b"{}", text.replace(b'"num_frames": 17', b'"num_frames": 16')):
        manifest.write_bytes(content)
        first, page = verify(dataset).problems
        assert isinstance(first, FormatError)
        assert first.file == str(manifest)
        assert (page.file, page.offset) == (str(file), start)
    manifest.write_bytes(text)
    tables = sorted((dataset / "index").iterdir())
    for table in tables:
        flip(table, table.stat().st_size // 2)
    report = verify(dataset, deep=True)
    *problems, page = report.problems
    assert [str(problem.file).rpartition("-")[2] for problem in problems] == [
        *("episodes.arrow", "chunks0.arrow", "gaps.arrow", "statistics.json"),
    ]
    assert (page.file, page.offset) == (str(file), start)
    assert report.num_chunks == 6
    manifest.write_bytes(b"{}")
    for file in (dataset / "records").iterdir():
        flip(file, file.stat().st_size - 1)
    report = verify(dataset)  # there is nothing to go by
    assert len(report.problems) == 1 + 1 + 3  # manifest, no index, three footers
    assert report.num_chunks == 0


def test_strays_are_notes(dataset: Path) -> None:
    file = sorted((dataset / "records").iterdir())[0]
    shutil.copy(file, dataset / "records" / "99999-ffff.seqrec")
    (dataset / "records" / "88888-ffff.seqrec.partial").write_bytes(b"")
    report = verify(dataset)
    assert report.ok
    strays = [note.split(": ")[0].rsplit("/")[-1] for note in report.notes]
    assert strays == ["99999-ffff.seqrec", "88888-ffff.seqrec"]


def test_only_deep_sees_a_blob_that_does_not_decode(tmp_path: Path) -> None:
    write_tiny(tmp_path)

    def damage(parts: RecordParts) -> None:
        parts.pages[parts.pages.index(b"\x28\xb5\x2f\xfd")] ^= 0xFF  # magic of the first blob
        parts.sign_pages()

    change_record(tmp_path, damage)
    reindex(tmp_path, created_by="test")
    assert verify(tmp_path).ok
    [problem] = verify(tmp_path, deep=True).problems
    assert isinstance(problem, CodecError)
    assert (problem.file, problem.feature) == (str(record_path(tmp_path)), "blob")
    assert problem.frame == 0
    assert KEY in str(problem.episode)


# Index and footers


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of one record file. Pages without a codec would reveal their frame count."""
    path = tmp_path_factory.mktemp("whole")
    codecs = {name: [{"id": "zstd"}] for name in ("pose", "step")}
    write_small(path, max_file_size=1 << 30, codecs=codecs)
    return path


def put(column: str, *values: Any) -> Callable[[pa.Table], pa.Table]:
    """The first values of a column of an index table replaced."""

    def change(table: pa.Table) -> pa.Table:
        place = table.schema.get_field_index(column)
        field, rest = table.schema.field(place), table.column(place).to_pylist()[len(values) :]
        return table.set_column(place, field, pa.array([*values, *rest], field.type))

    return change


def put_size(root: Path) -> None:
    """Let the manifest have the sizes that record files have now."""

    def change(manifest: dict[str, Any]) -> None:
        for file in manifest["record_files"]:
            file["size"] = (root / file["path"]).stat().st_size

    change_manifest(root, change)


def test_a_wrong_digest_of_a_page(whole: Path, tmp_path: Path) -> None:
    """In footer and index alike: only `verify` computes digests of all pages."""
    root = shutil.copytree(whole, tmp_path / "dataset")

    def change(parts: RecordParts) -> None:
        parts.chunks["pages"]["digest"][1, 0, 3] ^= 1

    change_record(root, change)
    reindex(root)
    assert seqrecord.open(root).num_frames
    [problem] = verify(root).problems
    assert isinstance(problem, ChecksumError)
    assert "does not match its digest" in problem.message
    assert problem.episode is not None


def test_index_and_footer_must_agree(whole: Path, tmp_path: Path) -> None:
    with seqrecord.open(whole) as opened:
        [group] = opened.contents.index.groups
        lengths, sums = group.page_length[0].tolist(), group.page_crc32c[0].tolist()
        digests = group.page_digest[0].tobytes()
    lengths[1] += 1
    sums[0] ^= 1
    rows: list[tuple[str, str, list[Any]]] = [
        ("different page lengths", "chunks0", [put("page_length", lengths)]),
        ("different page checksums", "chunks0", [put("page_crc32c", sums)]),
        ("different page digests", "chunks0", [put("page_digest", digests[::-1])]),
        ("different largest frames", "chunks0", [put("largest_frame", [0] * 2)]),
        ("is missing in", "chunks0", [put("offset", 128)]),
        ("different frames", "chunks0", [put("num_frames", 3, 5), put("first_frame", 0, 3)]),
        ("different missing frames", "gaps", [lambda table: table.slice(1)]),
        ("different episode", "episodes", [put("fps", 30.0)]),
        ("different episode", "episodes", [put("uid", b"x" * 16)]),
        ("different episode", "episodes", [put("split", 0)]),
        ("different episode", "episodes", [put("metadata", *["{}"] * 3)]),
        ("different episode", "episodes", [put("key", *"xyz")]),
    ]
    for number, (message, table, changes) in enumerate(rows):
        root = shutil.copytree(whole, tmp_path / str(number))
        change_manifest(root, lambda value: value.update(splits=["train"]))
        assert verify(root).ok
        for change in changes:
            change_table(root, table, change)
        problems = [problem for problem in verify(root).problems if message in str(problem)]
        assert problems, message
        assert problems[0].episode in ("alpha/Easy/P000", "x")
    shorter = shutil.copytree(whole, tmp_path / "shorter")
    change_manifest(shorter, lambda value: value.update(num_frames=16))
    change_table(shorter, "episodes", put("num_frames", 10))  # of 11, as after a trim
    assert any("different episode" in str(problem) for problem in verify(shorter).problems)


def test_times_in_index_and_footer_must_agree(tmp_path: Path) -> None:
    path = tmp_path / "records"
    episodes = {"a": columns(t=np.arange(3.0)), "b": columns(t=np.arange(9.0))}
    write_dataset(path, episodes, features={"t": {"kind": "timestamp", "unit": "s"}})
    episode = {"c": columns(t=np.arange(300.0))}
    write_dataset(path, episode, mode="append")
    assert verify(path).ok
    with seqrecord.open(path) as dataset:
        time_spans = dataset.contents.index.time_spans
        assert time_spans is not None
        min_growth = time_spans.min_growth[0, 0].tolist()
    change_table(path, "times", put("least", [0.5, *min_growth[1:]]))
    [problem] = verify(path).problems
    assert "different episode" in str(problem)
    assert problem.episode == "a"
    last_file = max((path / "records").iterdir())  # of the longest episode
    last_file.write_bytes(last_file.read_bytes()[:-9])
    assert {problem.episode for problem in verify(path).problems} == {None, "a"}


def test_an_index_of_groups_that_a_record_file_lacks(tmp_path: Path) -> None:
    path = tmp_path / "records"
    write_dataset(path, {"a": 4, "b": 3})
    edit.add_feature(
        path, "added", lambda episode: [1] * len(episode) if episode.key == "a" else [None] * 3
    )
    edit.add_feature(path, "dropped", lambda episode: [1] * len(episode))
    edit.drop_features(path, "dropped")
    assert verify(path).ok
    change_table(path, "episodes", put("fps", 30.0, 30.0))
    problems = [problem for problem in verify(path).problems if problem.episode]
    assert [problem.episode for problem in problems] == ["a", "b"]
    assert all("different episode" in str(problem) for problem in problems)


def test_an_index_may_name_any_copy_of_a_chunk(tmp_path: Path) -> None:
    """The order of commits decides, and no file records it."""
    path = record_path(write_tiny(tmp_path))
    parts = split_record(path.read_bytes())
    parts.header[12:28], parts.head["file_id"] = bytes(16), "0" * 32
    copy = path.with_name("99999-copy.seqrec")
    copy.write_bytes(parts.joined())
    entry = {"path": f"records/{copy.name}", "size": 0, "file_id": "0" * 32}
    change_manifest(tmp_path, lambda value: value["record_files"].append(entry))
    put_size(tmp_path)
    for file in (0, 1):
        change_table(tmp_path, "chunks0", put("file", file, file, file))
        assert verify(tmp_path).ok
    change_table(tmp_path, "chunks0", put("offset", 256, 64))
    assert any("different offset" in str(problem) for problem in verify(tmp_path).problems)


def test_a_complete_episode_that_the_index_forgot(whole: Path, tmp_path: Path) -> None:
    root = shutil.copytree(whole, tmp_path / "records")
    path = record_path(root)
    parts = split_record(data := path.read_bytes())
    beta = parts.head["episodes"].pop()  # of one chunk
    parts.chunks = parts.chunks[:-1]
    parts.gaps = parts.gaps[parts.gaps["chunk"] < len(parts.chunks)]
    parts.head.update(num_chunks=[len(parts.chunks)], num_gaps=len(parts.gaps))
    path.write_bytes(parts.joined())
    assert reindex(root).num_episodes == 2
    path.write_bytes(data)
    put_size(root)
    [problem] = verify(root).problems
    assert (problem.episode, problem.file) == (beta["key"], str(path))
    assert "`seqrecord reindex` adds it" in str(problem)
    # An interrupted write leaves a part of an episode.
    parts = split_record(data)
    parts.head["episodes"][-1]["num_frames"] = None
    path.write_bytes(parts.joined())
    put_size(root)
    assert verify(root).ok


def test_a_largest_frame_that_the_page_does_not_have(tmp_path: Path) -> None:
    write_tiny(tmp_path)

    def claim_less(parts: RecordParts) -> None:
        parts.chunks["largest"][0] = 4

    change_record(tmp_path, claim_less)
    reindex(tmp_path, created_by="test")
    for deep in (False, True):
        [problem] = verify(tmp_path, deep=deep).problems
        assert "largest frame" in str(problem)
        assert (problem.expected, problem.got) == ("4 bytes", "8 bytes")
        assert (problem.feature, problem.offset) == ("blob", 128)


def test_parts_of_an_episode_that_contradict_each_other(tmp_path: Path) -> None:
    """The index is right, but `reindex` would refuse the record files."""
    write_tiny(tmp_path, max_file_size=1)
    assert verify(tmp_path).ok
    # Only the last part has `num_frames`: change another part.
    records = [(path, path.read_bytes()) for path in (tmp_path / "records").iterdir()]
    path, data = next(
        (path, data)
        for path, data in records
        if split_record(data).head["episodes"][0]["num_frames"] is None
    )

    # Not its metadata: `close(metadata=…)` may give others after a part is stored.
    other: dict[str, Any] = {"ordinal": 7, "fps": 7.0, "key": "env/P1"}
    for name, value in other.items():
        parts = split_record(data)
        parts.head["episodes"][0][name] = value
        path.write_bytes(parts.joined())
        put_size(tmp_path)
        problems = verify(tmp_path).problems
        assert any("contradict" in str(problem) for problem in problems), problems
        with pytest.raises(FormatError, match="contradict"):
            reindex(tmp_path, created_by="test")


def test_two_episodes_of_one_ordinal(tmp_path: Path) -> None:
    """As of two writers that began together: uids order them."""
    write_tiny(tmp_path)
    write_dataset(tmp_path, {"z": [{"raw": np.zeros((2, 3), "<u2")}]}, mode="append")
    change_record(tmp_path, lambda parts: parts.head["episodes"][0].update(ordinal=1))
    assert verify(tmp_path).ok
    assert reindex(tmp_path, created_by="test").num_episodes == 2
    assert verify(tmp_path).ok
