"""Reads YAML files of originals: plain values by the core schema of YAML 1.2, within a budget.

Built on the events of PyYAML, whose constructors follow YAML 1.1: there `1e-3` is text and `no` is
false. Nothing is constructed from a tag. OpenCV's first line `%YAML:1.0` is accepted. Values are
counted with their aliases expanded, so that a small file cannot become a large structure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from seqrecord.errors import SourceError
from seqrecord.in_place.files import read_bytes
from seqrecord.store.text import repr_of

# Aliases expand a small file to any size
# (tests/formats/test_sequences.py::test_budget_of_a_small_file).
_MOST_VALUES = 1 << 18  # with expanded aliases; a recording of 10,000 files has about 100,000
_MOST_LEVELS = 64
_MOST_DIGITS = 40  # characters of a number

_OPENCV = re.compile(rb"\A(\xef\xbb\xbf)?%YAML:[^\r\n]*")
_INTEGER = re.compile(r"[-+]?[0-9]+")
_OTHER_BASES = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
}
_TEXT_TAGS = ("!", "tag:yaml.org,2002:str")


def read_yaml(path: Path, limit: int) -> Any:
    """Read a file of one document and at most `limit` bytes; `None` for an empty one.

    Returns dicts with keys as written, lists, texts, numbers, booleans and `None`. Equal aliases
    share an object. Raises `SourceError` with the line for invalid YAML, duplicate keys and a file
    beyond the budget.
    """
    data = _OPENCV.sub(b"", read_bytes(path, limit))
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, if it was built
    try:
        return _Builder(str(path)).document(yaml.parse(data, loader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f" in line {mark.line + 1}"
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise SourceError(f"invalid YAML{place}", file=str(path), got=f"{problem}"[:200]) from error


@dataclass
class _Container:
    """A list or dict that is being read; `key` waits for its value, `size` counts values."""

    value: list[Any] | dict[str, Any]
    anchor: str | None
    size: int = 1
    key: str | None = None


@dataclass
class _Builder:
    file: str
    anchors: dict[str, tuple[Any, int]] = field(default_factory=dict)
    levels: list[_Container] = field(default_factory=list)
    root: Any = None
    count: int = 0
    documents: int = 0

    def document(self, events: Iterator[Any]) -> Any:
        for event in events:
            if isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
                is_dict = isinstance(event, yaml.MappingStartEvent)
                self._check(event, not self.levels or self._takes_value, "a key is not text")
                self._check(event, len(self.levels) < _MOST_LEVELS, "nested too deeply")
                self.levels.append(_Container({} if is_dict else [], event.anchor))
            elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
                level = self.levels.pop()
                self._add(event, level.value, level.size, level.anchor)
            elif isinstance(event, yaml.ScalarEvent):
                if self._takes_value:
                    self._add(event, _scalar(event), 1, event.anchor)
                else:
                    level = self.levels[-1]
                    is_new = event.value not in level.value
                    self._check(event, is_new, "a key appears twice", event.value)
                    level.key = event.value
            elif isinstance(event, yaml.AliasEvent):
                self._check(event, event.anchor in self.anchors, "unknown or recursive alias")
                self._add(event, *self.anchors[str(event.anchor)], None)
            elif isinstance(event, yaml.DocumentStartEvent):
                self.documents += 1
                self._check(event, self.documents == 1, "a second document")
        return self.root

    @property
    def _takes_value(self) -> bool:
        """Whether the next scalar is a value, not the key of a mapping."""
        level = self.levels[-1] if self.levels else None
        return level is None or isinstance(level.value, list) or level.key is not None

    def _add(self, event: Any, value: Any, size: int, anchor: str | None) -> None:
        """Add a finished value to its container, and count it with its parts."""
        if anchor is not None:
            self.anchors[anchor] = value, size
        if not self.levels:
            self.root = value
            return
        level = self.levels[-1]
        level.size += size
        self._check(event, level.size <= _MOST_VALUES, "too many values", level.size)
        self.count += 1
        self._check(event, self.count <= _MOST_VALUES, "too many values", self.count)
        if isinstance(level.value, list):
            level.value.append(value)
        else:
            self._check(event, level.key is not None, "a key is not text")
            level.value[str(level.key)], level.key = value, None

    def _check(self, event: Any, is_right: bool, problem: str, got: object = None) -> None:
        if not is_right:
            line = event.start_mark.line + 1
            raise SourceError(
                f"invalid YAML in line {line}: {problem}",
                file=self.file,
                expected=f"at most {_MOST_VALUES} values in {_MOST_LEVELS} levels, unique keys",
                got=None if got is None else repr_of(got, 100),
            )


def _scalar(event: Any) -> Any:
    """Return the value of a scalar; numbers of too many digits are text."""
    text: str = event.value
    if event.style or event.tag in _TEXT_TAGS:  # quoted, or a block
        return text
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > _MOST_DIGITS:
        return text
    if _INTEGER.fullmatch(text):
        return int(text)
    if _OTHER_BASES.fullmatch(text):
        return int(text, 0)
    return float(text) if _FLOAT.fullmatch(text) else text
