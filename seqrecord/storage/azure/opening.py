"""Opens a place in Azure: with which client it is read, and with what credential."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from seqrecord.errors import LocationError
from seqrecord.storage.azure.account import AzureAccount, is_installed, missing
from seqrecord.storage.azure.storage import AzureStorage
from seqrecord.storage.base import RangeReader
from seqrecord.storage.options import StorageSettings
from seqrecord.storage.requests import TIMEOUT_SECONDS
from seqrecord.storage.retrying import Retrier
from seqrecord.storage.url import Location

__all__ = ["open_azure"]

_BACKENDS = ("obstore", "urllib3", "adlfs", "blobfile")  # the fastest first


def open_azure(where: Location, settings: StorageSettings, rest: Mapping[str, Any]) -> AzureStorage:
    """The storage of a location of protocol `az`; `rest` are the account and its credential.

    Raises `LocationError` for what is unclear, and where a package is missing.
    """
    account = AzureAccount.resolve(where, rest, os.environ)
    backend = settings.backend or next(filter(is_installed, _BACKENDS), None)
    if backend is not None and backend not in _BACKENDS:
        raise LocationError(
            "no such backend for Azure",
            file=where.shown,
            expected=f"one of {', '.join(_BACKENDS)}",
            got=backend,
        )
    needed = [backend or _BACKENDS[0], "azure-storage-blob"]
    if not all(map(is_installed, needed)):
        raise LocationError(
            f"a package is missing for {backend or 'Azure'}: {missing(*needed, 'azure-identity')}",
            file=where.shown,
        )
    assert backend is not None
    return AzureStorage(
        account,
        _reader(backend, account, where.shown.rstrip("/"), settings.deadline),
        where.shown,
        retrier=Retrier(deadline=settings.deadline),
    )


def _reader(backend: str, account: AzureAccount, shown: str, deadline: float) -> RangeReader:
    """Imported here, so that nothing is that is not used."""
    timeout = min(TIMEOUT_SECONDS, deadline / 4)  # so that one that hangs leaves time for others
    if backend == "obstore":
        from seqrecord.storage.azure.obstore_reader import ObstoreReader

        return ObstoreReader(account, shown, timeout=timeout)
    if backend == "adlfs":
        from seqrecord.storage.azure.adlfs_reader import AdlfsReader

        return AdlfsReader(account, shown, timeout=timeout)
    if backend == "urllib3":
        from seqrecord.storage.azure.http_reader import HttpReader

        return HttpReader(account, shown, timeout=timeout)
    from seqrecord.storage.azure.blobfile_reader import BlobfileReader

    return BlobfileReader(account, shown, timeout=timeout)
