"""`make test`: pytest with coverage; its last words say what could not run here, and why.

`--quick` runs what needs no service, for the time while somebody works on the code.
"""

import os
import subprocess
import sys

# Lines and branches of the package that some test must reach.
COVERAGE_AT_LEAST = 85
# Much of the time is spent waiting for processes that start, are killed and come back, so several
# tests run at once. Those of one file stay together: they share what is dear to start.
SIDE_BY_SIDE = ("--numprocesses=3", "--dist=loadfile", "--no-loadscope-reorder")
COVERAGE = (
    "--cov",
    "--cov-report=term-missing:skip-covered",
    f"--cov-fail-under={COVERAGE_AT_LEAST}",
)
# It needs packages of others, in environments of their own: `make test-stock`.
APART = ("--ignore=tests/stock",)
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
    arguments = sys.argv[1:] or [*SIDE_BY_SIDE, *COVERAGE, *APART]
    environment = os.environ.copy()
    if arguments == ["--quick"]:
        arguments = [*QUICK]
        environment["BURSAR_QUICK"] = "1"
    command = [sys.executable, "-m", "pytest", *SLOWEST, *arguments]
    return subprocess.run(command, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
