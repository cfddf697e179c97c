"""Blobs read with blobfile."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

from seqrecord.errors import LocationError
from seqrecord.storage.azure.account import AzureAccount, missing
from seqrecord.storage.azure.http import UNFINISHED, AzureHttp, HttpStatusError
from seqrecord.storage.azure.reader import AzureReader
from seqrecord.storage.base import check_path, short_read
from seqrecord.storage.failures import call
from seqrecord.storage.per_process import PerProcess
from seqrecord.storage.requests import TIMEOUT_SECONDS, Request, fill, missing_bytes

__all__ = ["BlobfileReader"]


class BlobfileReader(AzureReader):
    """A `RangeReader` of an Azure account.

    blobfile knows https://ACCOUNT.blob.core.windows.net and the credentials of its environment
    variables alone, one for all. So each reader has a blobfile context of its own, with a public
    hook of it, the connection pool, which sends requests to the account's endpoint with the
    account's credential. In blobfile's table of tokens, the one thing that its contexts share, the
    reader is under a name that no account can have. `timeout` is how long nothing may come. A
    request is held in memory before it is copied to its buffers.
    """

    def __init__(
        self, account: AzureAccount, shown: str, *, timeout: float = TIMEOUT_SECONDS
    ) -> None:
        super().__init__(account, shown, timeout=timeout)
        self._http = AzureHttp(account, timeout=timeout)
        self._contexts = PerProcess(self._context)

    def size(self, path: str) -> int:
        file = f"{self.shown}/{path}"
        url = self._url(path)
        context = call(file, self._contexts.get)
        return int(call(file, context.stat, url).size)

    def close(self) -> None:
        self._contexts.take()
        self._http.close()

    def _read(self, path: str, requests: Sequence[Request]) -> None:
        url, file = self._url(path), f"{self.shown}/{path}"
        context = call(file, self._contexts.get)
        for request in requests:
            got = call(file, _read, context, url, request)
            item = request[0]
            if got == 0:
                raise short_read(file, item, 0)
            if got != item.length:
                raise missing_bytes(self, path, file, item, got)

    def _url(self, path: str) -> str:
        account = self.account
        return f"az://{_name(account)}/{account.container}/{account.full(check_path(path))}"

    def _context(self) -> Any:
        try:
            import blobfile
            from blobfile._azure import ANONYMOUS, access_token_manager
        except ImportError:
            raise LocationError(
                f"a package is missing for blobfile: {missing('blobfile')}",
                file=self.account.endpoint,
            ) from None
        # Anonymous as far as blobfile goes, so that it neither looks for credentials nor tries
        # them, nor writes them to a file in the user's home.
        key = (_name(self.account), self.account.container)
        table: Any = access_token_manager
        table._tokens[key] = (ANONYMOUS, "")
        table._expirations[key] = math.inf
        pool = _Pool(self._http, self.shown)
        return blobfile.create_context(
            get_http_pool=lambda: pool,  # type: ignore[arg-type, return-value]
            retry_limit=0,
            save_access_token_to_disk=False,
            log_callback=lambda _: None,
            use_streaming_read=False,
        )


class _Pool:
    """Stands for the `urllib3.PoolManager` that blobfile asks for."""

    def __init__(self, http: AzureHttp, shown: str) -> None:
        self._http, self._shown = http, shown

    def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        preload_content: bool = True,
        **_: object,
    ) -> Any:
        blob = unquote(urlsplit(url).path).split("/", 2)[2]
        own = {"Range": "x-ms-range", "If-Match": "If-Match"}
        kept = {own[name]: value for name, value in (headers or {}).items() if name in own}
        file = f"{self._shown}/{blob.removeprefix(self._http.account.full(''))}"
        # As an error of ours, which blobfile lets pass: it drops the headers and causes of others.
        return call(file, self._send, method, blob, kept, preload_content)

    def _send(self, method: str, blob: str, headers: Mapping[str, str], preload: bool) -> Any:
        answer = self._http.send(method, blob, headers, preload=preload)
        if answer.status >= 400 and answer.status != 416:
            raise HttpStatusError(answer.status, answer.headers)
        if UNFINISHED in answer.headers:
            raise HttpStatusError(404, {})
        return answer


def _read(context: Any, url: str, request: Request) -> int:
    """The bytes that came, 0 of a range beyond the file's end."""
    item, views = request
    # Told where the file ends, blobfile does not ask; it would read no further than that.
    with context.BlobFile(url, "rb", streaming=True, file_size=item.stop) as file:
        raw = file.raw  # the buffer before it would be filled with what follows the range
        raw.seek(item.start)
        if len(views) == 1:
            return int(raw.readinto(views[0]) or 0)
        data = memoryview(bytearray(item.length))
        got = int(raw.readinto(data) or 0)
        return fill(views, [data[:got]]) if got else 0


def _name(account: AzureAccount) -> str:
    return f"_seqrecord_{account.account}"
