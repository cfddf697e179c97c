"""Exceptions of cloud clients and of the system as errors of this package.

A client's exception may hold a signed URL or a header with a key, in its text, its attributes and
those that it chains. So nothing of it is kept but its kind, its HTTP status, the service's code if
it is a known one, its errno and the seconds that the server asked to wait.
"""

from __future__ import annotations

import datetime
import email.utils
import errno
import os
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from seqrecord.errors import (
    AccessError,
    LocationError,
    NotFoundError,
    StorageError,
    TransientError,
)

__all__ = ["call", "classify", "is_busy"]

_T = TypeVar("_T")


def call(shown: str, function: Callable[..., _T], /, *args: Any, **kwargs: Any) -> _T:
    """`function(*args, **kwargs)`, or an error of this package about the file or place `shown`.

    Raised outside the `except`, it does not have the client's exception as its context.
    """
    try:
        return function(*args, **kwargs)
    except StorageError:
        raise
    except Exception as error:
        failure = classify(error, shown)
    raise failure


def classify(error: BaseException, shown: str) -> StorageError:
    """What an exception of any client means for `shown`, without anything that it says.

    `NotFoundError` for a missing file or container, `AccessError` for a refusal, `LocationError`
    for a host that does not exist and a missing package, `TransientError` for what may go well if
    tried again, and `StorageError` for the rest.
    """
    if isinstance(error, ModuleNotFoundError) and error.name:
        name = error.name if error.name.startswith("azure.") else error.name.partition(".")[0]
        return LocationError(
            f"a package is missing: pip install {name.replace('.', '-')}", file=shown
        )
    chain = list(_chain(error))
    status = _first(_status, chain)
    code = _first(_code, chain)
    number = _first(_errno, chain)
    described = _describe(error, status, code, number)
    if _is_untrusted(chain):
        return StorageError(
            "the server's certificate is not trusted: check the endpoint, or give its authority in "
            "SSL_CERT_FILE (of S3 AWS_CA_BUNDLE too) or as storage option root_certificate",
            file=shown,
        )
    if code in _BUSY_CODES or status in _BUSY or _first(_may_pass, chain):  # a token endpoint's too
        return _transient(described, chain, shown)
    if code == "ContainerNotFound":
        return NotFoundError("no such container: check the account's and its name", file=shown)
    if code == "NoSuchBucket":
        return NotFoundError("no such bucket: check its name", file=shown)
    if code in _ELSEWHERE or _says(chain, "incorrectly configured region") or status == 301:
        return LocationError(
            f"the bucket is in another region or place ({described}): check the endpoint, and the "
            "storage option region or AWS_REGION",
            file=shown,
        )
    if _says(chain, *_METADATA_SERVERS):
        return AccessError(f"no credential was found ({described}): {_GIVE_ONE}", file=shown)
    if code in _REFUSALS or status in (401, 403) or _any(chain, _UNAUTHORIZED):
        check = _REFUSALS.get(code or "", _CHECK_ALL)
        return AccessError(f"access is refused ({described}): {check}", file=shown)
    if status == 404 or number == errno.ENOENT or _any(chain, _MISSING):
        return NotFoundError("no such file", file=shown)
    if _is_unknown_host(chain):
        return LocationError("no such host: check the account's name or the endpoint", file=shown)
    if number in (errno.EACCES, errno.EPERM) and status is None:
        return AccessError(f"access is refused ({described}): check the permissions", file=shown)
    broken = _any(chain, _BROKEN) or _is_broken_obstore(chain)
    if number in _PASSING or (status is None and broken):
        return _transient(described, chain, shown)
    return StorageError(f"the storage failed: {described}", file=shown)


def is_busy(status: int) -> bool:
    """Whether a server that answers this status may do what was asked later."""
    return status in _BUSY


def _transient(described: str, chain: list[BaseException], shown: str) -> TransientError:
    failure = TransientError(f"the storage failed: {described}", file=shown)
    failure.retry_after = _first(_retry_after, chain)
    return failure


