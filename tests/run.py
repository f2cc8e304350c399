"""`make test`: pytest with coverage; its last words say what could not run here, and why."""

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


def main() -> int:
    # A part of the tests says nothing about coverage.
    arguments = sys.argv[1:] or [*SIDE_BY_SIDE, *COVERAGE]
    return subprocess.run([sys.executable, "-m", "pytest", *arguments]).returncode


if __name__ == "__main__":
    sys.exit(main())
