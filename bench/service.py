"""What is measured: Bursar's own commands on a data folder of their own, and their tenants."""

import http.client
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
from tests.processes import clean_environment

from bursar.access.issue import issue_key
from bursar.access.model import NewKey, Scope
from bursar.agent.lifecycle import Actor, create_agent
from bursar.agent.model import NewAgent
from bursar.config import Config
from bursar.cost import store as cost_store
from bursar.custody.setup import open_vault
from bursar.db import Database, Tx
from bursar.ids import new_id
from bursar.ledger import book, lock
from bursar.policy.cache import PolicyCache
from bursar.policy.limits import Limit
from bursar.policy.model import Policy
from bursar.recipient.resolve import test_address
from bursar.service.first_key import make_key
from bursar.service.ports import free_port

RECIPIENTS: Final = "*.example.com"
ACCOUNT: Final = "bench"
# What the audit asks for: each deposit in the journal was found on the chain.
DEPOSITS_AS_FROM_THE_CHAIN: Final = """
INSERT INTO deposit (id, realm_id, agent_id, amount_micros, token_account, signature, status,
                     created_at, credited_at)
SELECT t.subject_id, w.realm_id, w.agent_id, t.amount_micros, w.address,
       'not on the chain: ' || t.subject_id, 'credited', t.created_at, t.created_at
  FROM transfer t JOIN wallet w USING (agent_id) WHERE t.kind = 'deposit'
    ON CONFLICT (id) DO NOTHING"""
# More than any run can spend.
PLENTY_MICROS: Final = 10**14
PLENTY_LAMPORTS: Final = 10**12
_READY_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 40.0


@dataclass(frozen=True, slots=True)
class Running:
    """A command of Bursar that answers HTTP."""

    process: psutil.Process
    port: int
    # From the start of the command to its first answer.
    start_seconds: float

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def pss_mb(self) -> float:
        """The whole tree; what processes share is counted once."""
        tree = [self.process, *self.process.children(recursive=True)]
        return sum(process.memory_full_info().pss for process in tree) / 2**20


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """Processor time used so far, that of ended children too."""
    used = 0.0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            used += times.user + times.system + times.children_user + times.children_system
    return used


@contextmanager
def running(
    command: str, data_dir: Path, log: Path, program: str = "bursar.cli.main", **settings: str
) -> Generator[Running]:
    """`bursar serve` or `bursar api`; its log, the access log with it, goes to a file."""
    port = free_port("127.0.0.1", 0)
    variables = {"DATA_DIR": str(data_dir), "PORT": str(port), "LOCALNET_PORT": "0", **settings}
    metrics = data_dir / "metrics"
    metrics.mkdir(exist_ok=True)
    with log.open("ab") as file:
        started = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", program, command],
            env={
                **clean_environment(),
                # As `bursar serve` runs its processes.
                "PROMETHEUS_MULTIPROC_DIR": str(metrics),
                **{f"BURSAR_{name}": value for name, value in variables.items()},
            },
            stdout=file,
            stderr=file,
        )
    try:
        # A process of its own has no chain beside it, and says so when asked whether it is ready.
        _await_answer(process, port, "/readyz" if command == "serve" else "/healthz", log)
        yield Running(psutil.Process(process.pid), port, time.perf_counter() - started)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(_STOP_SECONDS)


def _await_answer(process: "subprocess.Popen[bytes]", port: int, path: str, log: Path) -> None:
    deadline = time.perf_counter() + _READY_SECONDS
    while time.perf_counter() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"bursar ended with {process.returncode}; see {log}")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
        try:
            connection.request("GET", path)
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.01)
        finally:
            connection.close()
    raise SystemExit(f"bursar gave no answer within {_READY_SECONDS:g} s; see {log}")


@dataclass(frozen=True, slots=True)
class Tenants:
    realm_id: int
    agent_ids: list[str]
    # (key, agent): one key for each agent, and many for the first agent.
    spread: list[tuple[str, str]]
    hot: list[tuple[str, str]]


async def know_payees(tx: Tx, realm_id: int) -> None:
    """As if they had been paid before, like those of a running service."""
    payees = {(realm_id, test_address(f"api{n}.example.com")): 0 for n in range(21)}
    await cost_store.note_open(tx, payees)


async def make_tenants(
    db: Database,
    config: Config,
    agents: int,
    hot_keys: int,
    *,
    limits: tuple[Limit, ...] = (),
    budget_id: str | None = None,
) -> Tenants:
    """Agents with money and keys, made by the same code that serves the API."""
    vault, policies = await open_vault(db, config), PolicyCache()
    agent_ids: list[str] = []

    async def first(tx: Tx) -> int:
        await admin_key(tx, config)
        return await tx.fetchval(
            "SELECT r.id FROM realm r JOIN account a ON a.id = r.account_id WHERE a.name = $1",
            ACCOUNT,
        )

    realm_id = await db.transact(first)

    async def some(tx: Tx) -> None:
        policy = Policy(
            cap_micros_daily=PLENTY_MICROS,
            network_lamports_daily=PLENTY_LAMPORTS,
            allowlist=(RECIPIENTS,),
            limits=limits,
        )
        wanted = NewAgent(name="a", metadata={}, policy=policy, budget_id=budget_id)
        made = await create_agent(tx, vault, Actor(realm_id, "bench", "bench"), wanted, "mint")
        agent_ids.append(made.id)
        locked = await lock.lock_agents(tx, [made.id], [realm_id])
        locked[made.id].wallet.deposit(new_id("dep"), PLENTY_MICROS)
        await book.save_balances(tx, policies, list(locked.values()))

    async def all_agents(tx: Tx) -> None:
        for _ in range(agents):
            await some(tx)
        await tx.execute(DEPOSITS_AS_FROM_THE_CHAIN)
        await know_payees(tx, realm_id)

    async def keys(tx: Tx, owners: Sequence[str]) -> list[tuple[str, str]]:
        return [((await agent_key(tx, realm_id, owner)).secret, owner) for owner in owners]

    await db.transact(all_agents)
    spread = await db.transact(lambda tx: keys(tx, agent_ids))
    hot = await db.transact(lambda tx: keys(tx, agent_ids[:1] * hot_keys))
    return Tenants(realm_id, agent_ids, spread, hot)


async def admin_key(tx: Tx, config: Config) -> NewKey:
    return await make_key(
        tx,
        config,
        mode="test",
        scope=Scope.ADMIN,
        agent_id=None,
        account=ACCOUNT,
        name="bench",
        expires_in=None,
    )


async def agent_key(tx: Tx, realm_id: int, agent_id: str) -> NewKey:
    return await issue_key(
        tx,
        realm_id=realm_id,
        mode="test",
        scope=Scope.AGENT,
        agent_id=agent_id,
        name="bench",
        expires_at=None,
        actor="bench",
        request_id="bench",
    )
