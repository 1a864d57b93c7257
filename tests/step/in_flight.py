"""What a simulated device holds at once."""

from __future__ import annotations

import numpy as np

from sartor.step.orders import Event, Work


def most_in_flight(events: list[Event], device: int, *, until: Work = Work.BACKWARD) -> int:
    """Most pairs of chunk and microbatch whose forward has begun and whose ``until`` has not ended, on one device."""
    changes = [(e.start_s, 1) for e in events if e.device == device and e.kind == Work.FORWARD]
    changes += [(e.end_s, -1) for e in events if e.device == device and e.kind == until]
    held = np.cumsum([step for _, step in sorted(changes)])
    return int(held.max(initial=0))
