"""`bursar api` as one would write it first: a database transaction for each request.

The same checks, locks and rows; only the sharing of commits is left out. `make bench` measures the
service beside it. Takes the same commands: `python -m bench.plain api`.
"""

from bursar.cli.main import main
from bursar.service import api
from bursar.spend.authorise import Authorised, Authoriser, SpendRequest
from bursar.spend.batches import Waiting, not_over


class PlainAuthoriser(Authoriser):
    async def authorise(self, request: SpendRequest) -> Authorised:
        waiting = Waiting[SpendRequest, Authorised](request)
        await self._write([waiting], hurried=False, over=not_over)
        return await waiting


if __name__ == "__main__":
    api.Authoriser = PlainAuthoriser
    main()
