"""One line about the machine, without which no figure means anything."""

import os
import platform
from pathlib import Path


def describe() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{os.cpu_count()} cores, {_processor()}, {memory:.0f} GB, {platform.system()}"
        f" {platform.release()}, Python {platform.python_version()}; the load generators run on it"
        " too"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
