"""A web server that answers ranges, to its readers."""

from __future__ import annotations

import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from seqrecord.errors import StorageError
from seqrecord.storage.base import check_path
from seqrecord.storage.failures import call
from seqrecord.storage.objects.source import Client, client_settings, place_of
from seqrecord.storage.per_process import PerProcess
from seqrecord.storage.requests import Request, RequestReader, fill, hurried

__all__ = ["WebReader", "WebServer"]

_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class WebServer:
    """A folder of a web server, `url` its address."""

    url: str = field(repr=False)  # it may hold a password
    client_options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    without_obstore = "leave out client_options"
    is_reread = False

    @property
    def place(self) -> str:
        return place_of(self.url, "")

    def key(self, path: str) -> str:
        return path

    def client(self, timeout: float, retry_seconds: float = 0.0) -> Client:
        from obstore.store import HTTPStore

        settings = client_settings(timeout, self.client_options, retry_seconds)
        return Client(HTTPStore(self.url, **settings))


class WebReader(RequestReader):
    """Reads a web server with Python's own client.

    A length is that of a HEAD, or of a range's answer where HEAD does not tell. No more is read of
    an answer than was asked for, and nothing of one that is of the whole file.
    """

    def __init__(self, url: str, shown: str, *, timeout: float) -> None:
        self._url, self._shown, self._timeout = url.rstrip("/"), shown.rstrip("/"), timeout
        self._openers = PerProcess(_opener)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._url, self._shown, self._timeout)

    def size(self, path: str) -> int:
        shown = f"{self._shown}/{check_path(path)}"

        def size() -> int:
            try:
                with self._ask("HEAD", path, {"Accept-Encoding": "identity"}) as answer:
                    length = answer.headers.get("Content-Length", "")
            except urllib.error.HTTPError as error:
                if error.code not in (405, 501):
                    raise
                length = ""
            if not length.isdecimal():
                with self._ask("GET", path, {"Range": "bytes=0-0"}) as answer:
                    length = answer.headers.get("Content-Range", "").rpartition("/")[2]
            if not length.isdecimal():
                raise StorageError("the server does not tell the file's length", file=shown)
            return int(length)

        return call(shown, size)

    def read(self, path: str, request: Request) -> None:
        shown = f"{self._shown}/{path}"
        got = call(shown, self._read, path, shown, request)
        if got != request[0].length:
            raise self.missing(path, shown, request[0], got)

    def close(self) -> None:
        self._openers.take()

    def _read(self, path: str, shown: str, request: Request) -> int:
        item, views = request
        try:
            answer = self._ask("GET", path, {"Range": f"bytes={item.start}-{item.stop - 1}"})
        except urllib.error.HTTPError as error:
            if error.code == 416:
                return 0
            raise
        with answer:
            said = re.fullmatch(
                r"bytes (\d+)-(\d+)/(?:\d+|\*)", answer.headers.get("Content-Range", "").strip()
            )
            if answer.status != 206 or said is None:
                raise StorageError(
                    "the server does not answer ranges (206 and Content-Range): "
                    "it would send whole files",
                    file=shown,
                )
            if int(said[1]) != item.start or int(said[2]) >= item.stop:
                return 0
            return fill(views, hurried(_chunks(answer), self._timeout, shown))

    def _ask(self, method: str, path: str, headers: Mapping[str, str]) -> Any:
        request = urllib.request.Request(  # noqa: S310 - http or https, by `parse_location`
            f"{self._url}/{quote(path)}", headers=dict(headers), method=method
        )
        return self._openers.get().open(request, timeout=self._timeout)


def _opener() -> urllib.request.OpenerDirector:
    # It reads all the authorities that the machine knows, which takes 30 ms, and the proxies.
    handler = urllib.request.HTTPSHandler(context=ssl.create_default_context())
    return urllib.request.build_opener(handler)


def _chunks(answer: Any) -> Iterator[bytes]:
    return iter(lambda: answer.read1(_READ_BYTES), b"")


def _rebuild(url: str, shown: str, timeout: float) -> WebReader:
    return WebReader(url, shown, timeout=timeout)
