"""Where a localnet listens, noted in its folder: with port 0 only the node itself knows the
port."""

from pathlib import Path
from typing import Final

_FILE: Final = "rpc-address"


def note_address(folder: Path, host: str, port: int) -> None:
    name = f"[{host}]" if ":" in host else host
    file = folder / _FILE
    file.touch(mode=0o600)
    file.write_text(f"http://{name}:{port}\n", "ascii")


def noted_address(folder: Path) -> str | None:
    """The address of the node that runs on the folder, or that was the last to."""
    try:
        return (folder / _FILE).read_text("ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None
