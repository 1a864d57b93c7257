"""Models by hub id: their config.json, from huggingface-hub's cache or the network."""

from __future__ import annotations

import re
from pathlib import Path

from sartor.errors import InputError, MissingExtraError

HUB_ID = re.compile(r"[A-Za-z0-9][\w.\-]{0,95}/[A-Za-z0-9][\w.\-]{0,95}\Z")


def fetch_config(hub_id: str) -> Path:
    """Path of a hub model's config.json, fetched unless it is in the cache. No other file is downloaded.

    Raises ``InputError`` for an invalid or unreachable name, ``MissingExtraError`` without the extra.
    """
    if not HUB_ID.match(hub_id):
        raise InputError("model", hub_id, "must be a path, a zoo name (sartor catalog models) or a hub id org/name")
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise MissingExtraError(f"reading {hub_id} from the hub (there is no such path)", "hub") from None
    try:
        return Path(hf_hub_download(hub_id, "config.json"))
    except Exception as error:  # the library has many, changing error types; all mean the same here
        reason = " ".join(str(error).split())[:160]
        raise InputError(
            "model", hub_id, f"no such path, and no config.json could be fetched from the hub: {reason}"
        ) from None
