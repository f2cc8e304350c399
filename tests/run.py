"""`make test`: pytest under coverage, then a word on what could not run here."""

import subprocess
import sys

# Lines and branches of the package that some test must reach.
COVERAGE_AT_LEAST = "85"


def main() -> int:
    coverage = [sys.executable, "-m", "coverage"]
    subprocess.run([*coverage, "erase"], check=True)
    tests = subprocess.run([*coverage, "run", "-m", "pytest", *sys.argv[1:]])
    subprocess.run([*coverage, "combine", "--quiet"], check=False)
    if tests.returncode != 0 or len(sys.argv) > 1:
        # A part of the tests says nothing about coverage.
        return tests.returncode
    report = [*coverage, "report", f"--fail-under={COVERAGE_AT_LEAST}"]
    return subprocess.run(report).returncode


if __name__ == "__main__":
    sys.exit(main())
