"""Conversion of cloud clients' and the OS's exceptions into errors of this package.

A client's exception may contain a signed URL or a header with a key, in its text, its attributes or
chained exceptions. Therefore only these are kept: class name, HTTP status, known service code,
errno, and the delay in seconds that the server asked for.
"""

from __future__ import annotations

import email.utils
import errno
import os
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from datetime import timezone
from typing import Any, TypeVar

from seqrecord.errors import (
    AccessError,
    ConflictError,
    LocationError,
    NotFoundError,
    StorageError,
    TransientError,
)

_T = TypeVar("_T")


def call(shown: str, function: Callable[..., _T], /, *args: Any, **kwargs: Any) -> _T:
    """Call `function(*args, **kwargs)`; exceptions become errors about the file or place `shown`.

    The error is raised outside of the `except` block, so that the original is not its context.
    """
    try:
        return function(*args, **kwargs)
    except StorageError:
        raise
    except Exception as error:
        failure = classify(error, shown)
    try:
        raise failure
    finally:
        del failure  # its traceback refers to this frame


def is_busy(status: int) -> bool:
    """Whether a retry may get another response than this HTTP status."""
    return str(status) in _BUSY


def classify(error: BaseException, shown: str) -> StorageError:
    """Convert an exception of any client to an error of this package, without its text.

    Returns `NotFoundError` for a missing file or container, `AccessError` for a refusal,
    `LocationError` for an unknown host or a missing package, `TransientError` if a retry may
    succeed, and `StorageError` otherwise.
    """
    if isinstance(error, ModuleNotFoundError) and error.name:
        name = error.name if error.name.startswith("azure.") else error.name.partition(".")[0]
        package = {"google": "google-auth"}.get(name, name.replace(".", "-"))
        return LocationError(f"a package is missing: pip install {package}", file=shown)
    chain = list(_chain(error))
    status, code, number = (
        _first_answer(_status, chain),
        _first_answer(_code, chain),
        _first_answer(_errno, chain),
    )
    obstore_text = "\n".join(
        str(exception) for exception in chain if _is_from(exception, "obstore")
    )
    marks = {str(status), str(code), errno.errorcode.get(number or 0, "")}
    marks.update(mark for exception in chain for mark in _class_names(exception))
    description = _describe(error, status, code, number)
    for kind, message, rule_marks, texts in _RULES[: None if status is None else -1]:
        if not marks.isdisjoint(rule_marks) or any(text in obstore_text for text in texts):
            check = _REFUSALS.get(str(code), "check the key, SAS or identity and its permissions")
            failure = kind(message.format(description, check=check), file=shown)
            if isinstance(failure, TransientError):
                failure.retry_after = _first_answer(_retry_after, chain)
            return failure
    return StorageError(f"the storage failed: {description}", file=shown)


_CHECKS = {  # suggestions by service codes
    "the key or SAS is wrong or expired, or the clock here is; check them": "AuthenticationFailed",
    "check the key or SAS, its permissions, the account's network rules": "AuthorizationFailure",
    "check the permissions of the SAS, or the identity's role": "AuthorizationPermissionMismatch",
    "the SAS is for another protocol, service, resource or address; check it": (
        "AuthorizationProtocolMismatch AuthorizationResourceTypeMismatch "
        "AuthorizationServiceMismatch AuthorizationSourceIPMismatch"
    ),
    "check the permissions of the key, SAS or identity": "InsufficientAccountPermissions",
    "the credential is malformed; check it": "InvalidAuthenticationInfo",
    "the account is disabled": "AccountIsDisabled",
    "the account accepts no keys; use an identity": "KeyBasedAuthenticationNotPermitted",
    "no credential was given; set a key, SAS or identity": (
        "NoAuthenticationInformation PublicAccessNotPermitted"
    ),
    "check the permissions of the key or identity; without permission to list, S3 and GCS report "
    "missing files so too": "AccessDenied",
    "the session token has expired; renew it": "ExpiredToken TokenRefreshRequired",
    "this access key does not exist; check it": "InvalidAccessKeyId",
    "the session token is wrong; check it": "InvalidToken",
    "the clock here is wrong; check it": "RequestTimeTooSkewed",
    "the secret access key is wrong, or the clock here is; check them": "SignatureDoesNotMatch",
}
SET_CREDENTIAL = "set a key, a profile or an identity, or skip_signature for public data"
_REFUSALS = {code: check for check, codes in _CHECKS.items() for code in codes.split()}
_BUSY = ("408", "425", "429", "500", "502", "503", "504")

_Rule = tuple[type[StorageError], str, frozenset[str], tuple[str, ...]]


