"""The SDK says all that the API says: every route, parameter, field and error, by one comparison
with the table that the service itself runs on."""

import inspect
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import pytest

import bursar
from bursar import AsyncBursar, Bursar
from bursar.api.call import Route
from bursar.api.routes import ROUTES
from bursar.client import backtest_model, errors, model
from bursar.client.codec import read, write
from bursar.client.endpoint import Download, Endpoint, Listing, Resource
from bursar.errors import BursarError, ErrorCode, Fault
from bursar.form.record import Record
from bursar.ids import new_id

KEY = "bur_test_00000000000000000000000000000000000000"
ENDPOINTS: dict[str, Endpoint[..., Any]] = {
    f"{name}.{method}": endpoint
    for name, resource in vars(Bursar(KEY)).items()
    if isinstance(resource, Resource)
    for method, endpoint in vars(type(resource)).items()
    if isinstance(endpoint, Endpoint)
}
MODELS = (model.__name__, backtest_model.__name__)
BY_ROUTE = {(route.method, route.path): route for route in ROUTES}


def _route(endpoint: Endpoint[..., Any]) -> Route:
    return BY_ROUTE[endpoint.method, endpoint.path]


def test_every_route_has_its_method():
    """Goal: an endpoint that is added to the table fails here until the SDK has it."""
    assert {(e.method, e.path) for e in ENDPOINTS.values()} == set(BY_ROUTE)


def test_both_clients_have_the_same_resources():
    """Goal: the same resources, on either client, sharing one description."""

    def resources(client: Any) -> dict[str, type]:
        return {n: type(r) for n, r in vars(client).items() if isinstance(r, Resource)}

    names = [
        "agents",
        "wallets",
        "spend",
        "budgets",
        "backtests",
        "drafts",
        "purchases",
        "pins",
        "transactions",
        "webhooks",
        "events",
        "keys",
        "recipients",
        "audit_log",
        "account",
    ]
    assert list(resources(Bursar(KEY))) == names
    assert resources(Bursar(KEY)) == resources(AsyncBursar(KEY))


@pytest.mark.parametrize("name", ENDPOINTS)
def test_every_parameter_is_sent(name: str):
    """Goal: with all arguments given, the request has every parameter that the route accepts; a
    method with a narrower purpose sends nothing else."""
    endpoint = ENDPOINTS[name]
    route = _route(endpoint)
    arguments = {
        parameter.name: _sample(parameter)
        for parameter in list(inspect.signature(endpoint.describe).parameters.values())[1:]
    }
    request = endpoint.describe(None, **arguments)
    call = endpoint.call(request)
    accepted = _names(route.body) if route.body is not None else set[str]()
    sent = _keys(dict(request.body or {}))
    narrow = name in ("agents.pause", "agents.resume", "agents.freeze", "agents.unfreeze")
    assert sent < accepted if narrow else sent == accepted
    assert set(call.query) == {field.name for field in route.query}
    assert ":" not in call.path
    assert len(call.path.split("/")) == len(route.path.split("/"))
    if route.method == "POST":
        assert call.headers["Idempotency-Key"] == arguments["idempotency_key"]
        own = {
            endpoint.call(
                endpoint.describe(None, **{**arguments, "idempotency_key": None})
            ).idempotency_key
            for _ in range(3)
        }
        assert len(own) == 3
        assert None not in own
    else:
        assert "Idempotency-Key" not in call.headers


@pytest.mark.parametrize("name", ENDPOINTS)
def test_every_field_is_read(name: str):
    """Goal: the model has the fields that the service's own struct has, with types that fit."""
    endpoint = ENDPOINTS[name]
    route = _route(endpoint)
    assert isinstance(endpoint, Listing) == route.is_list
    if isinstance(endpoint, Download):
        assert route.content_type == "text/csv"
    elif route.data is None:
        assert endpoint.answer is NoneType
    else:
        _same_fields(endpoint.answer, route.data)


def test_the_signature_that_help_shows():
    """Goal: `help()` shows what a caller passes."""
    client = Bursar(KEY)
    assert str(inspect.signature(client.keys.revoke)) == "(key_id: str)"
    assert client.spend.authorise.__doc__ is not None
    assert "self" not in inspect.signature(client.agents.create).parameters


def _same_fields(ours: Any, theirs: Any) -> None:
    hints = get_type_hints(ours)
    served = {f.encode_name: f.type for f in msgspec.structs.fields(theirs)}
    assert {_camel(name) for name in hints} == set(served)
    for name, kind in hints.items():
        _same_type(f"{ours.__name__}.{name}", kind, served[_camel(name)])


