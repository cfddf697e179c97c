"""Formatting of counts, numbers, shapes, codecs and untrusted values for messages."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+:/).*", re.DOTALL)
_LONG_INTEGER = 10_000  # bits; Python refuses to print more than 4,300 digits
_BRACKETS: dict[type, tuple[str, str]] = {list: ("[", "]"), tuple: ("(", ")"), set: ("{", "}")}


_originals: dict[str, str] = {}  # location of an original by the folder of its index


def name_index(folder: str, original: str) -> None:
    """Make messages show `original` in place of `folder`, the folder of its index."""
    _originals[folder] = original


def shown_place(place: str) -> str:
    """A path or URL for messages; for files of a registered index, the original's location."""
    if place in _originals:
        return _originals[place]
    for folder, original in _originals.items():
        if place.startswith(f"{folder}/"):
            return f"{original} (its index, {place[len(folder) + 1 :]})"
    return place


def counted(count: int, noun: str) -> str:
    """`1 episode`, `1,200 episodes`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def first_of(items: Sequence[object], max_items: int) -> str:
    """`a, b, …`: the first `max_items` items."""
    return ", ".join(map(str, items[:max_items])) + (", …" if len(items) > max_items else "")


def json_or_text(text: str) -> Any:
    """The value of JSON, or the text if it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def one_line(message: object) -> str:
    """Text of `message` without line breaks."""
    return " ".join(str(message).split())


def printable(text: str) -> str:
    """Escape control characters, such as cursor movements and changes of direction."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def number_text(value: float) -> str:
    """About three digits: `0.0123`, `12.3`, `1230`, `1.2e+06`."""
    if 100 <= abs(value) < 100_000:
        return f"{value:.0f}"
    return f"{value:.3g}"


def percent(share: float) -> str:
    """`12 %`."""
    return f"{100 * share:.0f} %"


def range_text(low: float, high: float) -> str:
    """Two numbers with enough decimals to differ: `-27.21 to -27.03`."""
    span = high - low
    if not span or max(abs(low), abs(high)) >= 100_000 or span < 1e-4:
        return number_text(low) if low == high else f"{number_text(low)} to {number_text(high)}"
    decimals = min(max(1 - math.floor(math.log10(span)), 0), 4)
    # Adding zero turns -0.0 into 0.0.
    return " to ".join(f"{round(value, decimals) + 0.0:.{decimals}f}" for value in (low, high))


_SLASH, _AT = r"(?:[/\\]|%(?:25)*(?:2F|5C))", re.compile(r"@|%(?:25)*40", re.IGNORECASE)
# Start of user name and password in a URL, after any number of slashes.
_START = re.compile(rf"[a-z][a-z0-9+.-]*(?::|%(?:25)*3A){_SLASH}*|{_SLASH}{{2,}}", re.IGNORECASE)
_NAMES = (
    r"(?:(?<![a-z])(?:sig|sas|pwd)|(?:signature|token|secret|passw(?:or)?d|passphrase|credential|"
    r"assertion|authorization|private.?key|access.?key|account.?key|master.?key|api.?key|"
    r"connection.?string)[\w-]{0,30})"
)
_IS = r"(?:[ \t]*[=:][ \t]*(?:b(?=['\"]))?|(?<=signature):\s*|%(?:25)*3[AD])"
_VALUE = r"(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\s&;]+)"
_SECRETS = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"((?:Bearer|Basic|Digest|Negotiate|SharedKey\w*|AWS4-HMAC-SHA256)\s+)[^\s'\"]+",
        # In queries, also quoted ones; in headers, connection strings, dicts, JSON.
        rf"({_NAMES}['\"]?{_IS})(?![\w-]+\s+…){_VALUE}",
        r"\b((?:hf|gh[a-z]|github_pat|glpat|xox[a-z])[_-]|ya29\.|eyJ)[\w.-]{8,}",
    )
]


def without_secrets(text: str) -> str:
    """Hide passwords, keys, tokens and signatures in URLs, headers, options and messages.

    Hides all text between a URL's scheme and the last `@` before a space, because a password may
    contain any character. Also hides values of names such as `sig`, `token` and `AccountKey`. May
    hide more than necessary.
    """
    for pattern in _SECRETS:
        text = pattern.sub(r"\1…", text)
    return re.sub(r"\S+", _without_userinfo, text)


def _without_userinfo(run: re.Match[str]) -> str:
    text = run[0]
    if not (matches := [*_AT.finditer(text)]):
        return text
    start = _START.search(text, 0, end := matches[-1].start())
    return text if start is None else f"{text[: start.end()]}…{text[end:]}"


def repr_of(value: object, limit: int = 200) -> str:
    """An untrusted value's `repr`, cut to `limit` characters.

    Formats only the shown beginning of a long list or text. Shows the bit length of a huge
    integer, and the type of an object whose `repr` fails. Shows only the scheme of a URL, because
    the rest may contain a password.
    """
    text = ""
    # Piece by piece: the `repr` of a list with a million numbers takes 0.1 s and 7 MB for these few
    # characters (tests/store/test_text.py::test_only_the_start_of_a_large_value_is_formatted).
    for part in _parts(value, limit):
        text += part
        if len(text) >= limit:
            break
    text = without_secrets(_URL.sub(r"\1…", text))
    return text[:limit].encode("utf-8", "backslashreplace").decode()


def shape_text(shape: Sequence[int | None]) -> str:
    """`480 x 640 x 3`; a variable dimension is `?`."""
    return " x ".join("?" if n is None else str(n) for n in shape) or "scalar"


def codec_text(codec: Sequence[Mapping[str, Any]]) -> str:
    """A codec chain: `delta(-1) + bias + blosc(zstd, 2)`."""
    return " + ".join(map(_step_text, codec)) or "raw"


def table_lines(rows: Sequence[Sequence[str]], *, num_left: int) -> list[str]:
    """Align columns: the first `num_left` ones to the left, the rest (numbers) to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if column < num_left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _parts(value: object, limit: int) -> Iterator[str]:
    """Pieces of a value's `repr`, generated on demand so that the caller can stop early."""
    kind = type(value)
    if isinstance(value, (str, bytes, bytearray)) and kind in (str, bytes, bytearray):
        yield repr(value[:limit])
    elif isinstance(value, dict) and kind is dict:
        separator = "{"
        for key, item in value.items():
            yield separator
            yield from _parts(key, limit)
            yield ": "
            yield from _parts(item, limit)
            separator = ", "
        yield "}" if value else "{}"
    elif isinstance(value, (list, tuple, set)) and kind in _BRACKETS and value:
        separator, closing = _BRACKETS[kind]
        for item in value:
            yield separator
            yield from _parts(item, limit)
            separator = ", "
        yield "," * (kind is tuple and len(value) == 1) + closing
    elif isinstance(value, int) and value.bit_length() > _LONG_INTEGER:
        yield f"an integer of {value.bit_length():,} bits"
    else:
        try:
            yield repr(value)[:limit]
        except Exception:
            yield f"<{kind.__name__}>"


def _step_text(config: Mapping[str, Any]) -> str:
    hidden = ("id", "width", "shuffle", "blocksize")  # minor parameters
    params = {key: value for key, value in config.items() if key not in hidden}
    values = [key if isinstance(value, Mapping) else str(value) for key, value in params.items()]
    name = config["id"].removeprefix("seqrecord.")
    return f"{name}({', '.join(values)})" if values else name
