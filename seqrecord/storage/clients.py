"""Clients of a service: one for each process, and another one after a refusal."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from seqrecord.errors import AccessError
from seqrecord.forks import PerProcess
from seqrecord.storage.failures import call
from seqrecord.storage.redaction import redact_logs

__all__ = ["Clients"]

# Python may give one of two threads that first import a package at once, as obstore, a half of it.
_ONE_AT_A_TIME = PerProcess(threading.RLock)


class Clients:
    """Clients that `make()` makes: of obstore, of fsspec or of our own.

    `is_reread` says that a new one looks for its credential anew: in the environment, a file or a
    function. No client survives a fork, so each process makes its own when it first needs one.
    """

    def __init__(self, make: Callable[[], Any], *, is_reread: bool) -> None:
        self._make, self._is_reread = make, is_reread
        self._made = PerProcess(self._new)

    def ask(self, file: str, function: Callable[[Any], Any]) -> Any:
        """`function(client)`, with errors of ours about `file`.

        After a refusal it is called once more with a new client, where that may find another
        credential.
        """
        try:
            return call(file, self._ask, function)
        except AccessError:
            if not self._is_reread:
                raise
        self.close()
        return call(file, self._ask, function)

    def close(self) -> None:
        self._made.take()  # it closes its connections when it is collected

    def _ask(self, function: Callable[[Any], Any]) -> Any:
        client = self._made.get()
        try:
            return function(client)
        except Exception:
            # obstore makes text of what its credential's provider raises: see `Provider`.
            failure = getattr(getattr(client, "credential_provider", None), "failure", None)
            if failure is None:
                raise
        raise failure

    def _new(self) -> Any:
        redact_logs()
        with _ONE_AT_A_TIME.get():
            return self._make()