def _same_type(place: str, ours: Any, theirs: Any) -> None:
    mine, other = _without_none(ours), _without_none(theirs)
    assert (mine is ours) == (other is theirs), f"{place}: null"
    if isinstance(mine, type) and mine.__module__ in MODELS:
        _same_fields(mine, other)
    elif get_origin(mine) is tuple:
        assert get_origin(other) is list, place
        _same_type(place, get_args(mine)[0], get_args(other)[0])
    elif get_origin(mine) is Literal:
        words = get_args(other) if get_origin(other) is Literal else [w.value for w in other]
        assert set(get_args(mine)) == set(words), place
    elif mine in (int, bool):
        assert other is mine, place
    elif mine in (Decimal, datetime):
        assert other is str, place


def _without_none(kind: Any) -> Any:
    kinds = [k for k in get_args(kind) if k is not NoneType]
    nullable = NoneType in get_args(kind)
    return kinds[0] if nullable else kind


def _names(record: Record, prefix: str = "") -> set[str]:
    found: set[str] = set()
    for field in record.fields:
        inner = field.kind
        found |= (
            _names(inner, f"{field.name}.") if isinstance(inner, Record) else {prefix + field.name}
        )
    return found


def _keys(body: dict[str, Any]) -> set[str]:
    found: set[str] = set()
    for name, value in body.items():
        nested = name in ("policy", "paymentRequired")
        found |= {f"{name}.{inner}" for inner in value} if nested else {name}
    return found


def _sample(parameter: inspect.Parameter) -> Any:
    """A value that the parameter's type allows."""
    text = str(parameter.annotation)
    for sign, value in {
        "Iterable[str]": ["api.example.com"],
        "NewLimit": [{"window": "week", "amount": Decimal("1.50")}],
        "Mapping[str, str]": {"team": "search"},
        "Mapping[str, typing.Any]": {"status": 402, "headers": {}, "body": ""},
        "Decimal": Decimal("1.50"),
        "datetime": datetime(2026, 11, 15, tzinfo=UTC),
        "bool": True,
        "int": 7,
    }.items():
        if sign in text:
            return value
    return f"{parameter.name}-1"


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.title() for word in others)


# Errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", list(ErrorCode), ids=lambda code: code.value)
def test_every_code_has_its_exception(code: ErrorCode):
    """Goal: named as the code, importable from `bursar`, with everything the answer said."""
    kind = getattr(bursar, "".join(word.title() for word in code.value.split("_")))
    body = {
        "error": {
            "code": code.value,
            "message": "No.",
            "param": "amount",
            "details": [{"param": "amount", "message": "No."}],
            "retryable": code.retryable,
            "requestId": "req_1",
        }
    }
    headers = {"retry-after": "7", "x-request-id": "req_1"}
    failure = errors.failure_of(code.status, body, headers, "key-1")
    assert type(failure) is kind
    assert isinstance(failure, BursarError)
    for one in (failure, pickle.loads(pickle.dumps(failure))):
        assert (one.code, one.message, one.status) == (code.value, "No.", code.status)
        assert (one.request_id, one.retry_after, one.idempotency_key) == ("req_1", 7, "key-1")
        assert (one.param, one.details) == ("amount", (Fault("amount", "No."),))
        assert one.retryable is code.retryable
        assert str(one) == f"No. ({code.status} {code.value}, req_1)"


def test_an_answer_of_somebody_else_is_named_so():
    """Goal: a proxy's page and a newer service's code are no crash."""
    for body in (None, [], {}, {"error": "no"}, {"error": {}}, {"error": {"code": "x"}}, "no"):
        failure = errors.failure_of(502, body, {"retry-after": "Wed, 21 Oct"}, "key-1")
        assert type(failure) is errors.UnexpectedAnswer
        assert (failure.status, failure.retry_after) == (502, None)
        assert failure.idempotency_key == "key-1"
    newer = {"error": {"code": "brand_new", "message": "No."}}
    failure = errors.failure_of(409, newer, {}, None)
    assert type(failure) is errors.ServiceError
    assert failure.code == "brand_new"


def test_bursar_exports_what_it_says():
    """Goal: every name of `__all__` is there, and no other is made up."""
    assert {name for name in bursar.__all__ if getattr(bursar, name, None) is None} == set()
    kinds = [errors.RequestFailed, *_below(errors.RequestFailed)]
    assert {kind.__name__ for kind in kinds} < set(bursar.__all__)
    with pytest.raises(AttributeError):
        _ = bursar.__getattr__("Wallet")


def _below(kind: type) -> list[type]:
    return [k for child in kind.__subclasses__() for k in (child, *_below(child))]


