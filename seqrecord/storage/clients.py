"""Clients of a service: one for each process, another one after a refusal, and clean logs of all.

A fork does not copy the threads of obstore's runtime: `RUNTIME` says whether it can be used here.
"""

from __future__ import annotations

import logging
import multiprocessing
import sys
import threading
from collections.abc import Callable
from typing import Any

from seqrecord.errors import AccessError, LocationError
from seqrecord.processes.forks import PerProcess, at_fork
from seqrecord.storage.failures import call
from seqrecord.text import without_secrets

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


# Those that log URLs as they are: urllib3 at DEBUG every one, and what it tries again as a warning.
_LOGGERS = """
aiobotocore aiobotocore.endpoint aiohttp.client asyncio
azure.core.pipeline.policies.http_logging_policy azure.storage.blob._shared.policies
boto3 botocore botocore.auth botocore.endpoint botocore.hooks botocore.parsers botocore.regions
fsspec fsspec.http gcsfs google.auth google.auth.transport.requests google.oauth2
httpcore.connection httpcore.http11 httpcore.http2 httpcore.proxy
httpcore2.connection httpcore2.http11 httpcore2.http2 httpcore2.proxy
httpx httpx2 huggingface_hub.utils._http s3fs
urllib3.connectionpool urllib3.poolmanager urllib3.util.retry
"""
_PACKAGES = {name.partition(".")[0] for name in _LOGGERS.split()} | {"adlfs", "requests", "urllib3"}


def redact_logs() -> None:
    """From now on, URLs in the logs of client libraries have no signature and no password.

    For the whole process, and as often as one likes.
    """
    there = (name for name in [*logging.root.manager.loggerDict] if name.split(".")[0] in _PACKAGES)
    for name in [*_LOGGERS.split(), *there]:
        logging.getLogger(name).addFilter(_FILTER)


class _Redaction(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        try:
            text = record.getMessage()
        except Exception:
            return True  # whoever formats it will say so
        clean = without_secrets(text)
        if clean != text:
            record.msg, record.args = clean, ()
        if record.exc_info and record.exc_info[1] is not None:
            # The formatter takes the text that is there.
            record.exc_text = without_secrets(logging.Formatter().formatException(record.exc_info))
        return True


_FILTER = _Redaction()


class Runtime:
    """obstore's Rust runtime in this process: `used`, or `lost`.

    There is one in a process, whose threads a fork does not copy: in a child of a process that had
    used obstore every call would wait forever. `warned` says that the log says so.
    """

    def __init__(self) -> None:
        self.used = self.lost = self.warned = False

    def after_fork(self) -> None:
        self.lost = self.lost or self.used or "obstore" in sys.modules
        self.used = self.warned = False

    @property
    def is_wanted(self) -> bool:
        """Whether all reading may go through obstore: nobody will fork here after it.

        A daemonic process, such as a DataLoader's worker, may have no children.
        """
        return self.used or multiprocessing.current_process().daemon


RUNTIME = Runtime()
at_fork(after_in_child=RUNTIME.after_fork)


def use_obstore(file: str) -> None:
    """Note that this process uses obstore, for `file`; `LocationError` where it cannot."""
    if RUNTIME.lost:
        raise LocationError(
            "obstore was used before this process was forked, and cannot be used here",
            file=file,
            expected="a process that is spawned, as workers are with multiprocessing_context="
            '"forkserver"; or only to read, and no option of obstore alone',
        )
    RUNTIME.used = True
