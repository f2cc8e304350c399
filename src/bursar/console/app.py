"""/console: cookies, forms, sessions and errors around the screens."""

import hashlib
import html
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode

from bursar.access import session
from bursar.access.limits import Category
from bursar.access.model import Caller
from bursar.api.call import Route, Services, Stream
from bursar.api.perform import check_scope, explain, over_limit
from bursar.console import payees, stops
from bursar.console.draw import draw
from bursar.console.payee_store import Payees
from bursar.console.screens import SCREENS
from bursar.console.visit import ROOT, Drawn, Screen, Sent, Visit
from bursar.console.words import DONE
from bursar.errors import ApiError, ErrorCode, of_kind, present
from bursar.http.answer import Answers
from bursar.http.exchange import Exchange
from bursar.http.peer import Proxies
from bursar.http.reached import reached_at
from bursar.http.request import Request
from bursar.http.router import Router
from bursar.stop.model import Stop

_COOKIE: Final = "bursar_console"
# Browsers accept a cookie of this name only from the host itself, over TLS.
_BOUND: Final = "__Host-"
_PORT: Final = re.compile(r":([0-9]{1,5})\Z")
SIGN_IN: Final = f"{ROOT}/sign-in"
SIGN_OUT: Final = f"{ROOT}/sign-out"
_STATIC: Final = f"{ROOT}/static/"
_STATIC_TYPES: Final = {
    "console.css": b"text/css; charset=utf-8",
    "console.js": b"text/javascript; charset=utf-8",
    "icon.svg": b"image/svg+xml",
}
_MOST_FIELDS: Final = 200
# Stands for the service's address where a request does not say it.
_SOMEWHERE: Final = "https://bursar.example.com"
# The form field for the key. No page shows what was typed into it.
_KEY: Final = "key"
# An open page asks for news with the mark it last saw. A session gets a newly drawn page at most
# this often, however many tabs it has, so asking need not count towards the key's limit.
_NEWS_EVERY_NS: Final = 1_000_000_000
_MOST_PACED: Final = 10_000
_MARK: Final = b"bursar-mark"

_HEADERS: Final = (
    (b"content-type", b"text/html; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
    (
        b"content-security-policy",
        (
            b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
            b" connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
        ),
    ),
)
# A browser withholds a Strict cookie when a link on another site leads here. This page reloads
# itself, and that request comes from our own site, with the cookie.
_ONCE_MORE: Final = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>Bursar</title>'
    '<meta http-equiv="refresh" content="0;url={url}"><p><a href="{url}">Continue</a></p></html>'
)


