"""What a server was asked to be."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where to listen, whom to answer, how much to take. ``token`` "" asks nobody for one (loopback only)."""

    host: str = "127.0.0.1"
    port: int = 8484
    token: str = ""
    names: tuple[str, ...] = ()
    """Further names the server may be called by (``Host``)."""
    body_bytes: int = MIB
    upload_s: float = 10.0
    """Seconds for the head of a request, and as many again for its body."""
    quick_s: float = 20.0
    slow_s: float = 120.0
    """Seconds a quick question and a search may take."""
    waiting: int = 24
    """Questions that may wait in each lane; further ones are told to come again."""
    workers: int = 1
    """Processes for searches, beside the one for quick questions."""
    worker_bytes: int = 360 * MIB
    """Memory a worker may allocate."""
    study: Path | None = None
    """A study file to watch."""

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Whether a host is this machine seen from itself."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
