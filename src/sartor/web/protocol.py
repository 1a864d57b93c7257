"""HTTP/1.1 with patience that ends: a connection that does not finish the head of a request in time is closed.

uvicorn times out idle connections only after an answer; one that sends its header a byte a minute would stay.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


def patient(seconds: float) -> type[H11Protocol]:
    """The protocol class that waits ``seconds`` for the head of a request."""

    class PatientProtocol(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.waiting: asyncio.TimerHandle | None = None
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._forget()

        def _watch(self) -> None:
            """Wait from the first byte of a request, not from its last, until it is being answered."""
            if self.cycle is not None and not self.cycle.response_complete:
                self._forget()
            elif self.waiting is None:
                self.waiting = self.loop.call_later(seconds, self._give_up)

        def _forget(self) -> None:
            if self.waiting is not None:
                self.waiting.cancel()
                self.waiting = None

        def _give_up(self) -> None:
            self.waiting = None
            if self.transport is not None and not self.transport.is_closing():
                self.transport.close()

    return PatientProtocol
