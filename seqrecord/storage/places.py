"""Comparison of locations with the unique names of places, see `url.named_place`."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seqrecord.errors import LocationError
from seqrecord.storage.url import (
    OF_PLACE,
    Location,
    named_place,
    normal_url,
    parse_location,
    place_options,
)

_OPTION = rf"({'|'.join(OF_PLACE)})=[^&]*"
_PLACE = re.compile(rf"(?P<url>[^?]*://[^?]*)\?(?P<options>{_OPTION}(&{_OPTION})*)")


def is_place_of(location: str | os.PathLike[str], place: str) -> bool:
    """Whether a location, or the name of a place, refers to `place`.

    A location without account or endpoint matches all of them. Raises `LocationError` for an
    invalid location.
    """
    where, wanted, options = _parsed(location)
    if where.protocol == "file":
        return place == str(Path(where.root).absolute())
    with contextlib.suppress(LocationError):
        other, normalized, known = _parsed(place)
        # A place without endpoint is at the default one, as the URL of an account is.
        known = {"endpoint": where.options.get("endpoint", ""), **known}
        is_same = other.protocol != "file" and wanted == normalized
        return is_same and all(known.get(name) == options[name] for name in options)
    return False


def shown_place(location: str | os.PathLike[str]) -> str:
    """A location without credentials. Raises `LocationError` if invalid."""
    where, _, options = _parsed(location)
    return where.shown if where.protocol in ("file", "az") else named_place(where.shown, options)


def _parsed(place: str | os.PathLike[str]) -> tuple[Location, str, dict[str, str]]:
    """Parse a place: location, normalized URL, and options that identify it."""
    found = _PLACE.fullmatch(place) if isinstance(place, str) else None
    where = parse_location(place if found is None else found["url"])
    words = [] if found is None else found["options"].split("&")
    options = {**where.options, **dict(word.split("=", 1) for word in words)}
    if where.protocol == "az":
        return where, normal_url(f"az://{where.root}"), place_options(options)
    return where, normal_url(where.shown), place_options({**_url_options(where), **options})


def _url_options(where: Location) -> Mapping[str, Any]:
    """Options that an fsspec filesystem derives from the URL, but not from its path."""
    # Imported here, because clients of URLs are slow to import.
    from seqrecord.storage.objects import OBJECTS
    from seqrecord.storage.remote import url_options

    if where.protocol in OBJECTS:
        return {}
    with contextlib.suppress(LocationError):  # its package is missing
        return url_options(where.protocol, where.root, where.shown)
    return {}