class Console:
    def __init__(
        self,
        routes: Sequence[Route],
        services: Services,
        answers: Answers,
        proxies: Proxies,
    ) -> None:
        self._routes: Mapping[str, Route] = {route.name: route for route in routes}
        self._router = Router(SCREENS, ())
        self._services = services
        self._proxies = proxies
        self._answers = answers
        # When each session last got a newly drawn page.
        self._news: dict[str, int] = {}

    async def __call__(self, exchange: Exchange) -> None:
        started = self._services.clock.monotonic_ns()
        request = _Browser(exchange, self._services.config.tls_in_front)
        try:
            answer = await self._answer(request)
        except Exception as problem:  # noqa: BLE001 - the last line of defence
            told = explain(problem, request.id, request.route_name)
            answer = _trouble(told, request, await _to_send_again(told, request))
        if not exchange.is_complete:
            await exchange.discard()
        headers = _headers(answer, request)
        if answer.stream is not None:
            await self._answers.stream(request, answer.stream, headers, started)
        else:
            exchange.send(answer.status, headers, answer.body)
            self._answers.note(request, answer.status, started)

    async def _answer(self, request: "_Browser") -> "_Answer":
        if request.path.startswith(_STATIC):
            return _static(request)
        if request.path == f"{ROOT}/":
            return _Answer.away(ROOT)
        await self._recognise(request)
        if request.method == "GET" and request.token is None and request.from_elsewhere:
            request.route_name = f"GET {ROOT}"
            url = html.escape(quote(request.path) + request.question)
            return _Answer(200, _ONCE_MORE.format(url=url).encode())
        if request.path == SIGN_IN:
            return await self._sign_in(request)
        if request.path == SIGN_OUT:
            return await self._sign_out(request)
        method = "GET" if request.method == "HEAD" else request.method
        screen, params = self._router.find(method, request.path)
        request.route_name = f"{method} {screen.path}"
        if request.caller is None:
            return _to_sign_in(request)
        request.key_id = request.caller.key_id
        request.screen = screen
        return await self._visit(request, request.caller, screen, params)

    async def _visit(
        self, request: "_Browser", caller: Caller, screen: Screen, params: dict[str, str]
    ) -> "_Answer":
        visit = Visit(
            services=self._services,
            routes=self._routes,
            caller=caller,
            session_id=request.session_id,
            request_id=request.id,
            address=request.address,
            params=params,
            query=request.asked(),
        )
        request.visit = visit
        live = screen.mark is not None and visit.may(screen.stands_for)
        seen = request.header(_MARK) if live else None
        if seen is None:
            await self._count(screen.stands_for, caller)
        check_scope(self._routes[screen.stands_for], caller)
        mark = None if screen.mark is None else await screen.mark(visit)
        if seen is not None and (seen == mark or not self._paced(request)):
            # Nothing is new, or the session got news a moment ago: the page asks again later.
            return _Answer(204, b"")
        if screen.method == "POST":
            visit.form = await request.read_form()
            _check_form(visit.form, request)
        try:
            if screen.asks_key:
                await self._prove(visit)
            reply = await screen.handler(visit)
        except ApiError as problem:
            # If the request may still have been carried out, the page offers to send exactly the
            # same form again.
            lost = problem.code is ErrorCode.NOT_FOUND or problem.code.retryable
            if screen.again is None or lost:
                raise
            visit.problem = problem
            reply = await screen.again(visit)
            if isinstance(reply, Drawn):
                reply = Drawn(reply.template, reply.content, problem.code.status)
        if isinstance(reply, Stream):
            return _Answer(200, b"", stream=reply)
        if isinstance(reply, Sent):
            return _Answer.away(reply.to)
        banners = await stops.standing(visit), await payees.lately(visit)
        return _Answer(reply.status, _draw(reply, request, visit, mark, banners))

    async def _count(self, stands_for: str, caller: Caller) -> None:
        category = self._routes[stands_for].category
        if category is None:
            return
        category = of_kind(category, Category, "a page stands for a route of one category")
        verdict = await self._services.limiter.take(caller.key_id, category, caller.mode)
        if not verdict.allowed:
            raise over_limit(category, verdict)

    def _paced(self, request: "_Browser") -> bool:
        now = self._services.clock.monotonic_ns()
        who = request.token or ""
        if now - self._news.get(who, now - _NEWS_EVERY_NS) < _NEWS_EVERY_NS:
            return False
        if len(self._news) >= _MOST_PACED:
            self._news = {name: at for name, at in self._news.items() if now - at < _NEWS_EVERY_NS}
        self._news[who] = now
        return True

    # Sessions ------------------------------------------------------------------------------------

    async def _recognise(self, request: "_Browser") -> None:
        if request.token is None:
            return
        async with self._services.db.connection() as tx:
            found = await session.find(tx, request.token, self._origin(request))
        if found is not None:
            request.session_id, request.caller = found

    def _origin(self, request: "_Browser") -> str:
        return self._proxies.origin(request.exchange.peer, request.headers)

    async def _prove(self, visit: Visit) -> None:
        """Proves that the person who sends the form has the key and not only the cookie, which
        browsers send to everything on the same host. The typed key is not passed on."""
        key = visit.form.pop(_KEY, [""])[-1].strip()
        try:
            shown = await self._services.guard.authenticate(f"Bearer {key}")
        except ApiError as problem:
            if problem.code is not ErrorCode.UNAUTHORIZED:
                raise
            shown = None
        if shown is None or shown.key_id != visit.caller.key_id:
            raise ApiError(
                ErrorCode.UNAUTHORIZED,
                "Nothing was done: this needs the key you are signed in with, typed in once more.",
                param=_KEY,
            )

    async def _sign_in(self, request: "_Browser") -> "_Answer":
        request.route_name = f"{request.method} {SIGN_IN}"
        asked = request.asked()
        if request.method in ("GET", "HEAD"):
            if request.caller is not None:
                return _Answer.away(inside(asked.get("next", "")))
            return _sign_in_page(request, inside(asked.get("next", "")), ended="ended" in asked)
        if request.method != "POST":
            raise ApiError(
                ErrorCode.METHOD_NOT_ALLOWED,
                "This page takes GET and POST.",
                headers={"Allow": "GET, HEAD, POST"},
            )
        form = await request.read_form()
        following = inside(form.get("next", [""])[-1])
        if request.token is None or not _form_is_ours(form, request.token):
            # Most likely the browser lost the cookie, or accepts none.
            return _sign_in_page(request, following, stale=True, status=403)
        try:
            key = form.get(_KEY, [""])[-1].strip()
            caller = await self._services.guard.authenticate(f"Bearer {key}")
        except ApiError as problem:
            if problem.code is not ErrorCode.UNAUTHORIZED:
                raise
            return _sign_in_page(request, following, refused=True, status=401)
        request.key_id = caller.key_id
        # Counts as making a key does: a session lets its bearer in, too.
        await self._count("POST /v1/keys", caller)
        async with self._services.db.transaction() as tx:
            if request.caller is not None:
                await session.end(tx, request.token)
            token = await session.begin(
                tx,
                caller,
                request.id,
                address=self._origin(request),
                browser=request.header(b"user-agent") or "",
            )
        return _Answer.away(following, cookie=_cookie(token, request))

    async def _sign_out(self, request: "_Browser") -> "_Answer":
        request.route_name = f"{request.method} {SIGN_OUT}"
        if request.method != "POST" or request.token is None:
            return _Answer.away(SIGN_IN)
        _check_form(await request.read_form(), request)
        async with self._services.db.connection() as tx:
            await session.end(tx, request.token)
        return _Answer.away(SIGN_IN, cookie=_cookie("", request))


