"""``sartor``, or ``python -m sartor`` where its script is not on the path. Ctrl-C is heard from the first line."""

import os
import signal
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Load the command line and run it."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _before_anything)
    from sartor.cli import main as run

    run()
    sys.exit()


def _before_anything(*_: object) -> None:
    """Nothing is done yet, so nothing is lost; libraries that are being loaded are not waited for."""
    os.write(2, b"interrupted\n")
    os._exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
