"""Where prepared data is read from: the local disk, Azurite, or a mount of it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.tartanair.compare.prepared import files_of
from benchmarks.tartanair.compare.row import Task

__all__ = ["Services"]

_UPLOADS = 2
_DIR_CACHE = 300.0  # seconds, rclone's default: nothing is written to a folder that is mounted
AZURE = ("adlfs", "obstore", "blobfile", "own")
"""Azurite through one of these; `own` is each loader's own client. Ours has none."""


class Services:
    """Starts what a row's storage needs when the first such row comes; stops it in the end."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._azurite: Any = None
        self._container = ""
        self._uploaded: set[str] = set()

    def __enter__(self) -> Services:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop them all; the next row that needs one starts it anew."""
        self._stack.close()
        self._azurite = None
        self._uploaded.clear()

    def place(self, task: Task, folder: Path) -> Task:
        """The task with where its data, prepared in `folder`, is to be read from."""
        storage = task.settings.storage
        if storage in ("local", "cold"):
            return task
        name = f"{folder.parent.name}/{folder.name}"
        self._upload(name, folder)
        if storage == "mount":
            return replace(task, mount=str(self._mount() / name))
        options = {"connection_string": self._azurite.connection_string}
        if storage == "blobfile":
            options |= {"blobfile_host": self._azurite.host, "blobfile_key": self._azurite.key}
        elif storage != "own":
            options["backend"] = storage
        # blobfile's URLs begin with the account.
        account = f"{self._azurite.account}/" if storage == "blobfile" else ""
        return replace(
            task,
            location=f"az://{account}{self._container}/{name}",
            options=options,
        )

    def _upload(self, name: str, folder: Path) -> None:
        self._start()
        if name in self._uploaded:
            return
        with self._azurite.client() as client:
            for path in sorted(files_of(folder)):
                blob = client.get_blob_client(self._container, f"{name}/{path.relative_to(folder)}")
                with path.open("rb") as file:
                    blob.upload_blob(file, overwrite=True, max_concurrency=_UPLOADS)
        self._uploaded.add(name)

    def _start(self) -> None:
        if self._azurite is None:
            from tests.services import Azurite, need_azurite

            self._need(need_azurite)
            self._azurite = Azurite(self._folder() / "azurite")
            self._stack.callback(self._azurite.stop)
            self._container = self._azurite.new_container()

    def _mount(self) -> Path:
        """A new mount: one from before a folder was uploaded might not know of it."""
        from tests.services import Mount, need_mount

        self._need(need_mount)
        mount = Mount(
            self._azurite, self._container, self._folder() / "rclone", dir_cache=_DIR_CACHE
        )
        self._stack.callback(mount.close)
        return mount.path

    def _folder(self) -> Path:
        return Path(self._stack.enter_context(tempfile.TemporaryDirectory()))

    @staticmethod
    def _need(check: Callable[[], None]) -> None:
        try:
            check()
        except BaseException as error:  # pytest's own, made to skip a test
            raise RuntimeError(str(error)) from None