_GIVE_ONE = "give a key or identity, or skip_signature for what is public"
_CHECK_ALL = "check the key, SAS or identity and what it may do there"
_REFUSALS = {
    "AuthenticationFailed": "the key or SAS is wrong or expired, or the clock here is; check them",
    "AuthorizationFailure": "check the key or SAS, what it may do, and the account's network rules",
    "AuthorizationPermissionMismatch": "check the permissions of the SAS, or the identity's role",
    "AuthorizationProtocolMismatch": "the SAS is for another protocol; check http or https",
    "AuthorizationResourceTypeMismatch": "the SAS is for other kinds of resources; check it",
    "AuthorizationServiceMismatch": "the SAS is for another service; check it",
    "AuthorizationSourceIPMismatch": "the SAS is for other addresses; check it",
    "InsufficientAccountPermissions": "check what the key, SAS or identity may do",
    "InvalidAuthenticationInfo": "the credential cannot be understood; check it",
    "AccountIsDisabled": "the account is disabled",
    "KeyBasedAuthenticationNotPermitted": "the account takes no keys; use an identity",
    "NoAuthenticationInformation": "no credential was given; give a key, SAS or identity",
    "PublicAccessNotPermitted": "no credential was given; give a key, SAS or identity",
}
_REFUSALS |= {
    "AccessDenied": "check what the key or identity may do there; of a file that is missing S3 and "
    "GCS say so too, to whoever may not list",
    "ExpiredToken": "the session token has expired; renew it",
    "InvalidAccessKeyId": "there is no such access key; check it",
    "InvalidToken": "the session token is wrong; check it",
    "RequestTimeTooSkewed": "the clock here is wrong; check it",
    "SignatureDoesNotMatch": "the secret access key is wrong, or the clock here is; check them",
    "TokenRefreshRequired": "the session token has expired; renew it",
}
_BUSY_CODES = frozenset(
    {
        "InternalError",
        "OperationTimedOut",
        "RequestTimeout",
        "ServerBusy",
        "ServiceUnavailable",
        "SlowDown",
        "rateLimitExceeded",  # of GCS, with status 403 or 429
        "userRateLimitExceeded",
    }
)
_ELSEWHERE = frozenset(
    {
        "AuthorizationHeaderMalformed",
        "IllegalLocationConstraintException",
        "PermanentRedirect",
        "TemporaryRedirect",
    }
)
_CODES = {*_REFUSALS, *_BUSY_CODES, *_ELSEWHERE}
_CODES |= {"BlobNotFound", "ContainerNotFound", "NoSuchBucket", "NoSuchKey"}
_METADATA_SERVERS = ("169.254.169.254", "169.254.170.2", "metadata.google.internal")

_BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})
_PASSING = frozenset(
    {
        errno.EAGAIN,
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.EHOSTUNREACH,
        errno.EINTR,
        errno.EIO,
        errno.ENETDOWN,
        errno.ENETRESET,
        errno.ENETUNREACH,
        errno.ENOTCONN,
        errno.EPIPE,
        errno.ESHUTDOWN,
        errno.ESTALE,
        errno.ETIMEDOUT,
    }
)

