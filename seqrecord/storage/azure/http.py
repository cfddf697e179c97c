"""Requests for an account's blobs with urllib3, signed with whatever credential it has."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from email.utils import formatdate
from typing import Any
from urllib.parse import quote, urlsplit

from seqrecord.errors import AccessError
from seqrecord.storage.azure.account import PARTIAL, AzureAccount
from seqrecord.storage.per_process import PerProcess

__all__ = ["SCOPE", "UNFINISHED", "AzureHttp", "HttpStatusError"]

_VERSION = "2020-10-02"
SCOPE = "https://storage.azure.com/.default"
UNFINISHED = f"x-ms-meta-{PARTIAL}"  # header of a blob that is not there yet: see `upload`
_CONNECT_SECONDS = 10.0
_MAX_CONNECTIONS = 64


class HttpStatusError(Exception):
    """An answer that is a refusal or a failure. It holds no URL and nothing that was sent."""

    def __init__(self, status: int, headers: Mapping[str, str]) -> None:
        super().__init__(status)
        self.status = status
        self.error_code = headers.get("x-ms-error-code")
        self.headers = {"retry-after": headers["Retry-After"]} if "Retry-After" in headers else {}


class AzureHttp:
    """Sends requests about blobs of a container, on connections that stay open.

    It retries nothing; `timeout` is how many seconds may pass without a byte. Safe to use from many
    threads, and each process has its own connections.
    """

    def __init__(self, account: AzureAccount, *, timeout: float) -> None:
        self.account = account
        self.timeout = timeout
        self._clients = PerProcess(lambda: _Client(account))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.account, self.timeout)

    def send(
        self, method: str, blob: str, headers: Mapping[str, str], *, preload: bool = False
    ) -> Any:
        """The answer, a `urllib3.BaseHTTPResponse`, whatever its status.

        `blob` is the name in the container, `headers` may be `x-ms-range` and `If-Match`. With
        `preload` the body is read. Raises urllib3's exceptions: see `failures.call`.
        """
        from urllib3 import Timeout

        account, client = self.account, self._clients.get()
        url = f"{account.endpoint}/{quote(account.container)}/{quote(blob)}"
        headers = {**headers, "x-ms-version": _VERSION, "x-ms-date": formatdate(usegmt=True)}
        if account.account_key is not None:
            headers["Authorization"] = _shared_key(account, method, urlsplit(url).path, headers)
        elif account.sas_token is not None:
            url = f"{url}?{account.sas_token}"
        elif client.credential is not None:
            headers["Authorization"] = f"Bearer {client.credential.get_token(SCOPE).token}"
        return client.pool.request(
            method,
            url,
            headers=headers,
            timeout=Timeout(connect=min(_CONNECT_SECONDS, self.timeout), read=self.timeout),
            preload_content=preload,
            decode_content=False,
            retries=False,
            redirect=False,
        )

    def close(self) -> None:
        """Close the connections; the next request opens others."""
        client = self._clients.take()
        if client is not None:
            client.pool.clear()


class _Client:
    def __init__(self, account: AzureAccount) -> None:
        from urllib3 import PoolManager

        self.pool = PoolManager(maxsize=_MAX_CONNECTIONS)
        by_token = account.credential_kind in ("client secret", "default chain")
        self.credential = account.token_credential() if by_token else None


def _shared_key(account: AzureAccount, method: str, path: str, headers: Mapping[str, str]) -> str:
    """The `Authorization` header of a request without body and query.

    As in "Authorize with Shared Key" of the Azure Storage REST API: eleven standard headers, of
    which only the conditions can be here, then the x-ms- headers, then the resource.
    """
    standard = [""] * 11
    standard[8] = headers.get("If-Match", "")
    own = sorted(f"{name}:{value}" for name, value in headers.items() if name.startswith("x-ms-"))
    text = "\n".join([method, *standard, *own, f"/{account.account}{path}"])
    try:
        key = base64.b64decode(account.account_key or "", validate=True)
    except binascii.Error:
        key = b""
    if not key:
        raise AccessError("the account key is not base64: check it", file=account.endpoint)
    signature = base64.b64encode(hmac.digest(key, text.encode(), hashlib.sha256)).decode()
    return f"SharedKey {account.account}:{signature}"


def _rebuild(account: AzureAccount, timeout: float) -> AzureHttp:
    return AzureHttp(account, timeout=timeout)
