"""References: literal bytes, the pages built from them, and all kinds of malformed references."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from seqrecord.errors import ChecksumError, FormatError, SourceError
from seqrecord.in_place.references import checksum_of_files
from seqrecord.store.checksum import crc32c
from seqrecord.store.format.references import (
    ExternalFile,
    ExternalList,
    FolderFile,
    FrameReference,
    ReferencedFile,
    least_reference_bytes,
    list_path,
)
from seqrecord.video.references import PacketReference, ReferencedGops

_GOPS = ReferencedGops(
    *("a.mp4", b""),
    starts=np.array([100, 103, 110, 111]),
    sizes=np.array([3, 2, 1, 4]),
    order=np.array([0, 1, 0, -1]),
    first=np.array([0, 2]),
)
_HEAD = bytes.fromhex(
    "04000080"  # packets, and the mark
    "efcdab8967452301 02000000 00000000"  # list, file, checksum
    "6400000000000000 00000000"  # start, extradata
)
_PAGE = _HEAD + bytes.fromhex(
    "00000000 03000000 0a000000 0b000000"  # offsets
    "03000000 02000000 01000000 04000000"  # sizes
    "00000080 01000000 02000080 ffffff7f"  # frames
)
_RANGE = b"AAABB-----CDDDD"


def _parse(page: bytes, length: int = 15) -> PacketReference:
    return PacketReference.parse(memoryview(page), length, "image")


def test_bytes_of_a_reference_and_its_page() -> None:
    """VP9 is not changed; H.264 gets start codes, and parameter sets at the start of a GOP."""
    [made] = PacketReference.of(_GOPS, [range(2)], "0123456789abcdef", 2)
    assert (made.encode(), made.length) == (_PAGE, 15)
    assert len(_PAGE) == least_reference_bytes(np.array(4))
    found = _parse(_PAGE)
    fields = (found.list_id, found.file, found.start, found.length)
    assert fields == ("0123456789abcdef", 2, 100, 15)
    assert found.encode() == _PAGE
    table = struct.pack("<I5I", 4, 40, 43, 45, 46, 50) + _PAGE[-16:]
    assert found.page(memoryview(_RANGE), "vp9") == table + b"AAABBCDDDD"
    avcc = bytes.fromhex("01 640028 ff e1 0004 67640028 01 0002 68ee")
    ranges = np.array([0, 6]), np.array([6, 6]), np.array([0, 1])
    one = ReferencedGops("a", avcc, *ranges, first=np.array([0]))
    data = bytes.fromhex("00000002 65aa 00000002 41bb")
    [made] = PacketReference.of(one, [range(1)], "0" * 16, 0)
    page, start = made.page(memoryview(data), "h264"), "00000001"
    packets = bytes.fromhex(f"{start}67640028 {start}68ee {start}65aa {start}41bb")
    assert page[-len(packets) :] == packets


def test_gops_are_split_into_pages() -> None:
    for frames, nbytes, expected in (
        *((3, 99, [4]), (2, 99, [2, 2]), (9, 14, [2, 2]), (1, 1, [2, 2])),
    ):
        pages = _GOPS.pages(frames, nbytes)
        references = PacketReference.of(_GOPS, pages, "0" * 16, 0)
        assert [len(page.sizes) for page in references] == expected
        starts = np.concatenate([page.start + page.offsets for page in references])
        assert starts.tolist() == _GOPS.starts.tolist()
        begins, none = 1 << 31, (1 << 31) - 1
        shown = [begins, 1, begins | (2 if len(pages) == 1 else 0), none]
        assert np.concatenate([page.frames for page in references]).tolist() == shown


def test_a_range_with_a_checksum() -> None:
    stored = struct.pack("<I", crc32c(_RANGE))
    page = _PAGE[:16] + stored + _PAGE[20:]
    assert bytes(_parse(page).page(memoryview(_RANGE), "vp9")).endswith(b"AAABBCDDDD")
    with pytest.raises(ChecksumError) as info:
        _parse(page).page(memoryview(b"x" + _RANGE[1:]), "vp9")
    assert info.value.offset == 100


def test_no_checksum_of_a_file_that_became_shorter(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"xabcd")
    part = ReferencedFile(str(tmp_path / "a"), 1, 5)
    assert checksum_of_files([part, part]) == crc32c(b"abcdabcd")
    with pytest.raises(SourceError, match=r"truncated file; .*expected: 5 bytes") as info:
        checksum_of_files([replace(part, stop=6)])
    assert info.value.offset == 1


def _word(at: int, value: int) -> bytes:
    return _PAGE[:at] + struct.pack("<I", value) + _PAGE[at + 4 :]


def test_invalid_references_are_refused() -> None:
    for page, length in (
        *((b"", 15), (_PAGE[:-1], 15), (_PAGE, 16)),
        (_word(0, 1 << 31), 15),  # no packets
        (_word(0, 2**32 - 1), 15),  # more packets than bytes
        (_word(28, 8), 15),  # extradata missing, or too long
        (_word(28, 2**17) + bytes(2**17), 15),
        (_word(32, 1), 15),  # first offset
        (_word(36, 2), 15),  # packets overlap
        (_word(52, 0), 15),  # an empty packet
        (_PAGE[:20] + b"\xff" * 8 + _PAGE[28:], 15),  # an impossible start
    ):
        with pytest.raises(FormatError) as info:
            _parse(page, length)
        assert info.value.feature == "image"
        assert info.value.offset is not None


def test_external_list_round_trip() -> None:
    files = (ExternalFile("/a", "b/c.mp4", 5, "mtime 7"), ExternalFile("s3://x", "c.mp4", 6))
    folders = ExternalFile("/a", "", 0), ExternalFile("/a", "e/f", 0)
    made = ExternalList((*files, ExternalFile("/a", "d.mp4", 1), *folders))
    data = made.encode()
    assert ExternalList.parse(data, made.id) == made
    assert json.loads(data)["files"][1] == [1, "c.mp4", 6, None]
    assert list_path(made.id) == f"externals/{made.id}.json"
    [path] = (Path(__file__).parents[1] / "golden/v1/referring/externals").glob("*.json")
    assert ExternalList.parse(path.read_bytes(), path.stem).files[0].path == "a.mp4"


def test_invalid_external_lists_are_refused() -> None:
    good = ExternalList((ExternalFile("/a", "b.mp4", 5),))
    with pytest.raises(ChecksumError):
        ExternalList.parse(good.encode(), "0" * 16)
    value = json.loads(good.encode())
    [facts] = value["files"]
    cases = [
        *(value | change for change in ({"version": 2}, {"version": True}, {"more": 1})),
        *(value | {"files": files} for files in ([], [facts[:3]], [[0, "b", 0, "mtime 7"]])),
        *(
            value | {"files": [[*facts[:place], wrong, *facts[place + 1 :]]]}
            for place, wrong in (
                *((0, 1), (0, False), (1, "../b.mp4"), (1, "/etc/passwd"), (1, "")),
                *((2, -1), (2, 2**63), (3, 7)),
            )
        ),
    ]
    for data in (b"x", *(json.dumps(case).encode() for case in cases)):
        with pytest.raises(FormatError):
            ExternalList.parse(data, hashlib.sha256(data).hexdigest()[:16])


FOLDER_REFERENCE = FrameReference.of_frames(
    ("0" * 16, 3), [], [3, 2], [FolderFile("a.png", "mtime 7"), FolderFile("b.png", None)]
)


def _frames_page(page: bytes, length: int = 5, count: int = 2) -> FrameReference:
    return FrameReference.parse(memoryview(page), length, "image", count)


def test_frames_as_files_of_a_folder_or_ranges_of_a_file() -> None:
    page = FOLDER_REFERENCE.encode()
    names = b'[["a.png","mtime 7"],["b.png",null]]'
    assert page.endswith(bytes.fromhex("03000000 02000000 00000000 01000000") + names)
    files = _frames_page(page)
    assert (files.parts, files.length, files.offset_table_bytes) == (FOLDER_REFERENCE.parts, 5, 12)
    ranges = _frames_page(FrameReference.of_frames(("0" * 16, 3), [100, 110], [3, 2]).encode())
    assert (ranges.start, ranges.stop, ranges.length, ranges.parts) == (100, 112, 5, ())
    for found in (files, ranges):
        data = memoryview(bytearray(12) + b"AAABB")
        assert found.page(data) == struct.pack("<3I", 12, 15, 17) + b"AAABB"


def test_invalid_frame_references_are_refused() -> None:
    one, two = b'["a.png",null]', b'[["a.png",null],["%s",null]]'
    names = [b"x", b"{}", b"[]", b"[" + one + b"]", two % b"a.png", two % b"../b.png", two % b""]
    names += [two % b"c/b.png", b"[" + one + b',["b.png",7]]', b"[" + one + b',["b.png"]]']
    for text in names:
        with pytest.raises(FormatError):
            _frames_page(replace(FOLDER_REFERENCE, extradata=text).encode())
    for reference in (
        replace(FOLDER_REFERENCE, frames=np.array([1, 0])),  # another order
        replace(FOLDER_REFERENCE, start=1),  # a start offset with a folder
        replace(FOLDER_REFERENCE, offsets=np.array([0, 4])),  # a gap
    ):
        with pytest.raises(FormatError) as info:
            _frames_page(reference.encode(), reference.length)
        assert info.value.feature == "image"
    with pytest.raises(FormatError):
        _frames_page(FOLDER_REFERENCE.encode(), count=3)
