"""nginx: a folder of files over HTTPS, with ranges."""

from __future__ import annotations

import socket
from pathlib import Path

from tests.kit.processes import Program, free_port

_CONFIGURATION = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    default_type application/octet-stream;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    scgi_temp_path {folder}/scgi;
    uwsgi_temp_path {folder}/uwsgi;
    server {{
        listen {host} ssl;
        ssl_certificate {certificate};
        ssl_certificate_key {key};
        root {root};
    }}
}}
"""


class Nginx:
    """A running nginx that serves its folder `root` at `https://127.0.0.1:PORT`.

    `certificate` and `key` are PEM files.
    """

    def __init__(self, folder: Path, certificate: Path, key: Path) -> None:
        self.root = folder / "root"
        self.root.mkdir(parents=True)
        self._folder, self._certificate, self._key = folder, certificate, key
        self.host = f"127.0.0.1:{free_port()}"
        try:
            self._start()
        except RuntimeError:  # another process took the port
            self.host = f"127.0.0.1:{free_port()}"
            self._start()

    @property
    def endpoint(self) -> str:
        return f"https://{self.host}"

    def put(self, path: str, data: bytes) -> None:
        """Write a file atomically."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        new = self._folder / "new"
        new.write_bytes(data)
        new.replace(target)

    def _start(self) -> None:
        text = _CONFIGURATION.format(
            folder=self._folder,
            host=self.host,
            root=self.root,
            certificate=self._certificate,
            key=self._key,
        )
        configuration = self._folder / "nginx.conf"
        configuration.write_text(text)
        command = ["nginx", "-c", str(configuration), "-e", "stderr", "-p", str(self._folder)]
        log = self._folder / "nginx.log"
        self.program = Program(command, log, ready=lambda _: self._listens())

    def stop(self) -> None:
        self.program.stop()

    def _listens(self) -> bool:
        name, _, port = self.host.partition(":")
        with socket.socket() as probe:
            return probe.connect_ex((name, int(port))) == 0
