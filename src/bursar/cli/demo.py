"""`bursar demo`: an agent's first day, told while it happens."""

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from bursar.cli.connection import Connection
from bursar.cli.remote import Remote, remote
from bursar.cli.spends import explained
from bursar.errors import CommandFailed, ConfigError

if TYPE_CHECKING:
    from bursar.client.client import Bursar
    from bursar.client.model import Transaction

app = typer.Typer(help="Watch an agent spend until it is refused; or open a shop to buy from.")

_HOST: Final = "api.example.com"
_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 20.0
# More spends of this size than the daily cap allows, so that the loop ends with a refusal.
_MOST_SPENDS: Final = 10
_WAIT_SECONDS: Final = 10


@app.callback(invoke_without_command=True)
@remote
def demo(to: Remote, context: typer.Context) -> None:
    """Watch an agent spend until it is refused. Test money only; under 20 seconds.

    Uses the service of your key or profile; without one it starts a service of its own, in a folder
    that is removed at the end.
    """
    if context.invoked_subcommand is not None:
        return
    with ExitStack() as stack:
        if to.connection.api_key is None:
            with to.out.waiting("starting a service of its own …"):
                to = Remote(stack.enter_context(_own_service()), to.out)
            stack.callback(lambda: to.client.close())
            to.out.note(f"A service of its own runs at {to.connection.base_url}.")
        if to.client.keys.me().mode != "test":
            raise ConfigError("BURSAR_API_KEY", "is a live key; the demo spends, so use a test key")
        _Story(to).tell()


class _Story:
    def __init__(self, to: Remote) -> None:
        self._to = to
        self._client: Bursar = to.client
        self._agent_id = ""

    def tell(self) -> None:
        self._say("An agent gets a wallet and rules it cannot break.")
        agent = self._client.agents.create(
            "demo agent",
            daily_cap="20.00",
            per_transaction_cap="8.00",
            approval_threshold="5.00",
            allowlist=[_HOST],
        )
        self._agent_id = agent.id
        self._show(f"{agent.id}, wallet {agent.wallet.address}")
        self._show(f"20.00 a day, 8.00 at once, above 5.00 a person decides, only to {_HOST}")
        self._say("Somebody puts 50 test USDC into the wallet.")
        deposit = self._client.wallets.fund(agent.id, amount="50")
        self._show(f"{deposit.amount} {deposit.status}, on the chain as {deposit.signature[:16]}…")

        self._say("It buys something, and the payment is final on the chain.")
        self._spend("3.50", wait=_WAIT_SECONDS)
        self._say("It is told to pay somebody who is not on its list.")
        self._spend("1.00", recipient="evil.example.net")
        self._say("It wants too much at once. The refusal says what would pass.")
        self._spend("9.00")
        self._say("Six is allowed, but a person must agree.")
        asked = self._spend("6.00")
        approved = self._client.transactions.approve(asked.id, reason="fine, it is a demo")
        self._show(f"approved by {approved.decided_by}", "✓")

        self._say("Then it spends as fast as it can, until the day's cap stops it.")
        refused = self._spend_until_refused("4.00")
        self._say("The refusal named what is left to the last cent, and that passes.")
        self._spend(f"{refused.decision.max_amount_now:f}")
        self._say("An operator pulls the brake.")
        self._client.agents.freeze(agent.id)
        self._spend("0.01")
        self._end()

    def _spend(
        self, amount: str, *, recipient: str = _HOST, wait: int | None = None
    ) -> "Transaction":
        made = self._client.spend.authorise(
            agent_id=self._agent_id, amount=amount, recipient=recipient, wait=wait
        )
        mark = {"rejected": "✗", "pending": "?"}.get(made.status, "✓")
        self._show(f"{made.amount} to {made.recipient}: {made.status}", mark)
        if made.status == "rejected":
            for line in explained(made, self._agent_id, recipient):
                self._show(f"   {line}")
        if made.signature is not None:
            self._show(f"   signature {made.signature}")
        return made

    def _spend_until_refused(self, amount: str) -> "Transaction":
        for _ in range(_MOST_SPENDS):
            made = self._spend(amount)
            if made.status == "rejected":
                return made
        raise CommandFailed("The cap did not hold. This must never be: please report it.")

    def _end(self) -> None:
        client, agent_id = self._client, self._agent_id
        ends = time.monotonic() + _WAIT_SECONDS
        with self._to.out.waiting("waiting until everything is paid …"):
            while client.wallets.balance(agent_id).reserved and time.monotonic() < ends:
                time.sleep(0.2)
        stats = client.transactions.stats(agent_id=agent_id)
        self._say("The day in numbers.")
        self._show(
            f"{stats.transaction_count} spends asked for, {stats.rejected_count} refused,"
            f" {stats.total_spent} paid; the cap was 20.00"
        )
        client.agents.terminate(agent_id)
        self._show("The agent is terminated; what is left can be withdrawn.")
        self._say("Next: bursar agents create, bursar fund, bursar spend. Or: bursar --help")

    def _say(self, text: str) -> None:
        self._to.out.console.print(f"\n{text}", style="bold", markup=False, soft_wrap=True)

    def _show(self, text: str, mark: str = " ") -> None:
        style = {"✓": "green", "✗": "red", "?": "yellow"}.get(mark, "")
        self._to.out.console.print(f"  {mark} {text}", style=style, markup=False, soft_wrap=True)


def service_installed() -> bool:
    """Whether the packages that `bursar serve` needs are installed; a plain install has none of
    them."""
    return importlib.util.find_spec("httptools") is not None


@contextmanager
def _own_service() -> Generator[Connection]:
    """`bursar serve` on free ports and a folder that is removed at the end."""
    if not service_installed():
        raise ConfigError(
            "BURSAR_API_KEY",
            "is not set, and no service can be started here. Set it (and BURSAR_BASE_URL), or"
            ' install the service: pip install "bursar-wallet[server]"',
        )
    from bursar.service.ports import free_port

    port, chain_port = free_port("127.0.0.1", 0), free_port("127.0.0.1", 0)
    with tempfile.TemporaryDirectory(prefix="bursar-demo-") as folder:
        log, data = Path(folder) / "log", Path(folder) / "data"
        settings = {
            "BURSAR_DATA_DIR": str(data),
            "BURSAR_HOST": "127.0.0.1",
            "BURSAR_PORT": str(port),
            "BURSAR_LOCALNET_PORT": str(chain_port),
            "BURSAR_LOG_LEVEL": "error",
        }
        others = {n: v for n, v in os.environ.items() if not n.startswith("BURSAR_")}
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "bursar.cli.main", "serve"],
                env=others | settings,
                stdout=output,
                stderr=output,
                # A Ctrl-C must reach only the demo, which then stops the service in order.
                start_new_session=True,
            )
            try:
                yield Connection(f"http://127.0.0.1:{port}", _first_key(process, data, log))
            finally:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(_STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def _first_key(process: subprocess.Popen[bytes], folder: Path, log: Path) -> str:
    """The key that `serve` leaves in its folder; it says so once it is ready."""
    from bursar.service.first_key import FIRST_KEY_FILE, RUNNING

    ends = time.monotonic() + _START_SECONDS
    while time.monotonic() < ends and process.poll() is None:
        said = log.read_text("utf-8", "replace")
        if RUNNING in said and FIRST_KEY_FILE in said:
            return (folder / FIRST_KEY_FILE).read_text("ascii").strip()
        time.sleep(0.05)
    raise CommandFailed(
        f"No service could be started:\n{log.read_text('utf-8', 'replace')[-2000:]}"
    )
