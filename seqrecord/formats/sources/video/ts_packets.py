"""Check the packets of MPEG-TS files: sync bytes, counters, and a whole packet at the end.

Decoders search for the next sync byte after a hole, so lost bytes are silent. Pieces of a stream
that were joined by `cat` begin with a program table, and count again, at the start of a frame.

Format: ISO/IEC 13818-1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from seqrecord.formats.sources.video.file_bytes import Contents, FileBytes, StreamFacts

_SIZES = (188, 192, 204)  # plain, with a time in front (M2TS), with checksums behind
_SYNC = 0x47
_FIRST_BYTES = 1 << 16  # in which a recording's first whole packet is sought
_SURE = 5  # packets in a row
_BLOCK_PACKETS = 1 << 12
_PAT = 0
_NO_PACKET = -1
_ANY = -1  # counter of the first packet
_START_CODE = (0, 0, 1)


class _Packing(NamedTuple):
    size: int  # bytes from sync byte to sync byte
    first: int  # offset of the first sync byte
    lead: int  # bytes of a packet in front of its sync byte


def check_ts(data: FileBytes, stream: StreamFacts) -> Contents:
    """Return what a file of whole packets contains, of which the stream lost none.

    Raises `SourceError` for a file that ends inside a packet, for bytes between packets, and for
    packets that are lost inside of a frame. Without `data.is_whole`, only its end is checked.
    """
    packing = _packing(data)
    if packing is None:
        return Contents()
    return Contents(tuple(_Packets(data, packing, stream.id).check()))


def _packing(data: FileBytes) -> _Packing | None:
    head = np.frombuffer(data.read(0, _FIRST_BYTES), np.uint8)
    is_sync = head == _SYNC
    for offset in np.flatnonzero(is_sync)[:_FIRST_BYTES].tolist():
        for size in _SIZES:
            row = is_sync[offset::size][:_SURE]
            if len(row) and row.all() and (len(row) == _SURE or data.nbytes < _FIRST_BYTES):
                lead = 4 if size == _SIZES[1] else 0
                return _Packing(size, offset, lead)
    return None


class _Packets:
    def __init__(self, data: FileBytes, packing: _Packing, pid: int) -> None:
        self._data, self._packing, self._pid = data, packing, pid
        self.notes: list[str] = []
        self._counter = _NO_PACKET
        self._is_padded = False  # the last packet of a frame is filled up
        self._joints = 0
        self._table_counter = _NO_PACKET
        self._has_table = self._has_jump = False  # of tables after the stream's last packet

    def check(self) -> list[str]:
        data, (size, first_offset, lead) = self._data, self._packing
        total = (data.nbytes - first_offset + lead) // size
        number = 0 if data.is_whole else total
        while number < total:
            count, at = min(_BLOCK_PACKETS, total - number), first_offset + number * size
            block = np.frombuffer(data.read(at, count * size), np.uint8)
            rows = np.pad(block, (0, count * size - len(block))).reshape(count, size)
            lost_rows = np.flatnonzero(rows[:, 0] != _SYNC)
            num_whole = int(lost_rows[0]) if len(lost_rows) else count
            self._check_rows(rows[:num_whole], at)
            if len(lost_rows):
                self._check_lost(at + num_whole * size)
                return self._result()
            number += count
        stop = first_offset - lead + total * size
        self._check_tail(stop)
        return self._result()

    def _result(self) -> list[str]:
        if self._joints:
            self.notes.append(f"{self._joints} places where its counters begin again")
        if self._data.is_whole and not self._is_padded and self._counter != _NO_PACKET:
            self.notes.append(
                "its end is not verifiable: the last frame fills its packets, so it may be cut"
            )
        return self.notes

    def _check_lost(self, at: int) -> None:
        """Refuse bytes between packets; bytes after the last packet are noted."""
        data, size = self._data, self._packing.size
        num_bytes = data.nbytes - at
        if not data.are_zeros(at) and self._resumes(at):
            raise data.damaged(
                "bytes between its packets", at, f"a sync byte each {size} bytes", "others"
            )
        if num_bytes:
            self.notes.append(data.rest(at))

    def _resumes(self, at: int) -> bool:
        """Return whether packets follow after other bytes."""
        data, size = self._data, self._packing.size
        while at < data.nbytes:
            block = np.frombuffer(data.read(at, _BLOCK_PACKETS * size), np.uint8)
            is_sync = block == _SYNC
            is_row = is_sync[: max(0, len(block) - 2 * size)].copy()
            is_row &= is_sync[size : size + len(is_row)]
            is_row &= is_sync[2 * size : 2 * size + len(is_row)]
            if is_row.any():
                return True
            if len(block) <= 2 * size:
                return bool(len(block) > size and (is_sync[:-size] & is_sync[size:]).any())
            at += len(block) - 2 * size
        return False

    def _check_tail(self, stop: int) -> None:
        data, (size, _, lead) = self._data, self._packing
        tail = data.read(stop, size)
        if not tail:
            return
        is_cut = len(tail) <= lead or tail[lead] == _SYNC
        if is_cut and any(tail):
            raise data.truncated(stop, f"a packet of {size} bytes", stop + size)
        self.notes.append(data.rest(stop))

    def _check_rows(self, rows: npt.NDArray[np.uint8], at: int) -> None:
        """Check the counters of the stream's packets: uint8 [packets, size]."""
        pids = (rows[:, 1].astype(np.int64) & 0x1F) << 8 | rows[:, 2]
        tables = np.flatnonzero(pids == _PAT)
        table_counters = rows[tables, 3].astype(np.int64) & 0xF
        expected_tables = _next(table_counters, self._table_counter)
        is_jump = (table_counters != expected_tables) & (expected_tables != _ANY)
        own_rows = np.flatnonzero((pids == self._pid) & (rows[:, 3] & 0x10 > 0))
        packets = rows[own_rows]
        counters = packets[:, 3].astype(np.int64) & 0xF
        expected = _next(counters, self._counter)
        has_field = packets[:, 3] & 0x20 > 0
        may_jump = has_field & (packets[:, 4] > 0) & (packets[:, 5] & 0x80 > 0)
        is_start, is_wrong = packets[:, 1] & 0x40 > 0, packets[:, 1] & 0x80 > 0
        is_gap = (counters != expected) & (expected != _ANY) & ~may_jump
        for i in np.flatnonzero(is_gap | is_wrong).tolist():
            tables_between = slice(
                *np.searchsorted(tables, (own_rows[i - 1] if i else 0, own_rows[i]))
            )
            restarts = is_jump[tables_between].any() or (not i and self._has_jump)
            has_table = len(is_jump[tables_between]) or (not i and self._has_table)
            is_joint = is_start[i] and (restarts or (has_table and not counters[i]))
            if is_wrong[i] or not is_joint:
                raise self._data.damaged(
                    "packets are lost or marked as wrong",
                    at + int(own_rows[i]) * self._packing.size,
                    f"counter {int(expected[i])}",
                    int(counters[i]),
                )
            self._joints += 1
        self._check_starts(packets[is_start], at)
        if len(own_rows):
            self._counter, self._is_padded = int(counters[-1]), bool(has_field[-1])
            self._has_table = self._has_jump = False
        is_later = tables > (own_rows[-1] if len(own_rows) else -1)
        self._has_table |= bool(is_later.any())
        self._has_jump |= bool(is_jump[is_later].any())
        if len(tables):
            self._table_counter = int(table_counters[-1])

    def _check_starts(self, packets: npt.NDArray[np.uint8], at: int) -> None:
        """Check that frames begin with a start code: uint8 [packets, size]."""
        has_field = packets[:, 3] & 0x20 > 0
        begins = np.where(has_field, 5 + packets[:, 4].astype(np.int64), 4)
        columns = np.minimum(begins[:, None] + np.arange(3), packets.shape[1] - 1)
        codes = np.take_along_axis(packets, columns, 1)
        if (codes != _START_CODE).any():
            wrong_code = codes[(codes != _START_CODE).any(1)][0].tobytes().hex()
            raise self._data.damaged(
                "a frame begins without a start code", at, "000001", wrong_code
            )


def _next(counters: npt.NDArray[np.int64], previous_counter: int) -> npt.NDArray[np.int64]:
    """Return the counter that each packet should have, after that of the packet before."""
    previous = np.concatenate(([previous_counter], counters))[:-1]
    return np.where(previous == _NO_PACKET, _ANY, (previous + 1) & 0xF)
