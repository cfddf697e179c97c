"""A web server that answers ranges, to its readers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar
from urllib.parse import quote

from seqrecord.storage.objects.plain import Signer
from seqrecord.storage.objects.settings import Names
from seqrecord.storage.objects.source import Bucket
from seqrecord.storage.places import named_place
from seqrecord.storage.url import Location

__all__ = ["WebServer"]


@dataclass(frozen=True, kw_only=True)
class WebServer(Bucket):
    """A folder of a web server. Its URL, which may hold a password, is the one setting."""

    is_writable = False
    names: ClassVar[Names] = {}
    environment: ClassVar[Names] = {}

    @classmethod
    def resolve(
        cls, location: Location, options: Mapping[str, Any], environ: Mapping[str, str]
    ) -> Bucket:
        server = super().resolve(location, options, environ)
        return replace(server, bucket="", root="", config={"url": location.root.rstrip("/")})

    @classmethod
    def configured(cls, *_: Any) -> dict[str, Any]:
        return {}

    @property
    def place(self) -> str:
        return named_place(self.shown, {})

    def credential(self) -> None:
        return None

    def store(self, **settings: Any) -> Any:
        from obstore.store import HTTPStore

        return HTTPStore(self.config["url"], **settings)

    def signer(self) -> Signer:
        return lambda _, path: (f"{self.config['url']}/{quote(path)}", {})
