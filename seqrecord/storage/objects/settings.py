"""Names of settings: what `storage_options` and the environment may call them, and what we do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seqrecord.errors import LocationError

__all__ = ["is_true", "named", "one_of", "split_client_options"]

# Of obstore's client_options, those that are someone's wish and not ours.
_CLIENT_OPTIONS = (
    "allow_invalid_certificates",
    "proxy_ca_certificate",
    "proxy_excludes",
    "proxy_url",
    "root_certificate",
    "user_agent",
)


def named(
    values: Mapping[str, Any],
    names: Mapping[str, tuple[str, ...]],
    shown: str,
    *,
    prefix: str = "",
    strict: bool = True,
) -> dict[str, Any]:
    """Settings by our name for them, of values under any of their names, without the empty ones.

    Of each, the first name counts that has a value. Options may have `prefix` before their names.
    `strict`: a name that nobody knows is a `LocationError`, and so is a value that is no text
    where there should be some.
    """
    known = {name for each in names.values() for name in each}
    given = {
        name if name in known else name.removeprefix(prefix): value
        for name, value in values.items()
        if value is not None and value != ""
    }
    if strict and (unknown := sorted(set(given) - known)):
        raise LocationError(
            "an unknown storage option",
            file=shown,
            expected=f"some of {', '.join(sorted(known))}",
            got=", ".join(unknown),
        )
    found: dict[str, Any] = {}
    for ours, theirs in names.items():
        for name in theirs:
            if name in given:
                found[ours] = given[name]
                break
    return found


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


def split_client_options(
    options: Mapping[str, Any], shown: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """obstore's `client_options` among storage options, by themselves or in a dict, and the rest.

    `root_certificate` and `proxy_ca_certificate` may be the path of a PEM file.
    """
    rest = dict(options)
    chosen = dict(rest.pop("client_options", None) or {})
    chosen |= {name: rest.pop(name) for name in _CLIENT_OPTIONS if name in rest}
    if unknown := sorted(set(chosen) - set(_CLIENT_OPTIONS)):
        raise LocationError(
            "unknown client_options",
            file=shown,
            expected=f"some of {', '.join(_CLIENT_OPTIONS)}",
            got=", ".join(unknown),
        )
    for name in ("root_certificate", "proxy_ca_certificate"):
        text = chosen.get(name)
        if isinstance(text, str) and "-----BEGIN" not in text:
            try:
                chosen[name] = Path(text).read_text()
            except OSError:
                raise LocationError(f"{name} cannot be read", file=shown, got=text) from None
    if isinstance(allow := chosen.get("allow_invalid_certificates"), str):
        chosen["allow_invalid_certificates"] = is_true(allow)
    return chosen, rest
