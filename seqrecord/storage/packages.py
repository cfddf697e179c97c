"""Which packages a client needs, and whether an endpoint is safe for a token."""

from __future__ import annotations

import importlib.util
from urllib.parse import urlsplit

from seqrecord.errors import LocationError

__all__ = ["check_token_endpoint", "is_installed"]

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def check_token_endpoint(endpoint: str | None, shown: str) -> None:
    """Raise `LocationError` where a bearer token would be sent unencrypted over a network."""
    parts = urlsplit(endpoint or "")
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        raise LocationError(
            "a token must not be sent over plain http", file=shown, expected="an https:// endpoint"
        )


def is_installed(package: str) -> bool:
    """Whether a package of the index (`azure-storage-blob`) can be imported."""
    try:
        return importlib.util.find_spec(package.replace("-", ".")) is not None
    except (ImportError, ValueError):  # of a package whose parent is missing, or half gone
        return False
