"""Classification of clients' exceptions; tests/cloud/test_credentials.py has real ones."""

from __future__ import annotations

import email.utils
import errno
import http.client
import os
import socket
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from seqrecord import NotFoundError, StorageError
from seqrecord.cloud.clients import Clients
from seqrecord.cloud.failures import call, classify
from seqrecord.cloud.mounts import MountStorage
from seqrecord.errors import AccessError, DestinationError, LocationError, TransientError
from seqrecord.store.storage.ranges import ByteRange
from tests.kit.processes import without_collector

FILE = "az://container/dataset/records/0"
SECRET = "sig=S3CRET"


class Answer(Exception):  # noqa: N818
    """Like a client's error: a status, headers and a text with a secret."""

    def __init__(self, status: int, *, code: str | None = None, **headers: str) -> None:
        super().__init__(f"GET https://host/?{SECRET}")
        self.status_code = status
        self.error_code = code
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def unknown_host() -> OSError:
    outer = OSError("cannot connect")
    outer.__cause__ = socket.gaierror(socket.EAI_NONAME, "x")
    return outer


def os_error(name: str) -> OSError:
    return OSError(getattr(errno, name), SECRET)


MEANINGS: dict[type[StorageError], list[tuple[str, list[Exception]]]] = {
    TransientError: [
        ("HTTP status", [Answer(s) for s in (408, 425, 429, 500, 502, 503, 504)]),
        ("the storage failed", [os_error(n) for n in ("EIO", "ESTALE", "EAGAIN", "ETIMEDOUT")]),
        ("the storage failed", [os_error(n) for n in ("ECONNRESET", "ECONNREFUSED")]),
        (os.strerror(errno.EPIPE), [OSError(errno.EPIPE, SECRET)]),
        ("TimeoutError", [TimeoutError()]),
        ("ConnectionResetError", [ConnectionResetError()]),
        ("IncompleteRead", [http.client.IncompleteRead(b"x")]),
        ("BadStatusLine", [http.client.BadStatusLine("x")]),
        ("EOFError", [EOFError()]),
        ("gaierror", [socket.gaierror(socket.EAI_AGAIN, "x")]),
    ],
    StorageError: [
        ("HTTP status", [Answer(s) for s in (400, 405, 409, 411, 412, 501)]),
        (
            "the storage failed",
            [os_error(n) for n in ("ENOSPC", "EISDIR", "ENAMETOOLONG", "EROFS")],
        ),
        ("the storage failed: ZeroDivisionError", [ZeroDivisionError(SECRET)]),
    ],
    AccessError: [
        ("check the key, SAS or identity", [Answer(401), Answer(403)]),
        ("wrong or expired", [Answer(403, code="AuthenticationFailed")]),
        ("the identity's role", [Answer(403, code="AuthorizationPermissionMismatch")]),
        ("no credential was given", [Answer(409, code="PublicAccessNotPermitted")]),
        ("check the permissions", [PermissionError(errno.EACCES, "x")]),
    ],
    NotFoundError: [
        ("no such file", [Answer(404), Answer(404, code="BlobNotFound"), FileNotFoundError()]),
        ("no such container", [Answer(404, code="ContainerNotFound")]),
    ],
    LocationError: [("account's name", [unknown_host()])],
}


@pytest.mark.parametrize("kind", MEANINGS)
def test_clients_errors_are_classified(kind: type[StorageError]) -> None:
    for expected, errors in MEANINGS[kind]:
        for error in errors:
            found = classify(error, FILE)
            assert type(found) is kind, error
            assert expected in found.message
            assert found.file == FILE
            assert SECRET not in str(found)


def test_errors_of_a_busy_token_endpoint_are_transient() -> None:
    exceptions = pytest.importorskip("google.auth.exceptions")
    assert type(classify(exceptions.RefreshError("x", retryable=True), FILE)) is TransientError
    assert type(classify(exceptions.RefreshError("x"), FILE)) is AccessError
    exceptions = pytest.importorskip("botocore.exceptions")
    for status, kind in ((503, TransientError), (429, TransientError), (400, AccessError)):
        message = f"Received non 200 response {status} from container metadata: {SECRET}"
        error = exceptions.CredentialRetrievalError(provider="x", error_msg=message)
        assert type(classify(error, FILE)) is kind
        assert SECRET not in str(classify(error, FILE))


