"""Settings from the environment and .env are checked at start, with old names and contradictions."""

import base64
import os
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from app.errors import ConfigurationError
from app.keyring import secrets_of
from app.settings import PREFIX, Guard, doubtful, load, unknown_variables
from app.wiring import check_together
from fencelock.registry import CLASSES
from lab.demo.stage import LockName, StageOptions, StoreName
from tests.unit.test_lock_urls import URLS

MYSQL = "mysql://shop:secret@127.0.0.1/shop"


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove the machine's own SECKILL_ variables and .env."""
    for name in list(os.environ):
        if name.startswith(PREFIX):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def refusal(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> str:
    """Return the message with which the start ends."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError) as error:
        check_together(load())
    return str(error.value)


def test_defaults_are_for_servers_on_this_machine() -> None:
    """Without variables the settings mean etcd and Redis on their usual ports, locked and guarded."""
    settings = load()
    check_together(settings)
    assert settings.lock.get_secret_value() == "etcd://127.0.0.1:2379"
    assert settings.store.get_secret_value() == "redis://127.0.0.1:6379/0"
    assert settings.guard is Guard.FENCE


def test_environment_beats_dotenv(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """.env is read from the current folder; a variable of the environment takes precedence."""
    (tmp_path / ".env").write_text("SECKILL_PORT=8090\nSECKILL_BATCH_MAX=7\nSECKILL_LOCK=local://\n")
    monkeypatch.setenv("SECKILL_PORT", "8100")
    monkeypatch.setenv("SECKILL_LOCK", "etcd://a:2379, b:2379,")
    settings = load()
    assert (settings.port, settings.batch_max) == (8100, 7)
    assert settings.lock.get_secret_value() == "etcd://a:2379, b:2379,"


def test_secrets_may_be_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file is named as its setting, as Kubernetes mounts a Secret's keys; a variable takes precedence."""
    mounted = tmp_path / "..2027_01_01"
    mounted.mkdir()
    (tmp_path / "..data").symlink_to(mounted.name)
    for name, text in {"ADMIN_TOKEN": "from-a-file\n", "LOCK": "etcd://of-a-file", "BATCH_MAX": "7"}.items():
        (mounted / f"SECKILL_{name}").write_text(text)
        (tmp_path / f"SECKILL_{name}").symlink_to(f"..data/SECKILL_{name}")
    (tmp_path / "SECKILL_ADMIN_TOKN").write_text("x")
    monkeypatch.setenv("SECKILL_SECRETS_DIR", str(tmp_path))
    (tmp_path / ".env").write_text("SECKILL_SECRETS_DIR=/nowhere\n")
    monkeypatch.setenv("SECKILL_LOCK", "etcd://of-the-environment")
    settings = load()
    assert settings.operators == {"operator": "from-a-file"}
    assert (settings.lock.get_secret_value(), settings.batch_max) == ("etcd://of-the-environment", 7)
    (tmp_path / "shop_token").write_text("x")
    (tmp_path / "README").write_text("of the folder")
    assert unknown_variables() == [
        "SECKILL_ADMIN_TOKN is not a setting; did you mean SECKILL_ADMIN_TOKEN?",
        "the file shop_token of SECKILL_SECRETS_DIR is no setting; it is named SECKILL_SHOP_TOKEN",
    ]


def test_secrets_that_cannot_be_read_end_the_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder that is not there, a value that is wrong and a file that is no text are named; no value is shown."""
    missing = str(tmp_path / "none")
    assert refusal(monkeypatch, {"SECKILL_SECRETS_DIR": missing}) == (
        f"SECKILL_SECRETS_DIR: No such file or directory: {missing}"
    )
    (tmp_path / "SECKILL_ADMIN_TOKEN").write_text("s3cr3t")
    said = refusal(monkeypatch, {"SECKILL_SECRETS_DIR": str(tmp_path)})
    assert said.startswith("SECKILL_ADMIN_TOKEN: ")
    assert "s3cr3t" not in said
    for encoding in ("utf-8-sig", "utf-16"):  # as Windows' editors and shells write them
        (tmp_path / "SECKILL_ADMIN_TOKEN").write_text("s3cr3t-enough", encoding=encoding)
        said = refusal(monkeypatch, {})
        assert said == f"{tmp_path}/SECKILL_ADMIN_TOKEN begins with a byte order mark; save it as UTF-8 without one"
    (tmp_path / "SECKILL_ADMIN_TOKEN").write_bytes(b"\xff")
    assert refusal(monkeypatch, {}).startswith('SECKILL_SECRETS_DIR: error getting value for field "admin_token"')


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SECKILL_PORT", "80a"),
        ("SECKILL_PORT", "70000"),
        ("SECKILL_LOCK_TTL_S", "0"),
        ("SECKILL_LOCK_TTL_S", "nan"),
        ("SECKILL_LOCK_RENEW_RATIO", "1"),
        ("SECKILL_LOCK", "etcd://,"),
        ("SECKILL_LOCK", ""),
        ("SECKILL_LOCK_PREFIX", "no-slash"),
        ("SECKILL_LOCK_GROUPS", "0"),
        ("SECKILL_GUARD", "maybe"),
        ("SECKILL_STORE", "mysql://127.0.0.1/shop"),
        ("SECKILL_STORE", ""),
        ("SECKILL_STORE_CONNECTIONS", "1"),
        ("SECKILL_STORE_WAIT_REPLICAS", "-1"),
        ("SECKILL_BATCH_MAX", "0"),
        ("SECKILL_ADMIN_TOKEN", "short"),
        ("SECKILL_ADMIN_TOKEN", "open sesame"),
        ("SECKILL_LOG_LEVEL", "loud"),
        ("SECKILL_LOG_FORMAT", "xml"),
        ("SECKILL_PROXIES", "nonsense"),
        ("SECKILL_PROXIES", "127.0.0.1/8"),  # which would trust nobody
        ("SECKILL_PROXIES", "10.0.0.1,,10.0.0.2"),
        ("SECKILL_PROXIES", "10.0.0.1, *"),
        ("SECKILL_SALE_STARTS_AT", "tomorrow"),
        ("SECKILL_SALE_STARTS_AT", "20271111"),
        ("SECKILL_SALE_STARTS_AT", "202711112000"),
        ("SECKILL_SALE_STARTS_AT", "-5"),
        ("SECKILL_SALE_STARTS_AT", "2027-11-11T20:00:00"),
        ("SECKILL_SALE_ENDS_AT", "20271111"),
        ("SECKILL_SALE_ENDS_AT", "2026-11-11T20:00:00"),  # the time zone is missing
    ],
)
def test_a_wrong_value_is_one_line_with_the_variable(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """The error is one line that begins with the variable's name."""
    assert re.fullmatch(rf"{name}: [^\n]+", refusal(monkeypatch, {name: value}))


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("STORE s3cret", "not a store's URL: say redis"),
        ("STORE oracle://u:s3cret@h/db", "not a store's URL: say redis"),
        ("STORE redis://:s3cret/pw@h:1/0", "not a store's URL: say redis"),
        ("STORE redis://:s3cret@h:port/0", "not a store's URL: say redis"),
        ("STORE redis+sentinel://:s3cret/x@h", "not a store's URL: say redis"),
        ("STORE mysql://u:s3cret/pw@h/db", "not a MySQL URL; it looks like"),
        ("STORE mysql://u:s3cret@h:port/db", "not a MySQL URL; it looks like"),
        ("LOCK s3cret", "not a lock's URL; it looks like scheme"),
        ("LOCK etcd://u:s3cret/pw@h:1", "not a lock's URL; it looks like scheme"),
        ("LOCK etcd://u:s3cret@h:port", "not an etcd endpoint"),
        ("LOCK etcd://u:s3cret", "not an etcd endpoint"),
        ("LOCK etcd://u:s3cret@h:1?ca=x", "etcd:// has no option 'ca'; it knows"),
        ("LOCK etcds://u:s3cret@h:1?ca_file=/no/such/file", "etcd's TLS file can't be read"),
        ("LOCK redis://:s3cret@h:port/0", "not the URL of a server for locks: say redis"),
        ("LOCK zookeeper://u:s3cret@", "ZooKeeper's URL needs a host"),
        ("LOCK zookeeper://u:s3cret@h:x", "not ZooKeeper's hosts: say host:port"),
        ("LOCK memcached://u:s3cret@h", "there is no lock 'memcached'; there are"),
    ],
)
def test_a_wrong_url_is_one_line_without_its_password(monkeypatch: pytest.MonkeyPatch, url: str, said: str) -> None:
    """The error describes the mistake in the URL, as far as it is known."""
    name, url = url.split()
    found = refusal(monkeypatch, {PREFIX + name: url})
    assert found.startswith(f"{PREFIX}{name}: {said}")
    assert "\n" not in found
    assert "s3cret" not in found


