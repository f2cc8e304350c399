"""The name of each operation, from its method and path: `approveTransaction`. Generated clients
call their functions so."""

from typing import Final

_VERBS: Final = {
    "GET": "get",
    "POST": "create",
    "PUT": "set",
    "PATCH": "update",
    "DELETE": "delete",
}
# Where the usual verb would say something else than what happens.
_OTHER_VERBS: Final = {"DELETE /v1/agents/:id": "terminate", "DELETE /v1/keys/:id": "revoke"}


def operation_name(method: str, path: str, *, is_list: bool) -> str:
    parts = path.removeprefix("/v1/").split("/")
    last = parts[-1]
    *above, own = [part for part in parts if not part.startswith(":")]
    about = [_one(noun) for noun in above]
    if last == "export":
        return _camel("export", *above)
    if method == "POST" and not last.endswith("s"):
        # The last part is what is done: `transactions/:id/approve`, `webhooks/:id/rotate-secret`.
        verb, _, thing = last.partition("-")
        return _camel(verb, *about, thing)
    verb = _OTHER_VERBS.get(f"{method} {path}", "list" if is_list else _VERBS[method])
    single = last.startswith(":") or method == "POST"
    return _camel(verb, *about, _one(own) if single else own)


def _one(noun: str) -> str:
    if noun.endswith("ies"):
        return f"{noun[:-3]}y"
    return noun[:-2] if noun.endswith("sses") else noun.removesuffix("s")


def _camel(*words: str) -> str:
    first, *others = (piece for word in words for piece in word.split("-"))
    return first + "".join(other.capitalize() for other in others)
