#!/usr/bin/env python3
"""Fixes the images of Dockerfile and compose.yaml by digest, so that a tag that is moved changes
nothing. Asks the registry through the docker client; run it again to take what a tag means now.

    python3 deploy/docker/pin.py
"""

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

FILES = ("Dockerfile", "compose.yaml")
# An image with a tag, and the digest it may have already. What is built here has no tag.
_IMAGE = re.compile(
    r"^(?P<before>FROM |\s*image: )(?P<image>[\w./-]+:[\w.-]+)(?:@sha256:[0-9a-f]{64})?(?=\s|$)",
    re.MULTILINE,
)


def images(text: str) -> list[str]:
    """The tagged images that a file names, each once."""
    return list(dict.fromkeys(found["image"] for found in _IMAGE.finditer(text)))


def pinned(text: str, digests: Mapping[str, str]) -> str:
    return _IMAGE.sub(
        lambda found: f"{found['before']}{found['image']}@{digests[found['image']]}", text
    )


def digest(image: str) -> str:
    command = ["docker", "buildx", "imagetools", "inspect", image]
    asked = subprocess.run(
        [*command, "--format", "{{.Manifest.Digest}}"], capture_output=True, text=True
    )
    found = asked.stdout.strip()
    if asked.returncode or not re.fullmatch(r"sha256:[0-9a-f]{64}", found):
        sys.exit(f"No digest of {image}: {asked.stderr.strip() or found}")
    return found


def main() -> None:
    folder = Path(__file__).parent
    texts = {folder / name: (folder / name).read_text("utf-8") for name in FILES}
    digests = {image: digest(image) for text in texts.values() for image in images(text)}
    for file, text in texts.items():
        file.write_text(pinned(text, digests), "utf-8")
    for image, found in digests.items():
        print(f"{image}@{found}")


if __name__ == "__main__":
    main()
