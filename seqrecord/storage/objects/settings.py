"""Names of settings: in `storage_options`, in the environment, and in this package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from seqrecord.errors import LocationError

__all__ = ["Names", "check_token_endpoint", "is_true", "named", "one_of", "split_client_options"]

Names = Mapping[str, tuple[str, ...]]
"""Our names of settings, and those that others have for them."""

# The client_options of obstore that users may set.
_CERTIFICATES = ("proxy_ca_certificate", "root_certificate")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_CLIENT_OPTIONS = (
    *("allow_invalid_certificates", "proxy_excludes", "proxy_url", "user_agent"),
    *_CERTIFICATES,
)


def named(
    values: Mapping[str, Any],
    names: Names,
    shown: str = "",
    *,
    prefix: str | None = None,
) -> dict[str, Any]:
    """Settings by our name for them, of values under any of their names, without the empty ones.

    Of each, the first name counts that has a value. With a `prefix`, which options may have before
    their names, a name that nobody knows is a `LocationError`; without one others are left out.
    """
    known = {name for each in names.values() for name in each}
    given = {
        name if name in known else name.removeprefix(prefix or ""): value
        for name, value in values.items()
        if value is not None and value != ""
    }
    if prefix is not None and (unknown := sorted(set(given) - known)):
        raise LocationError(
            "an unknown storage option",
            file=shown,
            expected=f"some of {', '.join(sorted(known))}",
            got=", ".join(unknown),
        )
    found = {ours: [given[n] for n in theirs if n in given] for ours, theirs in names.items()}
    return {ours: each[0] for ours, each in found.items() if each}


def one_of(kinds: tuple[str, ...], settings: Mapping[str, Any], shown: str) -> dict[str, Any]:
    """The credential among settings, by the names of its kinds; `LocationError` for two."""
    held = {name: settings[name] for name in kinds if settings.get(name)}
    if len(held) > 1:
        raise LocationError(
            "credentials of more than one kind", file=shown, expected="one", got=", ".join(held)
        )
    return held


def is_true(value: object) -> bool:
    return str(value).lower() in ("true", "1", "yes")


def check_token_endpoint(endpoint: str | None, shown: str) -> None:
    """Raise `LocationError` where a bearer token would be sent unencrypted over a network."""
    parts = urlsplit(endpoint or "")
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        raise LocationError(
            "a token must not be sent over plain http", file=shown, expected="an https:// endpoint"
        )


def split_client_options(
    options: Mapping[str, Any], shown: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """obstore's `client_options` among storage options, and the rest.

    `root_certificate` and `proxy_ca_certificate` may be the path of a PEM file.
    """
    chosen = {name: value for name, value in options.items() if name in _CLIENT_OPTIONS}
    for name in set(_CERTIFICATES) & set(chosen):
        if "-----BEGIN" not in (text := str(chosen[name])):
            try:
                chosen[name] = Path(text).read_text()
            except OSError:
                raise LocationError(f"{name} cannot be read", file=shown, got=text) from None
    if "allow_invalid_certificates" in chosen:
        chosen["allow_invalid_certificates"] = is_true(chosen["allow_invalid_certificates"])
    return chosen, {name: value for name, value in options.items() if name not in chosen}
