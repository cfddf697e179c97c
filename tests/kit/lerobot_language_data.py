"""Language columns of lerobot 0.6 for datasets in tests: written by pyarrow."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Rows = list[dict[str, Any]]

BINDINGS = {
    "subtask": "active_at(t, style=subtask)",
    "memory": "active_at(t, style=memory, role=assistant)",
    "subtask_before": "nth_prev(t, style=subtask)",
    "plan_after": "nth_next(t, style=plan, offset=2)",
    "motion_now": "emitted_at(t, style=motion)",
    "speech": "emitted_at(t, role=assistant, tool_name=say)",
    "interjection": "emitted_at(t, style=interjection)",
    "vqa_wrist": "emitted_at(t, style=vqa, role=assistant, camera=observation.images.wrist)",
}
"""Resolvers of every kind, by feature."""

_CAMERAS = ("observation.images.front", "observation.images.wrist")


def row(style: str | None, content: str | None, time: float | None = None, **more: Any) -> Any:
    """A row of `language_persistent`, or without `time` of `language_events`."""
    found: dict[str, Any] = {"role": "assistant", "content": content, "style": style}
    found |= {} if time is None else {"timestamp": time}
    return {**found, "camera": None, "tool_calls": None, **more}


def say(text: str) -> Any:
    """A row of `language_events` that calls a tool."""
    call = {"type": "function", "function": {"name": "say", "arguments": {"text": text}}}
    return row(None, None, tool_calls=[call])


ANNOTATED: tuple[Rows, list[Rows]] = (
    [
        row("task_aug", "pick it", 0.0, role="user"),
        row("task_aug", "take it", 0.0, role="user"),
        row("plan", "1. reach 2. grasp", 0.1),
        row("subtask", "reach", 0.1),
        row("memory", "reached", 0.2),
        row("subtask", "grasp", 0.3),
    ],
    [
        [],
        [row("interjection", "wait", role="user"), say("yes")],
        [],
        [row("vqa", "left", camera=_CAMERAS[0]), row("vqa", "right", camera=_CAMERAS[1])],
        [],
    ],
)
"""Rows of an episode of five frames at 10 fps."""


def random_rows(number: int, stamps: Sequence[float]) -> tuple[Rows, list[Rows]]:
    """Rows of an episode; the number is a seed."""
    rng = np.random.default_rng(number)
    persistent = [row("task_aug", f"task {i}", 0.0, role="user") for i in range(2)]
    for style in ("subtask", "plan", "memory", "motion"):
        times = np.unique(rng.choice(stamps, 12) + rng.choice([0, 0.04], 12))
        for i, time in enumerate(times.tolist()):
            apart = i and time - times[i - 1] < 0.3  # `emitted_at` would be ambiguous
            if style != "motion" or not apart:
                persistent.append(row(style, f"{style} {i} {'Ürümqi 🙂' * (i % 2)}", time))
    persistent.sort(key=lambda one: (one["timestamp"], one["style"], one["role"]))
    events: list[Rows] = []
    for i in range(len(stamps)):
        some = [row("interjection", f"wait {i}", role="user")] * (rng.random() < 0.1)
        some += [say(f"yes {i}")] * (rng.random() < 0.1)
        if rng.random() < 0.3:
            for camera in _CAMERAS:
                some.append(row("vqa", f"where? {i}", role="user", camera=camera))
                some.append(row("vqa", json.dumps({"box": [i, 1]}), camera=camera))
        key = ("style", "role", "camera")
        events.append(sorted(some, key=lambda one: tuple(one[name] or "" for name in key)))
    return persistent, events


def annotate(
    root: Path, rows_of: Callable[[int, list[float]], tuple[Rows, list[Rows]]] = random_rows
) -> None:
    """Add the columns to a dataset by pyarrow, as lerobot's writer does."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for path in sorted(root.glob("data/**/*.parquet")):
        table = pq.read_table(path)
        number, stamps = (table[name].to_numpy() for name in ("episode_index", "timestamp"))
        columns: tuple[list[Rows], list[Rows]] = [], []
        for episode in np.unique(number).tolist():
            own = stamps[number == episode].tolist()
            persistent, events = rows_of(episode, own)
            columns[0].extend([persistent] * len(own))
            columns[1].extend(events)
        for name, values in zip(("language_persistent", "language_events"), columns, strict=True):
            table = table.append_column(name, pa.array(values))
        pq.write_table(table, path)
    info = json.loads((root / "meta/info.json").read_text())
    declared = {"dtype": "language", "shape": [1], "names": None}
    info["features"] |= dict.fromkeys(("language_persistent", "language_events"), declared)
    (root / "meta/info.json").write_text(json.dumps(info))
