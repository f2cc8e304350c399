"""`bursar api` as one would write it first: a database transaction for each request, which locks
what counts, reads it, decides, writes and commits.

The same checks, locks and rows, and no commit is shared. What counts is read anew under its lock;
policies and how they see a payee, which have versions, are remembered as the service does. `make
bench` measures the service beside it. Takes the same commands: `python -m bench.plain api`.
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
