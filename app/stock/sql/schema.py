"""The tables, the same on each server. Checks are the last line of defence: no writer relies on them."""

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Dialect,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)
from sqlalchemy.dialects.mysql import MEDIUMBLOB, MEDIUMTEXT, VARBINARY
from sqlalchemy.types import TypeDecorator, TypeEngine
from typing_extensions import override

from app.orders import OrderState
from app.stock.batch import LAYOUT

METADATA: Final = MetaData()
_MYSQL: Final[dict[str, Any]] = {
    "mysql_engine": "InnoDB",
    "mysql_row_format": "DYNAMIC",
    "mysql_default_charset": "utf8mb4",
}


class Exact(TypeDecorator[str]):
    """A text that is compared byte by byte: in MySQL's collations names that differ in trailing blanks are equal.

    `size`: in bytes, at most; None: a long one.
    """

    impl = String
    cache_ok = True

    def __init__(self, size: int | None = None) -> None:
        super().__init__()
        self.size = size

    @override
    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name in ("mysql", "mariadb"):
            return dialect.type_descriptor(LargeBinary() if self.size is None else VARBINARY(self.size)).with_variant(
                MEDIUMBLOB() if self.size is None else VARBINARY(self.size), "mysql", "mariadb"
            )
        return dialect.type_descriptor(Text())

    @override
    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | bytes | None:
        is_mysql = dialect.name in ("mysql", "mariadb")
        return value.encode() if is_mysql and value is not None else value

    @override
    def process_result_value(self, value: str | bytes | None, dialect: Dialect) -> str | None:
        return value.decode() if isinstance(value, bytes) else value


_LONG: Final = Text().with_variant(MEDIUMTEXT(), "mysql", "mariadb")
_NAME: Final = Exact(1020)


def _number(name: str, default: int | None = None, **more: Any) -> Column[int]:
    usual = None if default is None else str(default)
    return Column(name, BigInteger, nullable=False, autoincrement=False, server_default=usual, **more)


def _text(name: str, size: int, **more: Any) -> Column[str]:
    return Column(name, Exact(size), nullable=False, **more)


def _of_sale(*columns: Any) -> list[Any]:
    """The columns by which all that belongs to a sale of an item is found; rows of earlier sales are swept in time."""
    return [_text("sku", 64, primary_key=True), _number("sale", primary_key=True), *columns]


def _not_below_0(*names: str) -> list[CheckConstraint]:
    return [CheckConstraint(f"{name} >= 0") for name in names]


# The items: see `Head` in app/stock/storage.py. With defaults, so that an operator can put one on sale by hand. A row
# outlives its item, so that a later sale continues its numbers: then `stock` is NULL.
ITEMS: Final = Table(
    "seckill_items",
    METADATA,
    _text("sku", 64, primary_key=True),
    Column("stock", BigInteger, server_default="0"),
    _number("lucky", 0),
    _number("held", 0),
    _number("waiting", 0),
    _number("wants", 0),
    Column("initial", BigInteger),
    _text("terms", 20_000, server_default=""),  # a text of 200 letters in each of 20 languages
    _number("generation", 0),
    _number("sale", 0),
    _number("swept", 0),
    _number("epoch", 0),
    Column("source", _NAME),
    Column("token", BigInteger),
    Column("prepared", Exact(64)),
    Column("batch", Exact(64)),
    _number("last_entry", 0),
    _text("last_tag", 8, server_default=""),
    _number("entries", 0),
    _number("changes", 0),
    _number("erasures", 0),
    _number("version", 0),
    _number("changed_at", 0),
    _number("layout", LAYOUT),
    *_not_below_0("stock", "lucky", "held", "entries"),
    **_MYSQL,
)

# The journal. No unit is made or lost by an event.
JOURNAL: Final = Table(
    "seckill_journal",
    METADATA,
    *_of_sale(_number("entry", primary_key=True)),
    _number("order_entry"),
    Column("number", Integer, nullable=False),
    _text("kind", 32),
    _number("quantity"),
    Column("buyer", _NAME),
    Column("idempotency_key", _NAME),
    _text("secret", 32),
    _number("stock"),
    _number("held"),
    _number("lucky"),
    Column("facts", _LONG),
    _text("instance", 1020),
    _number("token"),
    _number("epoch"),
    _text("batch", 64),
    CheckConstraint("number > 0"),
    CheckConstraint("quantity >= 0"),
    CheckConstraint("stock + held + lucky = 0"),
    **_MYSQL,
)

# The units that each buyer has.
BUYERS: Final = Table(
    "seckill_buyers", METADATA, *_of_sale(_text("name", 1020, primary_key=True), _number("units")), **_MYSQL
)

# An idempotency key stands for an order, for good, or for a refusal until it expires.
KEYS: Final = Table(
    "seckill_keys",
    METADATA,
    *_of_sale(_text("name", 1020, primary_key=True)),
    Column("body", _LONG, nullable=False),
    Column("expires_ms", BigInteger),
    Index("seckill_keys_expire", "sku", "expires_ms"),
    **_MYSQL,
)

# The records of orders that are not just sold. `steps`: how many events there were; `due_ms`: only of those held.
RECORDS: Final = Table(
    "seckill_records",
    METADATA,
    *_of_sale(_number("number", primary_key=True)),
    Column("record", _LONG, nullable=False),
    _text("state", 32),
    Column("steps", Integer, nullable=False),
    Column("due_ms", BigInteger),
    Column("buyer", _NAME),
    Index("seckill_records_due", "sku", "sale", "due_ms"),
    CheckConstraint("steps > 0"),
    CheckConstraint(f"state IN ({', '.join(repr(str(one)) for one in OrderState)})"),
    CheckConstraint("(state = 'held') = (due_ms IS NOT NULL)"),
    **_MYSQL,
)

# The order of each payment.
PAYMENTS: Final = Table(
    "seckill_payments", METADATA, *_of_sale(_text("payment_ref", 1020, primary_key=True), _number("number")), **_MYSQL
)

# Each buyer's last order that is held or waits.
HOLDERS: Final = Table(
    "seckill_holders", METADATA, *_of_sale(_text("buyer", 1020, primary_key=True), _number("number")), **_MYSQL
)

# The line: the orders that wait.
WAITING: Final = Table("seckill_waiting", METADATA, *_of_sale(_number("number", primary_key=True)), **_MYSQL)

# What operators have changed. `at`: in µs since 1970.
LOG: Final = Table(
    "seckill_log",
    METADATA,
    Column("number", BigInteger, primary_key=True),
    _text("sku", 64),
    _number("at"),
    _text("operator", 1020),
    _text("what", 64),
    Column("was", _LONG, nullable=False),
    Column("became", _LONG, nullable=False),
    Index("seckill_log_of_item", "sku", "number"),
    **_MYSQL,
)

# How far an item's events have left to each receiver.
OUTBOX: Final = Table(
    "seckill_outbox",
    METADATA,
    _text("sku", 64, primary_key=True),
    _text("receiver", 64, primary_key=True),
    Column("body", Exact(), nullable=False),
    **_MYSQL,
)

# A board for the instances.
NOTICES: Final = Table(
    "seckill_notices", METADATA, _text("name", 1020, primary_key=True), Column("body", _LONG, nullable=False), **_MYSQL
)

# In the order in which they are swept.
OF_SALES: Final = (RECORDS, JOURNAL, KEYS, PAYMENTS, HOLDERS, WAITING, BUYERS)
