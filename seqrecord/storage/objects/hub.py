"""Datasets on the Hugging Face Hub: `hf://datasets/ORG/NAME[@REVISION][/PATH]`.

The Hub itself serves small files. Files in LFS are read from signed URLs of another host, in
ranges as from any web server.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, ClassVar
from urllib.parse import unquote

from seqrecord.errors import AccessError, LocationError
from seqrecord.lazy import is_installed
from seqrecord.storage.base import Entry, FileInfo, check_path, too_large
from seqrecord.storage.objects.bucket import (
    Bucket,
    Names,
    canonical_settings,
    check_endpoint,
    split_client_options,
)
from seqrecord.storage.objects.http import HttpFiles, Signer
from seqrecord.storage.objects.hub_api import Hub
from seqrecord.storage.objects.reader import ObstoreReader
from seqrecord.storage.objects.storage import ObjectStorage
from seqrecord.storage.ranges import ByteRange
from seqrecord.storage.requests import TIMEOUT_SECONDS, FsspecReader, Request, RequestReader
from seqrecord.storage.settings import StorageSettings, split_options
from seqrecord.storage.url import Location, named_place, parse_location

_ENDPOINT = "https://huggingface.co"
_MAIN = "main"
_URL = "hf://datasets/ORG/NAME[@REVISION][/PATH]"
_PLACE = re.compile(
    r"datasets/(?P<repo>[\w.-]+/[\w.-]+)"
    r"(@(?P<revision>refs/(?:pr|convert)/[^/@]+|[^/@]+))?(/(?P<folder>.*))?"
)
_CLIENTS = 64  # cached clients, one per signed URL


def is_hub_dataset(where: Location) -> bool:
    """Whether this is a dataset on the Hub; fsspec serves models, spaces and buckets."""
    return where.protocol == "hf" and where.root.partition("/")[0] == "datasets"


def hub_branch(url: str, storage_options: Mapping[str, Any] | None = None) -> Hub:
    """The branch `hf://datasets/ORG/NAME[@BRANCH]` for writing; makes no request yet.

    Raises `LocationError` for another URL, an unknown option, or a missing package.
    """
    where = parse_location(url)
    settings, rest = split_options(storage_options or {}, where.shown)
    hub = open_hub(where, settings, rest).bucket.hub if is_hub_dataset(where) else None
    if hub is None or hub.folder or hub.is_fixed:
        raise LocationError(
            "not a branch of a dataset on the Hub",
            expected="hf://datasets/ORG/NAME[@BRANCH]",
            got=where.shown,
        )
    return hub


def open_hub(where: Location, settings: StorageSettings, rest: Mapping[str, Any]) -> HubStorage:
    """Open a dataset on the Hub; makes no request yet.

    `rest` has `token`, `endpoint` and the client's options. Raises `LocationError` for an invalid
    URL or option, and for a missing package.
    """
    found = _PLACE.fullmatch(where.root.strip("/"))
    if found is None:
        raise LocationError("an unclear URL of the Hub", expected=_URL, got=where.shown)
    for package in ("huggingface_hub", settings.backend):
        if package is not None and not is_installed(package):
            raise LocationError(
                f"a package is missing for hf://: pip install {package}", file=where.shown
            )
    client_options, rest = split_client_options(rest, where.shown)
    given = canonical_settings(rest, HubFolder.names, where.shown, prefix="hf_")
    endpoint = str(given.get("endpoint") or os.environ.get("HF_ENDPOINT") or _ENDPOINT)
    check_endpoint(endpoint)
    retrier = settings.retrier()
    hub = Hub(
        endpoint=endpoint.rstrip("/"),
        repo=found["repo"],
        revision=unquote(found["revision"] or _MAIN),
        folder=check_path(unquote(found["folder"])) if found["folder"] else "",
        token=given.get("token"),
        retrier=retrier,
    )
    timeout = min(TIMEOUT_SECONDS, settings.deadline / 4)
    folder = HubFolder(
        bucket=hub.repo,
        root="",
        shown=where.shown,
        config={},
        client_options=client_options,
        hub=hub,
    )
    plain = FsspecReader(partial(folder.http_client, timeout), "", where.shown)
    signed: RequestReader = plain
    if (settings.backend or "obstore") == "obstore" and is_installed("obstore"):
        signed = ObstoreReader(folder, where.shown, fallback=plain, timeout=timeout)
    reader = HubReader(hub, signed, plain)
    return HubStorage(folder, reader, where.shown, timeout=timeout, retrier=retrier)


@dataclass(frozen=True, kw_only=True)
class HubFolder(Bucket):
    """A folder of a dataset on the Hub: a web server with an individual address per file."""

    is_writable = False
    names: ClassVar[Names] = {"token": ("token",), "endpoint": ("endpoint",)}
    environment: ClassVar[Names] = {}

    hub: Hub

    @property
    def is_reread(self) -> bool:
        return False  # see `HubReader.read`

    @property
    def place(self) -> str:
        endpoint = self.hub.endpoint
        options = {} if endpoint == _ENDPOINT else {"endpoint": endpoint}
        return named_place(self.shown, options)

    def credential(self) -> None:
        return None

    def store(self, **settings: Any) -> Any:
        return _Stores(self.hub, settings)

    def signer(self) -> Signer:
        def sign(_: str, path: str) -> tuple[str, Mapping[str, str]]:
            address = self.hub.address(path)
            return address.url, address.headers

        return sign

    def http_client(self, timeout: float) -> HttpFiles:
        return _Files(self.hub, self.signer(), self.shown, timeout)


class _Stores:
    """A subset of obstore's store interface, with a store per signed URL."""

    def __init__(self, hub: Hub, settings: Mapping[str, Any]) -> None:
        from obstore.store import HTTPStore

        self._hub = hub
        self._store = lru_cache(_CLIENTS)(lambda url: HTTPStore(url, **settings))

    def get(self, path: str, *, options: Any) -> Any:
        return self._store(self._hub.address(path).url).get("", options=options)

    def head(self, path: str) -> dict[str, Any]:
        return {"size": self._hub.file(path).size}


