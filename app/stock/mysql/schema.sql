-- The stock's tables in MySQL or MariaDB. Names are VARBINARY: in every collation that both servers have, names that differ in
-- trailing blanks are equal. Checks are the last line of defence: the statements that write don't rely on them.

-- The items. With defaults, so that an operator can put one on sale by hand. Stock, held and lucky can't fall below 0, as
-- they are unsigned. `last_entry`: number of the last entry of the journal; `layout`: see app/stock/store.py.
CREATE TABLE seckill_items (
  sku VARBINARY(64) NOT NULL PRIMARY KEY,
  stock BIGINT UNSIGNED NOT NULL DEFAULT 0,
  lucky BIGINT UNSIGNED NOT NULL DEFAULT 0,
  initial BIGINT UNSIGNED,
  last_entry BIGINT UNSIGNED NOT NULL DEFAULT 0,
  last_tag VARBINARY(8) NOT NULL DEFAULT '',
  generation BIGINT UNSIGNED NOT NULL DEFAULT 0,
  sale BIGINT UNSIGNED NOT NULL DEFAULT 0,
  swept BIGINT UNSIGNED NOT NULL DEFAULT 0,
  epoch BIGINT UNSIGNED NOT NULL DEFAULT 0,
  source VARBINARY(1020),
  token BIGINT UNSIGNED,
  prepared VARBINARY(64),
  batch VARBINARY(64),
  version BIGINT UNSIGNED NOT NULL DEFAULT 0,
  terms VARBINARY(2000) NOT NULL DEFAULT '',
  changed_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
  held BIGINT UNSIGNED NOT NULL DEFAULT 0,
  layout BIGINT UNSIGNED NOT NULL DEFAULT 3
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4;

-- The orders that were sold at once: entries of the journal. An item's orders, buyers and keys are those of its current
-- sale; rows of earlier ones are swept in time.
CREATE TABLE seckill_orders (
  sku VARBINARY(64) NOT NULL,
  sale BIGINT UNSIGNED NOT NULL DEFAULT 0,
  entry BIGINT UNSIGNED NOT NULL,
  quantity BIGINT UNSIGNED NOT NULL,
  buyer VARBINARY(1020),
  idempotency_key VARBINARY(1020),
  secret VARBINARY(32) NOT NULL,
  instance VARBINARY(1020) NOT NULL,
  token BIGINT UNSIGNED NOT NULL,
  epoch BIGINT UNSIGNED NOT NULL,
  batch VARBINARY(64) NOT NULL,
  PRIMARY KEY (sku, sale, entry),
  CHECK (quantity > 0)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4;

-- The units that each buyer has.
CREATE TABLE seckill_buyers (
  sku VARBINARY(64) NOT NULL,
  sale BIGINT UNSIGNED NOT NULL DEFAULT 0,
  name VARBINARY(1020) NOT NULL,
  units BIGINT UNSIGNED NOT NULL,
  PRIMARY KEY (sku, sale, name)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4;

-- An idempotency key stands for an order, for good, or for a refusal until it expires.
CREATE TABLE seckill_keys (
  sku VARBINARY(64) NOT NULL,
  sale BIGINT UNSIGNED NOT NULL DEFAULT 0,
  name VARBINARY(1020) NOT NULL,
  outcome VARBINARY(64) NOT NULL,
  quantity BIGINT UNSIGNED NOT NULL,
  buyer VARBINARY(1020),
  order_id VARBINARY(128),
  expires_at DATETIME(6),
  PRIMARY KEY (sku, sale, name),
  INDEX (sku, expires_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4;

-- What operators have changed.
CREATE TABLE seckill_log (
  number BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
  sku VARBINARY(64) NOT NULL,
  at BIGINT UNSIGNED NOT NULL,
  operator VARBINARY(1020) NOT NULL,
  what VARBINARY(64) NOT NULL,
  was VARBINARY(2200) NOT NULL,
  became VARBINARY(2200) NOT NULL,
  INDEX (sku, number)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4;

-- How far an item's events have left: see app/outbox.
CREATE TABLE seckill_outbox (
  sku VARBINARY(64) NOT NULL PRIMARY KEY,
  sale BIGINT UNSIGNED NOT NULL DEFAULT 0,
  body MEDIUMTEXT NOT NULL,
  wish MEDIUMTEXT NOT NULL,
  source VARBINARY(1020),
  token BIGINT UNSIGNED,
  number BIGINT UNSIGNED NOT NULL DEFAULT 0
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4;

-- The same for the receivers that have a name.
CREATE TABLE seckill_receivers (
  sku VARBINARY(64) NOT NULL,
  receiver VARBINARY(64) NOT NULL,
  sale BIGINT UNSIGNED NOT NULL DEFAULT 0,
  body MEDIUMTEXT NOT NULL,
  wish MEDIUMTEXT NOT NULL,
  source VARBINARY(1020),
  token BIGINT UNSIGNED,
  number BIGINT UNSIGNED NOT NULL DEFAULT 0,
  PRIMARY KEY (sku, receiver)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4;

-- A board for the instances.
CREATE TABLE seckill_notices (
  name VARBINARY(1020) PRIMARY KEY,
  body MEDIUMTEXT NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4;

-- All entries of the journal that are no plain sales. Both kinds are numbered by the item's `last_entry`. No unit is made
-- or lost by an event.
CREATE TABLE seckill_events (
  sku VARBINARY(64) NOT NULL,
  sale BIGINT UNSIGNED NOT NULL DEFAULT 0,
  entry BIGINT UNSIGNED NOT NULL,
  order_entry BIGINT UNSIGNED NOT NULL,
  number INT UNSIGNED NOT NULL,
  kind VARBINARY(32) NOT NULL,
  quantity BIGINT UNSIGNED NOT NULL,
  buyer VARBINARY(1020),
  idempotency_key VARBINARY(1020),
  secret VARBINARY(32) NOT NULL,
  stock BIGINT NOT NULL,
  held BIGINT NOT NULL,
  lucky BIGINT NOT NULL,
  facts MEDIUMTEXT NOT NULL,
  instance VARBINARY(1020) NOT NULL,
  token BIGINT UNSIGNED NOT NULL,
  epoch BIGINT UNSIGNED NOT NULL,
  batch VARBINARY(64) NOT NULL,
  PRIMARY KEY (sku, sale, entry),
  INDEX (sku, sale, order_entry),
  CHECK (number > 0),
  CHECK (quantity > 0),
  CHECK (stock + held + lucky = 0)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4;

-- How the orders stand that are not just sold. `steps`: how many events there were; `due_ms`: only of those held.
CREATE TABLE seckill_records (
  sku VARBINARY(64) NOT NULL,
  sale BIGINT UNSIGNED NOT NULL DEFAULT 0,
  number BIGINT UNSIGNED NOT NULL,
  record MEDIUMTEXT NOT NULL,
  state VARBINARY(32) NOT NULL,
  steps INT UNSIGNED NOT NULL,
  due_ms BIGINT UNSIGNED,
  PRIMARY KEY (sku, sale, number),
  INDEX (sku, sale, due_ms),
  CHECK (state IN ('sold', 'held', 'confirmed', 'expired', 'cancelled', 'refunded')),
  CHECK (steps > 0),
  CHECK ((state = 'held') = (due_ms IS NOT NULL))
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4;

-- The order of each payment.
CREATE TABLE seckill_payments (
  sku VARBINARY(64) NOT NULL,
  sale BIGINT UNSIGNED NOT NULL DEFAULT 0,
  payment_ref VARBINARY(1020) NOT NULL,
  number BIGINT UNSIGNED NOT NULL,
  PRIMARY KEY (sku, sale, payment_ref)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4;

-- Each buyer's last order that is held.
CREATE TABLE seckill_holders (
  sku VARBINARY(64) NOT NULL,
  sale BIGINT UNSIGNED NOT NULL DEFAULT 0,
  buyer VARBINARY(1020) NOT NULL,
  number BIGINT UNSIGNED NOT NULL,
  PRIMARY KEY (sku, sale, buyer)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4;