# Kinds by name, so that no client is imported to understand the errors of another.
_MISSING = frozenset({"FileNotFoundError", "ResourceNotFoundError", "obstore.NotFoundError"})
_UNAUTHORIZED = frozenset(
    {
        "ClientAuthenticationError",
        "CredentialRetrievalError",  # botocore
        "CredentialUnavailableError",
        "DefaultCredentialsError",  # google-auth
        "NoCredentialsError",  # botocore
        "PartialCredentialsError",
        "ProfileNotFound",
        "RefreshError",  # google-auth
        "PermissionDeniedError",
        "UnauthenticatedError",
    }
)
_BROKEN = frozenset(
    {
        "ClientConnectionError",  # aiohttp
        "ClientPayloadError",
        "ChunkedEncodingError",  # requests
        "ConnectionError",
        "EOFError",
        "HTTPClientError",  # botocore
        "HTTPException",  # http.client: what the server says is no HTTP
        "IncompleteReadError",  # azure-core
        "ProtocolError",  # urllib3
        "ServiceRequestError",
        "ServiceResponseError",
        "SSLError",  # ssl, and those that wrap it; of a certificate it is known before this
        "TimeoutError",
        "TimeoutException",  # httpx
        "TransportError",
        "gaierror",  # of a name server: the name itself was known to be wrong before this
    }
)
_OBSTORE_KINDS = frozenset({"Connect", "Decode", "Interrupted", "Request", "Timeout"})
_SECONDS_PER_MS = 0.001


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception, those behind it and those it wraps; each once."""
    waiting, seen = [error], set[int]()
    while waiting and len(seen) < 20:
        item = waiting.pop(0)
        if id(item) in seen:
            continue
        seen.add(id(item))
        yield item
        inner = [getattr(item, name, None) for name in ("inner_exception", "reason")]
        behind = [item.__cause__, item.__context__, *inner, *item.args]
        waiting += [each for each in behind if isinstance(each, BaseException)]


def _first(ask: Callable[[BaseException], _T | None], chain: list[BaseException]) -> _T | None:
    return next((answer for item in chain if (answer := ask(item)) is not None), None)


def _any(chain: list[BaseException], kinds: frozenset[str]) -> bool:
    for item in chain:
        for kind in type(item).__mro__:
            package = kind.__module__.partition(".")[0]
            if kind.__name__ in kinds or f"{package}.{kind.__name__}" in kinds:
                return True
    return False


def _is_of(error: BaseException, *packages: str) -> bool:
    return type(error).__module__.partition(".")[0] in packages


def _is_obstore(error: BaseException) -> bool:
    return _is_of(error, "obstore")


def _says(chain: list[BaseException], *texts: str) -> bool:
    """Whether obstore says one of these: its errors have nothing but text."""
    return any(_is_obstore(e) and any(text in str(e) for text in texts) for e in chain)


def _is_untrusted(chain: list[BaseException]) -> bool:
    return any(isinstance(e, ssl.SSLCertVerificationError) for e in chain) or _says(
        chain, "InvalidCertificate", "invalid peer certificate", "certificate verify failed"
    )


def _may_pass(error: BaseException) -> bool | None:
    """Whether google-auth says so."""
    return (_is_of(error, "google") and getattr(error, "retryable", False)) or None


def _status(error: BaseException) -> int | None:
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore
        value = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return value if type(value) is int else None
    for value in (
        getattr(error, "code", None) if _is_of(error, "urllib", "gcsfs") else None,
        getattr(error, "status", None),
        getattr(error, "status_code", None),
        getattr(error, "response_status", None),  # blobfile
        getattr(response, "status_code", None),
        getattr(response, "status", None),
    ):
        if type(value) is int and 100 <= value < 600:
            return value
    if _is_of(error, "botocore"):  # of an endpoint for credentials
        found = re.search(r"Received non 200 response (\d{3})\b", str(error))
        return int(found[1]) if found else None
    if _is_obstore(error):  # its text is all that it has
        found = re.search(r"status(?: code)?:? (\d{3})\b", str(error))
        return int(found[1]) if found else None
    return None


def _code(error: BaseException) -> str | None:
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore
        code = response.get("Error", {}).get("Code")
        return code if code in _CODES else None
    code = getattr(error, "error_code", None) or getattr(error, "error", None)
    code = getattr(code, "value", code)  # azure-core has an enum
    if code is None:  # obstore's errors have nothing but text, and some of them are builtins
        found = re.search(r"<Code>(\w+)</Code>|\b(\w*[rR]ateLimitExceeded)\b", str(error))
        code = (found[1] or found[2]) if found else None
    return code if isinstance(code, str) and code in _CODES else None


def _errno(error: BaseException) -> int | None:
    if isinstance(error, ssl.SSLError):  # whose numbers are OpenSSL's
        return None
    number = error.errno if isinstance(error, OSError) else None
    return number if type(number) is int and number > 0 else None


def _is_unknown_host(chain: list[BaseException]) -> bool:
    if any(isinstance(e, socket.gaierror) and e.errno == socket.EAI_NONAME for e in chain):
        return True
    if any(getattr(e, "response_status", None) == 600 for e in chain):  # blobfile's own number
        return True
    return _says(chain, "Name or service not known")


def _is_broken_obstore(chain: list[BaseException]) -> bool:
    """Whether obstore's text is that of a request that broke: it has no kinds for them."""
    marks = ("error sending request", "HTTP error", "error decoding response", "timed out", "dns")
    return _says(chain, *marks)


def _retry_after(error: BaseException) -> float | None:
    headers = _headers(error)
    for name, unit in (
        ("retry-after-ms", _SECONDS_PER_MS),
        ("x-ms-retry-after-ms", _SECONDS_PER_MS),
        ("retry-after", 1.0),
    ):
        if name in headers and (seconds := _seconds(headers[name])) is not None:
            return seconds * unit
    return None


def _headers(error: BaseException) -> dict[str, str]:
    text = getattr(error, "error_headers", None)
    if isinstance(text, str):  # blobfile
        pairs = [item.partition(": ") for item in text.split(", ")]
        return {name.lower(): value for name, _, value in pairs}
    for holder in (getattr(error, "response", None), error):
        headers: Any = getattr(holder, "headers", None)
        if hasattr(headers, "items"):
            return {str(name).lower(): str(value) for name, value in headers.items()}
    return {}


def _seconds(text: str) -> float | None:
    """Seconds from now, of a `Retry-After`: a number or a date (RFC 9110, 10.2.3)."""
    if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text.strip()):
        return float(text)
    try:
        date = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=datetime.timezone.utc)
    return max(0.0, (date - datetime.datetime.now(datetime.timezone.utc)).total_seconds())


def _describe(
    error: BaseException, status: int | None, code: str | None, number: int | None
) -> str:
    """What kind of error it was, in words that cannot hold a secret."""
    words = [type(error).__name__]
    if _is_obstore(error) and (kind := re.search(r"HttpError \{\s*kind: (\w+)", str(error))):
        words += [kind[1]] if kind[1] in _OBSTORE_KINDS else []
    if status is not None:
        words.append(f"HTTP status {status}")
    if code is not None:
        words.append(code)
    if number is not None:
        words.append(os.strerror(number))
    return ", ".join(words)
