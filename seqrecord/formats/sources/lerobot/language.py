"""Language columns of lerobot 0.6: text rows of episodes and frames, and their resolvers.

::

    language_persistent   role, content, style, timestamp, camera, tool_calls: the same rows in all
                          frames of an episode, each active from its timestamp on
    language_events       the same without timestamp, in the frames where they happen

Resolvers choose a row for each frame, as in the recipes of lerobot 0.6.1 (its module
`datasets.language_render`).
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seqrecord.errors import SourceError
from seqrecord.formats.sources.common.parquet_tables import ParquetTable, python_values
from seqrecord.store.text import json_or_text, repr_of

PERSISTENT, EVENTS = "language_persistent", "language_events"

Rows: TypeAlias = "list[dict[str, Any]] | None"
"""The rows of a frame as in lerobot's items."""

_FIELDS = ("role", "content", "style", "timestamp", "camera", "tool_calls")
_STYLES = dict.fromkeys(("subtask", "plan", "memory", "motion", "task_aug"), PERSISTENT)
_STYLES |= dict.fromkeys(("interjection", "vqa", "trace"), EVENTS)
_TOLERANCE = 0.1  # seconds
_SELECTORS = ("style", "role", "tool_name", "camera")
_PERSISTENT_STYLES = tuple(style for style, column in _STYLES.items() if column == PERSISTENT)
_RESOLVERS: dict[str, tuple[tuple[str, ...], tuple[str | None, ...]]] = {  # selectors, styles
    "active_at": (_SELECTORS, _PERSISTENT_STYLES),
    "emitted_at": (_SELECTORS, (*_STYLES, None)),
    "nth_prev": ((*_SELECTORS, "offset"), _PERSISTENT_STYLES),
    "nth_next": ((*_SELECTORS, "offset"), _PERSISTENT_STYLES),
}
_EXPRESSION = re.compile(rf"({'|'.join(_RESOLVERS)})\((.*)\)")


@dataclass(frozen=True)
class Resolver:
    """Chooses a row for each frame by time, style, role, tool and camera.

    - `active_at`: the last persistent row up to the time of the frame.
    - `emitted_at`: the event of the frame; for styles of persistent rows, the one within 0.1 s.
    - `nth_prev`, `nth_next`: the persistent row `offset` places before or behind the active one.
    """

    name: str
    style: str | None = None
    role: str | None = None
    tool_name: str | None = None
    camera: str | None = None
    offset: int = 1

    @classmethod
    def parse(cls, feature: str, text: object) -> Resolver:
        """Parse an expression of lerobot's recipes, such as `active_at(t, style=subtask)`."""
        if isinstance(text, Resolver):
            return text
        match = _EXPRESSION.fullmatch(text.strip()) if isinstance(text, str) else None
        name, arguments = match.groups() if match else ("", "")
        parts = [part.strip() for part in arguments.split(",")]
        pairs = [part.partition("=") for part in parts if part not in ("", "t")]
        values = {key.strip(): value.strip(" \"'") for key, _, value in pairs}
        keys, styles = _RESOLVERS.get(name, (_SELECTORS, ()))
        if not name or not all(key in keys and value for key, value in values.items()):
            raise _not_resolver(feature, f"keys {', '.join(keys)}", text)
        offset = values.pop("offset", "1")
        if not re.fullmatch(r"-?[1-9]\d{0,8}", offset):
            raise _not_resolver(feature, "an offset other than 0", text)
        resolver = cls(name, **values, offset=int(offset))
        if resolver.style not in styles:
            names = ", ".join(filter(None, styles))
            raise _not_resolver(feature, f"a style among {names}", text)
        return resolver

    def __str__(self) -> str:
        selectors = [
            (selector.name, getattr(self, selector.name), selector.default)
            for selector in fields(self)[1:]
        ]
        texts = [f"{name}={value}" for name, value, default in selectors if value != default]
        return f"{self.name}({', '.join(['t', *texts])})"

    @property
    def is_of_events(self) -> bool:
        """Whether the rows are of `language_events`."""
        return self.name == "emitted_at" and _STYLES.get(self.style or "") != PERSISTENT

    def texts(
        self, times: Sequence[float], persistent: Rows, events: Sequence[Rows] | None
    ) -> list[str | None]:
        """Return the text of each frame; `None` without a row.

        The text of a row without content is its tool calls as JSON. Raises `SourceError` if several
        rows match, as lerobot does.

        Args:
            times: timestamps of the frames in seconds, of float32.
            persistent: the episode's rows.
            events: each frame's rows; needed if `is_of_events`.
        """
        if self.is_of_events:
            return [self._text([*filter(self._matches, rows or ())]) for rows in events or ()]
        matching_rows = sorted(filter(self._matches, persistent or ()), key=_order)
        stamps = [row["timestamp"] for row in matching_rows]
        return [self._text(self._at(time, matching_rows, stamps)) for time in times]

    def _at(
        self, time: float, rows: Sequence[dict[str, Any]], stamps: Sequence[float]
    ) -> Sequence[dict[str, Any]]:
        if self.name == "emitted_at":
            return [row for row in rows if abs(row["timestamp"] - time) <= _TOLERANCE]
        num_past = bisect_right(stamps, time)
        if self.name == "active_at":
            return rows[bisect_left(stamps, stamps[num_past - 1]) : num_past] if num_past else []
        step = self.offset if self.name == "nth_next" else -self.offset
        place = num_past - 1 + step if num_past or step > 0 else -1
        return rows[place : place + 1] if place >= 0 else []

    def _matches(self, row: Mapping[str, Any]) -> bool:
        tools = (call.get("function") for call in row["tool_calls"] or () if isinstance(call, dict))
        return (
            self.style in (None, row["style"])
            and self.role in (None, row["role"])
            and self.camera in (None, row["camera"])
            and (
                self.tool_name is None
                or any(isinstance(f, dict) and f.get("name") == self.tool_name for f in tools)
            )
        )

    def _text(self, rows: Sequence[dict[str, Any]]) -> str | None:
        if len(rows) > 1:
            raise SourceError(
                "several rows of language match; add a role, tool_name or camera to the resolver",
                expected=f"one row for {self}",
                got=f"{len(rows)} rows",
            )
        for row in rows:
            if row["content"] is None and row["tool_calls"]:
                return json.dumps(row["tool_calls"], ensure_ascii=False)
            return row["content"] or ""
        return None


