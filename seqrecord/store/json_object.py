"""Parsed JSON of an untrusted file: values are checked on access."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from seqrecord.errors import FormatError
from seqrecord.store.text import repr_of

MAX_JSON_VALUES = 1 << 20  # in a manifest or a footer


class JsonObject:
    """A JSON object with exactly the keys `keys`, and any of `optional`.

    `what` names the object in errors. Each method checks the value that it returns. Constructor
    and methods raise `FormatError`.
    """

    def __init__(
        self, value: object, keys: Iterable[str], what: str, optional: Iterable[str] = ()
    ) -> None:
        required_keys = set(keys)
        if not isinstance(value, dict) or set(value).difference(optional) != required_keys:
            raise FormatError(
                f"{what} is not an object of the right keys",
                expected=", ".join(sorted(required_keys)),
                got=repr_of(list(value)) if isinstance(value, dict) else repr_of(value, 50),
            )
        self.value: Mapping[str, Any] = value
        self._what = what

    @classmethod
    def of_file(
        cls,
        value: object,
        what: str,
        version: int,
        keys: Iterable[str],
        optional: Iterable[str] = (),
    ) -> JsonObject:
        """The root object of a seqrecord file, with checked `format` (`what`) and `version`."""
        json_object = cls(value, ("format", "version", *keys), f"a file of {what}", optional)
        if (got := json_object.value["format"]) != f"seqrecord {what}":
            raise FormatError(f"not a file of {what}", got=repr_of(got, 50))
        json_object.integer("version", version, version)
        return json_object

    def text(self, key: str, pattern: re.Pattern[str]) -> str:
        """A string that matches `pattern` completely."""
        return self._text(key, self.value[key], pattern)

    def integer(self, key: str, minimum: int = 0, maximum: int = 2**63 - 1) -> int:
        """An integer, not a bool, of `minimum` to `maximum`, both inclusive."""
        number = self.value[key]
        if type(number) is not int or not minimum <= number <= maximum:
            raise self._bad(key, f"{minimum} to {maximum}", number)
        return number

    def list(self, key: str, minimum: int = 0, maximum: int = MAX_JSON_VALUES) -> list[Any]:
        """An array of `minimum` to `maximum` values, both inclusive."""
        items = self.value[key]
        if not isinstance(items, list) or not minimum <= len(items) <= maximum:
            got = len(items) if isinstance(items, list) else items
            raise self._bad(key, f"a list of {minimum} to {maximum} entries", got)
        return items

    def texts(
        self, key: str, pattern: re.Pattern[str], maximum: int = MAX_JSON_VALUES
    ) -> tuple[str, ...]:
        """An array of at most `maximum` strings, each a complete match of `pattern`."""
        return tuple(self._text(key, text, pattern) for text in self.list(key, 0, maximum))

    def _text(self, key: str, text: object, pattern: re.Pattern[str]) -> str:
        if not isinstance(text, str) or not pattern.fullmatch(text):
            raise self._bad(key, pattern.pattern, text)
        return text

    def _bad(self, key: str, expected: str, got: object) -> FormatError:
        return FormatError(f"{self._what} has a bad {key}", expected=expected, got=repr_of(got))
