"""The directory: which address a hostname is paid at."""

from bursar.client.endpoint import Carrier, Request, Resource, listing, operation
from bursar.client.model import Recipient


class Recipients(Resource[Carrier]):
    @operation("PUT /v1/recipients/:hostname", Recipient)
    def put(self, hostname: str, *, address: str) -> Request:
        """Set the address, in force for every spend requested afterwards."""
        return Request(path={"hostname": hostname}, body={"address": address})

    @listing("GET /v1/recipients", Recipient)
    def list(self, *, limit: int | None = None, after: str | None = None) -> Request:
        """The whole directory."""
        return Request(query={"limit": limit, "after": after})

    @operation("GET /v1/recipients/:hostname", Recipient)
    def get(self, hostname: str) -> Request:
        """One entry."""
        return Request(path={"hostname": hostname})

    @operation("DELETE /v1/recipients/:hostname", type(None))
    def delete(self, hostname: str) -> Request:
        """Remove an entry. In live mode spends to the hostname are refused from then on."""
        return Request(path={"hostname": hostname})
