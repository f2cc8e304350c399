"""The localnet's faucet. Real networks have none: there USDC is sent to the wallet."""

from bursar.chain.node import Node
from bursar.chain.port import ChainOutOfReach


class LocalnetFaucet:
    def __init__(self, node: Node) -> None:
        self._node = node

    async def mint(self, owner: str, amount_micros: int) -> str:
        """Mints test USDC to an owner's token account; returns the signature."""
        signature = await self._node.call("bursar_faucet", owner, amount_micros)
        if not isinstance(signature, str):
            raise ChainOutOfReach("the faucet's answer is not a signature")
        return signature
