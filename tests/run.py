"""`make test`: pytest with coverage; its last words say what could not run here, and why.

`--quick` runs what needs no service, for the time while somebody works on the code; `--stock` what
needs the packages of others.
"""

import os
import subprocess
import sys

import pytest

from tests.machine import Watch

# Lines and branches of the package that some test must reach.
COVERAGE_AT_LEAST = 85
# As many at once as there are processors on a small machine: with more, tests that wait for each
# other's processes run out of patience. Those of one file stay together: they share what is dear to
# start.
SIDE_BY_SIDE = ("--numprocesses=2", "--dist=loadfile", "--no-loadscope-reorder")
COVERAGE = ("--cov", "--cov-report=")
# These compare rates, or hold something to a time that a busy machine does not keep: they run by
# themselves, when all others are done.
MEASURED = (
    "tests/chain/test_failures.py",
    "tests/cli/test_demo.py",
    "tests/console/test_scale.py",
    "tests/integration/test_event_loop.py",
    "tests/integration/test_scale.py",
    "tests/purchases/test_reach.py",
    "tests/settlement/test_all_at_once.py",
    "tests/settlement/test_first_spend.py",
    "tests/simulation/test_caps.py",
    "tests/simulation/test_neighbours.py",
)
# More than this share of the time that the host of a virtual machine gave to others (it comes in
# bouts of minutes), and what waits for a process or holds it to a time says nothing about it.
STOLEN_AT_MOST = 0.03
# It needs packages of others, in environments of their own: `make test-stock`.
STOCK = "tests/stock"
SLOWEST = ("--durations=15", "--durations-min=1")
QUICK = (
    "--quiet",
    "tests/unit",
    "tests/property",
    "tests/purchase",
    "tests/test_tidy.py",
    "tests/test_docs.py",
    "tests/documents/test_reference.py",
    "tests/documents/test_typescript.py",
    "tests/sdk/test_surface.py",
)


def main() -> int:
    # A part of the tests says nothing about coverage.
    arguments = sys.argv[1:]
    if arguments == ["--quick"]:
        return _pytest(*QUICK, BURSAR_QUICK="1")
    if arguments[:1] == ["--stock"]:
        return _once_more(Watch(), _pytest("--cache-clear", STOCK, *arguments[1:]))
    if arguments:
        return _pytest(*arguments)
    elsewhere = [f"--ignore={file}" for file in MEASURED]
    watch = Watch()
    most = _pytest("--cache-clear", *SIDE_BY_SIDE, *COVERAGE, f"--ignore={STOCK}", *elsewhere)
    measured = _pytest(*MEASURED)
    return _once_more(watch, max(most, measured)) or _coverage()


def _once_more(watch: Watch, failed: int) -> int:
    """What failed while others had the machine, by itself."""
    stolen = watch.stolen_seconds / watch.wall_seconds
    if failed != pytest.ExitCode.TESTS_FAILED or stolen <= STOLEN_AT_MOST:
        return failed
    print(
        f"Others had {stolen:.0%} of this machine meanwhile: what failed runs again, alone.",
        flush=True,
    )
    return _pytest("--last-failed", "--last-failed-no-failures=none", "tests")


def _pytest(*arguments: str, **variables: str) -> int:
    command = [sys.executable, "-m", "pytest", *SLOWEST, *arguments]
    return subprocess.run(command, env={**os.environ, **variables}).returncode


def _coverage() -> int:
    command = [sys.executable, "-m", "coverage", "report", f"--fail-under={COVERAGE_AT_LEAST}"]
    return subprocess.run(command).returncode


if __name__ == "__main__":
    sys.exit(main())
