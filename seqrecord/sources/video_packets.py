"""What packets of H.264, HEVC, AV1 and VP9 say: where a stream can be cut, and their plain form.

The plain form needs no container: H.264 and HEVC in Annex B with their parameter sets before each
frame at which a decoder can begin, AV1 with its sequence header there, VP9 as it is. Nothing in a
packet is trusted: what cannot be understood is no place to cut.

Sources: ISO/IEC 14496-15 (avcC, hvcC), ITU-T H.264 7.4.1, H.265 7.4.2.2, the AV1 bitstream
specification 5.3 and 5.9.2 and its binding to ISOBMFF (av1C), the VP9 bitstream specification 6.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

__all__ = ["KEPT", "PacketFormat", "Start", "packet_format"]

KEPT = ("h264", "hevc", "av1", "vp9")
"""The codecs whose packets are kept as they are."""

_START_CODE = b"\0\0\0\1"


class Start(NamedTuple):
    """How a frame begins, or does not begin, a group of pictures.

    Args:
        is_closed: a decoder can begin here, whatever follows.
        may_lead: a decoder can begin here if no frame that follows `is_broken_after` it.
        is_broken: a frame shown before the last start that a decoder which begins there can't give.
        is_hidden: no frame comes of this packet.
    """

    is_closed: bool = False
    may_lead: bool = False
    is_broken: bool = False
    is_hidden: bool = False


class PacketFormat(Protocol):
    """The packets of one stream, as its container has them."""

    def start(self, data: bytes) -> Start:
        """What a packet begins."""
        ...

    def plain(self, data: bytes, is_start: bool) -> bytes:
        """The packet without a container; `is_start` says that a GOP is to begin with it."""
        ...


def packet_format(codec: str, extradata: bytes) -> PacketFormat:
    """How the packets of a stream are laid out.

    Args:
        codec: one of `KEPT`.
        extradata: what the container says of the codec, `avcC` for example; may be empty.

    Raises `ValueError` for extradata that are broken.
    """
    if codec == "h264":
        return _Nals(extradata, _H264)
    if codec == "hevc":
        return _Nals(extradata, _HEVC)
    if codec == "av1":
        return _Av1(extradata)
    return _Vp9()


@dataclass(frozen=True)
class _NalKinds:
    """The types of NAL units, which H.264 and HEVC number differently."""

    shift: int
    mask: int
    sets: frozenset[int]
    needed: int  # the parameter set without which there is no frame
    delimiter: int
    frames: range
    closed: frozenset[int]
    may_lead: frozenset[int]
    broken: frozenset[int]
    is_hevc: bool

    def of(self, nal: bytes | memoryview) -> int:
        return (nal[0] >> self.shift) & self.mask if len(nal) else -1


_H264 = _NalKinds(
    shift=0,
    mask=31,
    sets=frozenset((7, 8, 13)),
    needed=7,
    delimiter=9,
    frames=range(1, 6),
    closed=frozenset((5,)),  # IDR
    may_lead=frozenset(),
    broken=frozenset(),
    is_hevc=False,
)
_HEVC = _NalKinds(
    shift=1,
    mask=63,
    sets=frozenset((32, 33, 34)),
    needed=33,
    delimiter=35,
    frames=range(32),
    closed=frozenset((19, 20)),  # IDR_W_RADL, IDR_N_LP
    may_lead=frozenset((16, 17, 18, 21)),  # BLA, CRA
    broken=frozenset((8, 9)),  # RASL
    is_hevc=True,
)


class _Nals:
    """H.264 and HEVC: NAL units, behind their lengths or behind start codes."""

    def __init__(self, extradata: bytes, kinds: _NalKinds) -> None:
        self._kinds = kinds
        self._length_size = 0  # start codes
        self._sets: tuple[bytes, ...] = ()
        if extradata[:3] in (b"\0\0\0", b"\0\0\1"):
            self._sets = tuple(map(bytes, self._parameter_sets(_by_start_codes(extradata))))
        elif extradata:
            try:
                self._read_hvcc(extradata) if kinds.is_hevc else self._read_avcc(extradata)
            except IndexError:
                raise ValueError("parameter sets that are cut off") from None

    def start(self, data: bytes) -> Start:
        kinds = self._kinds
        types = [kinds.of(nal) for nal in self._units(data)]
        frame = next((kind for kind in types if kind in kinds.frames), None)
        begins = kinds.needed in types or bool(self._sets)
        return Start(
            is_closed=begins and frame in kinds.closed,
            may_lead=begins and frame in kinds.may_lead,
            is_broken=frame in kinds.broken,
            is_hidden=frame is None,
        )

    def plain(self, data: bytes, is_start: bool) -> bytes:
        units = [bytes(nal) for nal in self._units(data)]
        types = [self._kinds.of(nal) for nal in units]
        if is_start and self._kinds.needed not in types:
            at = 1 if types[:1] == [self._kinds.delimiter] else 0
            units[at:at] = self._sets
        return b"".join(_START_CODE + nal for nal in units)

    def _units(self, data: bytes) -> Iterator[memoryview]:
        if not self._length_size:
            yield from _by_start_codes(data)
            return
        view, at = memoryview(data), 0
        while at + self._length_size < len(view):
            size = int.from_bytes(view[at : at + self._length_size], "big")
            at += self._length_size
            if size:
                yield view[at : at + size]
            at += size

    def _parameter_sets(self, units: Iterator[memoryview]) -> Iterator[memoryview]:
        return (nal for nal in units if self._kinds.of(nal) in self._kinds.sets)

    def _read_avcc(self, data: bytes) -> None:
        self._length_size = (data[4] & 3) + 1
        sets, at = [], 5
        for mask in (31, 255):  # sequence, then picture parameter sets
            count, at = data[at] & mask, at + 1
            for _ in range(count):
                nal, at = _sized(data, at)
                sets.append(nal)
        self._sets = tuple(sets)

    def _read_hvcc(self, data: bytes) -> None:
        self._length_size = (data[21] & 3) + 1
        sets, at = [], 23
        for _ in range(data[22]):
            count = int.from_bytes(data[at + 1 : at + 3], "big")
            at += 3
            for _ in range(count):
                nal, at = _sized(data, at)
                sets.append(nal)
        self._sets = tuple(nal for nal in sets if self._kinds.of(nal) in self._kinds.sets)


def _sized(data: bytes, at: int) -> tuple[bytes, int]:
    size = int.from_bytes(data[at : at + 2], "big")
    if not size or at + 2 + size > len(data):
        raise IndexError
    return data[at + 2 : at + 2 + size], at + 2 + size


def _by_start_codes(data: bytes) -> Iterator[memoryview]:
    view = memoryview(data)
    at = data.find(b"\0\0\1")
    while at >= 0:
        at += 3
        end = data.find(b"\0\0\1", at)
        stop = len(data) if end < 0 else end
        while stop > at and not data[stop - 1]:  # zeros belong to the next start code
            stop -= 1
        if stop > at:
            yield view[at:stop]
        at = end


_SEQUENCE_HEADER, _FRAME_HEADER, _FRAME = 1, 3, 6


class _Av1:
    """AV1: a packet is a temporal unit, made of open bitstream units."""

    def __init__(self, extradata: bytes) -> None:
        # av1C: four bytes, then the sequence header, as a unit with its size.
        self._header = extradata[4:] if extradata[:1] == b"\x81" else extradata

    def start(self, data: bytes) -> Start:
        has_header = bool(self._header)
        for kind, payload in _units_of_av1(data):
            has_header = has_header or kind == _SEQUENCE_HEADER
            if kind in (_FRAME_HEADER, _FRAME) and payload:
                # show_existing_frame: 1 bit, frame_type: 2 (0: key), show_frame: 1
                return Start(is_closed=has_header and payload[0] >> 4 == 0b0001)
        return Start()

    def plain(self, data: bytes, is_start: bool) -> bytes:
        kinds = [kind for kind, _ in _units_of_av1(data)]
        return self._header + data if is_start and _SEQUENCE_HEADER not in kinds else data


def _units_of_av1(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The type of each unit, and the first byte behind its header."""
    at = 0
    while at < len(data):
        header = data[at]
        at += 2 if header & 4 else 1  # the extension has a byte of its own
        size = len(data) - at
        if header & 2:
            size, shift = 0, 0
            while at < len(data) and shift < 56:
                size |= (data[at] & 127) << shift
                at, shift = at + 1, shift + 7
                if not data[at - 1] & 128:
                    break
        yield (header >> 3) & 15, data[at : at + min(size, 1)]
        at += size


class _Vp9:
    """VP9: a packet is a frame, or a superframe of hidden ones and a shown one."""

    def start(self, data: bytes) -> Start:
        bits = "".join(f"{byte:08b}" for byte in data[:2]).ljust(16, "1")
        at = 5 if bits[2:4] == "11" else 4  # frame marker, profile, a reserved bit of profile 3
        shows_existing, is_inter, is_shown = (bit == "1" for bit in bits[at : at + 3])
        is_superframe = bool(data) and data[-1] >> 5 == 0b110
        return Start(
            is_closed=bits[:2] == "10" and not (shows_existing or is_inter) and is_shown,
            is_hidden=not (shows_existing or is_shown or is_superframe),
        )

    def plain(self, data: bytes, is_start: bool) -> bytes:  # noqa: ARG002
        return data
