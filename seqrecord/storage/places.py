"""Names of places: where a dataset lies, account and endpoint included, without credentials.

::

    https://ACCOUNT.blob.core.windows.net/CONTAINER/PATH
    s3://BUCKET/PATH?endpoint=https://HOST          said beside the URL
    az://CONTAINER/PATH?account_name=ACCOUNT&endpoint=http://HOST
    github://BRANCH/PATH?org=ORG&repo=REPO          said before the @ of the URL
    /local/path
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seqrecord.errors import LocationError
from seqrecord.storage.url import Location, parse_location

__all__ = ["is_place_of", "named_place", "shown_place"]

# Options that say where files are, by any of their names.
_OPTIONS = ("account_name", "endpoint", "endpoint_url", "base_url", "host", "port", "org", "repo")
_SAID = rf"({'|'.join(_OPTIONS)})=[^&]*"
_PLACE = re.compile(rf"(?P<url>[^?]*://[^?]*)\?(?P<said>{_SAID}(&{_SAID})*)")
_ALIASES = {"s3a": "s3", "gcs": "gs", "endpoint_url": "endpoint", "base_url": "endpoint"}


def named_place(url: str, said: Mapping[str, Any]) -> str:
    """The place of a URL without query, and of what options said beside it."""
    words = [f"{name}={value}" for name, value in _cleaned(said).items()]
    return _normal(url) + ("?" + "&".join(words) if words else "")


def is_place_of(location: str | os.PathLike[str], place: str) -> bool:
    """Whether a location, which may be a place, is that place.

    A location that says no account or endpoint may be in any of them. Raises `LocationError` for
    what is no location.
    """
    where, wanted, said = _parsed(location)
    if where.protocol == "file":
        return place == str(Path(where.root).absolute())
    with contextlib.suppress(LocationError):
        there, held, known = _parsed(place)
        # A place that says no endpoint is at the usual one, as the URL of an account is.
        known = {"endpoint": where.options.get("endpoint", ""), **known}
        is_same = there.protocol != "file" and wanted == held
        return is_same and all(known.get(name) == said[name] for name in said)
    return False


def shown_place(location: str | os.PathLike[str]) -> str:
    """A location without credentials. Raises `LocationError` for what is none."""
    where, _, said = _parsed(location)
    return where.shown if where.protocol in ("file", "az") else named_place(where.shown, said)


def _parsed(place: str | os.PathLike[str]) -> tuple[Location, str, dict[str, str]]:
    """A place, its URL as all write it, and what is said beside that."""
    found = _PLACE.fullmatch(place) if isinstance(place, str) else None
    where = parse_location(place if found is None else found["url"])
    words = [] if found is None else found["said"].split("&")
    said = {**where.options, **dict(word.split("=", 1) for word in words)}
    if where.protocol == "az":
        return where, _normal(f"az://{where.root}"), _cleaned(said)
    return where, _normal(where.shown), _cleaned({**_said_before(where), **said})


def _said_before(where: Location) -> dict[str, Any]:
    """What a filesystem of fsspec reads in the URL that its path does not have."""
    from seqrecord.storage.objects import OBJECTS
    from seqrecord.storage.remote import url_options

    if where.protocol in OBJECTS:
        return {}
    with contextlib.suppress(LocationError):  # without its package nothing more is known
        return url_options(where.protocol, where.root, where.shown)
    return {}


def _cleaned(said: Mapping[str, Any]) -> dict[str, str]:
    """What says where, by one name each, without passwords and signatures."""
    found = {}
    for name in _OPTIONS:
        if value := said.get(name):
            text = re.sub(r"^(.*//)?[^/]*@", r"\1", str(value).partition("?")[0])
            found[_ALIASES.get(name, name)] = text.rstrip("/")
    return found


def _normal(url: str) -> str:
    scheme, _, path = url.partition("://")
    scheme = _ALIASES.get(scheme, scheme)
    return f"{scheme}://" + "/".join(part for part in path.split("/") if part)
