"""Finds where in the user's code an error came from."""

from __future__ import annotations

import traceback
from pathlib import Path

import torch

NOT_THE_USERS = (*torch.__path__, str(Path(__file__).parents[2]), "<")
"""Prefixes of frames' file names that are PyTorch's, sartor's or no file: whole folders, since a user's path may
contain either name."""


def line_of(error: BaseException) -> str:
    """`` at file:line`` of the innermost frame outside PyTorch and sartor, or empty."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(NOT_THE_USERS)]
    return f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
