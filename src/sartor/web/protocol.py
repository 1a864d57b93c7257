"""HTTP/1.1 with a time limit: a connection that does not finish a request's header in time is closed.

uvicorn only times out idle connections after an answer; one that sends its header a byte a minute would stay open.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


def patient(seconds: float) -> type[H11Protocol]:
    """A protocol class that waits at most ``seconds`` for a request's header."""

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
            """Start the timer at a request's first byte (not its last); stop it once it is being answered."""
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
