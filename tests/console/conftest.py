"""A tenant of its own for each test, signed in."""

from collections.abc import AsyncGenerator

import pytest

from tests.console.support import Tenant, Visitor, browser_of, sign_in
from tests.support import Service, new_account


@pytest.fixture
async def tenant(service: Service) -> AsyncGenerator[Tenant]:
    account = new_account()
    async with await service.admin(account=account) as api, browser_of(service) as http:
        made = Tenant(service, account, api, Visitor(http))
        await sign_in(http, made.key)
        yield made