def test_each_wrong_value_has_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """All errors are reported at once, so that nobody has to start again for each."""
    said = refusal(monkeypatch, {"SECKILL_PORT": "x", "SECKILL_GUARD": "maybe", "SECKILL_BATCH_MAX": "0"})
    assert [line.partition(":")[0] for line in said.splitlines()] == [
        "SECKILL_PORT",
        "SECKILL_GUARD",
        "SECKILL_BATCH_MAX",
    ]


GOOD = "whsec_" + base64.b64encode(b"a secret of 24 bytes, ok").decode()
TOGETHER = "SECKILL_WEBHOOK_URL and SECKILL_WEBHOOK_SECRET go together"
OWN = "SECKILL_ADMIN_TOKENS: each operator has a name and a token that no other has"
NO_LOCK, REDLOCK = {"SECKILL_LOCK": "none://"}, {"SECKILL_LOCK": "redlock://a,b,c"}
IN_MYSQL, FALLBACK = {"SECKILL_STORE": MYSQL}, {"SECKILL_LOCK_FALLBACK": "true"}


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        (NO_LOCK, "SECKILL_LOCK: the lock none needs SECKILL_GUARD=none"),
        (NO_LOCK | {"SECKILL_GUARD": "compare"}, "SECKILL_LOCK: the lock none needs SECKILL_GUARD=none"),
        (NO_LOCK | IN_MYSQL, "SECKILL_LOCK: the lock none needs SECKILL_GUARD=version"),
        (REDLOCK, "SECKILL_LOCK: the lock redlock needs SECKILL_GUARD=compare"),
        (REDLOCK | IN_MYSQL, "SECKILL_LOCK: the lock redlock needs SECKILL_GUARD=version"),
        ({"SECKILL_LOCK": "redlock://a,b"}, "SECKILL_LOCK: a majority that can be lost needs 3 servers at least"),
        ({"SECKILL_GUARD": "version"}, "SECKILL_STORE: guard version needs a store in mysql or postgres"),
        ({"SECKILL_GUARD": "timestamp"}, "SECKILL_STORE: guard timestamp needs a store in mysql or postgres"),
        (
            IN_MYSQL | {"SECKILL_GUARD": "compare"},
            "SECKILL_STORE: guard compare is for redis alone: version compares better",
        ),
        (
            IN_MYSQL | {"SECKILL_GUARD": "none"},
            "SECKILL_STORE: guard none is for redis alone: the others write nothing unchecked",
        ),
        (IN_MYSQL | {"SECKILL_STORE_WAIT_REPLICAS": "1"}, "SECKILL_STORE: to wait for replicas is for redis alone"),
        (
            {"SECKILL_STORE": "redis+cluster://a", "SECKILL_STORE_WAIT_REPLICAS": "1"},
            "SECKILL_STORE: to wait for replicas is not possible in a Redis Cluster",
        ),
        (FALLBACK, "SECKILL_LOCK_FALLBACK needs SECKILL_GUARD=version: without a lock the store alone decides"),
        (
            FALLBACK | NO_LOCK | IN_MYSQL | {"SECKILL_GUARD": "version"},
            "SECKILL_LOCK_FALLBACK: the lock none is never away",
        ),
        (
            FALLBACK | IN_MYSQL | {"SECKILL_LOCK": "local://", "SECKILL_GUARD": "version"},
            "SECKILL_LOCK_FALLBACK: the lock local is never away",
        ),
        (
            {"SECKILL_SALE_STARTS_AT": "2026-11-11T20:00:00Z", "SECKILL_SALE_ENDS_AT": "2026-11-11T20:00:00+00:00"},
            "SECKILL_SALE_ENDS_AT must be later than SECKILL_SALE_STARTS_AT",
        ),
        ({"SECKILL_HOLD_S": "901"}, "SECKILL_PAY_S must not be shorter than SECKILL_HOLD_S"),
        ({"SECKILL_OPERATOR_PORT": "8080"}, "SECKILL_OPERATOR_PORT must not be SECKILL_PORT"),
        ({"SECKILL_WEBHOOK_URL": "https://shop.example/in"}, TOGETHER),
        ({"SECKILL_WEBHOOK_SECRET": GOOD}, TOGETHER),
        (
            {"SECKILL_HOLDS_FROM": "shop", "SECKILL_PAY_URL": "https://shop.example/pay"},
            "SECKILL_HOLDS_FROM=shop: with SECKILL_PAY_URL the page holds for buyers; leave one out",
        ),
        ({"SECKILL_ADMIN_TOKENS": "ann:of-somebody,bob:of-somebody"}, OWN),
        ({"SECKILL_ADMIN_TOKENS": "ann:of-somebody,ann:of-another"}, OWN),
        ({"SECKILL_ADMIN_TOKEN": "of-somebody", "SECKILL_ADMIN_TOKENS": "ann:of-somebody"}, OWN),
        ({"SECKILL_ADMIN_TOKEN": "of-somebody", "SECKILL_ADMIN_TOKENS": "operator:of-another"}, OWN),
    ],
)
def test_what_does_not_go_together_is_said(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], said: str
) -> None:
    """The error names both of two contradictory settings, in one line."""
    assert refusal(monkeypatch, variables) == said


