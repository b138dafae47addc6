"""What Python has from 3.12 on."""

from typing import TYPE_CHECKING, TypeVar

__all__ = ["override"]

if TYPE_CHECKING:
    from typing_extensions import override
else:
    Method = TypeVar("Method")

    def override(method: Method) -> Method:
        """Says that a method overrides one of a base class, to the type checker."""
        return method