def test_a_missing_package_is_named() -> None:
    for module, package in (
        ("obstore.store", "obstore"),
        ("azure.identity", "azure-identity"),
        ("google", "google-auth"),
        ("google.auth", "google-auth"),
        ("botocore.auth", "botocore"),
    ):
        error = classify(ModuleNotFoundError("x", name=module), FILE)
        assert type(error) is LocationError
        assert error.message.endswith(f"pip install {package}")


def test_causes_are_classified() -> None:
    for attach in ("__cause__", "__context__", "inner_exception", "reason"):
        for text, seconds in (("2", 2), ("9" * 30, 1e30)):
            outer = RuntimeError("x")
            setattr(outer, attach, Answer(503, Retry_After=text))
            error = classify(outer, FILE)
            assert isinstance(error, TransientError)
            assert error.retry_after == seconds
    assert isinstance(classify(RuntimeError(ConnectionResetError(104, "x")), FILE), TransientError)
    first, second = RuntimeError("1"), RuntimeError("2")  # a cycle of causes
    first.__cause__, second.__cause__ = second, first
    assert type(classify(first, FILE)) is StorageError


def test_retry_delays_of_servers() -> None:
    two_hours = time.time() + 7200
    waits: list[tuple[Any, float | None]] = [
        ("7", 7),
        ("soon", None),
        *(("86400", 86400), ("31536000000", 31536000000), ("-1", None), ("1e400", None)),
        # HTTP's three formats of dates (RFC 9110, 5.6.7).
        (email.utils.formatdate(two_hours, usegmt=True), 7200),
        (time.strftime("%A, %d-%b-%y %T GMT", time.gmtime(two_hours)), 7200),
        (time.asctime(time.gmtime(two_hours)), 7200),
        ("Fri, 0 Dec 99999999999 00:00:00 -2300", None),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0),
        ({"retry_after": "1.5"}, 1.5),
        ({"x_ms_retry_after_ms": "250", "Retry_After": "7"}, 0.25),
        ({"RateLimit": '"api";r=0;t=86400'}, 86400),
        ({}, None),
    ]
    days = [f"{day}, {number} Oct 2015 07:28:00 GMT" for day, number in (("Wed", 21), ("Thu", 22))]
    waits.append(({"Date": days[0], "Retry_After": days[1]}, 86400))  # another machine's clock
    for headers, expected in waits:
        given = headers if isinstance(headers, dict) else {"Retry_After": headers}
        error = classify(Answer(503, **given), FILE)
        assert isinstance(error, TransientError)
        assert error.retry_after == (expected and pytest.approx(expected, rel=0.1)), given


def test_attributes_of_the_status() -> None:
    for shape in ("status", "status_code", "response.status_code", "response.status"):
        *inside, name = shape.split(".")
        error: Any = type("Bare", (Exception,), {})("x")
        target = error
        if inside:
            target = error.response = type("Response", (), {})()
        setattr(target, name, 503)
        assert type(classify(error, FILE)) is TransientError


def test_only_documented_error_codes_are_shown() -> None:
    assert "ServerBusy" in str(classify(Answer(503, code="ServerBusy"), FILE))
    assert SECRET not in str(classify(Answer(503, code=SECRET), FILE))


@pytest.mark.parametrize("error", [DestinationError("taken"), KeyboardInterrupt()])
def test_our_errors_and_interrupts_are_not_changed(error: BaseException) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        call(FILE, fail)
    assert caught.value is error


def test_an_error_keeps_no_buffer_of_its_frames(tmp_path: Path) -> None:
    """Each request of a client, and of a mount, that fails; most are retried."""
    mount = MountStorage(tmp_path)

    def read(function: Callable[..., object]) -> weakref.ref[Any]:
        buffer = np.zeros(10)
        with pytest.raises(StorageError):
            function(buffer)
        return weakref.ref(buffer)

    def refused(*_: object) -> None:
        raise OSError("refused")

    def read_mount(buffer: npt.NDArray[np.float64]) -> None:
        mount.read_ranges("missing", [ByteRange(0, 80)], [buffer.view(np.uint8).data])

    clients = Clients(lambda: None, is_reread=False)
    with without_collector():
        assert read(lambda buffer: call(FILE, refused, buffer))() is None
        assert read(lambda buffer: clients.ask(FILE, lambda _: refused(buffer)))() is None
        assert read(read_mount)() is None