class _Browser(Request):
    """A request with what browsers add: a cookie, a form, and the site that it was started from."""

    __slots__ = ("_form", "caller", "cookie", "is_secure", "screen", "session_id", "token", "visit")

    def __init__(self, exchange: Exchange, tls_in_front: bool) -> None:
        super().__init__(exchange)
        self.caller: Caller | None = None
        self.session_id = ""
        self.screen: Screen | None = None
        self.visit: Visit | None = None
        # Whether the browser uses TLS, to the proxy in front.
        self.is_secure = tls_in_front or self.header(b"x-forwarded-proto") == "https"
        self.cookie = _cookie_name(self)
        self.token = _token_of(self)
        self._form: dict[str, list[str]] | None = None

    @property
    def address(self) -> str:
        return reached_at(self.headers, is_secure=self.is_secure) or _SOMEWHERE

    @property
    def from_elsewhere(self) -> bool:
        return self.header(b"sec-fetch-site") == "cross-site"

    @property
    def question(self) -> str:
        raw = self.exchange.query
        return f"?{raw.decode('latin-1')}" if raw else ""

    def asked(self) -> dict[str, str]:
        """The query parameters that are not empty; of a repeated one the last."""
        return dict(_pairs(self.exchange.query))

    async def read_form(self) -> dict[str, list[str]]:
        if self._form is None:
            form: dict[str, list[str]] = {}
            for name, value in _pairs(await self.exchange.body()):
                form.setdefault(name, []).append(value)
            self._form = form
        return self._form


class _Answer:
    __slots__ = ("body", "headers", "status", "stream")

    def __init__(
        self,
        status: int,
        body: bytes,
        headers: Sequence[tuple[bytes, bytes]] = (),
        stream: Stream | None = None,
    ) -> None:
        self.status = status
        self.body = body
        self.headers = headers
        self.stream = stream

    @classmethod
    def away(cls, to: str, cookie: bytes | None = None) -> "_Answer":
        headers = [(b"location", to.encode("ascii"))]
        if cookie is not None:
            headers.append((b"set-cookie", cookie))
        return cls(303, b"", headers)


