"""Object stores and web servers: choice of client and credential."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

from seqrecord.cloud.objects.azure import AzureContainer, Blobfiles
from seqrecord.cloud.objects.bucket import Bucket, WebServer
from seqrecord.cloud.objects.gs import GcsBucket
from seqrecord.cloud.objects.hub import is_hub_dataset, open_hub
from seqrecord.cloud.objects.s3 import S3Bucket
from seqrecord.cloud.objects.storage import ObjectStorage
from seqrecord.cloud.requests import TIMEOUT_SECONDS, FsspecReader
from seqrecord.cloud.settings import StorageSettings
from seqrecord.errors import LocationError
from seqrecord.store.storage.base import Storage
from seqrecord.store.storage.url import Location

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


def is_object(location: Location) -> bool:
    """Whether `open_objects` supports a location."""
    return location.protocol in OBJECTS or is_hub_dataset(location)


def open_objects(
    location: Location, settings: StorageSettings, client_options: Mapping[str, Any]
) -> Storage:
    """Open an Azure container, a bucket of S3 or GCS, a dataset on the Hub, or a web server.

    `client_options` has the options of the client: account and credential. Raises `LocationError`
    for invalid options, and for a missing package.
    """
    if is_hub_dataset(location):
        return open_hub(location, settings, client_options)
    timeout = min(TIMEOUT_SECONDS, settings.deadline / 4)  # leaves time for retries
    client_options = dict(client_options)
    pool = client_options.pop("get_http_pool", None) if settings.backend == "blobfile" else None
    bucket = OBJECTS[location.protocol].resolve(location, client_options, os.environ)
    if settings.backend == "blobfile" and isinstance(bucket, AzureContainer):
        if set(client_options) - {"account_name"}:
            raise LocationError(
                "blobfile reads its credential from the environment, not from storage_options",
                file=location.shown,
                expected="AZURE_STORAGE_KEY or `az login`, or another backend",
            )
        public_endpoint = f"https://{bucket.account}.blob.core.windows.net"
        if bucket.endpoint != public_endpoint:
            raise LocationError(
                "blobfile reads from Azure's public cloud only",
                file=location.shown,
                expected=f"{public_endpoint}, or another backend",
                got=bucket.endpoint,
            )
        root = f"{bucket.account}/{bucket.bucket}/{bucket.root}"
        reader = FsspecReader(partial(Blobfiles, pool), root, location.shown)
    else:
        client = partial(bucket.http_client, timeout)
        reader = FsspecReader(
            client, "", location.shown, is_reread=bucket.is_reread, versions=bucket.versions
        )
    return ObjectStorage(
        bucket, reader, location.shown, timeout=timeout, retrier=settings.retrier()
    )
