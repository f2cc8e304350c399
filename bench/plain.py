"""`bursar api` as one would write it first: a database transaction for each request.

The same checks, locks and rows; only the sharing of commits is left out. `make bench` measures the
service beside it. Takes the same commands: `python -m bench.plain api`.
"""

from bursar.cli.main import main
from bursar.errors import ApiError
from bursar.service import api
from bursar.spend.authorise import Authorised, Authoriser, SpendRequest, Written


class PlainAuthoriser(Authoriser):
    async def authorise(self, request: SpendRequest, written: Written | None = None) -> Authorised:
        del written

        async def answer(_: object) -> None:
            """Nobody waits for others here."""

        (outcome,) = await self._write([request], answer, hurried=False)
        if isinstance(outcome, ApiError):
            raise outcome
        return outcome


if __name__ == "__main__":
    api.Authoriser = PlainAuthoriser
    main()
