"""Checks a camera's videos: frames, keyframes and pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.formats.sources.lerobot.layout import LeRobotEpisode, LeRobotFeature
from seqrecord.formats.sources.lerobot.pairing import pair_in_order
from seqrecord.formats.sources.video.files import NO_KEYFRAME, VideoFile
from seqrecord.formats.sources.video.streams import TOLERANCE, read_frames
from seqrecord.formats.sources.video.tables import PacketTable, packets_of_rows, read_table
from seqrecord.in_place.files import size_of
from seqrecord.tools.doctor.doctor_report import CameraCount, Findings

FloatArray = npt.NDArray[np.float64]

_SECONDS_APART = 60.0  # between decoded keyframes
_MOST_DECODED = 32  # average decoded frames to read one; more is a finding
_BLOCK = 8
_BLACK, _SPREAD = 24.0, 4.0  # of block means, 0 to 255: maximum and range of a black picture
# A frozen picture: the largest change of block means, after at least so many seconds. Encoding the
# same picture again changes means by up to 5.
_STILL, _STILL_SECONDS = 6.0, 1.0


class VideoChecker:
    """Checks one camera's videos, one file at a time. Memory: the packet table of one file."""

    def __init__(self, root: Path, feature: LeRobotFeature, fps: float, findings: Findings) -> None:
        self._root, self._feature, self._fps = root, feature, fps
        self._name, self._findings = feature.name, findings
        self._files = self._frames = self._decoded = self._longest = 0
        self._longest_file: str | None = None
        self._clock = self._due = 0.0  # seconds of all files so far; next picture to check
        self._last: tuple[float, FloatArray] | None = None  # the last picture
        self._stream: tuple[object, ...] | None = None

    def examine(
        self, file: str, episodes: Sequence[LeRobotEpisode], times: Mapping[int, FloatArray]
    ) -> None:
        """Check one file, which contains these episodes.

        `times` are the row timestamps, in seconds, of episodes that deviate from the frame rate.
        """
        facts = {"file": file, "feature": self._name}
        self._files += 1
        with self._findings.caught(**facts), VideoFile(self._path(facts)) as video:
            self._check_stream(video, facts)
            table = read_table(video)
            self._check_size(table, facts)
            seconds: FloatArray = table.ticks[table.shown].astype(np.float64) * video.tick
            self._frames += len(seconds)
            if not len(seconds):
                self._findings.add("empty_file", "a video without frames", **facts)
                return
            self._check_episodes(video, table, episodes, times, seconds, facts)
            self._check_keyframes(table, facts)
            self._check_pictures(video, table, seconds, facts)

    def count(self) -> CameraCount:
        """Return the counts of all files. Reports a high decoding cost."""
        cost = self._decoded / self._frames if self._frames else 0.0
        if cost > _MOST_DECODED:
            self._findings.add(
                "keyframes",
                "keyframes are far apart: many frames are decoded to read one",
                file=self._longest_file,
                feature=self._name,
                expected=f"at most {_MOST_DECODED} frames on average",
                got=f"{cost:.0f} frames; up to {self._longest} from one keyframe to the next",
            )
        return CameraCount(self._name, self._files, self._frames, cost, self._longest)

    def _check_stream(self, video: VideoFile, facts: Mapping[str, Any]) -> None:
        stream = (video.codec, video.pixel_format, *video.coded_size)
        self._stream = self._stream or stream
        if stream != self._stream:
            is_size = stream[2:] != self._stream[2:]
            self._findings.add(
                "stream",
                "a video has another size than the first one; its episodes are left out"
                if is_size
                else "a video has another codec or pixel format than the first one; both are read",
                severity="error" if is_size else "warning",
                expected=" ".join(map(str, self._stream)),
                got=" ".join(map(str, stream)),
                **facts,
            )
        declared = math.prod(n for n in self._feature.shape if n not in (1, 3))
        if self._stream is stream and math.prod(video.coded_size) != declared:
            self._findings.add(
                "stream",
                "a video's size differs from the declared one",
                expected=list(self._feature.shape),
                got=list(video.coded_size),
                **facts,
            )

    def _check_size(self, table: PacketTable, facts: Mapping[str, Any]) -> None:
        end, size = int((table.starts + table.sizes).max(initial=0)), size_of(self._path(facts))
        if end > size:
            self._findings.add(
                "unreadable",
                "a truncated video",
                expected=f"{end} bytes or more",
                got=f"{size} bytes",
                **facts,
            )

    def _path(self, facts: Mapping[str, Any]) -> Path:
        return self._root / str(facts["file"])

    def _check_episodes(
        self,
        video: VideoFile,
        table: PacketTable,
        episodes: Sequence[LeRobotEpisode],
        times: Mapping[int, FloatArray],
        seconds: FloatArray,
        facts: Mapping[str, Any],
    ) -> None:
        half = 0.5 / self._fps
        uses = np.zeros(len(seconds), np.int32)
        shared_with: str | None = None
        for episode in (listed_episode for listed_episode in episodes if listed_episode.length):
            row_times = times.get(episode.index, np.arange(episode.length) / self._fps)
            video_begin = episode.videos[self._name].begin
            row_times = row_times + video_begin
            begin, end = np.searchsorted(seconds, [row_times[0] - half, row_times[-1] + half])
            if shared_with is None and uses[begin:end].any():
                shared_with = episode.key
            uses[begin:end] += 1
            self._check_rows(
                video, table, row_times, seconds, video_begin, {"episode": episode.key, **facts}
            )
        if shared := int((uses > 1).sum()):
            self._findings.add(
                "shared_frames",
                "frames belong to several episodes",
                episode=shared_with,
                got=f"{shared} of {len(uses)} frames",
                **facts,
            )
        if unnamed := int((uses == 0).sum()):
            self._findings.add(
                "unnamed_frames",
                "frames belong to no episode",
                expected=f"{len(uses) - unnamed} frames",
                got=f"{len(uses)} frames",
                **facts,
            )

    def _check_rows(
        self,
        video: VideoFile,
        table: PacketTable,
        row_times: FloatArray,
        seconds: FloatArray,
        begin: float,
        facts: Mapping[str, Any],
    ) -> None:
        """Report at most one finding: rows of an episode without frames."""
        half = 0.5 / self._fps
        is_outside = (row_times < seconds[0] - half) | (row_times > seconds[-1] + half)
        if is_outside.any():
            num_inside = int((~is_outside).sum())
            self._findings.add(
                "outside_file",
                "an episode has rows outside of its video",
                frame=int(np.argmax(is_outside)),
                expected=f"{len(row_times)} frames from {row_times[0]:.3f} to "
                f"{row_times[-1]:.3f} s",
                got=f"{num_inside} frames in a video from {seconds[0]:.3f} to {seconds[-1]:.3f} s",
                **facts,
            )
            return
        if pair_in_order(row_times, seconds, begin, 1 / self._fps) is not None:
            return  # jitter, which the rows tell
        with self._findings.caught("no_frame", **facts):
            packets_of_rows(video, table, row_times, TOLERANCE)

    def _check_keyframes(self, table: PacketTable, facts: Mapping[str, Any]) -> None:
        cuts = np.flatnonzero(table.is_cut[table.shown])
        if not len(cuts) or cuts[0]:
            self._findings.add(
                *("keyframes", NO_KEYFRAME),
                severity="error",
                expected="a keyframe at frame 0",
                got=f"one at frame {cuts[0]}" if len(cuts) else "none",
                **facts,
            )
            cuts = np.append(0, cuts)
        distances = np.diff(np.append(cuts, len(table.shown)))
        self._decoded += int((distances * (distances + 1) // 2).sum())
        if distances.max() > self._longest:
            self._longest, self._longest_file = int(distances.max()), facts["file"]

    def _check_pictures(
        self, video: VideoFile, table: PacketTable, seconds: FloatArray, facts: Mapping[str, Any]
    ) -> None:
        """Check one keyframe a minute, and the last one in the file."""
        cuts = np.flatnonzero(table.is_cut[table.shown])
        begin, self._clock = self._clock, self._clock + len(seconds) / self._fps
        times = begin + seconds[cuts] - seconds[0]
        checked_cuts: list[int] = []
        while (place := int(np.searchsorted(times, self._due))) < len(cuts):
            checked_cuts.append(int(cuts[place]))
            self._due = float(times[place]) + _SECONDS_APART
        if checked_cuts and checked_cuts[-1] != cuts[-1]:
            checked_cuts.append(int(cuts[-1]))
        reported_kinds: set[str] = set()
        for cut in checked_cuts:
            [frame] = read_frames(video, seconds[cut : cut + 1])
            means = _block_means(frame.to_ndarray(format="gray"))
            at = begin + float(seconds[cut] - seconds[0])
            previous, self._last = self._last, (at, means)
            if means.max() < _BLACK and np.ptp(means) < _SPREAD:
                kind, message = "black", "a black picture"
            elif previous is not None and _is_still(previous, self._last):
                kind, message = "frozen", "the same picture again: frozen, or nothing moves"
            else:
                continue
            if kind not in reported_kinds:
                reported_kinds.add(kind)
                got = f"{at - previous[0]:.1f} s later" if kind == "frozen" and previous else None
                self._findings.add(kind, message, frame=cut, got=got, **facts)


def _is_still(earlier: tuple[float, FloatArray], later: tuple[float, FloatArray]) -> bool:
    (time, means), (later_time, later_means) = earlier, later
    return (
        later_time - time >= _STILL_SECONDS
        and means.shape == later_means.shape
        and float(np.abs(means - later_means).max()) < _STILL
    )


def _block_means(gray: npt.NDArray[np.uint8]) -> FloatArray:
    height, width = (max(n // _BLOCK, 1) for n in gray.shape)
    rows, columns = (min(n, _BLOCK) for n in gray.shape)
    blocks = gray[: height * rows, : width * columns].reshape(height, rows, width, columns)
    means: FloatArray = blocks.mean((1, 3), dtype=np.float64)
    return means
