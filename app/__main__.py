"""The `seckill` command, also as `python -m app`."""

import atexit
import gc
import os
import signal
import sys
import threading


def main() -> None:
    """Run the command; a Ctrl-C while the libraries are being loaded ends it as quietly as a later one."""
    # This comes first, as PID 1 of a container is not ended by a signal that it does not handle.
    signal.signal(signal.SIGTERM, End())
    sys.unraisablehook = end_later
    _open_closed()
    gc.set_threshold(1_000_000)  # the objects that libraries make while they are loaded are no garbage,
    atexit.register(gc.freeze)  # and none to look for at the end either: together a third of the time of a command
    # redis-py loads OpenTelemetry's SDK wherever it is installed, for metrics that we don't ask it for: a fifth of the
    # time of a command. `opentelemetry-instrument` has loaded it before.
    sys.modules.setdefault("opentelemetry.sdk.metrics", None)  # type: ignore[arg-type]
    try:
        from app.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


class End:
    """Handles SIGTERM until something else does. `came`: a library that is being loaded may catch the exception."""

    came = False

    def __call__(self, *_: object) -> None:
        """Leave; the exit handlers run."""
        self.came = True
        sys.exit(128 + signal.SIGTERM)


def end_later(ignored: "sys.UnraisableHookArgs") -> None:
    """Repeat a signal that came in the middle of a finalizer, where Python ignores all errors, SystemExit included."""
    if ignored.exc_type is SystemExit and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGTERM))
        signal.setitimer(signal.ITIMER_REAL, 0.01)
    else:
        sys.__unraisablehook__(ignored)


def _open_closed() -> None:
    """Open /dev/null for each missing standard stream, before a socket or a file takes its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


if __name__ == "__main__":
    main()
