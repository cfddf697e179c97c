"""Findings of `examine` in a LeRobot dataset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from seqrecord.errors import SeqRecordError
from seqrecord.in_place.boundary import boundary
from seqrecord.in_place.remote import remote_files
from seqrecord.store.text import counted, number_text, one_line, printable, table_lines

SKIPPED = (
    "decoded frames, except one keyframe a minute of each video (see `seqrecord verify --deep`)",
    "images in Parquet tables",
)
"""Checks that `examine` does not make."""

_MOST_KEPT = 1000
_MOST_SHOWN = 5

_WARNINGS = {
    "unnamed_file",
    "unnamed_rows",
    "unnamed_frames",
    "keyframes",
    "black",
    "frozen",
}


@dataclass(frozen=True)
class Finding:
    """One problem: kind, place, expected and actual value.

    Severity "error": episodes are unreadable or would be read wrong; "warning": anything else.
    `file` is relative to the dataset's root.
    """

    kind: str
    severity: str
    message: str
    file: str | None = None
    episode: str | None = None
    feature: str | None = None
    frame: int | None = None
    expected: object = None
    got: object = None

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        facts = {n: v for n, v in self.to_json().items() if n not in ("kind", "severity")}
        message = facts.pop("message")
        text = "".join(f"; {name}: {value}" for name, value in facts.items())
        return printable(one_line(f"{message}{text}"))


@dataclass(frozen=True)
class CameraCount:
    """Counts of one camera's videos.

    `decoded_per_frame` is the average number of decoded frames to read one. `longest_distance` is
    the maximum number of frames from one keyframe to the next.
    """

    name: str
    files: int
    frames: int
    decoded_per_frame: float
    longest_distance: int


@dataclass(frozen=True)
class DoctorReport:
    """Counts and findings.

    `num_frames` is the sum of episode lengths in the index in `meta`, `num_rows` the rows in the
    tables. `counts` has the number of findings by kind, `findings` the first 1,000 of each kind and
    severity.
    """

    location: str
    num_episodes: int
    num_frames: int
    findings: tuple[Finding, ...]
    counts: dict[str, int]
    version: str
    fps: float
    num_tables: int
    num_rows: int
    cameras: tuple[CameraCount, ...]

    @property
    def ok(self) -> bool:
        """Whether there is no error. Warnings are allowed."""
        return not any(finding.severity == "error" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "ok": self.ok,
            "skipped": list(SKIPPED),
            "findings": [finding.to_json() for finding in self.findings],
        }

    def __str__(self) -> str:
        rows = [
            ("counted by", "files", "frames", "decoded per frame", "keyframes apart"),
            ("index (meta)", "", f"{self.num_frames:,}", "", ""),
            ("tables (parquet)", f"{self.num_tables:,}", f"{self.num_rows:,}", "", ""),
            *(
                (
                    printable(camera.name),
                    f"{camera.files:,}",
                    f"{camera.frames:,}",
                    number_text(camera.decoded_per_frame),
                    f"{camera.longest_distance:,}",
                )
                for camera in self.cameras
            ),
        ]
        episodes = counted(self.num_episodes, "episode")
        form = f"LeRobot {self.version}, {episodes}, {self.fps:g} frames a second"
        lines = [f"{self.location}: {form}", *table_lines(rows, num_left=1)]
        for kind, count in self.counts.items():
            findings = [finding for finding in self.findings if finding.kind == kind]
            findings.sort(key=lambda finding: finding.severity)  # errors first
            lines += [
                f"{finding.severity}: {kind}: {finding}" for finding in findings[:_MOST_SHOWN]
            ]
            if count > _MOST_SHOWN:
                lines.append(f"  and {count - _MOST_SHOWN:,} more of {kind}")
        total = sum(self.counts.values())
        lines.append(counted(total, "finding") if total else "no problem found")
        lines += [f"not checked: {check}" for check in SKIPPED]
        return "\n".join(lines)


class Findings:
    """Collects findings in files below `root`, the first 1,000 of each kind and severity."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.kept: list[Finding] = []
        self.counts: Counter[str] = Counter()
        self._num_kept: Counter[tuple[str, str]] = Counter()

    def add(self, kind: str, message: str, *, severity: str | None = None, **facts: Any) -> None:
        severity = severity or ("warning" if kind in _WARNINGS else "error")
        self.counts[kind] += 1
        # By severity, too: an error behind many warnings decides the exit code.
        if self._num_kept[kind, severity] < _MOST_KEPT:
            self._num_kept[kind, severity] += 1
            self.kept.append(Finding(kind, severity, message, **facts))

    @contextmanager
    def caught(self, kind: str = "unreadable", **facts: Any) -> Iterator[None]:
        """Turn errors of the block into findings.

        A failing storage raises `StorageError` instead.
        """
        try:
            with boundary():
                yield
        except (SeqRecordError, OSError) as error:
            files = remote_files(self._root)
            if files is not None and files.failure is not None:
                raise files.failure from None
            self.failed(error, kind, **facts)

    def failed(self, error: Exception, kind: str = "unreadable", **facts: Any) -> None:
        """Add an error as a finding."""
        if not isinstance(error, SeqRecordError):
            error = SeqRecordError("an unreadable file", got=str(error)[:200])
        context = {**facts, **{n: v for n, v in error.context().items() if n != "offset"}}
        root = f"{self._root}/"
        context = {n: v.replace(root, "") if isinstance(v, str) else v for n, v in context.items()}
        self.add(kind, error.message, **context)
