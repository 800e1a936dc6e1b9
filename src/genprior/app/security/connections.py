"""Connections: not too many, and none that stays half open. uvicorn has no option for either."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

from genprior.app.security.hosts import network

MOST_CONNECTIONS = 512
"""At once; half of them for one address. A browser needs about seven for a tab that loads, one for a tab that is open."""
HEAD_SECONDS = 10.0
"""For the head of a request to arrive."""


class Connection(H11Protocol):
    """A connection of uvicorn that is closed if the head of a request does not come, or if there are too many.

    The protocol in pure Python, because it also bounds the size of the head.
    """

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take it, unless there are too many."""
        super().connection_made(transport)
        here = network(self.client[0]) if self.client else ""
        clients = [getattr(other, "client", None) for other in self.connections]
        mine = sum(client is not None and network(client[0]) == here for client in clients)
        if len(self.connections) > MOST_CONNECTIONS or mine > MOST_CONNECTIONS // 2:
            transport.abort()
            return
        self._expect()

    def data_received(self, data: bytes) -> None:
        """Parse; start the clock with the first bytes of a request, stop it when its head is there."""
        super().data_received(data)
        upgraded = self.transport.get_protocol() is not self
        if upgraded or (self.cycle is not None and not self.cycle.response_complete):
            self._unexpect()
        elif self._waiting is None:
            self._expect()

    def on_response_complete(self) -> None:
        """The next request may come, or not: that is for the keep-alive timer."""
        self._unexpect()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._unexpect()
        super().connection_lost(exc)

    def _expect(self) -> None:
        self._waiting = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _unexpect(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _give_up(self) -> None:
        if not self.transport.is_closing():
            self.transport.abort()
