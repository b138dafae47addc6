"""The clock that leases count on."""

import time

if hasattr(time, "CLOCK_BOOTTIME"):

    def now() -> float:
        """Return the seconds since the machine was started, including those for which it was suspended.

        Python's monotonic clock stands still then on Linux, while the servers' clocks go on and give the locks to
        others. Where there is no such clock (elsewhere than on Linux) it is the monotonic one all the same.
        """
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:
    now = time.monotonic
