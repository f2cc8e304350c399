"""The Python SDK, `from bursar import Bursar, AsyncBursar`: needs httpx, nothing of the service."""
