"""Reads a YAML file of plain values, with the line of each key; no object is constructed.

Scalars are JSON's: `null`, `true`, `false`, integers and floats. Everything else is text:
`no`, `0:16`, `007` and dates, which YAML 1.1 converts, are kept as written.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml  # imported on demand with this module

from seqrecord.errors import ClipError
from seqrecord.store.text import repr_of

_MOST_BYTES = 1 << 20
_MOST_VALUES = 1 << 16  # after the expansion of aliases
_MOST_LEVELS = 32
_MOST_DIGITS = 40  # characters of a number

_TAG = "tag:yaml.org,2002:"
_FLOAT = r"-?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?"
_SCALARS: tuple[tuple[str, Callable[[str], Any]], ...] = (  # unquoted ones: pattern, value
    (r"null|~|", lambda _: None),
    (r"true|false", lambda text: text == "true"),
    (r"-?(?:0|[1-9][0-9]*)", int),
    (_FLOAT, float),
)


_BY_EPOCH = ("weights",)
"""Keys whose mappings may have numbers as keys."""


class YamlDict(dict[str, Any]):
    """A mapping from a YAML file, with each key's line, from 1."""

    lines: dict[str, int]


def read_yaml(path: Path) -> YamlDict:
    """Read a file whose root is a mapping.

    Raises `ClipError` with file and line for invalid YAML, duplicate keys, keys that are not text,
    tags, numbers of too many digits, and files that are too large or not regular.
    """
    with open(path, "rb", opener=_opened) as file:
        is_regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
        data = file.read(_MOST_BYTES + 1) if is_regular else b""
    try:
        if not is_regular:
            raise ClipError("not a regular file", expected="a file, no pipe, device or folder")
        if len(data) > _MOST_BYTES:
            raise ClipError("the file is too large", expected=f"at most {_MOST_BYTES} bytes")
        value = _Reader().value(_compose(data), 0)
        if not isinstance(value, YamlDict):
            raise ClipError("not a mapping", expected="keys and values", got=repr_of(value, 100))
    except ClipError as error:
        raise error.located(file=str(path)) from None
    return value


def yaml_value(text: str) -> Any:
    """The value of a YAML text, such as `{front: [-1, 0]}`; raises `ClipError` like `read_yaml`."""
    return _Reader().value(_compose(text.encode()), 0)


def _opened(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # of a pipe, without waiting for its other end


def _compose(data: bytes) -> yaml.Node | None:
    try:
        return yaml.compose(data, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = "" if mark is None else f"line {mark.line + 1}: "
        raise ClipError(f"{where}invalid YAML: {error.problem or error}") from None
    except (yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split()) or "too many levels"
        raise ClipError(f"invalid YAML: {reason}") from None


class _Loader(yaml.SafeLoader):
    """A safe loader that leaves scalars as text."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012 - of PyYAML


class _Reader:
    """Converts nodes to values, and counts them: aliases may expand to many."""

    def __init__(self) -> None:
        self._count = 0

    def value(self, node: yaml.Node | None, level: int, key: str = "") -> Any:
        """The value of a node at a level of nesting, below a key."""
        if node is None:
            return None
        self._count += 1
        if self._count > _MOST_VALUES or level > _MOST_LEVELS:
            raise _at(node, "too many values, or levels", f"{_MOST_VALUES} values")
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self._mapping(node, level, are_epochs=key in _BY_EPOCH)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return [self.value(child, level + 1, key) for child in node.value]
        if isinstance(node, yaml.ScalarNode) and node.tag == _TAG + "str":
            return self._scalar(node, key)
        raise _at(node, "a tag is not allowed", "plain values", node.tag)

    def _scalar(self, node: yaml.ScalarNode, key: str) -> Any:
        for pattern, convert in _SCALARS if node.style is None else ():
            if re.fullmatch(pattern, node.value):
                if convert in (int, float) and len(node.value) > _MOST_DIGITS:
                    problem, got = "has a number of too many digits", f"{len(node.value)} digits"
                    raise _at(node, f"{key} {problem}".strip(), f"at most {_MOST_DIGITS}", got)
                return convert(node.value)
        return node.value

    def _mapping(self, node: yaml.MappingNode, level: int, *, are_epochs: bool = False) -> YamlDict:
        merged: list[yaml.Node] = []
        mapping, lines = YamlDict(), dict[str, int]()
        for key_node, value_node in node.value:
            if key_node.value == "<<" and key_node.style is None:
                is_list = isinstance(value_node, yaml.SequenceNode)
                merged += value_node.value if is_list else [value_node]
                continue
            key: Any = self.value(key_node, level + 1)
            is_allowed = isinstance(key, str) or (are_epochs and type(key) is int)
            if not is_allowed:
                raise _at(key_node, "a key is not text", "quotes around it", repr_of(key, 50))
            if key in mapping:
                place = f"{key!r}, first in line {lines[key]}"
                raise _at(key_node, "a key appears twice", "each key once", place)
            mapping[key], lines[key] = self.value(value_node, level + 1, key), _line(key_node)
        for base_node in merged:  # keys of `<<`; earlier ones take precedence
            base = self.value(base_node, level + 1)
            if not isinstance(base, YamlDict):
                raise _at(
                    base_node, "<< is not a mapping", "an alias such as *name", repr_of(base, 50)
                )
            mapping = YamlDict({**base, **mapping})
            lines = {**base.lines, **lines}
        mapping.lines = lines
        return mapping


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _at(node: yaml.Node, problem: str, expected: str, got: object = None) -> ClipError:
    return ClipError(f"line {_line(node)}: {problem}", expected=expected, got=got)
