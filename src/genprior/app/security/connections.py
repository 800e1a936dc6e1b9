"""Limits on the number of connections and on half-open ones; uvicorn has no option for either."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

from genprior.app.security.hosts import network

MOST_CONNECTIONS = 512
"""At once; at most half of them from one address. A browser uses about seven to load a tab and one to keep it open."""
HEAD_SECONDS = 10.0
"""For the head of a request to arrive."""


class Connection(H11Protocol):
    """A uvicorn connection, closed if the head of a request does not arrive in time or too many are open.

    The protocol in pure Python, because it also bounds the size of the head.
    """

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection, unless too many are open."""
        super().connection_made(transport)
        here = network(self.client[0]) if self.client else ""
        clients = [getattr(other, "client", None) for other in self.connections]
        mine = sum(client is not None and network(client[0]) == here for client in clients)
        if len(self.connections) > MOST_CONNECTIONS or mine > MOST_CONNECTIONS // 2:
            transport.abort()
            return
        self._expect()

    def data_received(self, data: bytes) -> None:
        """Parse; start the timer with the first bytes of a request, stop it when its head is complete."""
        super().data_received(data)
        upgraded = self.transport.get_protocol() is not self
        if upgraded or (self.cycle is not None and not self.cycle.response_complete):
            self._unexpect()
        elif self._waiting is None:
            self._expect()

    def on_response_complete(self) -> None:
        """Stop the timer; from here on the keep-alive timer applies."""
        self._unexpect()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
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
