"""The claim of one writer on a destination in Azure: a lease, renewed for as long as it is held."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from seqrecord.errors import DestinationError, StorageError, TransientError
from seqrecord.storage.failures import call
from seqrecord.storage.retrying import Retrier

__all__ = ["LEASE_SECONDS", "AzureLease", "HeldElsewhere"]

LEASE_SECONDS = 60  # the longest that Azure grants
_RENEW_SHARE = 0.25  # of the lease, between one renewal and the next
_TURNS = 5  # others may make the blob, and remove it again, at the same time

_TAKEN = frozenset({"LeaseAlreadyPresent", "LeaseIdMissing", "LeaseIsBreakingAndCannotBeAcquired"})

_T = TypeVar("_T")


class AzureLease:
    """A lease on the blob `client`, made for it if need be, which a thread renews until `release`.

    After a kill it runs out by itself within `LEASE_SECONDS`. `DestinationError` while another has
    it. A pickled copy is a `HeldElsewhere`; in a forked child `release` does nothing.
    """

    def __init__(self, client: Any, shown: str, retrier: Retrier) -> None:
        self._client = client
        self._shown = shown
        self._pid = os.getpid()
        self._id = str(uuid.uuid4())
        self._seconds = LEASE_SECONDS
        self._stop = threading.Event()
        self._renewing = threading.Lock()
        self._gone = False
        self._until = 0.0
        self._lease = retrier.call(self._acquired, file=shown)
        self._thread = threading.Thread(target=self._renew, name="seqrecord-lease", daemon=True)
        self._thread.start()

    def __reduce__(self) -> tuple[Any, ...]:
        return HeldElsewhere, ()

    def check(self) -> None:
        """`DestinationError` if the claim is lost: then another may be writing."""
        if self._pid != os.getpid() or self._stop.is_set():
            return
        if not self._gone and time.monotonic() >= self._until:
            # No renewal has gone well for the whole lease, or this process was suspended.
            try:
                self._renewed()
            except TransientError:
                self._gone = True
        if self._gone:
            raise DestinationError(
                "this writer has lost its claim on the destination, which another may have taken; "
                "what was finished is kept: go on with resume (--resume)",
                file=self._shown,
            )

    def release(self) -> None:
        if self._pid != os.getpid() or self._stop.is_set():
            return
        self._stop.set()
        self._thread.join()
        if self._gone:
            return
        with suppress(StorageError):  # it runs out by itself, and another takes the blob as it is
            self._call(self._client.delete_blob, lease=self._lease)

    def _acquired(self) -> Any:
        from azure.core.exceptions import (
            HttpResponseError,
            ResourceExistsError,
            ResourceNotFoundError,
        )

        def acquire() -> Any:
            for _ in range(_TURNS):
                try:
                    # Asked for by its name, a lease can be asked for twice.
                    return self._client.acquire_lease(self._seconds, self._id)
                except ResourceNotFoundError as error:
                    if _code(error) != "BlobNotFound":
                        raise
                except HttpResponseError as error:
                    if _code(error) not in _TAKEN:
                        raise
                    break
                with suppress(ResourceExistsError):
                    self._client.upload_blob(b"", overwrite=False)
            return None

        started = time.monotonic()
        lease = self._call(acquire)
        if lease is None:
            raise DestinationError(
                "another writer is at work on this destination; if it was killed, its claim runs "
                f"out by itself within {self._seconds} seconds: try again then",
                file=self._shown,
            )
        self._until = started + self._seconds
        return lease

    def _renew(self) -> None:
        while not self._stop.wait(self._seconds * _RENEW_SHARE):
            try:
                self._renewed()
            except TransientError:
                continue  # there is time for more; `check` sees when there is none left
            except StorageError:
                self._gone = True
            if self._gone:
                return

    def _renewed(self) -> None:
        from azure.core.exceptions import HttpResponseError

        def renew() -> bool:
            try:
                self._lease.renew()
            except HttpResponseError as error:
                if error.status_code not in (404, 409, 412):
                    raise
                return False
            return True

        with self._renewing:
            started = time.monotonic()
            if self._call(renew):
                self._until = started + self._seconds
            else:
                self._gone = True

    def _call(self, function: Callable[..., _T], *args: Any, **kwargs: Any) -> _T:
        return call(self._shown, function, *args, **kwargs)


class HeldElsewhere:
    """The claim as another process of the same writer sees it: the first one holds it.

    After a kill of that one, the lease lasts longer than the others need to notice.
    """

    def release(self) -> None:
        pass


def _code(error: Exception) -> str | None:
    code = getattr(error, "error_code", None)
    return None if code is None else str(getattr(code, "value", code))
