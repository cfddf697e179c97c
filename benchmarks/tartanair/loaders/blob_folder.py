"""Where in Azure a place is, in the parts that other packages' clients ask for."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.tartanair.loaders.base import Place

__all__ = ["BlobFolder"]


@dataclass(frozen=True)
class BlobFolder:
    """A folder of a container, and the account's key, which opens it.

    `endpoint` is the URL of the account's blob service, without a slash at its end.
    """

    account: str
    key: str = field(repr=False)
    endpoint: str
    container: str
    path: str

    @classmethod
    def of(cls, place: Place) -> BlobFolder:
        """Of a place `az://CONTAINER/PATH` with a connection string."""
        from azure.core.utils import parse_connection_string

        said = parse_connection_string(place.options["connection_string"])
        container, _, path = place.location.removeprefix("az://").partition("/")
        endpoint = said["blobendpoint"].rstrip("/")
        return cls(said["accountname"], said["accountkey"], endpoint, container, path)

    def sas(self, *, hours: float = 24) -> str:
        """A signature that lets its holder read the container."""
        import datetime

        from azure.storage.blob import ContainerSasPermissions, generate_container_sas

        now = datetime.datetime.now(datetime.timezone.utc)
        token: str = generate_container_sas(
            self.account,
            self.container,
            account_key=self.key,
            permission=ContainerSasPermissions(read=True),
            expiry=now + datetime.timedelta(hours=hours),
        )
        return token
