"""How an agent's program connects: a key of its own, and what to paste where.

The key is shown once, in the answer to the form that made it; before that a placeholder stands in
its place. Whatever people typed is put into the lines as a JSON string, which Python and TypeScript
read alike.
"""

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from bursar.console.visit import Drawn, Reply, Visit

CREATE_KEY: Final = "POST /v1/keys"
_NAME_MOST: Final = 100
# A first spend should harm nobody.
_AMOUNT: Final = "0.10"
_ANYONE: Final = "api.example.com"


@dataclass(frozen=True, slots=True)
class Snippet:
    title: str
    hint: str
    text: str


async def connect(visit: Visit) -> Reply:
    return await _page(visit)


async def make_key(visit: Visit) -> Reply:
    """Makes a key for the agent and shows it, once, in everything that is there to copy."""
    agent = await _agent(visit)
    body = {"name": agent["name"][:_NAME_MOST], "scope": "agent", "agentId": agent["id"]}
    made = await visit.ask(CREATE_KEY, body=body)
    return await _page(visit, key=made["key"], made=True)


async def _page(visit: Visit, key: str | None = None, *, made: bool = False) -> Reply:
    agent = await _agent(visit)
    wallet = await visit.ask("GET /v1/wallets/:agentId", params={"agentId": agent["id"]})
    recipient = first_recipient(agent["policy"]["allowlist"])
    return Drawn(
        "connect.html",
        {
            "agent": agent,
            "key": key,
            "made": made,
            "is_empty": int(wallet["available"].replace(".", "")) == 0,
            "pays_nobody": not agent["policy"]["allowlist"],
            "snippets": snippets(
                visit.address, key or f"bur_{visit.caller.mode}_…", recipient or _ANYONE
            ),
        },
    )


async def _agent(visit: Visit) -> Any:
    return await visit.ask("GET /v1/agents/:id", params={"id": visit.params["id"]})


def first_recipient(allowlist: list[str]) -> str | None:
    """An entry that names one host or address, to spend to."""
    return next((entry for entry in allowlist if "*" not in entry), None)


def snippets(address: str, key: str, recipient: str) -> tuple[Snippet, ...]:
    to, its_key, at = _quoted(recipient), _quoted(key), _quoted(address)
    mcp = {
        "mcpServers": {
            "bursar": {
                "type": "http",
                "url": f"{address}/mcp",
                "headers": {"Authorization": f"Bearer {key}"},
            }
        }
    }
    return (
        Snippet(
            "First spend",
            "In a terminal, with nothing installed.",
            f"curl {address}/v1/spend/authorise \\\n"
            f'  -H "Authorization: Bearer {key}" \\\n'
            '  -H "Content-Type: application/json" -H "Prefer: wait=10" \\\n'
            f"""  -d '{{"amount": "{_AMOUNT}", "recipient": {to}}}'""",
        ),
        Snippet(
            "MCP",
            "In the configuration of an AI agent's client.",
            msgspec.json.format(msgspec.json.encode(mcp)).decode(),
        ),
        Snippet(
            "Python",
            "pip install bursar-wallet",
            "from bursar import Bursar\n\n"
            f"agent = Bursar({its_key}, base_url={at})\n"
            f'spend = agent.spend.authorise(amount="{_AMOUNT}", recipient={to}, wait=10)\n'
            "print(spend.status)  # a refusal is an answer: spend.reject_code",
        ),
        Snippet(
            "TypeScript",
            "The package bursar, in clients/typescript.",
            'import { Bursar } from "bursar";\n\n'
            f"const bursar = new Bursar({{ apiKey: {its_key}, baseUrl: {at} }});\n"
            "const spend = await bursar.spend.authorise(\n"
            f'  {{ amount: "{_AMOUNT}", recipient: {to} }},\n'
            "  { wait: 10 },\n"
            ");\n"
            "console.log(spend.status); // a refusal is an answer: spend.rejectCode",
        ),
    )


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()
