"""The directory: which address a hostname is paid at."""

from bursar.client.endpoint import Carrier, Request, Resource, listing, operation, present
from bursar.client.model import Recipient


class Recipients(Resource[Carrier]):
    @operation("PUT /v1/recipients/:hostname", Recipient)
    def put(self, hostname: str, *, address: str, allow_off_curve: bool | None = None) -> Request:
        """Set the address, in force for every spend requested afterwards.

        `allow_off_curve=True` for addresses that no key belongs to, such as vaults.
        """
        body = present(address=address, allowOffCurve=allow_off_curve)
        return Request(path={"hostname": hostname}, body=body)

    @listing("GET /v1/recipients", Recipient)
    def list(
        self,
        *,
        hostname: str | None = None,
        address: str | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Request:
        """The directory; `hostname` may be a part of one."""
        return Request(
            query={"hostname": hostname, "address": address, "limit": limit, "after": after}
        )

    @operation("GET /v1/recipients/:hostname", Recipient)
    def get(self, hostname: str) -> Request:
        """One entry."""
        return Request(path={"hostname": hostname})

    @operation("DELETE /v1/recipients/:hostname", type(None))
    def delete(self, hostname: str) -> Request:
        """Remove an entry. In live mode spends to the hostname are refused from then on."""
        return Request(path={"hostname": hostname})
