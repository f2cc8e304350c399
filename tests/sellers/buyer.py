"""A buyer without a service: reads an offer, signs for it once, presents it as often as asked."""

from dataclasses import dataclass

import aiohttp
from solders.keypair import Keypair
from solders.message import to_bytes_versioned
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from bursar.chain.sponsored import Sponsored, build_sponsored
from bursar.purchase.claim import Claim
from bursar.purchase.mpp import credential_header, read_challenges
from bursar.purchase.offer import Offer, Offered
from bursar.purchase.x402 import read_required, read_response, signature_header
from tests.localnet.support import MINT, Rpc


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    claim: Claim | None


@dataclass
class Buyer:
    chain: Rpc
    wallet: Keypair
    most_bytes: int = 1024 * 1024
    seconds: float = 3.0

    async def offered(self, url: str) -> Offered:
        async with self._get(url) as answer:
            assert answer.status == 402
            headers, body = list(answer.headers.items()), await answer.read()
        return Offered([*read_required(headers, body).offers, *read_challenges(headers).offers])

    async def sign(self, offer: Offer, variation: int = 0) -> tuple[str, str]:
        """The header that pays an offer."""
        assert offer.fee_payer is not None
        message = build_sponsored(
            Sponsored(
                amount_micros=offer.amount_micros,
                source=str(self.wallet.pubkey()),
                destination=offer.pay_to,
                mint=str(MINT),
                decimals=6,
                blockhash=str(await self.chain.blockhash()),
                fee_payer=offer.fee_payer,
                memo=offer.memo,
                variation=variation,
            )
        )
        ours = self.wallet.sign_message(to_bytes_versioned(message))
        transaction = VersionedTransaction.populate(message, [Signature.default(), ours])
        answers = credential_header if offer.protocol == "mpp" else signature_header
        return answers(offer, bytes(transaction))

    async def present(self, url: str, header: tuple[str, str]) -> Answer:
        """Raises aiohttp's errors and TimeoutError, as whatever happens on the wire."""
        async with self._get(url, header) as answer:
            body = await answer.content.read(self.most_bytes)
            return Answer(answer.status, body, read_response(list(answer.headers.items())))

    async def buy(self, url: str) -> tuple[tuple[str, str], Answer]:
        """One purchase as it should go: the header that paid, and what came back."""
        (offer,) = (await self.offered(url)).offers
        header = await self.sign(offer)
        return header, await self.present(url, header)

    def _get(self, url: str, *headers: tuple[str, str]) -> "aiohttp.client._RequestContextManager":
        timeout = aiohttp.ClientTimeout(total=self.seconds)
        return self.chain.session.get(
            url, headers=dict(headers), timeout=timeout, allow_redirects=False
        )
