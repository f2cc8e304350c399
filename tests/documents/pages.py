"""Which test runs which page. A page that is in neither list has no block that could run."""

from pathlib import Path
from typing import Final

from tests.documents.blocks import blocks

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = {
    path.relative_to(ROOT).as_posix(): blocks(path.read_text("utf-8"))
    for path in [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
}
# The README comes first: it starts the service that the others call.
RUN_HERE: Final = (
    "README.md",
    "docs/tour.md",
    "docs/approvals.md",
    "docs/budgets.md",
    "docs/buying.md",
    "docs/console.md",
    "docs/custody.md",
    "docs/going-live.md",
    "docs/localnet.md",
    "docs/monitoring.md",
    "docs/quickstart.md",
    "docs/recipes.md",
    "docs/rotating-keys.md",
    "docs/stop.md",
    "docs/time-machine.md",
    "docs/webhooks.md",
)
# These have a test of their own that runs them.
RUN_ELSEWHERE: Final = {
    "docs/backup.md": "tests/service/test_backup.py",
    "docs/cli.md": "tests/cli/test_page.py",
    "docs/sdk.md": "tests/sdk/test_page.py",
    "docs/mcp.md": "tests/mcp_tools/test_page.py",
    "docs/typescript.md": "tests/stock/test_typescript.py",
}
