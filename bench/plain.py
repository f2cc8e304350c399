"""`bursar api` as one would write it first: a database transaction for each request, which locks
what counts, reads it, decides, writes and commits.

The same checks, locks and rows; nothing is remembered from one request to the next, and no commit
is shared. `make bench` measures the service beside it. Takes the same commands:
`python -m bench.plain api`.
"""

from typing import Any

from bench.unshared import UnsharedAuthoriser
from bursar.cli.main import main
from bursar.service import api


class PlainAuthoriser(UnsharedAuthoriser):
    def __init__(self, *parts: Any, **settings: Any) -> None:
        super().__init__(*parts, **settings, always_lock=True)


if __name__ == "__main__":
    api.Authoriser = PlainAuthoriser
    main()
