"""Packet tables of video files, and references to GOPs in these files.

All computations are on whole arrays: an episode of a file with a million packets is a few slices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError, located
from seqrecord.formats.sources.video.file_bytes import COPY
from seqrecord.formats.sources.video.files import NO_KEYFRAME, VideoFile
from seqrecord.formats.sources.video.frame_forms import UPRIGHT
from seqrecord.formats.sources.video.streams import NO_FRAME, NO_PICTURE, TOLERANCE
from seqrecord.in_place.remote import remote_files
from seqrecord.store.processes.forks import cached_property
from seqrecord.video.config import VideoConfig
from seqrecord.video.gops import MAX_GOP_FRAMES, MAX_GOP_PACKETS
from seqrecord.video.packets import PASSTHROUGH
from seqrecord.video.references import ReferencedGops

IntArray = npt.NDArray[np.int64]

_ENTRY: tuple[tuple[str, Any], ...] = (
    *(("timestamp", np.int64), ("pos", np.int64), ("size", np.int64)),
    *(("is_keyframe", bool), ("is_discard", bool)),
)
_FIRST = 32  # packets among which B-frames are sought
_CONVERT = "cannot read the video in place, convert it with `seqrecord write`"
_OPEN = "open GOPs: frames refer to frames before their keyframe"


@dataclass(frozen=True, eq=False)
class PacketTable:
    """The packets of a file in decoding order; all arrays have shape [packets].

    `ticks` are display times. `is_cut` marks packets where decoding can start, `is_key` the
    container's keyframes. Packet i is the byte range `[starts[i], starts[i] + sizes[i])`.
    """

    ticks: IntArray
    is_shown: npt.NDArray[np.bool_]
    is_key: npt.NDArray[np.bool_]
    is_cut: npt.NDArray[np.bool_]
    starts: IntArray
    sizes: IntArray

    @cached_property
    def shown(self) -> IntArray:
        """Packets with displayed frames, in display order."""
        packets = np.flatnonzero(self.is_shown)
        order: IntArray = packets[np.argsort(self.ticks[packets], kind="stable")]
        return order

    @cached_property
    def shown_ticks(self) -> npt.NDArray[np.float64]:
        """Display times of `shown`, ascending; float64, to be searched by fractional ticks."""
        return self.ticks[self.shown].astype(np.float64)

    @cached_property
    def cuts(self) -> IntArray:
        """Packets where decoding can start."""
        return np.flatnonzero(self.is_cut)

    @cached_property
    def group(self) -> IntArray:
        """Number of the cut from which each packet is decoded, -1 for none: int64 [packets]."""
        group: IntArray = np.cumsum(self.is_cut) - 1
        return group


def read_table(file: VideoFile) -> PacketTable:
    """Return the packet table, from the file's own tables if these suffice, else from all packets.

    The file's own tables do not suffice if they contradict the packets.

    Raises `SourceError` if the frame size changes. On a URL this is checked by readers instead.
    """
    if entries := file.entries():
        table_entries = list(entries)  # PyAV creates each entry on access
        ticks, starts, sizes, is_key, is_hidden = (
            np.fromiter(map(attrgetter(name), table_entries), kind, len(table_entries))
            for name, kind in _ENTRY
        )
        is_outside = (starts < 0) | (starts > file.nbytes - sizes)
        if is_outside.any():
            at = int(np.argmax(is_outside))
            raise SourceError(
                f"truncated video or invalid tables: packets outside of the file; {COPY}",
                file=str(file.path),
                offset=int(starts[at]),
                expected=f"packets up to byte {file.nbytes}",
                got=f"{int(sizes[at])} bytes",
            )
        if _is_true(file, is_key, starts, sizes, ticks):
            return PacketTable(ticks, ~is_hidden, is_key, is_key, starts, sizes)
    try:
        packets = [
            (p.tick, p.is_shown, p.is_key, p.is_cut, *file.place_of(p)) for p in file.packets()
        ]
    finally:
        file.close_bytes_file()
    ticks, is_shown, is_key, is_cut, starts, sizes = np.array(packets, np.int64).reshape(-1, 6).T
    return PacketTable(ticks, is_shown > 0, is_key > 0, is_cut > 0, starts, sizes)


def _is_true(file: VideoFile, key: npt.NDArray[np.bool_], *table: IntArray) -> bool:
    """Return whether the keyframes of a table are random access points, without B-frames between.

    `table` has the packets' starts, sizes and times; times of B-frames would be missing there.
    """
    starts, sizes, ticks = (column[key].tolist() for column in table)
    assert file.forms is not None
    if not key[0] or not file.forms.check_keyframes(starts, sizes, [n * file.tick for n in ticks]):
        return False
    if file.codec != "h264" or remote_files(file.path) is not None:
        return True
    first_columns = [column[:_FIRST].tolist() for column in table[:2]]
    return not file.forms.has_b(*first_columns)


def read_references(
    file: VideoFile,
    table: PacketTable,
    times: npt.NDArray[np.float64] | None = None,
    *,
    tolerance: float = TOLERANCE,
    config: VideoConfig | None = None,
) -> ReferencedGops:
    """Like `read_gops`, as references to GOPs in the file.

    `table` is the file's. Raises `SourceError` like `read_gops`, and for video that needs
    re-encoding.
    """
    with located(SourceError, file=str(file.path)):
        if file.codec not in PASSTHROUGH:
            raise SourceError(f"{_CONVERT}: packets of {file.codec} are not supported")
        if file.turn != UPRIGHT:
            raise SourceError(f"{_CONVERT}: it is rotated, so it must be re-encoded")
        packets = table.shown if times is None else packets_of_rows(file, table, times, tolerance)
        ticks = table.ticks[packets]
        if len(backward_rows := np.flatnonzero(ticks[1:] <= ticks[:-1])):
            raise SourceError("frame times are not ascending", frame=int(backward_rows[0]) + 1)
        return replace(_groups(file, table, packets), config=config)


def packets_of_rows(
    file: VideoFile, table: PacketTable, times: npt.NDArray[np.float64], tolerance: float
) -> IntArray:
    """Return the packet of each row's frame: the nearest one, within the tolerance."""
    if not (times[1:] > times[:-1]).all() or not np.isfinite(times).all():
        raise SourceError("timestamps are not ascending")
    ticks = table.shown_ticks
    next_frames = np.searchsorted(ticks, times / file.tick).clip(0, max(0, len(ticks) - 1))
    previous_frames = (next_frames - 1).clip(0)
    seconds = (
        ticks[[previous_frames, next_frames]] * file.tick
        if len(ticks)
        else np.full((2, len(times)), np.inf)
    )
    distances = np.abs(times - seconds)
    frame: IntArray = np.where(distances[0] <= distances[1], previous_frames, next_frames)
    is_own = np.diff(frame, prepend=-1) > 0
    if len(wrong_rows := np.flatnonzero((distances.min(0) >= tolerance) | ~is_own)):
        first_wrong = int(wrong_rows[0])
        hidden_distances = np.abs(table.ticks[~table.is_shown] * file.tick - times[first_wrong])
        raise SourceError(
            NO_PICTURE if (hidden_distances < tolerance).any() else NO_FRAME,
            frame=first_wrong,
            expected=f"a frame within {tolerance} s of {times[first_wrong]:.6f} s",
            got=f"{seconds[distances[:, first_wrong].argmin(), first_wrong]:.6f} s",
        )
    packets: IntArray = table.shown[frame]
    return packets


