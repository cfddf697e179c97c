"""Storages of prepared data other than local files: Azurite by three clients, its mount, moto."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.tartanair.backends import BACKENDS, place_of, require
from benchmarks.tartanair.loaders.base import write_remote

__all__ = ["STORES", "Stores"]

STORES = ("mount", "azurite", *BACKENDS, "s3")
"""`azurite` is read by our own client; `mount` is rclone's FUSE mount of it, in blobfuse's place;
`s3` is moto, in AIStore's.
"""


class Stores:
    """Starts the service of a row's storage when the first such row runs, and stops all at the end.

    `folder` has the services' files; it is deleted.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._clouds: dict[str, Any] = {}
        self._uploaded: set[tuple[str, str]] = set()
        self._mounts: list[Any] = []

    def __enter__(self) -> Stores:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop all services and delete their files; the next row starts its own again."""
        self._stack.close()
        self._clouds.clear()
        self._uploaded.clear()
        self._mounts.clear()
        shutil.rmtree(self._folder, ignore_errors=True)

    def place(self, storage: str, prepared: Path) -> Path:
        """The folder from which a loader reads the prepared data through this storage."""
        service = "moto" if storage == "s3" else "azurite"
        cloud = self._cloud(service)
        name = f"{prepared.parent.name}/{prepared.name}"
        if (service, name) not in self._uploaded:
            cloud.upload(prepared, name)
            self._uploaded.add((service, name))
        if storage == "mount":
            return self._mount(cloud) / name
        backend = storage if storage in BACKENDS else ""
        settings = place_of(cloud, name, cloud.host, backend)
        if storage == "s3":
            client = cloud.service.client()
            keys = [f"{name}/{path.name}" for path in sorted(prepared.glob("*.tar"))]
            places = [{"Bucket": cloud.bucket, "Key": key} for key in keys]
            sign = partial(client.generate_presigned_url, "get_object")
            settings["tars"] = [sign(Params=params) for params in places]
        place = self._folder / storage / name
        write_remote(prepared, place, **settings)
        return place

    def _cloud(self, service: str) -> Any:
        from benchmarks.tartanair.cloud_services import start
        from tests.kit.services import need_azurite, need_moto

        if service not in self._clouds:
            require(need_azurite if service == "azurite" else need_moto)
            self._clouds[service] = cloud = start(service, self._folder / service)
            self._stack.callback(cloud.service.stop)
        return self._clouds[service]

    def _mount(self, cloud: Any) -> Path:
        """A new mount, whose caches are empty, in place of the last one."""
        from tests.kit.services import Mount, need_mount

        require(need_mount)
        if self._mounts:
            self._mounts[-1].close()
        folder = self._folder / f"mount-{len(self._mounts)}"
        options = ("--dir-cache-time", "300s")  # rclone's default: nothing is written
        mount = Mount(cloud.service, cloud.container, folder, options=options)
        self._stack.callback(mount.close)
        self._mounts.append(mount)
        return mount.path
