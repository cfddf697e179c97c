"""`VerifyReport`: the result of `verify`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from seqrecord.errors import SeqRecordError
from seqrecord.store.text import counted, shown_place
from seqrecord.store.units import format_size


@dataclass(frozen=True)
class VerifyReport:
    """Result of `verify`. `notes` are remarks, not problems.

    `version` is the checked version, empty without a readable manifest. `skipped` are checks that
    this run did not make.

    Example:
        report = seqrecord.verify("records/", deep=True)
        for problem in report.problems:
            print(problem.file, problem.offset, problem)
    """

    url: str
    deep: bool
    num_record_files: int
    num_chunks: int
    num_pages: int
    num_frames: int  # decoded, counted for each feature
    page_bytes: int
    problems: tuple[SeqRecordError, ...]
    notes: tuple[str, ...]
    version: str
    skipped: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return not self.problems

    def __str__(self) -> str:
        problems = counted(len(self.problems), "problem") if self.problems else "no problem"
        is_decoded = self.deep or self.num_frames
        decoded = f", {counted(self.num_frames, 'array')} decoded" if is_decoded else ""
        pages = f"{counted(self.num_pages, 'page')} ({format_size(self.page_bytes)})"
        return (
            f"{shown_place(self.url)}: {problems} found; "
            f"{counted(self.num_record_files, 'record file')}, "
            f"{counted(self.num_chunks, 'chunk')}, {pages} checked{decoded}"
            + "".join(f"\nnot checked: {check}" for check in self.skipped)
        )


def joined_report(reports: Sequence[VerifyReport]) -> VerifyReport:
    """One report of the datasets that a joined one consists of."""
    counts = ("num_record_files", "num_chunks", "num_pages", "num_frames", "page_bytes")
    sums: dict[str, Any] = {name: sum(getattr(r, name) for r in reports) for name in counts}
    for name in ("problems", "notes", "skipped"):
        sums[name] = tuple(dict.fromkeys(item for r in reports for item in getattr(r, name)))
    return replace(reports[0], **sums)
