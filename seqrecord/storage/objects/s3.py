"""A bucket of S3, or of anything that speaks its protocol."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from seqrecord.errors import AccessError
from seqrecord.storage.objects.source import (
    Client,
    Provider,
    client_settings,
    named,
    split_client_options,
)
from seqrecord.storage.packages import is_installed, missing
from seqrecord.storage.url import Location

__all__ = ["S3Bucket"]

# obstore's names, with and without `aws_`, then s3fs's.
_OPTIONS = {
    "access_key_id": ("access_key_id", "aws_access_key_id", "key"),
    "secret_access_key": ("secret_access_key", "aws_secret_access_key", "secret"),
    "session_token": ("session_token", "aws_session_token", "token"),
    "region": ("region", "aws_region", "default_region", "region_name"),
    "endpoint": ("endpoint", "aws_endpoint", "aws_endpoint_url", "endpoint_url"),
    "profile": ("profile",),
    "skip_signature": ("skip_signature", "anonymous", "anon"),
    "virtual_hosted_style_request": ("virtual_hosted_style_request",),
    "request_payer": ("request_payer", "requester_pays"),
}
_ENVIRONMENT = {
    "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "profile": ("AWS_PROFILE",),
}
_FLAGS = ("skip_signature", "virtual_hosted_style_request", "request_payer")
_OWN = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE")  # what obstore itself finds
_KEPT = datetime.timedelta(minutes=5)  # of a credential that does not say when it expires


@dataclass(frozen=True)
class S3Bucket:
    """A bucket and a path in it.

    Without keys in `config` it is opened with those of the environment, else with what boto3 finds
    (profiles, SSO, roles), else with what obstore finds (the machine's role).
    """

    bucket: str
    root: str
    shown: str
    config: Mapping[str, Any] = field(repr=False)
    client_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    environment: frozenset[str] = frozenset()

    without_obstore = "pip install s3fs"

    @classmethod
    def resolve(
        cls, location: Location, options: Mapping[str, Any], environ: Mapping[str, str]
    ) -> S3Bucket:
        """The bucket of a location: what options say, then the environment."""
        client_options, rest = split_client_options(options, location.shown)
        given = named(rest, _OPTIONS, location.shown)
        for name in _FLAGS:
            if name in given:
                given[name] = str(given[name]).lower() in ("true", "1", "yes", "requester")
        if "access_key_id" in given:
            environ = {name: value for name, value in environ.items() if name != "AWS_PROFILE"}
        config = named(environ, _ENVIRONMENT, location.shown, strict=False) | given
        bucket, _, root = location.root.strip("/").partition("/")
        own = frozenset(name for name in _OWN if environ.get(name))
        return cls(bucket, root.strip("/"), location.shown, config, client_options, own)

    def key(self, path: str) -> str:
        return f"{self.root}/{path}" if self.root else path

    @property
    def path(self) -> str:
        """The root as fsspec has it."""
        return f"{self.bucket}/{self.root}".rstrip("/")

    def client(self, timeout: float) -> Client:
        from obstore.store import S3Store

        config = {name: value for name, value in self.config.items() if name != "profile"}
        provider = self._provider()
        if provider is not None:
            config["credential_provider"] = provider
        if config.pop("request_payer", False):
            config["request_payer"] = "requester"
        settings = client_settings(timeout, config.get("endpoint"), self.client_options)
        return Client(S3Store(self.bucket, **config, **settings), provider)

    def filesystem(self, timeout: float) -> Any:
        """A new filesystem of s3fs, which repeats nothing by itself."""
        from s3fs import S3FileSystem

        config = self.config
        settings: dict[str, Any] = {
            "retries": {"max_attempts": 0},
            "connect_timeout": min(10.0, timeout),
            "read_timeout": timeout,
        }
        if config.get("virtual_hosted_style_request"):
            settings["s3"] = {"addressing_style": "virtual"}
        filesystem = S3FileSystem(
            anon=bool(config.get("skip_signature")),
            key=config.get("access_key_id"),
            secret=config.get("secret_access_key"),
            token=config.get("session_token"),
            endpoint_url=config.get("endpoint"),
            requester_pays=bool(config.get("request_payer")),
            client_kwargs={"region_name": config["region"]} if "region" in config else {},
            config_kwargs=settings,
            skip_instance_cache=True,
            **({"profile": config["profile"]} if "profile" in config else {}),
        )
        filesystem.retries = 1
        return filesystem

    def _provider(self) -> Provider | None:
        profile = self.config.get("profile")
        if "access_key_id" in self.config or self.config.get("skip_signature"):
            return None
        if profile is None and (self.environment or not is_installed("boto3")):
            return None
        if not is_installed("boto3"):
            raise AccessError(f"a profile needs boto3: {missing('boto3')}", file=self.shown)
        import boto3

        session = boto3.session.Session(profile_name=profile)

        def fetch() -> dict[str, Any]:
            found = session.get_credentials()
            if found is None:
                raise AccessError(
                    "no credential was found: give access_key_id and secret_access_key, a profile, "
                    "AWS_ACCESS_KEY_ID, or skip_signature for a public bucket",
                    file=self.shown,
                )
            frozen = found.get_frozen_credentials()  # renewed by boto3 when it is due
            return {
                "access_key_id": frozen.access_key,
                "secret_access_key": frozen.secret_key,
                "token": frozen.token,
                "expires_at": datetime.datetime.now(datetime.timezone.utc) + _KEPT,
            }

        return Provider(fetch, self.shown)
