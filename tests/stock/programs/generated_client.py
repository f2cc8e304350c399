"""One spend, with the client that openapi-python-client generated into `bursar_client`."""

import os

from bursar_client import AuthenticatedClient
from bursar_client.api.agents import get_agent_budget
from bursar_client.api.keys import get_me
from bursar_client.api.spends import authorise_spend
from bursar_client.models import Spend

with AuthenticatedClient(os.environ["BURSAR_BASE_URL"], os.environ["BURSAR_API_KEY"]) as client:
    asked = Spend(amount="1.50", recipient="api.example.com")
    spent = authorise_spend.sync(client=client, body=asked, prefer="wait=20").data
    me = get_me.sync(client=client).data
    budget = get_agent_budget.sync(me.agent_id, client=client).data
    print(spent.status, spent.amount, spent.created_at.tzinfo is not None, budget.spent_today)
