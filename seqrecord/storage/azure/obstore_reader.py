"""Blobs read with obstore: the object_store library of Apache Arrow, written in Rust."""

from __future__ import annotations

import datetime
import os
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from seqrecord.errors import LocationError
from seqrecord.ranges import ByteRange
from seqrecord.storage.azure.account import AzureAccount, missing
from seqrecord.storage.azure.http import SCOPE
from seqrecord.storage.azure.http_reader import HttpReader
from seqrecord.storage.azure.reader import AzureReader
from seqrecord.storage.failures import call
from seqrecord.storage.per_process import PerProcess
from seqrecord.storage.requests import (
    MAX_REQUEST_BYTES,
    SLOWEST,
    TIMEOUT_SECONDS,
    Request,
    fill,
    hurried,
    missing_bytes,
)

__all__ = ["ObstoreReader"]

_SMALL_BYTES = 1 << 20
_CHUNK_BYTES = 256 << 10
# In the text of errors, which is all that they have: the answer is of no or of another range.
_OTHER_RANGE = ("status code: 416", "InvalidRangeRequest", "UnexpectedRange")
_forked_with_obstore = False


class ObstoreReader(AzureReader):
    """A `RangeReader` of an Azure account.

    Bodies are copied into the buffers as they come, so there is no second copy of a request in
    memory. An attempt fails when nothing has come for `timeout` seconds, or very little: see
    `hurried`.

    obstore has one Rust runtime in a process, whose threads a fork does not copy: in a child of a
    process that had loaded obstore every call would hang. So such a child reads with `HttpReader`,
    and so does any process where less than 1 MiB is asked for: a process that only opens datasets
    before it forks its workers leaves them obstore. obstore does not tell `Retry-After`.
    """

    def __init__(
        self, account: AzureAccount, shown: str, *, timeout: float = TIMEOUT_SECONDS
    ) -> None:
        super().__init__(account, shown, timeout=timeout)
        self._http = HttpReader(account, shown, timeout=timeout)
        self._stores = PerProcess(lambda: _store(account, timeout))

    def size(self, path: str) -> int:
        return self._http.size(path)

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        small = sum(item.length for item in ranges) < _SMALL_BYTES
        if small or _forked_with_obstore:
            self._http.read_ranges(path, ranges, buffers)
        else:
            super().read_ranges(path, ranges, buffers)

    def close(self) -> None:
        self._http.close()
        self._stores.take()

    def _read(self, path: str, requests: Sequence[Request]) -> None:
        file = f"{self.shown}/{path}"
        store = call(file, self._stores.get)
        for request in requests:
            call(file, self._read_one, store, path, request)

    def _read_one(self, store: Any, path: str, request: Request) -> None:
        import obstore

        item, views = request
        file = f"{self.shown}/{path}"
        asked = {"range": (item.start, item.stop)}
        try:
            answer = obstore.get(store, self.account.full(path), options=asked)  # type: ignore[arg-type]
        except Exception as error:
            if not any(said in str(error) for said in _OTHER_RANGE):
                raise
            answer = None
        got = 0
        if answer is not None:
            stream = answer.stream(min_chunk_size=_CHUNK_BYTES)
            got = fill(views, hurried((memoryview(chunk) for chunk in stream), self.timeout, file))
        if got != item.length:
            raise missing_bytes(self, path, file, item, got)


def _store(account: AzureAccount, timeout: float) -> Any:
    try:
        from obstore.store import AzureStore
    except ImportError:
        raise LocationError(
            f"a package is missing for obstore: {missing('obstore')}", file=account.endpoint
        ) from None
    # A provider comes before what obstore itself finds in the environment.
    credential: dict[str, Any] = {"credential_provider": _provider(account)}
    return AzureStore(
        container_name=account.container,
        account_name=account.account,
        endpoint=account.endpoint,
        use_emulator=False,
        client_options={
            "allow_http": account.endpoint.startswith("http://"),
            "connect_timeout": timedelta(seconds=min(10.0, timeout)),
            "read_timeout": timedelta(seconds=timeout),
            "timeout": timedelta(seconds=timeout + MAX_REQUEST_BYTES / SLOWEST),
        },
        retry_config={"max_retries": 0},
        **({"skip_signature": True} if account.anonymous else credential),
    )


def _provider(account: AzureAccount) -> Callable[[], Any]:
    """What obstore asks for a credential; it keeps one until it expires."""
    if account.account_key is not None:
        key = {"access_key": account.account_key, "expires_at": None}
        return lambda: key
    if account.sas_token is not None:
        sas = {"sas_token": account.sas_token, "expires_at": None}
        return lambda: sas
    credential = account.token_credential()

    def bearer() -> dict[str, Any]:
        token = credential.get_token(SCOPE)
        expires = datetime.datetime.fromtimestamp(token.expires_on, datetime.timezone.utc)
        return {"token": token.token, "expires_at": expires}

    return bearer


def _note_fork() -> None:
    global _forked_with_obstore
    _forked_with_obstore = _forked_with_obstore or "obstore" in sys.modules


os.register_at_fork(after_in_child=_note_fork)
