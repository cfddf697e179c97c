"""Parsing of H.264, HEVC, AV1 and VP9 packets: where a stream can be cut, and container-free form.

Without a container, H.264 and HEVC are in Annex B with parameter sets before each frame at which
decoding can begin, AV1 has its sequence header there, and VP9 is unchanged. Packets are not
trusted: a stream is not cut at a packet that cannot be parsed.

Sources: ISO/IEC 14496-15 (avcC, hvcC), ITU-T H.264 7.4.1, H.265 7.4.2.2, the AV1 bitstream
specification 5.3 and 5.9.2 and its binding to ISOBMFF (av1C), the VP9 bitstream specification 6.2.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar, NamedTuple

PASSTHROUGH = ("h264", "hevc", "av1", "vp9")
"""Codecs whose packets are stored without re-encoding."""

_START_CODE = b"\0\0\0\1"


class Start(NamedTuple):
    """Whether decoding can begin at a packet.

    Args:
        is_closed: decoding can begin here, whatever follows.
        may_lead: decoding can begin here unless a later frame `is_broken`.
        is_broken: a leading frame: not decodable if decoding begins at the keyframe before it.
        is_hidden: the packet has no visible frame.
        is_b: a picture that may be displayed before earlier ones: a B slice of H.264, or in HEVC a
            picture to which no other refers.
    """

    is_closed: bool = False
    may_lead: bool = False
    is_broken: bool = False
    is_hidden: bool = False
    is_b: bool = False


class PacketFormat(ABC):
    """Packet layout of one stream in its container.

    `extradata` is the container's codec configuration, such as `avcC`; it may be empty. Raises
    `ValueError` if it is malformed.
    """

    def __init__(self, extradata: bytes) -> None:
        self._extradata = extradata

    @abstractmethod
    def start(self, data: bytes) -> Start:
        """Whether decoding can begin at this packet."""

    @abstractmethod
    def headers(self, data: bytes) -> bytes:
        """Headers of a keyframe, from its first bytes.

        Keyframes with equal headers have frames of the same size and pixel format.
        """

    def sizes(self, data: bytes) -> set[tuple[int, int]]:  # noqa: ARG002
        """Heights and widths that the packet itself declares, keyframe or not."""
        return set()

    def bare_packet(self, data: bytes, is_start: bool) -> bytes:  # noqa: ARG002
        """The packet without a container; `is_start` if it will begin a GOP."""
        return data


def packet_format(codec: str, extradata: bytes) -> PacketFormat:
    """Packet layout of a stream; `codec` is a name in `PASSTHROUGH`."""
    if codec in ("h264", "hevc"):
        return _H264(extradata) if codec == "h264" else _Hevc(extradata)
    return _Av1(extradata) if codec == "av1" else _Vp9(extradata)


class _Nals(PacketFormat):
    """H.264 and HEVC: NAL units, prefixed by lengths or start codes.

    Subclasses have the numbers of NAL unit types.
    """

    sets: ClassVar[tuple[int, ...]]
    required_set: ClassVar[int]  # the parameter set that decoding requires
    delimiter: ClassVar[int]
    frames: ClassVar[range]
    closed: ClassVar[tuple[int, ...]]
    may_lead: ClassVar[tuple[int, ...]] = ()
    broken: ClassVar[tuple[int, ...]] = ()

    def __init__(self, extradata: bytes) -> None:
        self._length_size = 0  # start codes
        self._sets: list[bytes] = []
        if extradata[:3] in (b"\0\0\0", b"\0\0\1"):
            self._sets = self.only_sets(map(bytes, _by_start_codes(extradata)))
        elif extradata:
            try:
                self._sets = self.read(extradata)
            except IndexError:
                raise ValueError("truncated parameter sets") from None

    @staticmethod
    @abstractmethod
    def kind(header: int) -> int:
        """Type of a NAL unit, from its first byte."""

    @abstractmethod
    def read(self, extradata: bytes) -> list[bytes]:
        """Parse the parameter sets; raises `IndexError` if truncated."""

    def only_sets(self, units: Iterable[bytes]) -> list[bytes]:
        """Parameter sets among NAL units."""
        return [nal for nal in units if self.kind(nal[0]) in self.sets]

    @staticmethod
    @abstractmethod
    def is_b(nal: memoryview) -> bool:
        """`Start.is_b` of a NAL unit with a frame."""

    def start(self, data: bytes) -> Start:
        begins = bool(self._sets)
        for nal in self._units(data):
            if (kind := self.kind(nal[0])) in self.frames:
                return Start(
                    is_closed=begins and kind in self.closed,
                    may_lead=begins and kind in self.may_lead,
                    is_broken=kind in self.broken,
                    is_b=self.is_b(nal),
                )
            begins = begins or kind == self.required_set
        return Start(is_hidden=True)

    def headers(self, data: bytes) -> bytes:
        sets = []
        for nal in self._units(data):
            if (kind := self.kind(nal[0])) in self.frames:
                break
            if kind == self.required_set:
                sets.append(bytes(nal))
        return b"".join(
            sets
            or [nal_set for nal_set in self._sets if self.kind(nal_set[0]) == self.required_set]
        )

    def bare_packet(self, data: bytes, is_start: bool) -> bytes:
        units = [bytes(nal) for nal in self._units(data)]
        kinds = [self.kind(nal[0]) for nal in units]
        if is_start and self.required_set not in kinds:
            at = 1 if kinds[:1] == [self.delimiter] else 0
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


class _H264(_Nals):
    sets, required_set, delimiter = (7, 8, 13), 7, 9
    frames = range(1, 6)
    closed = (5,)  # IDR

    @staticmethod
    def kind(header: int) -> int:
        return header & 31

    @staticmethod
    def is_b(nal: memoryview) -> bool:
        # After the first byte: first_mb_in_slice 0 (bit 1), slice_type 1 (010) or 6 (00111).
        return len(nal) > 1 and (nal[1] >> 4 == 0b1010 or nal[1] >> 2 == 0b100111)

    def read(self, extradata: bytes) -> list[bytes]:
        self._length_size = (extradata[4] & 3) + 1
        sequences, at = _sized(extradata, 6, extradata[5] & 31)
        return sequences + _sized(extradata, at + 1, extradata[at])[0]


class _Hevc(_Nals):
    sets, required_set, delimiter = (32, 33, 34), 33, 35
    frames = range(32)
    closed = (19, 20)  # IDR_W_RADL, IDR_N_LP
    may_lead = (16, 17, 18, 21)  # BLA, CRA
    broken = (8, 9)  # RASL

    @staticmethod
    def kind(header: int) -> int:
        return (header >> 1) & 63

    @staticmethod
    def is_b(nal: memoryview) -> bool:
        kind = nal[0] >> 1
        return kind < 16 and not kind & 1  # a sub-layer non-reference picture

    def read(self, extradata: bytes) -> list[bytes]:
        self._length_size = (extradata[21] & 3) + 1
        parameter_sets, at = [], 23
        for _ in range(extradata[22]):
            count = int.from_bytes(extradata[at + 1 : at + 3], "big")
            sets, at = _sized(extradata, at + 3, count)
            parameter_sets += sets
        return self.only_sets(parameter_sets)


def _sized(data: bytes, at: int, count: int) -> tuple[list[bytes], int]:
    """Units with size prefixes of two bytes, and the end of the last unit."""
    units = []
    for _ in range(count):
        begin, size = at + 2, int.from_bytes(data[at : at + 2], "big")
        at = begin + size
        if not size or at > len(data):
            raise IndexError
        units.append(data[begin:at])
    return units, at


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


class _Av1(PacketFormat):
    """AV1: a packet is a temporal unit of open bitstream units (OBUs)."""

    def __init__(self, extradata: bytes) -> None:
        # av1C: four bytes, then the sequence header as an OBU with its size.
        self._header = extradata[4:] if extradata[:1] == b"\x81" else extradata

    def start(self, data: bytes) -> Start:
        has_header = bool(self._header)
        for kind, payload in _units_of_av1(data):
            has_header = has_header or kind == _SEQUENCE_HEADER
            if kind in (_FRAME_HEADER, _FRAME) and payload:
                # show_existing_frame: 1 bit, frame_type: 2 (0: key), show_frame: 1
                return Start(is_closed=has_header and payload[0] >> 4 == 0b0001)
        return Start()

    def headers(self, data: bytes) -> bytes:
        units = _units_of_av1(data)
        return next((bytes(unit) for kind, unit in units if kind == _SEQUENCE_HEADER), b"")

    def bare_packet(self, data: bytes, is_start: bool) -> bytes:
        kinds = [kind for kind, _ in _units_of_av1(data)]
        return self._header + data if is_start and _SEQUENCE_HEADER not in kinds else data


def _units_of_av1(data: bytes) -> Iterator[tuple[int, memoryview]]:
    """Type and payload of each OBU."""
    view = memoryview(data)
    at = 0
    while at < len(data):
        header = data[at]
        at += 2 if header & 4 else 1  # the extension has one byte
        size = len(data) - at
        if header & 2:
            size, shift = 0, 0
            while at < len(data) and shift < 56:
                size |= (data[at] & 127) << shift
                at, shift = at + 1, shift + 7
                if not data[at - 1] & 128:
                    break
        yield (header >> 3) & 15, view[at : at + size]
        at += size


class _Vp9(PacketFormat):
    """VP9: a packet is a frame, or a superframe of hidden frames and a visible one."""

    def start(self, data: bytes) -> Start:
        bits = "".join(f"{byte:08b}" for byte in data[:2]).ljust(16, "1")
        at = 5 if bits[2:4] == "11" else 4  # frame marker, profile, a reserved bit of profile 3
        shows_existing, is_inter, is_shown = (bit == "1" for bit in bits[at : at + 3])
        is_superframe = bool(data) and data[-1] >> 5 == 0b110
        return Start(
            is_closed=bits[:2] == "10" and not (shows_existing or is_inter) and is_shown,
            is_hidden=not (shows_existing or is_shown or is_superframe),
        )

    def headers(self, data: bytes) -> bytes:
        return repr(next(_vp9_frame(data), None)).encode()

    def sizes(self, data: bytes) -> set[tuple[int, int]]:
        frames = _frames_of_vp9(data)
        return {(height, width) for frame in frames for height, width, _ in _vp9_frame(frame)}


def _frames_of_vp9(data: bytes) -> Iterator[bytes]:
    """Frames of a packet; a superframe has several, listed in the index at its end (Annex B)."""
    marker = data[-1] if data else 0
    count, width = (marker & 7) + 1, ((marker >> 3) & 3) + 1
    table = data[-2 - count * width :]
    if marker >> 5 != 0b110 or len(table) != 2 + count * width or table[0] != marker:
        yield data
        return
    at = 0
    for i in range(count):
        size = int.from_bytes(table[1 + i * width : 1 + (i + 1) * width], "little")
        yield data[at : at + size]
        at += size


def _vp9_frame(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Height, width and colour bits of a frame; nothing if its size is that of a reference frame.

    Colour bits are 0 if unchanged since the previous frame.
    """
    take = _bits(data[:32])
    marker, profile = take(2), take(1) | take(1) << 1
    if profile == 3:
        take(1)
    if marker != 2 or take(1):  # show_existing_frame
        return
    is_inter, is_shown, is_resilient = take(1), take(1), take(1)
    is_intra_only = bool(is_inter) and not is_shown and bool(take(1))
    if is_inter and not is_resilient:
        take(2)  # reset_frame_context
    colours = 0
    if not is_inter:
        take(24)  # frame_sync_code
        colours = _vp9_colours(take, profile)
    elif is_intra_only:
        take(24)  # frame_sync_code
        if profile:
            colours = _vp9_colours(take, profile)
        take(8)  # refresh_frame_flags
    else:
        take(8 + 12)  # refresh_frame_flags, reference frames and their signs
        if any(take(1) for _ in range(3)):  # found_ref
            return
    width, height = take(16) + 1, take(16) + 1
    yield height, width, colours


def _vp9_colours(take: Callable[[int], int], profile: int) -> int:
    """Colour bits of a frame that declares them (color_config); never 0."""
    depth = take(1) if profile > 1 else 0
    is_rgb = take(3) == 7
    if not is_rgb:
        take(1)  # color_range
    subsampling = 0
    if profile & 1:
        subsampling = take(1) if is_rgb else take(3)
    return 1 + profile | depth << 4 | is_rgb << 5 | subsampling << 6


def _bits(data: bytes) -> Callable[[int], int]:
    """Reader of the given number of bits, most significant first; zeros after the end."""
    number, num_left = int.from_bytes(data, "big"), len(data) * 8

    def take(count: int) -> int:
        nonlocal num_left
        num_left -= count
        return (number >> num_left if num_left >= 0 else 0) & ((1 << count) - 1)

    return take
