"""Gop: what a group of pictures is, and what is none."""

from __future__ import annotations

import pytest

from seqrecord.codecs.video.gops import MAX_GOP_FRAMES, MAX_GOP_PACKETS, Gop


def test_gop() -> None:
    gop = Gop((b"key", b"p", b"b", b"hidden"), (0, 2, 1, -1))
    assert gop.num_frames == 3
    assert gop.nbytes == 11


@pytest.mark.parametrize(
    ("packets", "order"),
    [
        ((), ()),
        ((b"a",), (-1,)),
        ((b"a",), (1,)),
        ((b"a", b"b"), (0, 0)),
        ((b"a", b"b"), (0,)),
        ((b"a", b""), (0, 1)),
        ((b"a", b"b"), (0, -2)),
        ((b"a",) * (MAX_GOP_FRAMES + 1), tuple(range(MAX_GOP_FRAMES + 1))),
        ((b"a",) * (MAX_GOP_PACKETS + 1), (0, *[-1] * MAX_GOP_PACKETS)),
    ],
)
def test_no_gop(packets: tuple[bytes, ...], order: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="GOP"):
        Gop(packets, order)
