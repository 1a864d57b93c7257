"""``sartor``, or ``python -m sartor`` where the script is not on the path. Ctrl-C is handled from the first line on."""

import gc
import os
import signal
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Load the command line and run it."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _before_anything)
    if sys.argv[1:2] != ["measure"]:  # which times every core of a CPU
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # products here are small, and threads without work spin
    gc.set_threshold(300_000)  # loading and pricing make many objects and little garbage: 10% of the CPU of an estimate
    from sartor.cli import main as run

    try:
        run()
        sys.exit()
    finally:
        gc.freeze()  # skip the last collection at exit, which would visit every loaded object: another 5%


def _before_anything(*_: object) -> None:
    """Exit at once: no work has started yet, and imports need not finish."""
    os.write(2, b"interrupted\n")
    os._exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