def test_what_goes_together_is_taken() -> None:
    """Windows of the same length; a secret of webhooks that signs refunds alone; several operators."""
    assert load(hold_s=900).pay_s == 900
    assert load(webhook_secret=GOOD, refunds="https://shop.example/refunds").webhook_url is None
    operators = {"operator": "of-somebody", "ann": "of-another", "bob": "of-others:too"}
    assert load(admin_token="of-somebody", admin_tokens="ann:of-another,bob:of-others:too").operators == operators
    assert load(provider_secrets="a:1 b:2 a:3:4", payments_secret=GOOD).callback_secrets == {
        "webhook": [GOOD],
        "a": ["1", "3:4"],
        "b": ["2"],
    }
    assert load(instance="own", port=1).instance_on_port == load(instance="own").instance_name == "own"
    assert load(port=8099).instance_on_port.endswith(":8099")


@pytest.mark.parametrize(
    ("settings", "only"),
    [
        ({}, False),
        ({"shop_token": "of-the-shop"}, True),
        ({"shop_token": "of-the-shop", "buyer_key": "k" * 32}, False),
        ({"shop_token": "of-the-shop", "pay_url": "https://shop.example/pay"}, False),
        ({"shop_token": "of-the-shop", "holds_from": "anybody"}, False),
        ({"holds_from": "shop"}, True),
    ],
)
def test_who_may_hold(settings: dict[str, str], only: bool) -> None:
    """The shop alone, if it has a token, and nobody else could hold: neither signed buyers nor its page."""
    assert load(**settings).only_shop_holds is only


