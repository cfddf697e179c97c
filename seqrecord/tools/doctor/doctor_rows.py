"""Checks the rows of a LeRobot dataset's Parquet files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seqrecord.errors import SchemaError
from seqrecord.formats.sources.common.parquet_tables import ParquetTable
from seqrecord.formats.sources.lerobot.layout import (
    LeRobotEpisode,
    LeRobotInfo,
    number_columns,
    read_texts,
)
from seqrecord.formats.sources.lerobot.pairing import jitter_note, pair_in_order
from seqrecord.formats.sources.lerobot.rows import array_of, number_column
from seqrecord.formats.sources.lerobot.stats import add_moments
from seqrecord.formats.sources.video.streams import TOLERANCE
from seqrecord.store.schema import FeatureSpec
from seqrecord.store.statistics.moments import Moments, moments_of
from seqrecord.tools.doctor.doctor_report import Findings

FloatArray = npt.NDArray[np.float64]

_ORDER = ("episode_index", "frame_index", "timestamp")


class RowChecker:
    """Checks all rows, one file at a time.

    Memory: one file's order columns, and 65,536 rows of its numbers. `times` are the timestamps of
    episodes whose rows deviate from the frame rate.
    """

    def __init__(self, root: Path, info: LeRobotInfo, findings: Findings) -> None:
        self._root, self._info, self._findings = root, info, findings
        self._specs = self._declared()
        self._texts: dict[str, set[int]] = {}  # by column, the numbers with a text
        for column in number_columns(root, info).values():
            with findings.caught("metadata", feature=column):
                self._texts[column] = {*read_texts(root, info, column)}
        self.sizes: dict[str, int] = {}  # rows of each file
        self.firsts: dict[int, tuple[str, int]] = {}  # file and first row of each episode
        self.times: dict[int, FloatArray] = {}
        self._statistics: dict[str, list[Moments]] = {}
        self._unknown: set[str] = set()  # features with unreadable numbers
        self.are_all_read = True

    @property
    def statistics(self) -> dict[str, list[Moments]]:
        """Moments of all rows by feature, without features that could not be read completely."""
        by_feature = self._statistics if self.are_all_read else {}
        return {name: moments for name, moments in by_feature.items() if name not in self._unknown}

    def examine(self, file: str, episodes: Sequence[LeRobotEpisode]) -> None:
        """Check one file, which contains these episodes."""
        were_all_read, self.are_all_read = self.are_all_read, False
        with self._findings.caught(file=file):
            table = ParquetTable(self._root / file)
            self.sizes[file] = table.num_rows
            if not table.num_rows:
                self._findings.add("empty_file", "a table without rows", file=file)
            if not episodes:
                self.are_all_read = were_all_read
                return
            table.check_rows(sum(episode.length for episode in episodes))
            lacking = [name for name in (*_ORDER, *self._specs) if name not in table.names]
            for name in lacking:
                self._findings.add(
                    "column", "a table lacks a column", file=file, feature=name, expected=name
                )
            self._unknown.update(lacking)
            order = self._read(table, file, lacking)
            self.are_all_read = were_all_read
            if order is not None:
                self._check(file, episodes, *order)

    def _declared(self) -> dict[str, FeatureSpec]:
        """Return the numeric features in the rows."""
        specs = {}
        for name, feature in self._info.features.items():
            if feature.dtype in ("image", "video", "string", "language"):
                continue
            shape = () if feature.shape == (1,) else feature.shape
            try:
                specs[name] = FeatureSpec(name, np.dtype(feature.dtype), shape)
            except (SchemaError, TypeError, ValueError, SyntaxError) as error:
                self._findings.add(
                    "metadata",
                    "a feature that cannot be stored",
                    feature=name[:100],
                    got=str(error)[:200],
                )
        return specs

    def _read(
        self, table: ParquetTable, file: str, lacking: Sequence[str]
    ) -> tuple[FloatArray, FloatArray, FloatArray] | None:
        """Return the columns of `_ORDER`;

        `None` if one is missing. Also adds numbers to the moments.
        """
        columns = [name for name in {**dict.fromkeys(_ORDER), **self._specs} if name not in lacking]
        parts: list[FloatArray] = []
        reported_names: set[str] = set()  # features already reported for this file
        for batch in table.batches(columns):
            for name in (
                name for name in self._specs if name in columns and name not in reported_names
            ):
                reported_names.add(name)
                with self._findings.caught("column", file=file, feature=name):
                    if self._take(name, batch, file):
                        reported_names.remove(name)
            self._unknown |= reported_names
            if not set(_ORDER) & {*lacking}:
                order = [number_column(batch, name).astype(np.float64) for name in _ORDER]
                parts.append(np.stack(order))
        if set(_ORDER) & {*lacking}:
            return None
        order_columns = np.concatenate([np.empty((3, 0)), *parts], axis=1)
        return order_columns[0], order_columns[1], order_columns[2]

    def _take(self, name: str, batch: pa.RecordBatch, file: str) -> bool:
        """Add a column's numbers to the moments. Returns whether all are finite."""
        values = array_of(batch.column(name), self._specs[name])
        if not len(values):
            return True
        if not np.isfinite(values).all():
            rows = ~np.isfinite(values.reshape(len(values), -1)).all(1)
            self._findings.add(
                "not_finite",
                "rows with numbers that are not finite",
                file=file,
                feature=name,
                got=f"{int(rows.sum())} of {len(rows)} rows",
                **_place(batch, int(rows.argmax())),
            )
            return False
        if name in self._texts:
            unknown_numbers = {*np.unique(values).tolist()} - self._texts[name]
            if unknown_numbers:
                self._findings.add(
                    "column",
                    "numbers without a text",
                    file=file,
                    feature=name,
                    expected=f"the number of a text, of {len(self._texts[name])}",
                    got=f"{name} {min(unknown_numbers)}",
                )
        elements = np.ascontiguousarray(values.reshape(len(values), -1), np.float64)
        add_moments(self._statistics, name, moments_of(elements))
        return True

    def _check(
        self,
        file: str,
        episodes: Sequence[LeRobotEpisode],
        numbers: FloatArray,
        frames: FloatArray,
        times: FloatArray,
    ) -> None:
        order = np.argsort(numbers, kind="stable")
        ordered = numbers[order]
        num_used = 0
        for episode in episodes:
            begin, end = np.searchsorted(ordered, [episode.index, episode.index + 1]).tolist()
            rows = order[begin:end]
            num_used += len(rows)
            facts = {"file": file, "episode": episode.key}
            if len(rows) != episode.length:
                self._findings.add(
                    "row_count",
                    "the number of rows differs from the index",
                    expected=episode.length,
                    got=len(rows),
                    **facts,
                )
            if not len(rows):
                continue
            self.firsts[episode.index] = file, int(rows[0])
            is_misplaced = frames[rows] != np.arange(len(rows))
            if is_misplaced.any() or (np.diff(rows) != 1).any():
                at = (
                    int(np.argmax(is_misplaced))
                    if is_misplaced.any()
                    else int(np.argmax(np.diff(rows) != 1))
                )
                self._findings.add(
                    "row_order",
                    "rows are missing or out of order",
                    frame=at,
                    expected=f"frame_index {at}" if is_misplaced.any() else "rows of one episode",
                    got=f"{frames[rows[at]]:g}" if is_misplaced.any() else "others between them",
                    **facts,
                )
            self._check_times(episode, times[rows], facts)
        if num_used < len(numbers):
            is_of_file = np.isin(numbers, [episode.index for episode in episodes])
            self._findings.add(
                "unnamed_rows",
                "rows belong to no episode of this file",
                file=file,
                expected=f"{num_used} rows",
                got=f"{len(numbers)} rows; the first other row belongs to episode "
                f"{numbers[np.argmin(is_of_file)]:g}",
            )

    def _check_times(
        self, episode: LeRobotEpisode, times: FloatArray, facts: Mapping[str, str]
    ) -> None:
        """Report at most one finding. Ascending times that deviate are kept for the videos."""
        expected_times = np.arange(len(times)) / self._info.fps
        deviations = np.abs(times - expected_times)
        if (deviations <= TOLERANCE).all():
            return
        steps = np.diff(times)
        median_step = float(np.median(steps)) if len(steps) else 0.0
        jumps = ~(steps > 0) | (np.abs(steps - median_step) > 0.5 / self._info.fps)
        if jumps.any():
            at = int(np.argmax(jumps))
            self._findings.add(
                "time_jump",
                f"timestamps jump in {int(jumps.sum())} of {len(jumps)} steps",
                frame=at + 1,
                expected=f"{times[at] + median_step:.6f} s",
                got=f"{times[at + 1]:.6f} s",
                **facts,
            )
        elif (paired := pair_in_order(times, expected_times, 0.0, 1 / self._info.fps)) is not None:
            note = jitter_note("this episode", paired[1])
            self._findings.add("time_jitter", note, severity="warning", **facts)
        else:
            at = int(np.argmax(deviations))
            self._findings.add(
                "time_drift",
                "timestamps do not match the frame rate",
                frame=at,
                expected=f"{expected_times[at]:.6f} s",
                got=f"{times[at]:.6f} s",
                **facts,
            )
        if len(times) == episode.length and np.isfinite(times).all() and (steps > 0).all():
            self.times[episode.index] = times


def _place(batch: pa.RecordBatch, row: int) -> dict[str, Any]:
    """Episode and frame of a row, if the table has their columns."""
    names = ("episode_index", "frame_index")
    if not {*names} <= {*batch.schema.names}:
        return {}
    number, frame = (number_column(batch, name)[row] for name in names)
    if not np.isfinite([number, frame]).all():
        return {}
    return {"episode": f"episode_{int(number):06d}", "frame": int(frame)}
