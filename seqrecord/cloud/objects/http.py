"""Reading objects with urllib3, which works in forked processes too."""

from __future__ import annotations

import datetime
import functools
import os
import re
import ssl
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import SplitResult, unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3

from seqrecord.cloud.requests import Version, check_rate, fill
from seqrecord.errors import StorageError

# urllib3 beside obstore, whose reads hang in a forked child: see
# tests/cloud/test_objects.py::test_a_forked_child_reads_while_its_parent_reads.
_READ_BYTES = 1 << 20
_ERROR_BYTES = 64 << 10
_MOST_CONNECTIONS = 128  # idle ones that stay open, as many as concurrent requests
_MOST_REDIRECTS = 5
_RANGE = re.compile(r"\s*bytes (\d+)-(\d+)/(?:\d+|\*)\s*", re.IGNORECASE)  # RFC 9110, 14.1

Fetch = Callable[[], Any]
"""Returns a credential as obstore's credential providers do, with or without `expires_at`."""
Signer = Callable[[str, str], tuple[str, Mapping[str, str]]]
"""Returns URL and headers of a request, from its method and a path below the root."""


def cached_credential(fetch: Fetch | None) -> Callable[[], dict[str, Any]]:
    """Cached `fetch`, called again a minute before the credential expires; `{}` for `None`."""
    credential: dict[str, Any] = {}

    def fetch_renewed() -> dict[str, Any]:
        nonlocal credential
        expires = credential.get("expires_at")
        renewal_time = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(minutes=1)
        if fetch and (not credential or (expires and expires <= renewal_time)):
            credential = fetch()
        return credential

    return fetch_renewed


class HTTPError(Exception):
    """A response with an error status."""

    def __init__(self, answer: urllib3.BaseHTTPResponse) -> None:
        super().__init__(f"HTTP status {answer.status}")
        self.status, self.headers = answer.status, answer.headers
        code_match = re.search(rb"<Code>(\w+)</Code>", answer.read(_ERROR_BYTES))
        self.error_code = (
            code_match[1].decode() if code_match else answer.headers.get("x-ms-error-code")
        )


