"""The `seckill` command, also as `python -m app`."""

import sys


def main() -> None:
    """Run it; a Ctrl-C while the libraries are being loaded ends it as quietly as a later one."""
    try:
        from app.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
