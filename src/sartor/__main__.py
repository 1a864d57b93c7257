"""``sartor``, or ``python -m sartor`` where its script is not on the path. Ctrl-C is heard from the first line."""

import gc
import os
import signal
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Load the command line and run it."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _before_anything)
    gc.set_threshold(10_000)  # loading makes many objects and little garbage: 4% of the CPU of an estimate
    from sartor.cli import main as run

    try:
        run()
        sys.exit()
    finally:
        gc.freeze()  # the last collection before the exit would look at all that was loaded: another 5%


def _before_anything(*_: object) -> None:
    """Nothing is done yet, so nothing is lost; libraries that are being loaded are not waited for."""
    os.write(2, b"interrupted\n")
    os._exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
