"""Where in a user's own code an error came from."""

from __future__ import annotations

import traceback
from pathlib import Path

import torch

NOT_THE_USERS = (*torch.__path__, str(Path(__file__).parents[2]), "<")
"""How file names of frames start that are PyTorch's, sartor's or no file: the folders themselves, since a user's own
path may well hold either name."""


def line_of(error: BaseException) -> str:
    """`` at file:line`` of the innermost frame that is neither PyTorch's nor sartor's, or nothing."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(NOT_THE_USERS)]
    return f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
