"""A stub of the Hugging Face Hub: the few requests of its API that its filesystem makes to read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.local_server import Handler, LocalServer

__all__ = ["HubStub"]


class HubStub(LocalServer):
    """Serves `folder` as the dataset repository `repo`; with `token` to those alone who send it.

    `sent` is how many bytes of files it has sent. Of the next `busy` reads of files each is
    answered by 503.
    """

    def __init__(self, folder: Path, repo: str = "org/name", *, token: str | None = None) -> None:
        self.folder, self.repo, self.token = folder, repo, token
        self.sent = self.busy = 0
        super().__init__(_Handler)

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}"


class _Handler(Handler):
    server: HubStub

    def _paths(self) -> None:
        """What huggingface_hub before 1 asks of a path."""
        path, repo = unquote(urlsplit(self.path).path), self.server.repo
        asked = parse_qs(self.body().decode())
        if path != f"/api/datasets/{repo}/paths-info/main":
            self.send(404, b"", {"X-Error-Code": "RepoNotFound"})
            return
        found = (self.server.folder / each for each in asked["paths"])
        self._json([self._about(item) for item in found if item.exists()])

    def serve(self) -> None:
        path, repo, token = unquote(urlsplit(self.path).path), self.server.repo, self.server.token
        if token is not None and self.headers.get("Authorization") != f"Bearer {token}":
            self.send(401, b"", {"X-Error-Code": "RepoNotFound"})
        elif self.command == "POST":
            self._paths()
        elif re.fullmatch(rf"/api/datasets/{repo}(/revision/main)?", path):
            self._json({"id": repo, "sha": "0" * 40, "siblings": []})
        elif found := re.fullmatch(rf"/api/datasets/{repo}/tree/main/?(.*)", path):
            self._tree(found[1])
        elif found := re.fullmatch(rf"/datasets/{repo}/resolve/main/(.+)", path):
            self._file(self.server.folder / found[1])
        else:
            self.send(404, b"", {"X-Error-Code": "RepoNotFound"})

    def _tree(self, path: str) -> None:
        folder = self.server.folder / path
        if not folder.is_dir():
            self.send(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        self._json([self._about(item) for item in sorted(folder.iterdir())])

    def _about(self, item: Path) -> dict[str, Any]:
        return {
            "type": "directory" if item.is_dir() else "file",
            "path": item.relative_to(self.server.folder).as_posix(),
            "size": 0 if item.is_dir() else item.stat().st_size,
            "oid": "0" * 40,
        }

    def _file(self, file: Path) -> None:
        if not file.is_file():
            self.send(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        if self.server.busy > 0:
            self.server.busy -= 1
            self.send(503)
            return
        self.send_range(file.read_bytes())

    def send(self, status: int, body: bytes = b"", headers: Mapping[str, str] = {}) -> None:
        self.server.sent += len(body) if (self.command, status) == ("GET", 206) else 0
        super().send(status, body, headers)

    def _json(self, value: object) -> None:
        self.send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})