# Values -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("amount", [1.5, 1, True, None, b"1"])
def test_money_is_exact_or_refused(amount: Any):
    """Goal: a float never becomes money, and neither does an int that may be cents."""
    with pytest.raises(TypeError, match="Decimal"):
        Bursar(KEY).spend.authorise(amount=amount, recipient="api.example.com")
    with pytest.raises(TypeError, match="Decimal"):
        Bursar(KEY).agents.create("x", daily_cap=amount, allowlist=[])


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (Decimal("12.50"), "12.5"),
        (Decimal("1E+2"), "100"),
        (Decimal(100), "100"),
        (Decimal("0.000001"), "0.000001"),
        (Decimal("1.00000000"), "1"),
        ("12.50", "12.50"),
        ("1e2", "1e2"),
    ],
)
def test_money_is_sent_as_digits(amount: Any, text: str):
    body = ENDPOINTS["wallets.fund"].describe(None, "ag_1", amount=amount).body
    assert body == {"amount": text}


def test_moments_need_a_time_zone():
    """Goal: nobody's local time is taken for another's."""
    stats = ENDPOINTS["transactions.stats"].describe
    assert stats(None, from_=date(2026, 11, 1)).query["from"] == "2026-11-01"
    moment = datetime(2026, 11, 1, 12, tzinfo=UTC)
    assert stats(None, from_=moment).query["from"] == "2026-11-01T12:00:00+00:00"
    with pytest.raises(ValueError, match="time zone"):
        stats(None, to=datetime(2026, 11, 1))  # noqa: DTZ001


@pytest.mark.parametrize("bad", ["", ".", ".."])
def test_an_id_never_becomes_another_path(bad: str):
    """Goal: an empty id cannot turn one endpoint into another, nor can one with slashes."""
    with pytest.raises(bursar.ConfigError, match="id"):
        Bursar(KEY).agents.terminate(bad)
    endpoint = ENDPOINTS["agents.get"]
    assert (
        endpoint.call(endpoint.describe(None, "../keys?x#y")).path == "/v1/agents/..%2Fkeys%3Fx%23y"
    )


def test_one_string_is_no_list():
    """Goal: `allowlist="api.example.com"` is not fifteen one-letter hosts."""
    with pytest.raises(TypeError, match="list"):
        Bursar(KEY).agents.create("x", daily_cap="1", allowlist="api.example.com")
    with pytest.raises(TypeError, match="list"):
        Bursar(KEY).webhooks.create(url="https://example.com", events="*")


def test_models_tolerate_new_fields_and_words():
    """Goal: a newer service does not break an older client; what is written is what was read."""
    wallet = {
        "agentId": new_id("ag"),
        "address": "a",
        "balance": "1.500000",
        "reserved": "0.000000",
        "available": "1.500000",
        "mint": "m",
        "status": "napping",
        "lastFundedAt": "2026-11-15T09:30:00.123Z",
    }
    shown = read(model.Wallet, {**wallet, "mood": "new"})
    assert shown.balance == Decimal("1.5")
    assert shown.status == "napping"
    assert write(shown) == wallet
    with pytest.raises(AttributeError):
        shown.balance = Decimal(0)  # pyright: ignore[reportAttributeAccessIssue]
    for broken in ({**wallet, "balance": 1.5}, {}, None, []):
        with pytest.raises((KeyError, TypeError)):
            read(model.Wallet, broken)


def test_the_key_is_in_no_repr():
    """Goal: logging a client, a resource, a new key or an error shows no secret."""
    client = Bursar(KEY)
    held = (*vars(client).values(), *vars(client.agents.transport).values())
    for thing in (client, AsyncBursar(KEY), client.agents.list(), *held):
        assert KEY not in repr(thing)
    made = model.CreatedWebhook(
        id="wh_1",
        url="https://example.com",
        events=("*",),
        status="enabled",
        disabled_reason=None,
        created_at=datetime(2026, 11, 15, tzinfo=UTC),
        secret="whsec_hidden",
    )
    assert "hidden" not in repr(made)


@pytest.mark.parametrize("key", ["", "bur_test_x\n", "bur test", "bür"])
def test_what_cannot_be_a_key_is_refused_without_showing_it(
    key: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("BURSAR_API_KEY", raising=False)
    with pytest.raises(bursar.ConfigError, match="BURSAR_API_KEY") as caught:
        Bursar(key)
    assert not key or key not in str(caught.value)


def test_key_and_address_come_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BURSAR_API_KEY", KEY)
    monkeypatch.setenv("BURSAR_BASE_URL", "https://bursar.example.com/base/")
    assert "https://bursar.example.com/base>" in repr(Bursar())
    assert "http://localhost:1>" in repr(AsyncBursar(base_url="http://localhost:1"))
    monkeypatch.setenv("BURSAR_BASE_URL", "bursar.example.com")
    with pytest.raises(bursar.ConfigError, match="BURSAR_BASE_URL"):
        Bursar()
