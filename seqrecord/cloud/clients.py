"""Clients of services: one per process, renewed after a refusal, without secrets in their logs.

A fork does not copy the threads of obstore's runtime; `RUNTIME` records whether it is usable.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from seqrecord.cloud.failures import call
from seqrecord.errors import AccessError, LocationError
from seqrecord.store.processes.forks import PerProcess, at_fork
from seqrecord.store.text import without_secrets

# If two threads import a package at once, such as obstore, one may see it half initialized.
# See tests/cloud/test_spooled.py::test_clients_of_different_locations_are_made_one_at_a_time.
_IMPORT_LOCK = PerProcess(threading.RLock)


class Clients:
    """Clients of a service by `make()`, one per process, since no client survives a fork.

    With `is_reread`, a new client reads its credential again from the environment, a file or a
    function.
    """

    def __init__(self, make: Callable[[], Any], *, is_reread: bool) -> None:
        self._is_reread = is_reread
        self._clients = PerProcess(partial(_new_client, make))

    def ask(self, file: str, function: Callable[[Any], Any]) -> Any:
        """Call `function(client)`; errors become errors of this package about `file`.

        If the service refuses and `is_reread`, calls again with a new client, which may find
        another credential.
        """
        try:
            return call(file, self._ask, function)
        except AccessError:
            if not self._is_reread:
                raise
        self.close()
        return call(file, self._ask, function)

    def close(self) -> None:
        self._clients.take()  # its connections close on garbage collection

    def _ask(self, function: Callable[[Any], Any]) -> Any:
        client = self._clients.get()
        try:
            return function(client)
        except Exception:
            # obstore converts errors of a credential provider to text: see `Provider`.
            failure = getattr(getattr(client, "credential_provider", None), "failure", None)
            if failure is None:
                raise
        try:
            raise failure
        finally:
            del failure  # its traceback refers to this frame


def _new_client(make: Callable[[], Any]) -> Any:
    redact_logs()
    with _IMPORT_LOCK.get():
        return make()


# Loggers that print full URLs: urllib3 every URL at DEBUG, and retries as warnings.
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
    """Hide signatures and passwords of URLs in the logs of client libraries, from now on.

    Affects the whole process; may be called repeatedly.
    """
    existing_names = (
        name for name in [*logging.root.manager.loggerDict] if name.split(".")[0] in _PACKAGES
    )
    for name in [*_LOGGERS.split(), *existing_names]:
        logging.getLogger(name).addFilter(_FILTER)


class _Redaction(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        try:
            text = record.getMessage()
        except Exception:
            return True  # the formatter will report it
        clean = without_secrets(text)
        if clean != text:
            record.msg, record.args = clean, ()
        if record.exc_info and record.exc_info[1] is not None:
            # `logging.Formatter` uses an existing text.
            record.exc_text = without_secrets(logging.Formatter().formatException(record.exc_info))
        return True


_FILTER = _Redaction()


class Runtime:
    """State of obstore's Rust runtime in this process: `used`, or `lost` by a fork.

    There is one runtime per process, and a fork does not copy its threads: in the child, every call
    would hang.
    """

    def __init__(self) -> None:
        self.used = self.lost = False

    def after_fork(self) -> None:
        self.lost = self.lost or self.used or "obstore" in sys.modules
        self.used = False


RUNTIME = Runtime()
at_fork(after_in_child=RUNTIME.after_fork)


def use_obstore(file: str) -> None:
    """Record that this process uses obstore for `file`; raises `LocationError` if lost."""
    if RUNTIME.lost:
        raise LocationError(
            "obstore was used before this process was forked, and cannot be used here",
            file=file,
            expected="a process that is spawned, as workers are with multiprocessing_context="
            '"forkserver"; or reading only',
        )
    RUNTIME.used = True
