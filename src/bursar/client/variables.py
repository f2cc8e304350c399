"""Where a client finds its service and its key when it is told neither."""

from typing import Final

API_KEY: Final = "BURSAR_API_KEY"
BASE_URL: Final = "BURSAR_BASE_URL"
DEFAULT_BASE_URL: Final = "http://127.0.0.1:8420"
