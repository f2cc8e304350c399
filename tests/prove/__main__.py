"""`make prove`: PROVE_MINUTES (60), PROVE_RATE (400 operations a second), PROVE_SEED (drawn, and
printed), PROVE_REPORT (a file)."""

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import uvloop

from bursar.logs import set_up_logs
from tests.prove.campaign import Plan, run
from tests.prove.faults import resize
from tests.prove.report import render, write

# Set in the process that has file systems of its own.
INSIDE: Final = "PROVE_INSIDE"
# Lives in memory; a campaign of hours needs about 2 GB.
DISK_BYTES: Final = 6 << 30


def main() -> int:
    if INSIDE not in os.environ and (namespace := _own_mounts()) is not None:
        command = [*namespace, sys.executable, "-m", "tests.prove"]
        return subprocess.run(command, env=os.environ | {INSIDE: "1"}).returncode
    set_up_logs("error", "prove")
    seed = int(os.environ.get("PROVE_SEED") or random.SystemRandom().randrange(10**9))
    plan = Plan(
        seed,
        minutes=float(os.environ.get("PROVE_MINUTES") or "60"),
        rate=float(os.environ.get("PROVE_RATE") or "400"),
    )
    folder = Path(tempfile.mkdtemp(prefix="prove-"))
    mount = _mount(folder / "disk") if INSIDE in os.environ else None
    print(f"seed {seed}, {plan.minutes:g} minutes, files in {folder}", flush=True)
    began = time.monotonic()

    def say(words: str) -> None:
        print(f"{time.monotonic() - began:7.1f}  {words}", flush=True)

    outcome = uvloop.run(run(plan, folder, mount, say))
    text = render(outcome)
    print(text)
    if os.environ.get("PROVE_REPORT"):
        write(Path(os.environ["PROVE_REPORT"]), text)
    if outcome.journal.wrong:
        for kind, words in outcome.journal.wrong[:20]:
            print(f"WRONG, {kind}: {words}")
        print(f"Again: PROVE_SEED={seed} PROVE_MINUTES={plan.minutes:g} make prove")
        return 1
    if mount is not None:
        subprocess.run(["umount", str(mount)], check=True)
    shutil.rmtree(folder)
    return 0


def _own_mounts() -> list[str] | None:
    """How to start a process whose file systems are its own, so that one can be made full."""
    for namespace in (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"]):
        try:
            subprocess.run([*namespace, "true"], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return namespace
    return None


def _mount(folder: Path) -> Path | None:
    folder.mkdir()
    options = f"size={DISK_BYTES},mode=0755"
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], check=True)
    except subprocess.CalledProcessError:
        return None
    # Those who are root only in a namespace of their own may mount, and on some systems not resize.
    if resize(folder, DISK_BYTES):
        return folder
    subprocess.run(["umount", str(folder)], check=True)
    return None


if __name__ == "__main__":
    sys.exit(main())
