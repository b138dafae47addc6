"""The one door for extensions: a laboratory's own routes, commands, and part of the control room."""

from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from fastapi import APIRouter

from app.dashboard.journal import Journal
from app.dashboard.room import ControlRoom
from app.errors import ConfigurationError
from app.operator import Readiness
from app.sale import Shop
from app.stock import StockStore


class Extension(Protocol):
    """An extension; the module that `SECKILL_EXTENSION` names has a class of this name.

    `router`: its routes; `folder`: its files, of which the control room's page runs `extension.js`; `anybody_confirms`:
    payments are confirmed without a token.
    """

    router: APIRouter
    folder: Path
    anybody_confirms: bool

    def wrap(self, store: StockStore) -> StockStore:
        """The store that the sale is to use."""
        ...

    def enter(self, room: ControlRoom, shop: Shop, readiness: Readiness, journal: Journal) -> None:
        """Teach the control room its commands, before that starts."""
        ...


def extension(module: str) -> Extension | None:
    """Make the extension of a module, if one is named. Raises `ConfigurationError`."""
    if not module:
        return None
    try:
        return cast(Extension, import_module(module).Extension())
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"SECKILL_EXTENSION: {error}") from None
