"""Files of an original without the structure of their format, and without an end.

Each kind of file of each case is replaced by zeros, continued by zeros, or a link to a device that
never ends. Sparse files take no room on the disk.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import seqrecord
from seqrecord import open_source
from seqrecord.errors import SourceError
from seqrecord.formats.sources.common.images import image_header, read_image
from seqrecord.formats.sources.common.tables import read_rows, text_lines
from seqrecord.in_place.files import MAX_LINE_BYTES, stored_from
from seqrecord.sources import inventory_of
from seqrecord.store.writing.chunking import MAX_REFERENCED_BYTES
from tests.formats.all_cases import CASES, made
from tests.formats.cases import Case, index_source
from tests.kit.datasets import encoded
from tests.kit.processes import in_fork
from tests.kit.source_faults import read_all

_MOST_MEMORY = 300  # MiB beyond that of the test process
_MOST_SECONDS = 5  # of the processor
_NAMED = (".txt", ".csv", ".json", ".jsonl", ".yaml")  # files that differ by name

_WHOLE = {  # values without a structure, which are read whole up to the limit of a frame or chunk
    "kitti": r".*/velodyne/.*\.bin",
    "zarr 2": r".*/[\d.]+",
    "zarr 3": r".*/[\d.]+",
}

SPARSE: dict[str, tuple[int | None, int]] = {  # how many of the file's bytes come first; its size
    "1 GiB of zeros": (0, 1 << 30),
    "40 GiB of zeros": (0, 40 << 30),
    "40 GiB behind its first bytes": (64, 40 << 30),
    "1 GiB behind its end": (None, 1 << 30),
    "40 GiB behind its end": (None, 40 << 30),
    "an endless device": (0, 0),
}


def kinds_of_files(root: Path) -> list[Path]:
    """The last file of each kind below a folder."""
    kinds: dict[tuple[str, ...], Path] = {}
    for path in sorted(filter(Path.is_file, root.rglob("*"))):
        name = path.name if path.suffix in _NAMED else ""
        kinds[re.sub(r"\d+", "", path.parent.name), path.suffix, name] = path
    return [*kinds.values()]


def replace_bytes(path: Path, kind: str) -> None:
    kept_bytes, size = SPARSE[kind]
    data = path.read_bytes()[:kept_bytes]
    path.unlink()
    if not size:
        path.symlink_to("/dev/zero")
        return
    with path.open("wb") as file:
        file.write(data)
        file.truncate(size)


def peak() -> int:
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) >> 10


def read(case: Case, root: Path) -> tuple[int, float]:
    """Read an original as a conversion does; return MiB and seconds that it took."""
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    resource.setrlimit(resource.RLIMIT_CPU, (60, 90))
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before, began = peak(), time.process_time()
    try:
        source = case.opened(root)
        source.schema()
        inventory_of(source)
        for info in source.episodes():
            try:
                read_all(source, info)
            except SourceError:
                continue
    except SourceError:
        pass
    return peak() - before, time.process_time() - began


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
@pytest.mark.parametrize("name", CASES)
def test_files_without_structure(tmp_path: Path, name: str) -> None:
    original = made(tmp_path / "original", name)
    took = {}
    for path in kinds_of_files(original):
        place = path.relative_to(original)
        if re.fullmatch(_WHOLE.get(name, "(?!)"), place.as_posix()):
            continue
        for kind in SPARSE:
            root = shutil.copytree(original, tmp_path / "copy")
            replace_bytes(root / place, kind)
            took[place.as_posix(), kind] = in_fork(lambda root=root: read(CASES[name], root))  # type: ignore[misc]
            shutil.rmtree(root)
    assert {
        case: (memory, seconds)
        for case, (memory, seconds) in took.items()
        if memory > _MOST_MEMORY or seconds > _MOST_SECONDS
    } == {}


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
@pytest.mark.parametrize("kind", ["webp", "jpeg", "png", "bmp", "tiff"])
@pytest.mark.parametrize("kept_bytes", [16, 64, None])
def test_zeros_behind_the_head_of_an_image(
    tmp_path: Path, kind: str, kept_bytes: int | None
) -> None:
    path = tmp_path / "a" / "rgb" / f"0.{kind}"
    path.parent.mkdir(parents=True)
    path.write_bytes(encoded(np.zeros((40, 50, 3), np.uint8), kind=kind)[:kept_bytes])
    os.truncate(path, 1 << 30 if kind == "webp" else 40 << 30)  # 40 GiB are refused by RLIMIT_AS
    case = replace(CASES["folders"], options={"format": "folders"})
    memory, seconds = in_fork(lambda: read(case, tmp_path))
    assert memory <= _MOST_MEMORY
    assert seconds <= _MOST_SECONDS


def test_an_image_after_junk_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "0.jpg"
    data = encoded(np.zeros((8, 8, 3), np.uint8), kind="jpeg")
    head, rest = data[:20], data[20:]  # the head has the segment of JFIF
    path.write_bytes(head + b"\xff" * 9 + b"\0" * 9 + rest)  # as cameras pad segments
    assert image_header(path).shape == (8, 8, 3)
    path.write_bytes(head + b"\0" * 70_000 + rest)
    with pytest.raises(SourceError, match="junk in the header of the JPEG"):
        image_header(path)


def test_large_files_of_frames_in_place_cost_their_episodes(tmp_path: Path) -> None:
    for key in "ab":
        (tmp_path / "o" / key / "depth").mkdir(parents=True)
        for number in range(3):
            np.save(tmp_path / "o" / key / "depth" / f"{number}.npy", np.zeros((40, 50), "f4"))
    os.truncate(tmp_path / "o/a/depth/1.npy", MAX_REFERENCED_BYTES + 1)
    source = open_source(tmp_path / "o")
    with pytest.raises(SourceError, match="file of a frame read in place too large") as caught:
        index_source(source, tmp_path / "r", workers=1)
    assert (caught.value.episode, caught.value.file) == ("a", str(tmp_path / "o/a/depth/1.npy"))
    index_source(source, tmp_path / "r", workers=1, skip_bad_episodes=True)
    assert [*seqrecord.open(tmp_path / "r").episodes] == ["b"]


def test_large_arrays_are_compared_with_their_headers_first(tmp_path: Path) -> None:
    path = tmp_path / "0.npy"
    with path.open("wb") as file:
        file.truncate(1 << 29)
    began = peak()
    with pytest.raises(SourceError, match="invalid or unsupported npy file"):
        read_image(path)
    assert peak() - began < 100


def test_a_line_without_an_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.txt"
    path.write_bytes(b"1 2\n")
    os.truncate(path, MAX_LINE_BYTES + 10)
    with path.open("rb") as file, pytest.raises(SourceError, match="line too large"):
        list(text_lines(file))
    with pytest.raises(SourceError, match="line too large") as caught:
        read_rows(path)
    assert caught.value.file == str(path)
    path.write_bytes(b"\xef\xbb\xbf1 2\r\n\r\n# 5\n3 4\r5 6")
    rows = read_rows(path)
    assert (rows.words, rows.lines) == ([["1", "2"], ["3", "4"], ["5", "6"]], [1, 4, 5])
    path.write_bytes(b"1 2\n3 \xff\n")
    with pytest.raises(SourceError, match="not UTF-8") as caught:
        read_rows(path)
    assert (caught.value.offset, caught.value.got) == (6, repr(b"\xff\n"))


def test_holes_of_a_sparse_file_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.write(b"1")
        file.seek(1 << 30)
        file.write(b"2")
        file.truncate(1 << 35)
    assert stored_from(path, 0) == 0
    assert (1 << 30) - (1 << 20) < stored_from(path, 1 << 20) <= 1 << 30
    assert stored_from(path, 1 << 31) == stored_from(path, 1 << 35) == 1 << 35