def _headers(answer: _Answer, request: _Browser) -> list[tuple[bytes, bytes]]:
    given = {name for name, _ in answer.headers}
    headers = [
        *answer.headers,
        *(pair for pair in _HEADERS if pair[0] not in given),
        (b"x-request-id", request.id.encode("ascii")),
    ]
    if answer.stream is None:
        return headers
    # A stream has its own content type and cache headers.
    return [pair for pair in headers if pair[0] not in (b"content-type", b"cache-control")]


# Pages that are not screens -----------------------------------------------------------------------


def _draw(
    reply: Drawn,
    request: _Browser,
    visit: Visit,
    mark: str | None,
    banners: tuple[Stop | None, Payees | None],
) -> bytes:
    stop, moved = banners

    def once_of(action: str) -> str:
        """The idempotency key for a form of this page. A form that is shown again keeps its key,
        because an earlier try may still be running. Forms are told apart by their address. A new
        key is made only if the old one was used for something else."""
        back = visit.problem is not None and action == request.path
        spent = visit.problem and visit.problem.code is ErrorCode.IDEMPOTENCY_KEY_REUSED
        return (back and not spent and visit.text("once")) or session.new_token()

    return draw(
        reply.template,
        {
            **reply.content,
            "caller": visit.caller,
            "may": visit.may,
            "path": request.path,
            "mark": mark,
            "stop": stop,
            "payees": moved,
            "form_token": session.form_token(present(request.token, "a page is for who signed in")),
            "once_of": once_of,
            "problem": visit.problem,
            "done": DONE.get(visit.query.get("said", "")),
            "request_id": request.id,
        },
        asset,
    )


def _sign_in_page(request: _Browser, following: str, *, status: int = 200, **what: bool) -> _Answer:
    headers: list[tuple[bytes, bytes]] = []
    token = request.token
    if token is None:
        token = session.new_token()
        headers.append((b"set-cookie", _cookie(token, request)))
    body = draw(
        "sign_in.html",
        {
            "following": following,
            "form_token": session.form_token(token),
            "ended": False,
            "stale": False,
            "refused": False,
            **what,
        },
        asset,
    )
    return _Answer(status, body, headers)


async def _to_send_again(problem: ApiError, request: _Browser) -> list[tuple[str, str]]:
    """The fields of a form that may or may not have been carried out. Sending them again with the
    same idempotency key does it once. Empty for anything that is not one of our forms."""
    if not problem.code.retryable or request.visit is None or request.method != "POST":
        return []
    try:
        form = await request.read_form()
    except ApiError:
        return []
    if request.token is None or not _form_is_ours(form, request.token):
        return []
    hidden = ("form_token", _KEY)
    return [(name, v) for name, values in form.items() if name not in hidden for v in values]


def _trouble(problem: ApiError, request: _Browser, again: list[tuple[str, str]]) -> _Answer:
    headers = [(n.lower().encode(), v.encode("latin-1")) for n, v in problem.headers.items()]
    content: dict[str, Any] = {
        "problem": problem,
        "status": problem.code.status,
        "request_id": request.id,
        "caller": request.caller,
        "path": request.path,
        "may": None if request.visit is None else request.visit.may,
        # Not known here, where the database may be the trouble. The button is there all the same.
        "stop": None,
        "payees": None,
        "once_of": _new_once,
        "form_token": "" if request.token is None else session.form_token(request.token),
        "done": None,
        "again": again,
        "asks_key": request.screen is not None and request.screen.asks_key,
    }
    return _Answer(problem.code.status, draw("trouble.html", content, asset), headers)


def _new_once(action: str) -> str:
    del action
    return session.new_token()