def _groups(file: VideoFile, table: PacketTable, shown_packets: IntArray) -> ReferencedGops:
    """Return the GOPs that contain the frames of these packets, in their order."""
    group = table.group[shown_packets]
    if len(group) and group.min() < 0:
        problem = f"{_CONVERT}: decoding may fail at its first keyframe"
        raise SourceError(problem if table.is_key[0] else NO_KEYFRAME)
    if (group[1:] < group[:-1]).any():
        raise SourceError(f"{_CONVERT}: {_OPEN}")
    is_first = np.ones(len(group), bool)
    np.not_equal(group[1:], group[:-1], out=is_first[1:])
    first_frame = np.flatnonzero(is_first)
    begins = table.cuts[group[first_frame]]
    last_packets = np.maximum.reduceat(shown_packets, first_frame) if len(begins) else begins
    counts = last_packets + 1 - begins
    frames = np.concatenate((first_frame[1:], [len(shown_packets)])) - first_frame
    first_packets = np.cumsum(counts) - counts
    packets = np.arange(int(counts.sum())) + np.repeat(begins - first_packets, counts)
    if (counts > MAX_GOP_PACKETS).any() or (frames > MAX_GOP_FRAMES).any():
        at = int(np.argmax((counts > MAX_GOP_PACKETS) | (frames > MAX_GOP_FRAMES)))
        is_open = table.is_key[begins[at] + 1 : last_packets[at] + 1].any()
        distance_problem = f"keyframes are more than {MAX_GOP_FRAMES} frames apart"
        raise SourceError(f"{_CONVERT}: {_OPEN if is_open else distance_problem}")
    order = np.full(len(packets), -1, np.int64)
    frame_numbers = np.arange(len(shown_packets)) - np.repeat(first_frame, frames)
    order[shown_packets + np.repeat(first_packets - begins, frames)] = frame_numbers
    starts, sizes = table.starts[packets], table.sizes[packets]
    if (sizes < 1).any() or (starts[1:] < (starts + sizes)[:-1]).any():
        raise SourceError(f"{_CONVERT}: its packets are out of order")
    return ReferencedGops(str(file.path), file.extradata, starts, sizes, order, first_packets)
