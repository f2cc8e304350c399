"""Websocket connections: requests in, answers and notifications out, in one bounded queue each."""

import asyncio
from contextlib import suppress
from typing import Final

import msgspec
from aiohttp import WSMsgType, web

from bursar_localnet.chain import Chain
from bursar_localnet.envelope import Body, attempt, decode, no_such_method, read_call, unreadable
from bursar_localnet.params import RpcError
from bursar_localnet.subscriptions import Send, Subscriptions

# A reader that falls this far behind is disconnected, so that memory stays bounded.
_MAX_UNSENT: Final = 4_096


class Sockets:
    def __init__(self, chain: Chain, subscriptions: Subscriptions, max_message: int) -> None:
        self._chain = chain
        self._subscriptions = subscriptions
        self._max_message = max_message
        self._open: set[web.WebSocketResponse] = set()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(max_msg_size=self._max_message)
        if not socket.can_prepare(request):
            raise web.HTTPMethodNotAllowed("GET", ["POST"])
        await socket.prepare(request)
        self._open.add(socket)
        unsent: asyncio.Queue[Body] = asyncio.Queue(_MAX_UNSENT)

        def send(message: Body) -> None:
            try:
                unsent.put_nowait(message)
            except asyncio.QueueFull:
                if request.transport is not None:
                    request.transport.abort()

        mine: set[int] = set()
        writer = asyncio.create_task(self._write(socket, unsent))
        try:
            async for message in socket:
                if message.type == WSMsgType.TEXT:
                    answer = self._answer(message.data, send, mine)
                    if answer is not None:
                        send(answer)
        finally:
            writer.cancel()
            self._subscriptions.forget(mine)
            self._open.discard(socket)
        return socket

    async def close_all(self, _app: web.Application) -> None:
        for socket in list(self._open):
            await socket.close(code=1001)

    async def _write(self, socket: web.WebSocketResponse, unsent: "asyncio.Queue[Body]") -> None:
        while True:
            message = await unsent.get()
            # An answer is sent only after everything it may be based on is on disk.
            await self._chain.durable()
            with suppress(ConnectionError):
                await socket.send_str(msgspec.json.encode(message).decode())

    def _answer(self, raw: str, send: Send, mine: set[int]) -> Body | None:
        try:
            call = read_call(decode(raw))
        except RpcError as error:
            return unreadable(error)
        if not self._subscriptions.knows(call.method):
            return call.reply(no_such_method())
        return call.reply(
            attempt(
                call,
                lambda params: self._subscriptions.call(call.method, params, send, mine),
            )
        )
