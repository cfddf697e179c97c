"""Clients of Azurite besides our own: their storage options, which a job passes as JSON."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

__all__ = ["BACKENDS", "place_of", "require", "storage_options"]

BACKENDS = ("adlfs", "blobfile")
"""Values of the storage option `backend`; without it, our own client reads."""

_POOL = "get_http_pool"


def place_of(cloud: Any, prefix: str, host: str, backend: str = "") -> dict[str, Any]:
    """Location and options of a folder in a container of Azurite at `host`."""
    location, options = cloud.location(prefix), cloud.options(host)
    if backend == "blobfile":  # which has the account first, and its key in the environment
        location = location.replace("az://", f"az://{cloud.service.account}/")
        options = {"backend": backend, _POOL: host, "key": cloud.service.key}
    elif backend:
        options = {**options, "backend": backend}
    return {"location": location, "options": options}


def storage_options(options: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The options of `place_of` for this process, in which blobfile finds its key and service."""
    if options is None or _POOL not in options:
        return None if options is None else dict(options)
    from tests.kit.services.blobfile_pool import pool_to

    os.environ["AZURE_STORAGE_ACCOUNT_KEY"] = options["key"]
    return {"backend": options["backend"], _POOL: partial(pool_to, options[_POOL])}


def require(need: Callable[[], None]) -> None:
    """Raise RuntimeError with the reason that a service cannot run here."""
    try:
        need()
    except BaseException as error:  # pytest's own, to skip a test
        raise RuntimeError(str(error)) from None
