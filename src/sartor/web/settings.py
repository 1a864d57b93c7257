"""The settings of a server."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Address, allowed hosts and limits. ``token`` "" requires none (loopback only)."""

    host: str = "127.0.0.1"
    port: int = 8484
    token: str = ""
    names: tuple[str, ...] = ()
    """Additional host names of the server (``Host``)."""
    body_bytes: int = MIB
    upload_s: float = 10.0
    """Seconds for the header of a request, and again for its body."""
    quick_s: float = 20.0
    slow_s: float = 120.0
    """Time limits of a quick request and a search [s]."""
    waiting: int = 24
    """Requests that may wait in each lane; further ones are rejected with a time to retry."""
    workers: int = 1
    """Processes for searches, in addition to the one for quick requests."""
    worker_bytes: int = 320 * MIB
    """Memory a worker may allocate for its answers."""
    study_bytes: int = 2048 * MIB
    """Memory that a design search may allocate."""
    study: Path | None = None
    """A study file to watch."""

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Whether a host name is a loopback name."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