class HttpFiles:
    """A subset of fsspec's interface over HTTP.

    The size is from a HEAD request, or from a range's response if HEAD has none. A response is read
    only up to the requested length, and not at all if it has the whole file. Connections are
    reused. `follows` allows redirects, for servers without credentials only. `versions` has those
    of files that were read: if a file is replaced, reads fail until its version is removed. A file
    of the same size is not seen to be replaced if the server sends neither e-tags nor times.
    """

    def __init__(
        self,
        sign: Signer,
        shown: str,
        timeout: float,
        versions: dict[str, Version],
        *,
        follows: bool,
    ) -> None:
        self._sign, self._shown, self._timeout = sign, shown.rstrip("/"), timeout
        self._follows, self._versions = follows, versions
        # By scheme and host: not each needs the proxy.
        self._pools: dict[tuple[str, str], urllib3.PoolManager] = {}

    def info(self, path: str) -> dict[str, Any]:
        try:
            with self._ask("HEAD", path, {"Accept-Encoding": "identity"}) as answer:
                size, headers = _number(answer.headers.get("Content-Length", "")), answer.headers
        except HTTPError as error:
            # S3 answers 400 for an expired token or another region; the reason is in a body, which
            # HEAD does not have.
            if error.status not in (400, 405, 501):
                raise
            size, headers = None, {}
        if size is None:
            size, headers = self._size_of_range(path)
        return {"size": size, "file_version": _version(headers, size)}

    def _size_of_range(self, path: str) -> tuple[int | None, Mapping[str, str]]:
        """Size of a file and headers, from the response to a request for its first byte."""
        try:
            with self._ask("GET", path, {"Range": "bytes=0-0"}) as answer:
                headers = answer.headers
                if answer.status == 200:  # without ranges
                    return _number(headers.get("Content-Length", "")), headers
        except HTTPError as error:
            if error.status != 416:  # of an empty file: `Content-Range: bytes */0`
                raise
            headers = error.headers
        return _total(headers), headers

    def cat_file(self, path: str, start: int, end: int) -> bytearray:
        """Read a range; empty if the response has another range."""
        shown = f"{self._shown}/{path}"
        headers = {"Range": f"bytes={start}-{end - 1}"}
        known = self._versions.get(path, Version())
        if known.strong_tag is not None:
            headers["If-Match"] = known.strong_tag
        try:
            answer = self._ask("GET", path, headers)
        except HTTPError as error:
            is_other = error.status == 416 and known.differs(Version(size=_total(error.headers)))
            if error.status == 412 or is_other:
                raise _replaced(shown) from None
            raise
        with answer:
            content_range = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
            if answer.status != 206 or content_range is None:
                raise StorageError(
                    "the server does not support ranges (206 and Content-Range): "
                    "it would send whole files",
                    file=shown,
                )
            version = _version(answer.headers, _total(answer.headers))
            known = self._versions.setdefault(path, version)
            if known.differs(version):
                raise _replaced(shown)
            if (completed := known.completed(version)) != known:
                self._versions[path] = completed
            if int(content_range[1]) != start or int(content_range[2]) >= end:
                return bytearray()
            data = bytearray(int(content_range[2]) + 1 - start)
            chunks = iter(lambda: answer.read1(_READ_BYTES), b"")
            del data[fill([memoryview(data)], check_rate(chunks, self._timeout, shown)) :]
            return data

    def _ask(self, method: str, path: str, headers: Mapping[str, str]) -> Any:
        url, signed_headers = self._sign(method, path)
        headers = {**headers, **signed_headers}
        remaining_redirects = _MOST_REDIRECTS if self._follows else 0
        while True:
            # Neither retries, which `Retrier` does, nor redirects: another host has another proxy.
            answer = self._pool(url).request(
                method,
                url,
                headers=headers,
                preload_content=False,
                decode_content=False,
                redirect=False,
                retries=False,
            )
            location = answer.get_redirect_location() if remaining_redirects else None
            if not location:
                break
            answer.drain_conn()
            remaining_redirects -= 1
            origin, url = _origin(url), urljoin(url, location)
            if _origin(url) != origin:
                secret_names = urllib3.Retry.DEFAULT_REMOVE_HEADERS_ON_REDIRECT
                headers = {name: headers[name] for name in headers if name not in secret_names}
        if answer.status < 300:
            return answer
        with answer:
            raise HTTPError(answer)

    def _pool(self, url: str) -> urllib3.PoolManager:
        origin = _origin(url)
        if (pool := self._pools.get(origin)) is None:  # two threads may both create one
            pool = self._pools.setdefault(origin, _pool_for(url, self._timeout))
        return pool


def _origin(url: str) -> tuple[str, str]:
    """Scheme and host of a URL."""
    return urlsplit(url)[:2]


def _replaced(file: str) -> StorageError:
    message = "the file was replaced while it was read: open the dataset again"
    return StorageError(message, file=file)


def _total(headers: Mapping[str, str]) -> int | None:
    """The size of a whole file in `Content-Range`; `None` for `*` or without the header."""
    return _number(headers.get("Content-Range", "").rpartition("/")[2].strip())


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _version(headers: Mapping[str, str], size: int | None) -> Version:
    return Version(headers.get("ETag") or None, headers.get("Last-Modified") or None, size)


@functools.cache
def _ssl_context(_file: str | None, _folder: str | None) -> ssl.SSLContext:
    """Context with the certificates of these environment variables. Takes 30 ms, hence cached."""
    return ssl.create_default_context()


def without_user(parts: SplitResult) -> tuple[str, str]:
    """A URL without its user, and `NAME:PASSWORD`, decoded; empty if it has none."""
    name, password = (unquote(part or "") for part in (parts.username, parts.password))
    user = f"{name}:{password}" if name or password else ""
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl(), user


def _pool_for(url: str, timeout: float) -> urllib3.PoolManager:
    """Connection pool for the host of a URL, with the environment's proxy if set."""
    parts = urlsplit(url)
    settings: dict[str, Any] = {
        "timeout": timeout,
        "maxsize": _MOST_CONNECTIONS,
        "ssl_context": _ssl_context(*map(os.environ.get, ("SSL_CERT_FILE", "SSL_CERT_DIR"))),
    }
    proxy = getproxies().get(parts.scheme)
    if proxy is None or proxy_bypass(parts.netloc.rpartition("@")[2]):
        return urllib3.PoolManager(**settings)
    proxy_url = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    address, user = without_user(proxy_url)
    headers = urllib3.make_headers(proxy_basic_auth=user) if user else None
    return urllib3.ProxyManager(
        address,
        proxy_headers=headers,
        **settings,
    )
