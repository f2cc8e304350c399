"""`bursar api` with a batch for each request: the same way to decide and to write, but no commit is
shared. Takes the same commands: `python -m bench.unshared api`.
"""

from bursar.cli.main import main
from bursar.service import api
from bursar.spend.authorise import Authorised, Authoriser, SpendRequest
from bursar.spend.batches import Waiting, not_over


class UnsharedAuthoriser(Authoriser):
    async def authorise(self, request: SpendRequest) -> Authorised:
        waiting = Waiting[SpendRequest, Authorised](request)
        await self._write([waiting], hurried=False, over=not_over)
        return await waiting


if __name__ == "__main__":
    api.Authoriser = UnsharedAuthoriser
    main()
