"""Datasets on the Hugging Face Hub: `hf://datasets/ORG/NAME[@REVISION][/PATH]`.

The Hub itself serves small files. Files in LFS are read from signed URLs of another host, in
ranges as from any web server.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar
from urllib.parse import unquote

from seqrecord.cloud.objects.bucket import (
    Bucket,
    Names,
    canonical_settings,
    check_endpoint,
)
from seqrecord.cloud.objects.http import Signer
from seqrecord.cloud.objects.hub_api import Hub
from seqrecord.cloud.objects.storage import ObjectStorage
from seqrecord.cloud.requests import TIMEOUT_SECONDS, FsspecReader, Request
from seqrecord.cloud.settings import StorageSettings, split_options
from seqrecord.errors import AccessError, LocationError
from seqrecord.store.lazy import is_installed
from seqrecord.store.storage.base import Entry, FileInfo, check_path, too_large
from seqrecord.store.storage.ranges import ByteRange
from seqrecord.store.storage.url import Location, named_place, parse_location

_ENDPOINT = "https://huggingface.co"
_MAIN = "main"
_URL = "hf://datasets/ORG/NAME[@REVISION][/PATH]"
_PLACE = re.compile(
    r"datasets/(?P<repo>[\w.-]+/[\w.-]+)"
    r"(@(?P<revision>refs/(?:pr|convert)/[^/@]+|[^/@]+))?(/(?P<folder>.*))?"
)


def is_hub_dataset(location: Location) -> bool:
    """Whether this is a dataset on the Hub; fsspec serves models, spaces and buckets."""
    return location.protocol == "hf" and location.root.partition("/")[0] == "datasets"


def hub_branch(url: str, storage_options: Mapping[str, Any] | None = None) -> Hub:
    """The branch `hf://datasets/ORG/NAME[@BRANCH]` for writing; makes no request yet.

    Raises `LocationError` for another URL, an unknown option, or a missing package.
    """
    location = parse_location(url)
    settings, client_options = split_options(storage_options or {}, location.shown)
    hub = (
        open_hub(location, settings, client_options).bucket.hub
        if is_hub_dataset(location)
        else None
    )
    if hub is None or hub.folder or hub.is_fixed:
        raise LocationError(
            "not a branch of a dataset on the Hub",
            expected="hf://datasets/ORG/NAME[@BRANCH]",
            got=location.shown,
        )
    return hub


def open_hub(
    location: Location, settings: StorageSettings, client_options: Mapping[str, Any]
) -> HubStorage:
    """Open a dataset on the Hub; makes no request yet.

    `client_options` has `token`, `endpoint` and the client's options. Raises `LocationError` for an
    invalid URL or option, and for a missing package.
    """
    url_match = _PLACE.fullmatch(location.root.strip("/"))
    if url_match is None:
        raise LocationError("an unclear URL of the Hub", expected=_URL, got=location.shown)
    if not is_installed("huggingface_hub"):
        raise LocationError(
            "a package is missing for hf://: pip install huggingface_hub", file=location.shown
        )
    hub_options = canonical_settings(client_options, HubFolder.names, location.shown, prefix="hf_")
    endpoint = str(hub_options.get("endpoint") or os.environ.get("HF_ENDPOINT") or _ENDPOINT)
    check_endpoint(endpoint)
    retrier = settings.retrier()
    hub = Hub(
        endpoint=endpoint.rstrip("/"),
        repo=url_match["repo"],
        revision=unquote(url_match["revision"] or _MAIN),
        folder=check_path(unquote(url_match["folder"])) if url_match["folder"] else "",
        token=hub_options.get("token"),
        retrier=retrier,
    )
    timeout = min(TIMEOUT_SECONDS, settings.deadline / 4)
    folder = HubFolder(bucket=hub.repo, root="", shown=location.shown, config={}, hub=hub)
    reader = HubReader(hub, partial(folder.http_client, timeout), location.shown)
    return HubStorage(folder, reader, location.shown, timeout=timeout, retrier=retrier)


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

    def signer(self) -> Signer:
        def sign(_: str, path: str) -> tuple[str, Mapping[str, str]]:
            address = self.hub.address(path)
            return address.url, address.headers

        return sign


class HubReader(FsspecReader):
    """Reads files in LFS at signed URLs, and others from the Hub itself; sizes are the Hub's."""

    def __init__(self, hub: Hub, make: Callable[[], Any], shown: str) -> None:
        super().__init__(make, "", shown)
        self._hub = hub

    def size(self, path: str) -> int:
        return self._hub.file(check_path(path)).size

    def read(self, path: str, request: Request) -> None:
        read_file, address = partial(super().read, path, request), self._hub.address(path)
        if not address.is_signed:
            self._hub.send("resolvers", path, read_file)
            return
        try:
            read_file()
        except AccessError:  # the signed URL has expired
            self._hub.renew(path, address)
            read_file()

    def read_whole(self, path: str, limit: int) -> bytes:
        size = self.size(path)
        if size > limit:
            raise too_large(self._hub.shown(path), limit, size)
        data = bytearray(size)
        if size:
            self.read(path, (ByteRange(0, size), [memoryview(data)]))
        return bytes(data)


class HubStorage(ObjectStorage):
    """Read-only storage of a dataset's folder on the Hub, at one commit.

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

    def listed(self, folder: str) -> list[FileInfo]:
        listing = self.bucket.hub.listing()
        paths = (
            f"{folder}/{entry.name}"
            for entry in listing.entries(check_path(folder))
            if not entry.is_folder
        )
        return [FileInfo(path, listing.files[path].size, 0.0) for path in sorted(paths)]

    def entries(self, folder: str) -> list[Entry]:
        return self.bucket.hub.listing().entries(check_path(folder) if folder else "")
