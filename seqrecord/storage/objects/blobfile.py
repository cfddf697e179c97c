"""Blobs read with blobfile, through its public functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seqrecord.errors import LocationError
from seqrecord.storage.base import check_path
from seqrecord.storage.failures import call
from seqrecord.storage.objects.azure import AzureContainer
from seqrecord.storage.per_process import PerProcess
from seqrecord.storage.requests import Request, RequestReader, fill

__all__ = ["BlobfileReader", "split_blobfile_options"]

_OPTIONS = ("get_http_pool", "use_azure_storage_account_key_fallback", "save_access_token_to_disk")


def split_blobfile_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Those that `blobfile.create_context` takes, and the rest."""
    ours = {name: value for name, value in options.items() if name in _OPTIONS}
    return ours, {name: value for name, value in options.items() if name not in ours}


class BlobfileReader(RequestReader):
    """Reads an Azure account.

    blobfile has its own credentials: `AZURE_STORAGE_KEY`, a service principal, `az login`. It
    repeats nothing here. A request is held in memory before it is copied to its buffers. `given`
    says that storage options hold a credential, which blobfile would not use.
    """

    def __init__(
        self,
        container: AzureContainer,
        *,
        given: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if given:
            raise LocationError(
                "blobfile takes its credential from its own environment, not from storage_options",
                file=container.shown,
                expected="AZURE_STORAGE_KEY or `az login`, or another backend",
            )
        self._container, self._shown = container, container.shown.rstrip("/")
        self._options = dict(options or {})
        self._contexts = PerProcess(self._context)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._container, self._options)

    def __repr__(self) -> str:
        return f"BlobfileReader({self._shown!r})"

    def size(self, path: str) -> int:
        file, url = f"{self._shown}/{check_path(path)}", self._url(path)
        found = call(file, call(file, self._contexts.get).stat, url)
        return int(found.size)

    def read(self, path: str, request: Request) -> None:
        file, url = f"{self._shown}/{path}", self._url(path)
        got = call(file, _read, call(file, self._contexts.get), url, request)
        if got != request[0].length:
            raise self.missing(path, file, request[0], got)

    def close(self) -> None:
        self._contexts.take()

    def _url(self, path: str) -> str:
        container = self._container
        return f"az://{container.account}/{container.bucket}/{container.key(path)}"

    def _context(self) -> Any:
        import blobfile

        return blobfile.create_context(
            **{
                "retry_limit": 0,
                "save_access_token_to_disk": False,
                "log_callback": lambda _: None,
                **self._options,
            }
        )


def _read(context: Any, url: str, request: Request) -> int:
    """The bytes that came, 0 of a range beyond the file's end."""
    item, views = request
    # Told where the file ends, blobfile does not ask; it would read no further than that.
    with context.BlobFile(
        url, "rb", streaming=True, file_size=item.stop, buffer_size=item.length
    ) as file:
        file.seek(item.start)
        return fill(views, iter(lambda: file.read(item.length), b""))


def _rebuild(container: AzureContainer, options: Mapping[str, Any]) -> BlobfileReader:
    return BlobfileReader(container, options=options)
