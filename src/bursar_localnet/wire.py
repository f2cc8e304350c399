"""Decodes a signed transaction, and refuses what a real node would refuse."""

import base64
import binascii
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from solders.hash import Hash
from solders.message import Message, MessageV0, from_bytes_versioned, to_bytes_versioned
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import SanitizeError, VersionedTransaction

from bursar_localnet import base58

# The size of one network packet, which bounds a transaction, and of its text in each encoding.
PACKET_BYTES: Final = 1_232
_ENCODED_MAX: Final = {"base58": 1_683, "base64": 1_644}

_TRANSACTION: Final = "solana_transaction::versioned::VersionedTransaction"
_MESSAGE: Final = "solana_message::versions::VersionedMessage"


class Undecodable(ValueError):
    """Carries the sentence a node answers with."""


@dataclass(frozen=True, slots=True)
class Wire:
    raw: bytes
    transaction: VersionedTransaction
    message: Message | MessageV0
    # The keys in the message itself; a lookup table may add more.
    keys: list[Pubkey]

    @property
    def signature(self) -> Signature:
        return self.transaction.signatures[0]

    @property
    def message_hash(self) -> bytes:
        """Of all that is signed."""
        return sha256(to_bytes_versioned(self.message)).digest()

    @property
    def payer(self) -> Pubkey:
        return self.keys[0]

    @property
    def blockhash(self) -> Hash:
        return self.message.recent_blockhash

    @property
    def version(self) -> int | str:
        return "legacy" if isinstance(self.message, Message) else 0

    def signatures_hold(self) -> bool:
        return all(self.transaction.verify_with_results())

    def is_writable(self, index: int) -> bool:
        """For the keys in the message itself; looked-up keys have their own flag."""
        header = self.message.header
        signers = header.num_required_signatures
        if index < signers:
            return index < signers - header.num_readonly_signed_accounts
        return index < len(self.keys) - header.num_readonly_unsigned_accounts

    def is_signer(self, index: int) -> bool:
        return index < self.message.header.num_required_signatures


def decode_transaction(text: str, encoding: str) -> Wire:
    """Raises Undecodable with the message of a real node."""
    return parse_transaction(_decode(text, encoding, _TRANSACTION))


def parse_transaction(raw: bytes) -> Wire:
    try:
        transaction = VersionedTransaction.from_bytes(raw)
    except ValueError as problem:
        raise Undecodable(f"failed to deserialize {_TRANSACTION}: {problem}") from None
    message = transaction.message
    if not isinstance(message, Message | MessageV0):
        raise Undecodable("invalid transaction: Transaction version is unsupported")
    if bytes(transaction) != raw:
        # The parser stops at the end of the message; trailing bytes would be neither signed nor
        # seen.
        raise Undecodable(f"failed to deserialize {_TRANSACTION}: trailing bytes")
    try:
        transaction.sanitize()
    except SanitizeError:
        raise Undecodable(
            "invalid transaction: Transaction failed to sanitize accounts offsets correctly"
        ) from None
    return Wire(raw, transaction, message, message.account_keys)


def decode_message(text: str) -> Message | MessageV0:
    raw = _decode(text, "base64", _MESSAGE)
    try:
        message = from_bytes_versioned(raw)
    except ValueError as problem:
        raise Undecodable(f"failed to deserialize {_MESSAGE}: {problem}") from None
    if not isinstance(message, Message | MessageV0):
        raise Undecodable("invalid transaction: Transaction version is unsupported")
    return message


def _decode(text: str, encoding: str, what: str) -> bytes:
    if len(text) > _ENCODED_MAX[encoding]:
        raise Undecodable(
            f"{encoding} encoded {what} too large: {len(text)} bytes "
            f"(max: encoded/raw {_ENCODED_MAX[encoding]}/{PACKET_BYTES})"
        )
    try:
        raw = base64.b64decode(text, validate=True) if encoding == "base64" else base58.decode(text)
    except (binascii.Error, ValueError) as problem:
        raise Undecodable(f"invalid {encoding} encoding: {problem}") from None
    if len(raw) > PACKET_BYTES:
        raise Undecodable(f"decoded {what} too large: {len(raw)} bytes (max: {PACKET_BYTES} bytes)")
    return raw