@pytest.mark.parametrize("guard", [Guard.VERSION, Guard.TIMESTAMP])
@pytest.mark.parametrize("lock", CLASSES)
def test_a_version_needs_no_lock(lock: str, guard: Guard) -> None:
    """In MySQL a version guard works under any lock, and without one."""
    check_together(load(store=MYSQL, lock=URLS[lock], guard=guard))


@pytest.mark.parametrize(
    ("lock", "store", "best"),
    [("none", "redis", "none"), ("redlock", "redis", "compare"), ("none", "mysql", "version")],
)
def test_the_command_line_knows_which_locks_have_no_tokens(lock: str, store: str, best: str) -> None:
    """The error names the guard that goes with such a lock and the store, and that guard is the default."""

    def chosen(guard: Guard | None) -> Guard:
        return StageOptions(1, 1, (), None, LockName(lock), StoreName(store), guard, 2).chosen_guard

    assert chosen(None) is Guard(best)
    with pytest.raises(ConfigurationError, match=f"^--lock {lock} gives no fencing tokens; say --guard {best}$"):
        chosen(Guard.FENCE)


def test_an_empty_variable_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """`SECKILL_ADMIN_TOKEN=` means no token, not an empty one that anybody could use."""
    monkeypatch.setenv("SECKILL_ADMIN_TOKEN", "")
    monkeypatch.setenv("SECKILL_HOST", "")  # which would be all addresses
    assert load().admin_token is None
    assert load().host == load(host="").host == "127.0.0.1"