class _Files(HttpFiles):
    """Reads without obstore; sizes are from the Hub's listing."""

    def __init__(self, hub: Hub, sign: Signer, shown: str, timeout: float) -> None:
        super().__init__(sign, shown, timeout, follows=True)
        self._hub = hub

    def info(self, path: str) -> dict[str, Any]:
        return {"size": self._hub.file(path).size}


class HubReader(RequestReader):
    """Reads files with `signed` if in LFS, else with `plain` from the Hub itself."""

    def __init__(self, hub: Hub, signed: RequestReader, plain: RequestReader) -> None:
        self._hub, self._signed, self._plain = hub, signed, plain

    def length(self, path: str) -> int:
        return self._hub.file(check_path(path)).size

    size = length

    def read(self, path: str, request: Request) -> None:
        address = self._hub.address(path)
        if not address.is_signed:
            self._hub.rate_limited("resolvers", path, lambda: self._plain.read(path, request))
            return
        try:
            self._signed.read(path, request)
        except AccessError:  # the signed URL has expired
            self._hub.renew(path, address)
            self._signed.read(path, request)

    def read_whole(self, path: str, limit: int) -> bytes:
        size = self.size(path)
        if size > limit:
            raise too_large(self._hub.shown(path), limit, size)
        data = bytearray(size)
        if size:
            self.read(path, (ByteRange(0, size), [memoryview(data)]))
        return bytes(data)

    def expect_pages(self) -> None:
        self._signed.expect_pages()

    def close(self) -> None:
        self._signed.close()
        self._plain.close()


class HubStorage(ObjectStorage):
    """Read-only storage of a folder of a dataset on the Hub, at one commit.

    Sizes and identities are from a single listing; a process without it, such as a worker, requests
    them for each file that it reads. Pickles contain the commit, and an explicit token.
    """

    bucket: HubFolder
    refusal = "a dataset on the Hub is read-only here"

    @property
    def fixed_url(self) -> str:
        """URL with the commit that is read, also if a branch was opened."""
        return self.bucket.hub.fixed_url

    @property
    def has_fixed_files(self) -> bool:
        return self.bucket.hub.is_fixed

    def identity(self, path: str) -> tuple[int, str | None]:
        file = self.bucket.hub.file(check_path(path))
        return file.size, file.identity

    def listed(self, folder: str, *, deep: bool) -> list[FileInfo]:
        listing = self.bucket.hub.listing()
        return [
            FileInfo(path, listing.files[path].size, 0.0)
            for path in sorted(listing.below(check_path(folder), deep=deep))
        ]

    def entries(self, folder: str) -> list[Entry]:
        return self.bucket.hub.listing().entries(check_path(folder) if folder else "")
