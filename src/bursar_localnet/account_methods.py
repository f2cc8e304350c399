"""JSON-RPC methods that read accounts and tokens."""

from collections.abc import Callable
from typing import Any, Final

from solders.account import Account
from solders.pubkey import Pubkey

from bursar_localnet.answers import with_context
from bursar_localnet.chain import Chain
from bursar_localnet.encode import encode_account, mint_decimals
from bursar_localnet.params import Config, Params, invalid, memcmp_bytes, to_address
from bursar_localnet.parsed import token_amount
from bursar_localnet.programs import TOKEN_PROGRAMS
from bursar_localnet.slots import Commitment
from bursar_localnet.tokens import TokenAccount, read_mint, read_token_account

_MAX_ACCOUNTS: Final = 100
_MAX_FILTERS: Final = 4


def get_balance(chain: Chain, params: Params) -> Any:
    address = params.address(0)
    commitment = params.config(1).reached(chain.slots)
    account = chain.account(address, commitment)
    return with_context(chain, commitment, account.lamports if account else 0)


def get_account_info(chain: Chain, params: Params) -> Any:
    address, config = params.address(0), params.config(1)
    commitment = config.reached(chain.slots)
    account = chain.account(address, commitment)
    value = None if account is None else encode_account(chain, account, commitment, config)
    return with_context(chain, commitment, value)


def get_multiple_accounts(chain: Chain, params: Params) -> Any:
    addresses = [to_address(text) for text in params.items(0, _MAX_ACCOUNTS)]
    config = params.config(1)
    commitment = config.reached(chain.slots)
    accounts = [chain.account(address, commitment) for address in addresses]
    value = [
        None if account is None else encode_account(chain, account, commitment, config)
        for account in accounts
    ]
    return with_context(chain, commitment, value)


def get_program_accounts(chain: Chain, params: Params) -> Any:
    program, config = params.address(0), params.config(1)
    commitment = config.reached(chain.slots)
    wanted = _filters(config)
    found = [
        {"account": encode_account(chain, account, commitment, config), "pubkey": str(address)}
        for address, account in _existing(chain, chain.owned_by(program), commitment)
        if account.owner == program and all(test(account) for test in wanted)
    ]
    return with_context(chain, commitment, found) if config.flag("withContext") else found


def get_token_account_balance(chain: Chain, params: Params) -> Any:
    address = params.address(0)
    commitment = params.config(1).reached(chain.slots)
    account = _found(chain, address, commitment)
    token = read_token_account(account)
    decimals = mint_decimals(chain, token.mint, commitment) if token else None
    if token is None or decimals is None:
        raise invalid("Invalid param: not a Token account")
    return with_context(chain, commitment, token_amount(token.amount, decimals))


def get_token_supply(chain: Chain, params: Params) -> Any:
    address = params.address(0)
    commitment = params.config(1).reached(chain.slots)
    mint = read_mint(_found(chain, address, commitment))
    if mint is None:
        raise invalid("Invalid param: not a Token mint")
    return with_context(chain, commitment, token_amount(mint.supply, mint.decimals))


def get_token_accounts_by_owner(chain: Chain, params: Params) -> Any:
    owner, config = params.address(0), params.config(2)
    commitment = config.reached(chain.slots)
    wanted = _token_filter(chain, params.filter(1), commitment)
    found = [
        {"account": encode_account(chain, account, commitment, config), "pubkey": str(address)}
        for address, account in _existing(chain, chain.held_by(owner), commitment)
        if (token := read_token_account(account)) is not None
        and token.holder == bytes(owner)
        and wanted(account, token)
    ]
    return with_context(chain, commitment, found)


def _existing(
    chain: Chain, addresses: list[Pubkey], commitment: Commitment
) -> list[tuple[Pubkey, Account]]:
    pairs = ((address, chain.account(address, commitment)) for address in addresses)
    return [(address, account) for address, account in pairs if account is not None]


def _found(chain: Chain, address: Pubkey, commitment: Commitment) -> Account:
    account = chain.account(address, commitment)
    if account is None:
        raise invalid("Invalid param: could not find account")
    return account


def _filters(config: Config) -> list[Callable[[Account], bool]]:
    filters = config.items("filters")
    if len(filters) > _MAX_FILTERS:
        raise invalid(f"Too many filters provided; max {_MAX_FILTERS}")
    return [_filter(item) for item in filters]


def _filter(item: Any) -> Callable[[Account], bool]:
    match item:
        case {"dataSize": int(size)}:
            return lambda account: len(account.data) == size
        case {"memcmp": dict()}:
            memcmp = Config(item["memcmp"])
            start, wanted = memcmp.integer("offset") or 0, memcmp_bytes(memcmp)
            return lambda account: account.data[start : start + len(wanted)] == wanted
        case "tokenAccountState" | {"tokenAccountState": _}:
            return lambda account: read_token_account(account) is not None
        case _:
            raise invalid("Invalid params: unknown filter.")


def _token_filter(
    chain: Chain, filter_: Config, commitment: Commitment
) -> Callable[[Account, TokenAccount], bool]:
    mint_text, program_text = filter_.text("mint"), filter_.text("programId")
    if mint_text is not None:
        mint = to_address(mint_text)
        account = chain.account(mint, commitment)
        if account is None:
            raise invalid("Invalid param: could not find mint")
        if read_mint(account) is None:
            raise invalid("Invalid param: not a Token mint")
        return lambda _, token: token.mint == bytes(mint)
    if program_text is not None:
        program = to_address(program_text)
        if program not in TOKEN_PROGRAMS:
            raise invalid("Invalid param: unrecognized Token program id")
        return lambda account, _: account.owner == program
    raise invalid("Invalid params: expected `mint` or `programId`.")


METHODS: Final[dict[str, Callable[[Chain, Params], Any]]] = {
    "getBalance": get_balance,
    "getAccountInfo": get_account_info,
    "getMultipleAccounts": get_multiple_accounts,
    "getProgramAccounts": get_program_accounts,
    "getTokenAccountBalance": get_token_account_balance,
    "getTokenSupply": get_token_supply,
    "getTokenAccountsByOwner": get_token_accounts_by_owner,
}