@pytest.mark.parametrize("value", ["", "*", "10.0.0.1", "10.0.0.0/8, 2001:db8::/32,::1"])
def test_proxies_that_can_be_trusted(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """They are addresses and networks, or all."""
    monkeypatch.setenv("SECKILL_PROXIES", value)
    assert load().proxies == value


def test_secrets_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passwords and tokens don't appear when settings, or errors about them, are printed."""
    monkeypatch.setenv("SECKILL_ADMIN_TOKEN", "open-sesame")
    monkeypatch.setenv("SECKILL_STORE", "redis://:hunter2@host/0")
    monkeypatch.setenv("SECKILL_LOCK", "etcd://shop:hunter3@host:2379")
    shown = repr(load()) + str(load().model_dump())
    shown += refusal(monkeypatch, {"SECKILL_ADMIN_TOKEN": "hunter4"})
    assert not re.search("sesame|hunter", shown)


def test_a_misspelt_variable_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A variable that looks like ours and isn't is reported, with a suggestion, and one of .env, too."""
    monkeypatch.setenv("SECKILL_BATCHMAX", "1")
    monkeypatch.setenv("SECKILL_URL", "http://127.0.0.1:8080")  # the shop's back end has it, in the same terminal
    (tmp_path / ".env").write_text("SECKILL_OPERATORPORT=1\nOTHERS=1\n")
    assert unknown_variables() == [
        "SECKILL_BATCHMAX is not a setting; did you mean SECKILL_BATCH_MAX?",
        "SECKILL_OPERATORPORT is not a setting; did you mean SECKILL_OPERATOR_PORT?",
    ]


# -- secrets ---------------------------------------------------------------------------------------------------------

NAMED = (
    "entry {} is not a name, a colon, and a token of 8 visible ASCII characters or more (a name: letters, digits, '.', "
    "'_' and '-', 32 at most)"
)
SIGNING = "a secret is whsec_ and 24 random bytes or more in base64"
API_KEY = "this is an API key; the signing secret begins with whsec_"
AN_ADDRESS = "no address has a blank or an invisible character in it"
SENT = "8 visible ASCII characters or more: it is sent in a header"


def test_a_secret_with_a_line_break_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Secret that is made of a file has one, and it does no harm; nothing but blanks is no secret."""
    for name in ("PAYMENTS_SECRET", "STRIPE_SECRET", "SHOP_TOKEN", "BUYER_KEY", "ALIPAY_KEY"):
        monkeypatch.setenv(PREFIX + name, f"{GOOD}\n")
        assert secrets_of(getattr(load(), name.lower())) == [GOOD]
        monkeypatch.setenv(PREFIX + name, " \n")
        assert getattr(load(), name.lower()) is None


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("WEBHOOK_SECRET", "whsec_s3cret", SIGNING),
        ("WEBHOOK_SECRET", f"{GOOD} {GOOD[:-9]}", f"secret 2 of 2: {SIGNING}"),
        ("WEBHOOK_SECRET", f"{GOOD[:9]} {GOOD[9:]}", f"secret 1 of 2: {SIGNING}"),
        ("PAYMENTS_SECRET", f"{GOOD} {GOOD}é {GOOD}", f"secret 2 of 3: {SIGNING}"),
        ("PAYMENTS_SECRET", "sk_test_s3cret", API_KEY),
        ("STRIPE_SECRET", "sk_live_s3cret", API_KEY),
        ("STRIPE_SECRET", "rk_live_s3cret", API_KEY),
        ("STRIPE_SECRET", f"{GOOD} pk_live_s3cret", f"secret 2 of 2: {API_KEY}"),
        ("STRIPE_SECRET", "we_s3cret", "the signing secret of Stripe's endpoint begins with whsec_"),
        ("STRIPE_SECRET", f"{GOOD}\u200b", "the signing secret of Stripe's endpoint begins with whsec_"),
        ("SHOP_TOKEN", "s3cret", SENT),
        ("SHOP_TOKEN", "long-enough s3cret", f"secret 2 of 2: {SENT}"),
        ("SHOP_TOKEN", "s3crets-of-é", SENT),
        ("ADMIN_TOKEN", "long-enough\n", SENT),
        ("ADMIN_TOKEN", "sk_live_s3cret", "this is an API key; make a token of its own"),
        ("SHOP_TOKEN", "other-token rk_test_s3cret", "secret 2 of 2: this is an API key; make a token of its own"),
        ("SHOP_TOKEN", '"long-enough"', "it is in quotes, which count here: leave them out"),
        ("PAYMENTS_SECRET", f"'{GOOD}'", "it is in quotes, which count here: leave them out"),
        ("ADMIN_TOKENS", "s3cret-token", NAMED.format(1)),
        ("ADMIN_TOKENS", "ann:s3cret", NAMED.format(1)),
        ("ADMIN_TOKENS", ":s3cret-token", NAMED.format(1)),
        ("ADMIN_TOKENS", "ann:s3cret-token,", NAMED.format(2)),
        ("ADMIN_TOKENS", "a nn:s3cret-token", NAMED.format(1)),
        ("PROVIDER_SECRETS", "mine:s3cret s3cret", "entry 2 is not a provider's name, a colon, and its secret"),
        ("PROVIDER_SECRETS", "mine:", "entry 1 is not a provider's name, a colon, and its secret"),
        ("REFUNDS", "https://shop.example/re funds", AN_ADDRESS),
        ("WEBHOOK_URL", "https://shop.example/events\u200b", AN_ADDRESS),
        ("REFUNDS", "stripe://sk_live_s3c\x7fret", AN_ADDRESS),
    ],
)
def test_a_secret_that_can_not_be_used(monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str) -> None:
    """The start ends with the setting, which of its secrets it is, and what is wrong, but not with the secret."""
    assert refusal(monkeypatch, {PREFIX + name: value}) == f"{PREFIX}{name}: {said}"


def test_an_address_with_a_line_break_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be another address; one that is made of a file has one."""
    for name, value in (("WEBHOOK_URL", "https://shop.example/events"), ("REFUNDS", "stripe://sk_live_s3cret00")):
        monkeypatch.setenv("SECKILL_WEBHOOK_SECRET", GOOD)
        monkeypatch.setenv(PREFIX + name, f" {value} \r\n")
        found = getattr(load(), name.lower())
        assert found.get_secret_value() == value
        monkeypatch.setenv(PREFIX + "WEBHOOK_SECRET", "")
        monkeypatch.setenv(PREFIX + name, " \n")
        assert getattr(load(), name.lower()) is None
        monkeypatch.delenv(PREFIX + name)


# -- what is doubtful --------------------------------------------------------------------------------------------------


def test_a_start_long_ago_is_said_to_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be meant, and was hardly; this year's is a start like any other."""
    monkeypatch.setenv("SECKILL_SALE_STARTS_AT", "1976-11-11T20:00:00+08:00")
    assert doubtful(load()) == [
        "SECKILL_SALE_STARTS_AT is before this year: the sale has started (1976-11-11T20:00:00+08:00)"
    ]
    monkeypatch.setenv("SECKILL_SALE_STARTS_AT", datetime.now(UTC).isoformat())
    assert doubtful(load()) == []


def test_play_money_is_said_to_be_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stripe's test mode is wanted by name, and said at each start; its other options go the same way."""
    assert load().stripe_options == {"test_mode": False, "account": "", "shared": False}
    for name, value in (("TEST_MODE", "true"), ("ACCOUNT", "acct_1A2b"), ("SHARED", "true")):
        monkeypatch.setenv(f"SECKILL_STRIPE_{name}", value)
    assert load().stripe_options == {"test_mode": True, "account": "acct_1A2b", "shared": True}
    assert doubtful(load()) == ["SECKILL_STRIPE_TEST_MODE is on: play money pays for orders"]
    assert refusal(monkeypatch, {"SECKILL_STRIPE_ACCOUNT": "1A2b"}).startswith("SECKILL_STRIPE_ACCOUNT: ")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"SECKILL_PORT", ".env: SECKILL_PORT has no value"),
        (b"# \xe4", ".env is not UTF-8"),
        (None, ".env is a folder"),
    ],
)
def test_a_file_of_settings_that_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, said: str
) -> None:
    """It is said in a line, and not passed over."""
    monkeypatch.chdir(tmp_path)
    if content is None:
        Path(".env").mkdir()
    else:
        Path(".env").write_bytes(content)
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        load()
