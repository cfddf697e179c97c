"""A bucket of S3, or of anything that speaks its protocol."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from seqrecord.errors import AccessError
from seqrecord.storage.objects.settings import is_true, named, split_client_options
from seqrecord.storage.objects.source import Bucket, Fetch, place_of
from seqrecord.storage.packages import is_installed, missing
from seqrecord.storage.url import Location

__all__ = ["S3Bucket"]

# obstore's names, with and without `aws_`, then s3fs's.
_NAMES = {
    "access_key_id": ("access_key_id", "key"),
    "secret_access_key": ("secret_access_key", "secret"),
    "session_token": ("session_token", "token"),
    "region": ("region", "default_region", "region_name"),
    "endpoint": ("endpoint", "endpoint_url"),
    "profile": ("profile",),
    "skip_signature": ("skip_signature", "anonymous", "anon"),
    "virtual_hosted_style_request": ("virtual_hosted_style_request",),
    "request_payer": ("request_payer", "requester_pays"),
    "credential_provider": ("credential_provider",),
}
_ENVIRONMENT = {
    "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "profile": ("AWS_PROFILE",),
}
_FLAGS = ("skip_signature", "virtual_hosted_style_request", "request_payer")
_OWN = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE")  # what obstore itself finds
_KEPT = datetime.timedelta(minutes=5)  # of a credential that does not say when it expires


@dataclass(frozen=True, kw_only=True)
class S3Bucket(Bucket):
    """A bucket and a path in it.

    Without keys in `config` it is opened with those of the environment, else with what boto3 finds
    (profiles, SSO, roles), else with what obstore finds (the machine's role).
    """

    package = "s3fs"

    from_environment: bool = False

    @classmethod
    def resolve(
        cls, location: Location, options: Mapping[str, Any], environ: Mapping[str, str]
    ) -> S3Bucket:
        """The bucket of a location: what options say, then the environment."""
        client_options, rest = split_client_options(options, location.shown)
        given = named(rest, _NAMES, location.shown, prefix="aws_")
        for name in _FLAGS:
            if name in given:
                given[name] = is_true(given[name]) or given[name] == "requester"
        found = named(environ, _ENVIRONMENT, location.shown, strict=False)
        if "access_key_id" in given:
            found.pop("profile", None)
        bucket, _, root = location.root.strip("/").partition("/")
        return cls(
            bucket=bucket,
            root=root.strip("/"),
            shown=location.shown,
            config=found | given,
            client_options=client_options,
            from_environment=any(environ.get(name) for name in _OWN),
        )

    @property
    def is_reread(self) -> bool:
        return "access_key_id" not in self.config and not self.config.get("skip_signature")

    @property
    def place(self) -> str:
        endpoint = self.config.get("endpoint")
        return place_of(endpoint, self.path) if endpoint else f"s3://{self.path}"

    def credential(self) -> Fetch | None:
        profile = self.config.get("profile")
        if not self.is_reread or (profile is None and self.from_environment):
            return None
        if not is_installed("boto3"):
            if profile is None:
                return None
            raise AccessError(f"a profile needs boto3: {missing('boto3')}", file=self.shown)
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider

        session = boto3.session.Session(profile_name=profile)
        if session.get_credentials() is None:
            raise AccessError(
                "no credential was found: give access_key_id and secret_access_key, a profile, "
                "AWS_ACCESS_KEY_ID, or skip_signature for a public bucket",
                file=self.shown,
            )
        return Boto3CredentialProvider(session, ttl=_KEPT)  # boto3 renews when it is due

    def store(self, **settings: Any) -> Any:
        from obstore.store import S3Store

        ours = ("profile", "request_payer", "credential_provider")
        config = {name: value for name, value in self.config.items() if name not in ours}
        if self.config.get("request_payer"):
            config["request_payer"] = "requester"
        return S3Store(self.bucket, **config, **settings)

    def filesystem(self, timeout: float) -> Any:
        from s3fs import S3FileSystem

        config = dict(self.config)
        if fetch := config.get("credential_provider"):
            given = fetch()
            config |= {**given, "session_token": given.get("token")}
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
