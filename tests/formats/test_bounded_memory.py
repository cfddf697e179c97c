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
from pathlib import Path

import pytest

from seqrecord.errors import SourceError
from seqrecord.formats.sources.common.tables import read_rows, text_lines
from seqrecord.in_place.files import MAX_LINE_BYTES, stored_from
from seqrecord.sources import inventory_of
from tests.formats.all_cases import CASES, made
from tests.formats.cases import Case
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

SPARSE: dict[str, tuple[bool, int]] = {  # whether the file's bytes come first, and its size
    "1 GiB of zeros": (False, 1 << 30),
    "40 GiB of zeros": (False, 40 << 30),
    "1 GiB behind its end": (True, 1 << 30),
    "40 GiB behind its end": (True, 40 << 30),
    "an endless device": (False, 0),
}


def kinds_of_files(root: Path) -> list[Path]:
    """The last file of each kind below a folder."""
    kinds: dict[tuple[str, ...], Path] = {}
    for path in sorted(filter(Path.is_file, root.rglob("*"))):
        name = path.name if path.suffix in _NAMED else ""
        kinds[re.sub(r"\d+", "", path.parent.name), path.suffix, name] = path
    return [*kinds.values()]


def replace_bytes(path: Path, kind: str) -> None:
    is_kept, size = SPARSE[kind]
    data = path.read_bytes() if is_kept else b""
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
