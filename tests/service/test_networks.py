"""The embedded chains under `bursar serve`, and the fee payer's SOL."""

import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY
from solders.keypair import Keypair

from bursar.chain.port import ChainOutOfReach
from bursar.config import Config, load_config
from bursar.errors import CommandFailed
from bursar.service import networks
from bursar.service.localnets import choose_ports, localnet_children
from bursar.service.networks import ensure_fee_payer_funded, open_chain
from bursar.service.supervisor import Supervisor


@pytest.fixture
def both(tmp_path: Path) -> Config:
    made = load_config({}, data_dir=tmp_path, live_network="localnet", log_level="error")
    return choose_ports(replace(made, localnet_port=0, live_localnet_port=0))


async def test_each_mode_has_its_own_chain(both: Config):
    """Goal: started, ready when asked, two networks; killed, it comes back with what it had."""
    async with Supervisor(both.data_dir) as supervisor:
        for child in localnet_children(both):
            await supervisor.start(child)
        test, live = open_chain(both, "test"), open_chain(both, "live")
        try:
            genesis = await test.genesis_hash()
            assert genesis != await live.genesis_hash()
            wallet = str(Keypair().pubkey())
            signature = await test.mint_test_money(wallet, 5)
            process = supervisor.pid("localnet")
            assert process is not None
            os.kill(process, 9)
            while supervisor.pid("localnet") in (None, process):
                with pytest.raises(ChainOutOfReach):
                    await test.genesis_hash()
            while True:
                try:
                    assert await test.genesis_hash() == genesis
                    break
                except ChainOutOfReach:
                    continue
            assert await test.transaction(signature) is not None
            assert await live.transaction(signature) is None
        finally:
            await test.close()
            await live.close()


def test_only_localnets_are_started(both: Config):
    """Goal: an address elsewhere starts nothing, and needs no port here."""
    names = [child.name for child in localnet_children(both)]
    assert names == ["localnet", "localnet-live"]
    elsewhere = replace(both, test_network="https://rpc.example.com", live_network=None)
    assert localnet_children(elsewhere) == []
    assert elsewhere.rpc_addresses("test") == ("https://rpc.example.com",)


def test_a_port_that_is_taken_is_named(both: Config):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        busy = replace(both, localnet_port=taken.getsockname()[1])
        with pytest.raises(CommandFailed, match="BURSAR_LOCALNET_PORT"):
            choose_ports(busy)
        assert choose_ports(replace(busy, test_network="https://rpc.example.com"))


class Heard:
    """What is warned of, instead of the log."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def warning(self, event: str, **line: Any) -> None:
        self.lines.append({"event": event, **line})


async def test_the_fee_payer_has_sol(both: Config, monkeypatch: pytest.MonkeyPatch):
    """Goal: filled by itself on a localnet; elsewhere a warning with the address, and a metric."""
    address = str(Keypair().pubkey())

    def metric() -> Any:
        return REGISTRY.get_sample_value("bursar_fee_payer_lamports", {"mode": "test"})

    test_only = replace(both, live_network=None)
    async with Supervisor(both.data_dir) as supervisor:
        for child in localnet_children(test_only):
            await supervisor.start(child)
        chain = open_chain(both, "test")
        try:
            # The same node, as if it were somebody else's.
            (url,) = both.rpc_addresses("test")
            elsewhere = replace(both, test_network=url)
            heard = Heard()
            monkeypatch.setattr(networks, "_log", heard)
            assert not await ensure_fee_payer_funded(elsewhere, chain, "test", address)
            assert metric() == 0
            line = heard.lines.pop()
            assert (line["event"], line["address"]) == ("fee_payer_low", address)

            assert await ensure_fee_payer_funded(both, chain, "test", address)
            held = metric()
            assert held >= both.fee_payer_low_lamports
            account = (await chain.accounts([address]))[address]
            assert account is not None
            assert account.lamports == held
            # Enough now: nothing more is given, and nobody is warned.
            assert await ensure_fee_payer_funded(both, chain, "test", address)
            assert await ensure_fee_payer_funded(elsewhere, chain, "test", address)
            assert heard.lines == []
            assert metric() == held
        finally:
            await chain.close()
