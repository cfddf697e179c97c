"""Blobs read with adlfs, which is fsspec's and therefore pandas', Dask's and many others'."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

from seqrecord.errors import LocationError
from seqrecord.storage.azure.account import PARTIAL, AzureAccount, missing
from seqrecord.storage.azure.reader import AzureReader
from seqrecord.storage.base import check_path, short_read
from seqrecord.storage.failures import call
from seqrecord.storage.per_process import PerProcess
from seqrecord.storage.requests import TIMEOUT_SECONDS, Request, fill, missing_bytes

__all__ = ["AdlfsReader"]


class AdlfsReader(AzureReader):
    """A `RangeReader` of an Azure account.

    All requests of a process run on the one thread of fsspec's event loop. `timeout` is how long
    nothing may come. A request is held in memory before it is copied to its buffers.
    """

    def __init__(
        self, account: AzureAccount, shown: str, *, timeout: float = TIMEOUT_SECONDS
    ) -> None:
        super().__init__(account, shown, timeout=timeout)
        self._filesystems = PerProcess(lambda: _filesystem(account, timeout))

    def size(self, path: str) -> int:
        blob, file = self.account.full(check_path(path)), f"{self.shown}/{path}"
        filesystem = call(file, self._filesystems.get)

        async def size() -> int:
            client = filesystem.service_client.get_blob_client(self.account.container, blob)
            properties = await client.get_blob_properties()
            if PARTIAL in properties.metadata:
                raise FileNotFoundError
            return int(properties.size)

        return call(file, _wait_for, filesystem, size())

    def close(self) -> None:
        self._filesystems.take()  # it closes its connections when it is collected

    def _read(self, path: str, requests: Sequence[Request]) -> None:
        full = f"{self.account.container}/{self.account.full(path)}"
        file = f"{self.shown}/{path}"
        parts = call(
            file,
            call(file, self._filesystems.get).cat_ranges,
            [full] * len(requests),
            [item.start for item, _ in requests],
            [item.stop for item, _ in requests],
            on_error="return",
        )
        for (item, views), part in zip(requests, parts, strict=True):
            if getattr(part, "status_code", None) == 416:
                raise short_read(file, item, 0)
            if isinstance(part, BaseException):
                call(file, _raise, part)
            if len(part) != item.length:
                raise missing_bytes(self, path, file, item, len(part))
            fill(views, [part])


def _filesystem(account: AzureAccount, timeout: float) -> Any:
    try:
        from adlfs import AzureBlobFileSystem
        from azure.storage.blob.aio import BlobServiceClient
    except ImportError:
        raise LocationError(
            f"a package is missing for adlfs: {missing('adlfs', 'azure-storage-blob')}",
            file=account.endpoint,
        ) from None

    class Filesystem(AzureBlobFileSystem):  # type: ignore[misc]
        """With the account's client: adlfs itself takes what it finds in the environment first."""

        def do_connect(self) -> None:
            self.service_client = BlobServiceClient(
                account.endpoint,
                credential=_credential(account),
                retry_total=0,
                connection_timeout=min(10.0, timeout),
                read_timeout=timeout,
                max_single_get_size=64 << 20,  # a request is one, whatever its length
            )

    return Filesystem(
        account_name=account.account,
        account_key="unused",
        anon=True,
        max_concurrency=1,
        skip_instance_cache=True,
    )


def _credential(account: AzureAccount) -> Any:
    if account.credential_kind not in ("client secret", "default chain"):
        return account.client_credential()
    from azure.identity.aio import ClientSecretCredential, DefaultAzureCredential

    if account.client_secret is None:
        return DefaultAzureCredential()
    assert account.tenant_id is not None, "resolve wants all three"
    assert account.client_id is not None, "resolve wants all three"
    return ClientSecretCredential(account.tenant_id, account.client_id, account.client_secret)


def _wait_for(filesystem: Any, work: Coroutine[Any, Any, int]) -> int:
    from fsspec.asyn import sync

    return int(sync(filesystem.loop, lambda: work))


def _raise(error: BaseException) -> None:
    raise error
