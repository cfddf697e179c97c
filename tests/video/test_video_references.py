"""References to video packets: literal bytes, the pages built from them, malformed references."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from seqrecord.errors import ChecksumError, FormatError
from seqrecord.video.references import PacketReference, ReferencedGops

_GOPS = ReferencedGops(
    *("a.mp4", b""),
    starts=np.array([100, 103, 110, 111]),
    sizes=np.array([3, 2, 1, 4]),
    order=np.array([0, 1, 0, -1]),
    group_starts=np.array([0, 2]),
)
_HEAD = bytes.fromhex(
    "04000080"  # packets, and the mark
    "efcdab8967452301 02000000 00000000"  # list, file, checksum
    "6400000000000000 00000000"  # start, extradata
)
PAGE = _HEAD + bytes.fromhex(
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
    assert (made.encode(), made.length) == (PAGE, 15)
    found = _parse(PAGE)
    fields = (found.list_id, found.file, found.start, found.length)
    assert fields == ("0123456789abcdef", 2, 100, 15)
    assert found.encode() == PAGE
    table = struct.pack("<I5I", 4, 40, 43, 45, 46, 50) + PAGE[-16:]
    assert found.page(memoryview(_RANGE), "vp9") == table + b"AAABBCDDDD"
    avcc = bytes.fromhex("01 640028 ff e1 0004 67640028 01 0002 68ee")
    ranges = np.array([0, 6]), np.array([6, 6]), np.array([0, 1])
    one = ReferencedGops("a", avcc, *ranges, group_starts=np.array([0]))
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
    stored = struct.pack("<I", 0xF03E86FB)
    page = PAGE[:16] + stored + PAGE[20:]
    assert bytes(_parse(page).page(memoryview(_RANGE), "vp9")).endswith(b"AAABBCDDDD")
    with pytest.raises(ChecksumError) as info:
        _parse(page).page(memoryview(b"x" + _RANGE[1:]), "vp9")
    assert info.value.offset == 100


def _word(at: int, value: int) -> bytes:
    return PAGE[:at] + struct.pack("<I", value) + PAGE[at + 4 :]


def test_invalid_references_are_refused() -> None:
    for page, length in (
        *((b"", 15), (PAGE[:-1], 15), (PAGE, 16)),
        (_word(0, 1 << 31), 15),  # no packets
        (_word(0, 2**32 - 1), 15),  # more packets than bytes
        (_word(28, 8), 15),  # extradata missing, or too long
        (_word(28, 2**17) + bytes(2**17), 15),
        (_word(32, 1), 15),  # first offset
        (_word(36, 2), 15),  # packets overlap
        (_word(52, 0), 15),  # an empty packet
        (PAGE[:20] + b"\xff" * 8 + PAGE[28:], 15),  # an impossible start
    ):
        with pytest.raises(FormatError) as info:
            _parse(page, length)
        assert info.value.feature == "image"
        assert info.value.offset is not None
