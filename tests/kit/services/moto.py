"""moto's server: S3 on this machine."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path
from typing import Any

from tests.kit.processes import Program


class Moto:
    """A running server on a free port of 127.0.0.1, which accepts any key. Data stays in memory.

    It accepts parts of 64 KiB, for tests with short files; S3 requires 5 MiB.
    """

    key, secret, region = "AKIDEXAMPLE", "s3cr3t-of-nobody", "us-east-1"

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._numbers = itertools.count()
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
        sizes = {"S3_UPLOAD_PART_MIN_SIZE": 64 << 10, "MOTO_S3_DEFAULT_KEY_BUFFER_SIZE": 64 << 20}
        environment = {**os.environ, **{name: str(size) for name, size in sizes.items()}}
        log, listens = folder / "moto.log", r"Running on http://(127\.0\.0\.1:\d+)"
        self.program = Program(command, log, environment, lambda it: it.find(listens))
        self.host = self.program.find(listens)

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}"

    def options(self, endpoint: str | None = None) -> dict[str, Any]:
        """Storage options for it, or for a proxy in front of it."""
        return {
            "access_key_id": self.key,
            "secret_access_key": self.secret,
            "region": self.region,
            "endpoint": endpoint or self.endpoint,
        }

    def new_bucket(self) -> str:
        """Make an empty bucket; returns its name."""
        name = f"bucket-{os.getpid()}-{next(self._numbers)}"
        self.client().create_bucket(Bucket=name)
        return name

    def put(self, bucket: str, name: str, data: bytes) -> None:
        """Store an object."""
        self.client().put_object(Bucket=bucket, Key=name, Body=data)

    def client(self) -> Any:
        """A client of boto3."""
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.key,
            aws_secret_access_key=self.secret,
            region_name=self.region,
        )

    def stop(self) -> None:
        self.program.stop()