def _rule(kind: type[StorageError], message: str, marks: str = "", *texts: str) -> _Rule:
    return kind, message, frozenset(marks.split()), texts


# Error class and message; marks: HTTP statuses, service codes, errno names, names of exception
# classes (so that no client needs to be imported); and parts of texts of obstore's errors, which
# have no other attributes. The first matching rule applies; the last one only without an HTTP
# status.
_RULES = (
    _rule(
        StorageError,
        "the server's certificate is not trusted: check the endpoint, or set its authority in "
        "SSL_CERT_FILE (for S3 AWS_CA_BUNDLE too)",
        "SSLCertVerificationError",
        *("InvalidCertificate", "invalid peer certificate", "certificate verify failed"),
    ),
    _rule(  # also of token endpoints; GCS sends rate limits with status 403 or 429
        TransientError,
        "the storage failed: {}",
        f"{' '.join(_BUSY)} InternalError OperationTimedOut RequestTimeout ServerBusy SlowDown "
        "ServiceUnavailable rateLimitExceeded userRateLimitExceeded ConditionalRequestConflict "
        "google.retryable",
    ),
    _rule(ConflictError, "the file exists already", "obstore.AlreadyExistsError"),
    _rule(ConflictError, "another writer replaced it", "obstore.PreconditionError"),
    _rule(StorageError, "the file ended early", "416"),
    _rule(
        NotFoundError,
        "no such container: check its name, and the account",
        "ContainerNotFound",
    ),
    _rule(NotFoundError, "no such bucket: check its name", "NoSuchBucket"),
    _rule(
        LocationError,
        "the bucket is in another region ({}): check the endpoint, and the storage "
        "option region or AWS_REGION",
        "301 AuthorizationHeaderMalformed IllegalLocationConstraintException PermanentRedirect "
        "TemporaryRedirect",
        "incorrectly configured region",
    ),
    _rule(
        AccessError,
        f"no credential was found ({{}}): {SET_CREDENTIAL}",
        "CredentialUnavailableError DefaultCredentialsError NoCredentialsError",
        *("169.254.169.254", "169.254.170.2", "metadata.google.internal"),
    ),
    _rule(
        AccessError,
        "access is refused ({}): {check}",
        f"401 403 {' '.join(_REFUSALS)} ClientAuthenticationError CredentialRetrievalError "
        "PartialCredentialsError PermissionDeniedError ProfileNotFound RefreshError "
        "UnauthenticatedError",
    ),
    _rule(
        NotFoundError,
        "no such file",
        "404 ENOENT FileNotFoundError ResourceNotFoundError obstore.NotFoundError BlobNotFound "
        "NoSuchKey",
    ),
    _rule(
        LocationError,
        "no such host: check the account's name or the endpoint",
        "EAI_NONAME",
        "Name or service not known",
    ),
    _rule(AccessError, "access is refused ({}): check the permissions", "EACCES EPERM"),
    _rule(
        TransientError,
        "the storage failed: {}",
        "EAGAIN ECONNABORTED ECONNREFUSED ECONNRESET EHOSTUNREACH EINTR EIO ENETDOWN ENETRESET "
        "ENETUNREACH ENOTCONN EPIPE ESHUTDOWN ESTALE ETIMEDOUT",
    ),
    _rule(
        TransientError,
        "the storage failed: {}",
        "ClientConnectionError ClientPayloadError ChunkedEncodingError ConnectionError EOFError "
        "HTTPClientError HTTPException IncompleteReadError ProtocolError ServiceRequestError "
        "ServiceResponseError SSLError TimeoutError TimeoutException TransportError gaierror",
        *("error sending request", "HTTP error", "error decoding response", "timed out", "dns"),
    ),
)
_CODES = frozenset().union(*(marks for _, _, marks, _ in _RULES))
_OBSTORE_KINDS = ("Connect", "Decode", "Interrupted", "Request", "Timeout")


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception and all chained or wrapped ones, each once."""
    queue, seen = [error], set[int]()
    while queue and len(seen) < 20:
        exception = queue.pop(0)
        if id(exception) in seen:
            continue
        seen.add(id(exception))
        yield exception
        wrapped_errors = [getattr(exception, name, None) for name in ("inner_exception", "reason")]
        causes = [exception.__cause__, exception.__context__, *wrapped_errors, *exception.args]
        queue += [cause for cause in causes if isinstance(cause, BaseException)]


def _first_answer(
    ask: Callable[[BaseException], _T | None], chain: list[BaseException]
) -> _T | None:
    return next((answer for exception in chain if (answer := ask(exception)) is not None), None)


def _is_from(error: BaseException, *packages: str) -> bool:
    return type(error).__module__.partition(".")[0] in packages


def _class_names(error: BaseException) -> Iterator[str]:
    """Names of its classes, with and without the package's name."""
    for kind in type(error).__mro__:
        yield kind.__name__
        yield f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
    if _is_from(error, "google") and getattr(error, "retryable", False):
        yield "google.retryable"
    is_unknown = isinstance(error, socket.gaierror) and error.errno == socket.EAI_NONAME
    if is_unknown or getattr(error, "response_status", None) == 600:  # status of blobfile
        yield "EAI_NONAME"


