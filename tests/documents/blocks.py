"""The code blocks of a page, run as a reader runs them: one after the other, in one shell.

    python3 tests/documents/blocks.py README.md

runs a page in the current folder, which needs Bash, curl and nothing of the project. A comment
above a block, which readers do not see, says what is special about it:

    <!-- not run: why -->        only its syntax is checked
    <!-- background: address --> started unless the address answers, and ended with the page
    <!-- file: name -->          saved under this name
    <!-- output -->              what the block before says; `…` stands for anything
    <!-- an error -->            the answers shown are errors, which anywhere else fail the page
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

PAGE_SECONDS: Final = 120
_BLOCK: Final = re.compile(
    r"(?:^<!-- (?P<note>[^\n]+?) -->\n)?^```(?P<language>[^\n]*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_NOTES: Final = ("not run", "background", "file", "output", "an error")
_MARK: Final = "@@ block"
_ANSWER_SECONDS: Final = 90
_STOP_SECONDS: Final = 60


class PageFailed(AssertionError):
    """A block did not do what the page says; the message shows both."""


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int
    note: str = ""
    detail: str = ""

    @property
    def runs(self) -> bool:
        return self.language in ("sh", "python") and self.note in ("", "an error")


def blocks(page: str) -> list[Block]:
    found: list[Block] = []
    for match in _BLOCK.finditer(page):
        note, _, detail = (match["note"] or "").partition(": ")
        line = page.count("\n", 0, match.start("language")) + 1
        if note not in _NOTES:
            note = detail = ""
        found.append(Block(match["language"], match["text"], line, note, detail))
    return found


Rewrite = Callable[[str], str]


def run_page(
    page: Sequence[Block],
    folder: Path,
    environment: Mapping[str, str],
    rewrite: Rewrite = lambda text: text,
) -> dict[int, str]:
    """What each block said, by its line. `rewrite` is applied to what is run."""
    with running(page, folder, environment, rewrite) as said:
        return said


@contextmanager
def running(
    page: Sequence[Block],
    folder: Path,
    environment: Mapping[str, str],
    rewrite: Rewrite = lambda text: text,
) -> Generator[dict[int, str]]:
    """The same, and what the page started in the background lives as long as the context."""
    with _process_groups() as pids:
        rewritten = [
            replace(block, text=rewrite(block.text), detail=rewrite(block.detail)) for block in page
        ]
        shell = subprocess.Popen(
            ["bash", "-c", _script(rewritten, pids)],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        try:
            output, _ = shell.communicate(timeout=PAGE_SECONDS)
        except subprocess.TimeoutExpired:
            shell.kill()
            output, _ = shell.communicate()
            output += f"\n(still running after {PAGE_SECONDS} s)"
        said = _by_line(output)
        if shell.returncode != 0:
            line = max(said, default=0)
            raise PageFailed(f"the block in line {line} failed:\n{said.get(line, output)}")
        _compare(page, said)
        yield said


def _compare(page: Sequence[Block], said: Mapping[int, str]) -> None:
    """Every block of output shows what the block before it said."""
    line = 0
    for block in page:
        if block.note == "output":
            parts = map(re.escape, _squeeze(block.text).split("…"))
            if not re.search(".*?".join(parts), _squeeze(said[line]), re.DOTALL):
                raise PageFailed(
                    f"line {block.line} shows\n{block.text}\nbut line {line} says\n{said[line]}"
                )
        elif block.line in said:
            line = block.line


def _squeeze(text: str) -> str:
    return re.sub(r"\s+", "", text)


def _by_line(output: str) -> dict[int, str]:
    parts = re.split(rf"^{_MARK} (\d+)\n", output, flags=re.MULTILINE)
    return {int(line): text for line, text in zip(parts[1::2], parts[2::2], strict=True)}


# The shell ---------------------------------------------------------------------------------------

_PROLOGUE: Final = """\
set -euo pipefail
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
failing=--fail-with-body
curl() { command curl ${failing:-} "$@"; }
answers() {
  case $(command curl -s -o /dev/null -w '%{http_code}' "$1" || true) in
    000|503) return 1 ;;
  esac
}
"""
_BACKGROUND: Final = """\
if ! answers {address}; then
  set -m
  (
{text}
  ) >{log} 2>&1 </dev/null &
  set +m
  disown  # the page may end before it
  echo $! >>{pids}
  for _ in $(seq {tries}); do answers {address} && break; kill -0 $! || break; sleep 0.2; done
  answers {address} || {{ cat {log}; exit 1; }}
fi
"""


def _script(page: Sequence[Block], pids: Path) -> str:
    return _PROLOGUE + "".join(_step(block, pids) for block in page if block.note != "not run")


def _step(block: Block, pids: Path) -> str:
    mark = f"echo; echo '{_MARK} {block.line}'\n"
    if block.note == "background":
        log = pids.with_name(f"block-{block.line}.log")
        tries = _ANSWER_SECONDS * 5
        return mark + _BACKGROUND.format(
            address=block.detail, text=block.text, log=log, pids=pids, tries=tries
        )
    if block.note == "file":
        return mark + _here(f"cat >{block.detail}", block.text)
    if not block.runs:
        return ""
    if block.language == "python":
        return mark + _here("python3 -", block.text)
    if block.note == "an error":
        return f"{mark}failing=\n{block.text}failing=--fail-with-body\n"
    return mark + block.text


def _here(command: str, text: str) -> str:
    return f"{command} <<'END_OF_BLOCK'\n{text}END_OF_BLOCK\n"


@contextmanager
def _process_groups() -> Generator[Path]:
    """A file of the process groups that the page started; they are ended as by Ctrl-C."""
    with tempfile.TemporaryDirectory(prefix="bursar-docs-") as folder:
        pids = Path(folder) / "pids"
        pids.touch()
        try:
            yield pids
        finally:
            for group in map(int, pids.read_text().split()):
                _end(group)


def _end(group: int) -> None:
    deadline = time.monotonic() + _STOP_SECONDS
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGINT)
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.1)
        os.killpg(group, signal.SIGKILL)


def main() -> int:
    started = time.monotonic()
    for name in sys.argv[1:]:
        page = blocks(Path(name).read_text("utf-8"))
        try:
            said = run_page(page, Path.cwd(), os.environ)
        except PageFailed as problem:
            print(f"{name}: {problem}", file=sys.stderr)
            return 1
        print(f"{name}: {len(said)} blocks in {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