def _not_resolver(feature: str, expected: str, got: object) -> SourceError:
    return SourceError(
        "not a resolver of language columns, such as active_at(t, style=subtask), emitted_at(t, "
        "role=assistant, tool_name=say), nth_prev(t, style=memory) or nth_next(t, style=subtask)",
        feature=feature[:100],
        expected=expected,
        got=repr_of(got, 200),
    )


def _order(row: Mapping[str, Any]) -> tuple[float, str, str]:
    return row["timestamp"], row["style"] or "", row["role"] or ""


def parse_resolvers(option: object) -> dict[str, Resolver]:
    """Check the option `language`: resolvers by feature, or the same as JSON."""
    if isinstance(option, str):
        with suppress(ValueError):  # refused below
            option = json.loads(option)
    if not isinstance(option, Mapping) or not all(isinstance(name, str) for name in option):
        raise SourceError(
            "language is not valid",
            expected='resolvers by feature, such as {"subtask": "active_at(t, style=subtask)"}',
            got=repr_of(option, 200),
        )
    return {name: Resolver.parse(name, text) for name, text in option.items()}


def rows_of_frames(column: pa.Array, name: str) -> list[Rows]:
    """Return each frame's rows of a language column, with timestamps of float32."""
    names = [
        field_name for field_name in _FIELDS if name == PERSISTENT or field_name != "timestamp"
    ]
    rows_by_frame: list[Rows] = []
    for rows in python_values(column):
        try:
            rows_by_frame.append(
                rows
                and [
                    {field_name: _value(field_name, row[field_name]) for field_name in names}
                    for row in rows
                ]
            )
        except (KeyError, TypeError, ValueError) as error:
            raise SourceError(
                "the column differs from its declaration in info.json",
                feature=name,
                expected=f"a list of {', '.join(names)}",
                got=repr_of(rows, 200),
            ) from error
    return rows_by_frame


def _value(name: str, value: Any) -> Any:
    if name == "timestamp":
        return float(np.float32(value))
    if name == "tool_calls" and value is not None:
        return [json_or_text(call) if isinstance(call, str) else call for call in value]
    return value


def persistent_rows(path: Path) -> Iterator[tuple[int, Rows | SourceError]]:
    """Yield the persistent rows of each episode in a file, by number.

    An episode whose rows cannot be read, or whose frames differ, has an error, also after rows.
    """
    last_number, first_rows, bad = -1, pa.array([]), set[int]()
    facts: dict[str, Any] = {"file": str(path), "feature": PERSISTENT}
    for numbers, column in _by_group(ParquetTable(path)):
        ends = [*np.flatnonzero(np.diff(numbers)).tolist(), len(numbers) - 1]
        begin = 0
        for end in ends:
            count, number = end - begin, int(numbers[begin])
            try:
                if isinstance(column, SourceError):
                    raise column
                if number != last_number and number not in bad:
                    last_number, first_rows = number, column.slice(begin, 1)
                    yield number, rows_of_frames(first_rows, PERSISTENT)[0]
                is_same = column.slice(begin + 1, count).equals(column.slice(begin, count))
                if number == last_number and not (
                    is_same and column.slice(begin, 1).equals(first_rows)
                ):
                    raise SourceError(
                        "frames of an episode have different persistent rows of language",
                        expected="equal rows in all frames of an episode",
                    )
            except SourceError as error:
                bad.add(number)
                yield number, SourceError(error.message, **{**facts, **error.context()})
            begin = end + 1


def _by_group(
    table: ParquetTable,
) -> Iterator[tuple[npt.NDArray[np.int64], pa.Array | SourceError]]:
    """Yield episode numbers with their persistent rows; an error for rows of a damaged group."""
    for group in range(table.num_groups):
        try:
            for batch in table.batches(["episode_index", PERSISTENT], rows=512, group=group):
                yield np.asarray(batch.column(0)), batch.column(1)
        except SourceError as error:
            for batch in table.batches(["episode_index"], group=group):
                yield np.asarray(batch.column(0)), error
