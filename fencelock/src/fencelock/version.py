"""The version of this library, as in its pyproject.toml."""

from typing import Final

__version__: Final = "0.1.0"
