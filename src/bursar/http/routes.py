"""Every endpoint, one row each. Routing, scopes, limits, validation and OpenAPI all read it."""

from typing import Final

from bursar.access import api as access
from bursar.access.limits import Category
from bursar.access.model import CreatedKey, Key, Me, Scope
from bursar.agent import api as agent
from bursar.agent.model import Agent
from bursar.errors import ErrorCode
from bursar.http.call import Route, Unit
from bursar.policy.model import PolicyVersion
from bursar.recipient import api as recipient
from bursar.recipient.model import RecipientView
from bursar.wallet import api as wallet
from bursar.wallet.model import Balance, Wallet

ADMIN: Final = frozenset({Scope.ADMIN})
STOP: Final = frozenset({Scope.ADMIN, Scope.APPROVER})
PEOPLE: Final = frozenset({Scope.ADMIN, Scope.APPROVER, Scope.READ})
ANYONE: Final = frozenset(Scope)

ROUTES: Final[tuple[Route, ...]] = (
    # Agents
    Route(
        method="POST",
        path="/v1/agents",
        handler=agent.create,
        summary="Create an agent",
        description="Makes the agent, version 1 of its policy and its wallet.",
        tag="Agents",
        scopes=ADMIN,
        category=Category.AGENT_MANAGEMENT,
        unit=Unit.WRITE,
        body=agent.NEW_AGENT,
        status=201,
        data=Agent,
    ),
    Route(
        method="GET",
        path="/v1/agents",
        handler=agent.list_,
        summary="List agents",
        description="Newest first. An agent key sees only its own agent.",
        tag="Agents",
        scopes=ANYONE,
        category=Category.AGENT_READS,
        unit=Unit.READ,
        query=agent.LIST_QUERY,
        data=Agent,
        is_list=True,
    ),
    Route(
        method="GET",
        path="/v1/agents/:id",
        handler=agent.get,
        summary="Get an agent",
        tag="Agents",
        scopes=ANYONE,
        category=Category.AGENT_READS,
        unit=Unit.READ,
        data=Agent,
    ),
    Route(
        method="PATCH",
        path="/v1/agents/:id",
        handler=agent.change,
        summary="Change an agent",
        description=(
            "One atomic change, in force for every spend answered after it. The policy's version"
            " rises by one when, and only when, the policy really changes. An approver may only"
            " pause the agent or freeze its policy."
        ),
        tag="Agents",
        scopes=STOP,
        category=Category.AGENT_MANAGEMENT,
        unit=Unit.WRITE,
        body=agent.AGENT_CHANGE,
        permits=agent.permits_change,
        data=Agent,
        errors=(ErrorCode.AGENT_TERMINATED, ErrorCode.POLICY_VERSION_CONFLICT),
    ),
    Route(
        method="DELETE",
        path="/v1/agents/:id",
        handler=agent.terminate,
        summary="Terminate an agent",
        description=(
            "For good; doing it again changes nothing. Its keys stop working and pending spends"
            " are rejected. The wallet stays readable and can still be withdrawn from."
        ),
        tag="Agents",
        scopes=ADMIN,
        category=Category.AGENT_MANAGEMENT,
        unit=Unit.WRITE,
        data=Agent,
    ),
    Route(
        method="GET",
        path="/v1/agents/:id/policies",
        handler=agent.policies,
        summary="List the versions of an agent's policy",
        tag="Agents",
        scopes=ANYONE,
        category=Category.AGENT_READS,
        unit=Unit.READ,
        query=agent.POLICIES_QUERY,
        data=PolicyVersion,
        is_list=True,
    ),
    # Wallets
    Route(
        method="GET",
        path="/v1/wallets/:agentId",
        handler=wallet.get,
        summary="Get an agent's wallet",
        tag="Wallets",
        scopes=ANYONE,
        category=Category.WALLET_OPERATIONS,
        unit=Unit.READ,
        data=Wallet,
    ),
    Route(
        method="GET",
        path="/v1/wallets/:agentId/balance",
        handler=wallet.balance,
        summary="Get a wallet's balance",
        tag="Wallets",
        scopes=ANYONE,
        category=Category.WALLET_OPERATIONS,
        unit=Unit.READ,
        data=Balance,
    ),
    # Recipients
    Route(
        method="PUT",
        path="/v1/recipients/:hostname",
        handler=recipient.put,
        summary="Set the address a hostname is paid at",
        description="In force for every spend answered after it.",
        tag="Recipients",
        scopes=ADMIN,
        category=Category.AGENT_MANAGEMENT,
        unit=Unit.WRITE,
        body=recipient.RECIPIENT,
        data=RecipientView,
    ),
    Route(
        method="GET",
        path="/v1/recipients",
        handler=recipient.list_,
        summary="List the recipients directory",
        tag="Recipients",
        scopes=PEOPLE,
        category=Category.AGENT_READS,
        unit=Unit.READ,
        query=recipient.LIST_QUERY,
        data=RecipientView,
        is_list=True,
    ),
    Route(
        method="GET",
        path="/v1/recipients/:hostname",
        handler=recipient.get,
        summary="Get a directory entry",
        tag="Recipients",
        scopes=PEOPLE,
        category=Category.AGENT_READS,
        unit=Unit.READ,
        data=RecipientView,
    ),
    Route(
        method="DELETE",
        path="/v1/recipients/:hostname",
        handler=recipient.delete,
        summary="Remove a directory entry",
        tag="Recipients",
        scopes=ADMIN,
        category=Category.AGENT_MANAGEMENT,
        unit=Unit.WRITE,
        status=204,
    ),
    # Keys
    Route(
        method="POST",
        path="/v1/keys",
        handler=access.create,
        summary="Make an API key",
        description="`key` is shown this once; a replay of the request shows null.",
        tag="Keys",
        scopes=ADMIN,
        category=Category.AGENT_MANAGEMENT,
        unit=Unit.WRITE,
        body=access.NEW_KEY,
        status=201,
        data=CreatedKey,
        errors=(ErrorCode.NOT_FOUND, ErrorCode.AGENT_TERMINATED),
    ),
    Route(
        method="GET",
        path="/v1/keys",
        handler=access.list_,
        summary="List API keys",
        tag="Keys",
        scopes=ADMIN,
        category=Category.AGENT_READS,
        unit=Unit.READ,
        query=access.LIST_QUERY,
        data=Key,
        is_list=True,
    ),
    Route(
        method="DELETE",
        path="/v1/keys/:id",
        handler=access.revoke,
        summary="Revoke an API key",
        description="It stops working in every process within a second.",
        tag="Keys",
        scopes=ADMIN,
        category=Category.AGENT_MANAGEMENT,
        unit=Unit.WRITE,
        status=204,
    ),
    Route(
        method="GET",
        path="/v1/me",
        handler=access.me,
        summary="Who am I",
        description="The calling key and its rate limits.",
        tag="Keys",
        scopes=ANYONE,
        category=Category.AGENT_READS,
        unit=Unit.READ,
        data=Me,
    ),
)