def _to_sign_in(request: _Browser) -> _Answer:
    # A visitor whose session is over is told why they have to sign in again.
    what = {} if request.token is None else {"ended": "1"}
    if request.header(_MARK) is not None:
        return _Answer(401, b"")
    if request.method == "GET":
        what["next"] = request.path + request.question
    return _Answer.away(f"{SIGN_IN}?{urlencode(what)}" if what else SIGN_IN)


# Cookies and forms --------------------------------------------------------------------------------


def _cookie_name(request: _Browser) -> str:
    """Browsers share cookies between the ports of a host, so the port is part of the name: two
    services on one host must not sign out each other's visitors."""
    port = _PORT.search(request.header(b"host") or "")
    name = f"{_COOKIE}_{port[1]}" if port else _COOKIE
    return f"{_BOUND}{name}" if request.is_secure else name


def _token_of(request: _Browser) -> str | None:
    for pair in (request.header(b"cookie") or "").split(";"):
        key, _, token = pair.strip().partition("=")
        if key == request.cookie and token:
            return token
    return None


def _cookie(token: str, request: _Browser) -> bytes:
    """Scripts cannot read the cookie, and no other site can make a browser send it. A `__Host-`
    cookie must be for all paths."""
    lives = session.SESSION_SECONDS if token else 0
    path, secure = ("/", "; Secure") if request.is_secure else (ROOT, "")
    cookie = f"{request.cookie}={token}; Path={path}; Max-Age={lives}"
    return f"{cookie}; HttpOnly; SameSite=Strict{secure}".encode("ascii")


def _check_form(form: dict[str, list[str]], request: _Browser) -> None:
    if request.token is None or not _form_is_ours(form, request.token):
        raise ApiError(
            ErrorCode.FORBIDDEN,
            "This form is not from a page of your session. Go back, load the page again and send"
            " it once more; nothing was changed.",
        )


def _form_is_ours(form: dict[str, list[str]], token: str) -> bool:
    return session.is_form_token(form.get("form_token", [""])[-1], token)


def inside(path: str) -> str:
    """Where to go after signing in; only a page of the console is accepted."""
    fine = path == ROOT or path.startswith((f"{ROOT}/", f"{ROOT}?"))
    plain = path.isascii() and path.isprintable() and "\\" not in path and ".." not in path
    return path if fine and plain and not path.startswith(SIGN_IN) else ROOT


def _pairs(raw: bytes) -> list[tuple[str, str]]:
    try:
        pairs = parse_qsl(
            raw.decode("ascii"),
            keep_blank_values=True,
            encoding="utf-8",
            errors="strict",
            max_num_fields=_MOST_FIELDS,
        )
    except ValueError:
        raise ApiError(ErrorCode.VALIDATION_ERROR, "This is not a form of the console.") from None
    if any("\0" in name or "\0" in value for name, value in pairs):
        raise ApiError(ErrorCode.VALIDATION_ERROR, "Text must not contain U+0000.")
    return pairs


# Static files -------------------------------------------------------------------------------------


@cache
def _file(name: str) -> tuple[bytes, str]:
    """(content, hash) of a file of the package; the hash is part of its address."""
    content = resources.files("bursar.console").joinpath("static", name).read_bytes()
    return content, hashlib.sha256(content).hexdigest()[:16]


def asset(name: str) -> str:
    """The address of a static file. It changes with the content, so browsers may cache it for
    ever."""
    return f"{_STATIC}{name}?v={_file(name)[1]}"


def _static(request: _Browser) -> _Answer:
    name = request.path.removeprefix(_STATIC)
    content_type = _STATIC_TYPES.get(name)
    if content_type is None or request.method not in ("GET", "HEAD"):
        raise ApiError(ErrorCode.NOT_FOUND, "There is no such file.")
    request.route_name = f"GET {_STATIC}"
    content, version = _file(name)
    tag = f'"{version}"'.encode()
    named = request.question == f"?v={version}"
    headers = [
        (b"content-type", content_type),
        (b"etag", tag),
        (b"cache-control", b"public, max-age=31536000, immutable" if named else b"no-cache"),
    ]
    if request.header(b"if-none-match") == tag.decode():
        return _Answer(304, b"", headers)
    return _Answer(200, content, headers)