def _status(error: BaseException) -> int | None:
    response = getattr(error, "response", None)
    botocore = response if isinstance(response, dict) else {}  # botocore's
    names = ("status", "status_code", "response_status")  # the last is blobfile's
    values = [
        botocore.get("ResponseMetadata", {}).get("HTTPStatusCode"),
        getattr(error, "code", None) if _is_from(error, "gcsfs") else None,
        *(getattr(holder, name, None) for holder in (error, response) for name in names),
    ]
    if _is_from(error, "botocore", "obstore"):  # botocore: of an endpoint for credentials
        text = r"(?:Received non 200 response|status(?: code)?:?) (\d{3})\b"
        values += map(int, re.findall(text, str(error)))
    return next((v for v in values if type(v) is int and 100 <= v < 600), None)


def _code(error: BaseException) -> str | None:
    response = getattr(error, "response", None)
    code = response.get("Error", {}).get("Code") if isinstance(response, dict) else None
    code = code or getattr(error, "error_code", None) or getattr(error, "error", None)
    code = getattr(code, "value", code)  # an enum in azure-core
    if code is None:  # obstore's errors have only text, and some are builtins
        code_match = re.search(r"<Code>(\w+)</Code>|\b(\w*[rR]ateLimitExceeded)\b", str(error))
        code = (code_match[1] or code_match[2]) if code_match else None
    return code if isinstance(code, str) and code in _CODES else None


def _errno(error: BaseException) -> int | None:
    if isinstance(error, ssl.SSLError):  # numbers of OpenSSL
        return None
    number = error.errno if isinstance(error, OSError) else None
    return number if type(number) is int and number > 0 else None


def _describe(
    error: BaseException, status: int | None, code: str | None, number: int | None
) -> str:
    """Description of an error from parts that cannot contain a secret."""
    words = [type(error).__name__]
    if _is_from(error, "obstore") and (
        kind := re.search(r"HttpError \{\s*kind: (\w+)", str(error))
    ):
        words += [kind[1]] if kind[1] in _OBSTORE_KINDS else []
    words += [f"HTTP status {status}"] if status is not None else []
    words += [code] if code is not None else []
    words += [os.strerror(number)] if number is not None else []
    return ", ".join(words)


def _retry_after(error: BaseException) -> float | None:
    """Delay in seconds that the server asked for."""
    holders = (error, getattr(error, "response", None))
    headers: list[Any] = [getattr(holder, "headers", None) for holder in holders]
    pairs = [pair for mapping in headers if hasattr(mapping, "items") for pair in mapping.items()]
    header_values = {str(name).lower(): str(value) for name, value in pairs}
    units = {"retry-after-ms": 0.001, "x-ms-retry-after-ms": 0.001, "retry-after": 1.0}
    for name, unit in units.items():
        if (
            name in header_values
            and (seconds := _seconds(header_values[name], header_values.get("date"))) is not None
        ):
            return seconds * unit
    # A rate limit window without remaining requests (draft-ietf-httpapi-ratelimit-headers-09).
    window_match = re.search(r"\br=0\b.*?\bt=(\d{1,15})\b", header_values.get("ratelimit", ""))
    return float(window_match[1]) if window_match else None


def _seconds(text: str, date: str | None) -> float | None:
    """Seconds from now until a `Retry-After`, a number or a date (RFC 9110, 10.2.3).

    A date is relative to the response's `Date` if available, since clocks may differ.
    """
    if re.fullmatch(r"\d{1,300}(\.\d{1,9})?", text.strip()):
        return float(text)
    if (until := _timestamp(text)) is None:
        return None
    server_time = None if date is None else _timestamp(date)
    return max(0.0, until - (time.time() if server_time is None else server_time))


def _timestamp(text: str) -> float | None:
    """Seconds since 1970 of a date in any of HTTP's three formats, which are in UTC."""
    try:
        date = email.utils.parsedate_to_datetime(text)
        return (date if date.tzinfo else date.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, OverflowError):
        return None
