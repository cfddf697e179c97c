"""Lists of external files, and references to frames: literal bytes, and malformed ones."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from seqrecord.errors import ChecksumError, FormatError
from seqrecord.store.format.references import (
    ExternalFile,
    ExternalList,
    FolderFile,
    FrameReference,
    least_reference_bytes,
    list_path,
)


def test_external_list_round_trip() -> None:
    files = (ExternalFile("/a", "b/c.mp4", 5, "mtime 7"), ExternalFile("s3://x", "c.mp4", 6))
    folders = ExternalFile("/a", "", 0), ExternalFile("/a", "e/f", 0)
    odd = ExternalFile("/a", "1:2/Screenshot at 10.30\u202fPM\u00a0\u200d.mp4", 1)
    made = ExternalList((*files, odd, *folders))
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
                *((1, "C:/b.mp4"), (1, "a\\b.mp4"), (1, "a\u202e4pm.b"), (1, "a\n.mp4")),
                *((2, -1), (2, 2**63), (3, 7)),
            )
        ),
    ]
    for data in (b"x", *(json.dumps(case).encode() for case in cases)):
        with pytest.raises(FormatError):
            ExternalList.parse(data, hashlib.sha256(data).hexdigest()[:16])


FOLDER_REFERENCE = FrameReference.of_files(
    ("0" * 16, 3), [3, 2], [FolderFile("a.png", "mtime 7"), FolderFile("b.png", None)]
)


def _frames_page(page: bytes, length: int = 5, count: int = 2) -> FrameReference:
    return FrameReference.parse(memoryview(page), length, "image", count)


def test_frames_as_files_of_a_folder_or_ranges_of_a_file() -> None:
    page = FOLDER_REFERENCE.encode()
    names = b'[["a.png","mtime 7"],["b.png",null]]'
    assert page.endswith(bytes.fromhex("03000000 02000000 00000000 01000000") + names)
    files = _frames_page(page)
    assert (files.parts, files.length, files.offset_table_bytes) == (FOLDER_REFERENCE.parts, 5, 12)
    in_a_file = replace(
        FOLDER_REFERENCE, start=100, offsets=np.array([0, 10]), extradata=b"", parts=()
    )
    ranges = _frames_page(in_a_file.encode())
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
    configured = bytearray(FOLDER_REFERENCE.encode())
    configured[3] |= 0x40
    with pytest.raises(FormatError, match="of references"):  # only video has configurations
        _frames_page(bytes(configured))


def test_the_shortest_reference() -> None:
    """A head of 32 bytes, and an offset, a size and a frame of each packet."""
    assert least_reference_bytes(np.array([1, 4])).tolist() == [44, 80]
