"""S3 buckets, and compatible object stores."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import quote

from seqrecord.cloud.failures import SET_CREDENTIAL
from seqrecord.cloud.objects.bucket import Bucket, Names, is_true
from seqrecord.cloud.objects.http import Fetch, Signer, cached_credential
from seqrecord.errors import AccessError

_FLAGS = ("skip_signature", "virtual_hosted_style_request", "request_payer")
_TTL = datetime.timedelta(minutes=5)  # lifetime of a credential without expiry


@dataclass(frozen=True, kw_only=True)
class S3Bucket(Bucket):
    """An S3 bucket and a path in it.

    Without keys in `config`, boto3 finds the credential: environment, profiles, SSO, roles.
    """

    fixed = ("access_key_id", "skip_signature")
    # obstore's names, with or without `aws_`, then those of s3fs.
    names: ClassVar[Names] = {
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
    environment: ClassVar[Names] = {
        "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
        "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
        "profile": ("AWS_PROFILE",),
    }
    prefix = "aws_"
    scheme = "s3"

    @classmethod
    def configured(
        cls,
        option_settings: dict[str, Any],
        environment_settings: dict[str, Any],
        shown: str,  # noqa: ARG003
    ) -> dict[str, Any]:
        for name in set(_FLAGS) & set(option_settings):
            option_settings[name] = (
                is_true(option_settings[name]) or option_settings[name] == "requester"
            )
        if "access_key_id" in option_settings:
            environment_settings.pop("profile", None)
        return environment_settings | option_settings

    def credential(self) -> Fetch | None:
        if not self.is_reread:
            return None
        from obstore.auth.boto3 import Boto3CredentialProvider

        return Boto3CredentialProvider(self._session(), ttl=_TTL)  # boto3 renews it when due

    def _session(self) -> Any:
        import boto3

        session = boto3.session.Session(profile_name=self.config.get("profile"))
        if session.get_credentials() is None:
            raise AccessError(f"no credential was found: {SET_CREDENTIAL}", file=self.shown)
        return session

    def store(self, **settings: Any) -> Any:
        from obstore.store import S3Store

        excluded_names = ("profile", "request_payer", "credential_provider")
        config = {name: value for name, value in self.config.items() if name not in excluded_names}
        if self.config.get("request_payer"):
            config["request_payer"] = "requester"
        return S3Store(self.bucket, **config, **settings)

    def signer(self) -> Signer:
        from botocore.auth import S3SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.credentials import Credentials

        config, region = self.config, self.config.get("region", "us-east-1")
        names = ("access_key_id", "secret_access_key", "session_token")
        session_credential: Any = None
        fetch = cached_credential(config.get("credential_provider"))
        if "access_key_id" in config:
            session_credential = Credentials(*map(config.get, names))
        elif not config.get("credential_provider") and not config.get("skip_signature"):
            session_credential = self._session().get_credentials()  # renewed by boto3
        # As in obstore: with virtual hosts, an endpoint is that of the bucket.
        is_virtual = config.get("virtual_hosted_style_request")
        host = f"{self.bucket}.s3" if is_virtual else "s3"
        url = config.get("endpoint", f"https://{host}.{region}.amazonaws.com").rstrip("/")
        url = url if is_virtual else f"{url}/{self.bucket}"

        def sign(method: str, path: str) -> tuple[str, dict[str, str]]:
            headers = {"x-amz-request-payer": "requester"} if config.get("request_payer") else {}
            request = AWSRequest(method, f"{url}/{quote(self.key(path))}", headers)
            credential = fetch()
            keys = (
                Credentials(*map(credential.get, (*names[:2], "token")))
                if credential
                else session_credential
            )
            if keys is not None:
                S3SigV4Auth(keys, "s3", region).add_auth(request)
            return request.url, dict(request.headers.items())

        return sign
