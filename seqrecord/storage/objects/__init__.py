"""Object stores and web servers: choice of client and credential."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

from seqrecord.errors import LocationError
from seqrecord.lazy import is_installed
from seqrecord.storage.base import Storage
from seqrecord.storage.objects.azure import AzureContainer, Blobfiles
from seqrecord.storage.objects.bucket import Bucket, WebServer
from seqrecord.storage.objects.gs import GcsBucket
from seqrecord.storage.objects.hub import is_hub_dataset, open_hub
from seqrecord.storage.objects.reader import ObstoreReader
from seqrecord.storage.objects.s3 import S3Bucket
from seqrecord.storage.objects.storage import ObjectStorage
from seqrecord.storage.requests import TIMEOUT_SECONDS, FsspecReader, RequestReader
from seqrecord.storage.settings import StorageSettings
from seqrecord.storage.url import Location

__all__ = ["OBJECTS", "is_object", "open_objects"]

OBJECTS: dict[str, type[Bucket]] = {
    "az": AzureContainer,
    "s3": S3Bucket,
    "s3a": S3Bucket,
    "gs": GcsBucket,
    "gcs": GcsBucket,
    "http": WebServer,
    "https": WebServer,
}
"""Classes by URL scheme."""


def is_object(where: Location) -> bool:
    """Whether `open_objects` supports a location."""
    return where.protocol in OBJECTS or is_hub_dataset(where)


def open_objects(where: Location, settings: StorageSettings, rest: Mapping[str, Any]) -> Storage:
    """Open an Azure container, a bucket of S3 or GCS, a dataset on the Hub, or a web server.

    `rest` has the options of the client: account and credential. Raises `LocationError` for invalid
    options, and for a missing package.
    """
    if is_hub_dataset(where):
        return open_hub(where, settings, rest)
    timeout = min(TIMEOUT_SECONDS, settings.deadline / 4)  # leaves time for retries
    rest = dict(rest)
    pool = rest.pop("get_http_pool", None) if settings.backend == "blobfile" else None
    bucket = OBJECTS[where.protocol].resolve(where, rest, os.environ)
    reader: RequestReader
    if settings.backend == "blobfile" and isinstance(bucket, AzureContainer):
        if set(rest) - {"account_name"}:
            raise LocationError(
                "blobfile reads its credential from the environment, not from storage_options",
                file=where.shown,
                expected="AZURE_STORAGE_KEY or `az login`, or another backend",
            )
        root = f"{bucket.account}/{bucket.bucket}/{bucket.root}"
        reader = FsspecReader(partial(Blobfiles, pool), root, where.shown)
    else:
        client = partial(bucket.http_client, timeout)
        reader = FsspecReader(client, "", where.shown, is_reread=bucket.is_reread)
    backend = settings.backend or ("obstore" if is_installed("obstore") else "urllib3")
    if backend != "urllib3" and not is_installed(backend):
        raise LocationError(
            f"a package is missing for {backend}: pip install {backend}", file=where.shown
        )
    if backend == "obstore":
        # Its fallback would ignore obstore's client_options, such as a proxy.
        fallback = None if bucket.client_options else reader
        reader = ObstoreReader(bucket, where.shown, fallback=fallback, timeout=timeout)
    elif bucket.client_options:
        raise LocationError(
            "these storage options require obstore",
            file=where.shown,
            got=", ".join(bucket.client_options),
        )
    return ObjectStorage(bucket, reader, where.shown, timeout=timeout, retrier=settings.retrier())
