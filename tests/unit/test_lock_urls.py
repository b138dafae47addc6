"""The URL of a lock system is parsed, checked, and opens its lock."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fencelock
from app import locks as _of_the_service  # noqa: F401 - one more lock: `none`
from fencelock import connect
from fencelock.backend import LockBackend
from fencelock.connection import Options
from fencelock.errors import ConfigurationError
from fencelock.redis.redlock import RedlockBackend
from fencelock.registry import CLASSES, backend_class, name_of, scheme_of
from fencelock.url import LockUrl

# -- its parts ---------------------------------------------------------------------------------------------------------


def test_all_parts() -> None:
    """User, password, hosts, path and options are decoded; the rest is kept as written."""
    url = LockUrl.parse("etcds://sh%40p:p%2F%3A%3F@a:2379,b:2379/f%20g?ca_file=%2Fca.pem&cert_file=c+d")
    assert (url.scheme, url.user, url.password, url.hosts) == ("etcds", "sh@p", "p/:?", ("a:2379", "b:2379"))
    assert (url.path, url.options) == ("/f g", {"ca_file": "/ca.pem", "cert_file": "c d"})
    assert url.rest == "sh%40p:p%2F%3A%3F@a:2379,b:2379/f%20g?ca_file=%2Fca.pem&cert_file=c+d"
    assert url.secure


@pytest.mark.parametrize(
    ("text", "user", "password", "hosts", "path"),
    [
        ("local://", None, None, (), ""),
        ("etcd://h", None, None, ("h",), ""),
        ("etcd://h/", None, None, ("h",), "/"),
        ("etcd://a, b ,,c,", None, None, ("a", "b", "c"), ""),
        ("etcd://u@h", "u", None, ("h",), ""),
        ("etcd://u:@h", "u", None, ("h",), ""),
        ("redis://:p@h:6379/0", None, "p", ("h:6379",), "/0"),
        ("etcd://u:p:q@h", "u", "p:q", ("h",), ""),
        ("unix:///run/valkey.sock", None, None, (), "/run/valkey.sock"),
        ("etcd://[::1]:2379", None, None, ("[::1]:2379",), ""),
    ],
)
def test_some_parts(text: str, user: str | None, password: str | None, hosts: tuple[str, ...], path: str) -> None:
    """A missing or empty part is None or empty."""
    url = LockUrl.parse(text)
    assert (url.user, url.password, url.hosts, url.path, url.options) == (user, password, hosts, path, {})


@pytest.mark.parametrize("scheme", ["etcd", "redis+fair", "redlock", "zookeeper"])
def test_tls_is_asked_for_by_the_scheme(scheme: str) -> None:
    """An "s" at the end of the system's name asks for TLS."""
    system, plus, kind = scheme.partition("+")
    assert not LockUrl.parse(f"{scheme}://h").secure
    assert LockUrl.parse(f"{system}s{plus}{kind}://h").secure


@pytest.mark.parametrize(
    "text",
    [
        "",
        "secret",
        "secret:2379",
        "//secret",
        "://secret",
        "ETCD://secret",
        "1etcd://secret",
        "etcd:/secret",
        "etcd://u:sec/ret@h",
        "etcd://u:sec?ret@h",
        "etcd://u:sec#ret@h",
        "etcd://u:sec@ret@h",
        "etcd://h/a@secret",
        "etcd://h#secret",
        "etcd://h?secret",
        "etcd://h?a=b&secret",
        "etcd://h?ca_file=secret&ca_file=other",
    ],
)
def test_what_is_no_url_is_refused_without_being_quoted(text: str) -> None:
    """An unescaped password may be anywhere in a malformed URL, so the error quotes none of it."""
    with pytest.raises(ConfigurationError) as error:
        LockUrl.parse(text)
    assert not re.search("sec|ret", str(error.value))
    assert error.value.__cause__ is None


def test_a_password_is_not_shown() -> None:
    """Neither a password nor an option, which may be a secret as well, is shown."""
    url = LockUrl.parse("etcd://shop:hunter2@h?key_file=hunter3")
    assert "hunter" not in repr(url)
    assert "shop" in repr(url)


@given(st.text(min_size=1, max_size=30), st.text(min_size=1, max_size=30), st.text(max_size=30))
def test_whatever_is_escaped_comes_back(user: str, password: str, option: str) -> None:
    """Any text can be a user, a password or an option's value."""
    try:
        escaped = [quote(text, safe="") for text in (user, password, option)]
    except UnicodeEncodeError:
        return  # half of a surrogate pair is not text
    url = LockUrl.parse("etcd://{}:{}@h?ca_file={}".format(*escaped))
    assert (url.user, url.password, url.options) == (user, password, {"ca_file": option})


def test_unknown_options_are_refused() -> None:
    """The error names an unknown option, even one without a value, and the options that the lock has."""
    LockUrl.parse("etcd://h?ca_file=x").refuse_options("ca_file", "key_file")
    for text in ("etcd://h?ca_file=x&colour=red", "etcd://h?colour="):
        with pytest.raises(ConfigurationError, match="^etcd:// has no option 'colour'; it knows ca_file, key_file$"):
            LockUrl.parse(text).refuse_options("ca_file", "key_file")
    with pytest.raises(ConfigurationError, match="it knows none"):
        LockUrl.parse("zookeeper://h?a=b").refuse_options()


# -- which lock it opens -----------------------------------------------------------------------------------------------

# Each URL opens a lock without a server, as nothing is connected before the first use.
URLS = {
    "etcd": "etcd://shop:secret@127.0.0.1:1,127.0.0.1:2",
    "etcd-txn": "etcd+txn://127.0.0.1:1",
    "redis": "redis://:secret@127.0.0.1:1/0",
    "redis-fair": "redis+fair://127.0.0.1:1/0",
    "redlock": "redlock://:secret@127.0.0.1:1,127.0.0.1:2,127.0.0.1:3",
    "zookeeper": "zookeeper://shop:secret@127.0.0.1:1,127.0.0.1:2/folder",
    "postgres": "postgres://shop:secret@127.0.0.1:1/shop",
    "mysql-row": "mysql+row://shop:secret@127.0.0.1:1/shop",
    "mysql-for-update": "mysql+for-update://shop:secret@127.0.0.1:1/shop",
    "file": "file:///var/lock/jobs",
    "local": "local://",
    "none": "none://",
}


@pytest.mark.parametrize("name", CLASSES)
def test_a_url_opens_the_lock_that_it_names(name: str) -> None:
    """Scheme, short name and class belong together, and the backend has its own name."""
    scheme = URLS[name].partition("://")[0]
    assert (scheme_of(name), name_of(scheme), name_of(name)) == (scheme, name, name)
    backend: LockBackend = connect(URLS[name], ttl_s=7)
    try:
        assert type(backend) is backend_class(name) is backend_class(scheme)
        assert (backend.name, backend.ttl_s) == (name, 7)
    finally:
        backend.close()


@pytest.mark.parametrize(
    ("scheme", "name"),
    [
        ("etcds", "etcd"),
        ("etcds+txn", "etcd-txn"),
        ("rediss", "redis"),
        ("unix", "redis"),
        ("rediss+fair", "redis-fair"),
        ("unix+fair", "redis-fair"),
        ("redlocks", "redlock"),
        ("redis+sentinel", "redis"),
        ("rediss+cluster", "redis"),
        ("rediss+fair+cluster", "redis-fair"),
    ],
)
def test_there_are_other_ways_to_the_same_server(scheme: str, name: str) -> None:
    """A scheme may select TLS, a socket file, or a set of servers."""
    assert name_of(scheme) == name


@pytest.mark.parametrize(
    "scheme", ["", "zookeper", "http", "etcd+sentinel", "etcd+fair", "etcd+txn+txn", "mysql+fair", "+", "sqlite"]
)
def test_an_unknown_lock_is_refused_with_those_that_there_are(scheme: str) -> None:
    """The error lists the schemes as users write them."""
    with pytest.raises(ConfigurationError) as error:
        name_of(scheme)
    assert f"there is no lock {scheme!r}; there are etcd, etcd+txn, redis, " in str(error.value)
    assert "mysql+for-update" in str(error.value)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("postgres://u:p@h/db", "postgres"),
        ("postgresql://u:p@h:5432/db?sslmode=require", "postgres"),
        ("postgresql+psycopg://u:p@h/db", "postgres"),
        ("postgresql+psycopg2://u:p@h/db", "postgres"),
        ("postgresql+psycopg_async://u:p@h/db", "postgres"),
        ("postgresql+asyncpg://u:p@h/db", "postgres"),
        ("mysql://u:p@h/db", "mysql-row"),
        ("mysql+pymysql://u:p@h/db?charset=utf8mb4", "mysql-row"),
        ("mysql+aiomysql://u:p@h:3306/db", "mysql-row"),
        ("mariadb+mariadbconnector://u:p@h/db", "mysql-row"),
    ],
)
def test_what_people_have_in_database_url_opens_its_lock(url: str, name: str) -> None:
    """With another driver's name, too, and for MySQL the lock that its page recommends."""
    with connect(url) as backend:
        assert backend.name == name


def test_a_database_without_locks_has_a_hint() -> None:
    """SQLite is a file of one machine, and so are the locks that are files."""
    with pytest.raises(ConfigurationError, match="for one machine there is file:///folder"):
        connect("sqlite:///shop.db")
    with pytest.raises(ConfigurationError, match="not a lock's URL; it looks like"):
        connect(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "url",
    [
        "mysql://u:p@h/db?charset=latin1",
        "etcd://",
        "etcd://h/folder",
        "etcd://h?colour=red",
        "etcd://h?colour=",
        "etcd://shop@h",
        "etcds://h?cert_file=/c.pem",
        "redlock://a,b",
        "zookeeper://h?colour=red",
        "postgres://h/db?colour=red",
        "postgres://h:port/db?sslmode=0=1",
        "mysql+row://h/db",
        "mysql+row://u:p@h/db?colour=red",
        "file://",
        "file:///",
        "file://h/jobs",
        "file:///jobs?colour=red",
        "local://h",
        "local://?colour=red",
        "none://h",
    ],
)
def test_what_a_lock_can_not_use_is_refused(url: str) -> None:
    """Each lock checks its own part of the URL when it is opened, and ignores nothing."""
    with pytest.raises(ConfigurationError):
        connect(url)


def test_redlock_gives_each_server_the_same_login_path_and_options() -> None:
    """A URL of several servers stands for one URL of each."""
    given: list[list[str]] = []

    class Servers(RedlockBackend):
        def __init__(self, urls: list[str], **options: object) -> None:
            given.append(urls)

    Servers.from_url(LockUrl.parse("redlocks://u:p%40@a:1,b:2,c/3?ssl_ca_certs=@ca.pem"))
    ends = "/3?ssl_ca_certs=@ca.pem"
    assert given == [[f"rediss://u:p%40@{host}{ends}" for host in ("a:1", "b:2", "c")]]


def imported_by(module: str) -> set[str]:
    """Return the names of all modules in a fresh interpreter after that import."""
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


# The third-party packages that each kind of lock needs.
CLIENTS = {"grpc", "redis", "asyncmy", "sqlalchemy", "psycopg"}


@pytest.mark.parametrize(
    ("module", "needed"),
    [
        ("fencelock.redis.lock", {"redis"}),
        ("fencelock.redis.redlock", {"redis"}),
        ("fencelock.etcd.backend", {"grpc"}),
        ("fencelock.zookeeper.lock", set()),
        ("fencelock.postgres.backend", {"psycopg"}),
        ("fencelock.mysql.row", {"asyncmy", "sqlalchemy"}),
        ("fencelock.local", set()),
        ("fencelock", set()),
    ],
)
def test_a_lock_imports_no_other_locks_client(module: str, needed: set[str]) -> None:
    """Redis' locks need no gRPC, and etcd's need no redis-py; nothing is imported before it is used."""
    found = imported_by(module)
    assert module in found
    assert found & CLIENTS == needed
    assert not {name for name in found if name.startswith(("fastapi", "pydantic"))}


# -- the options of all locks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", ["local://", "etcd://h", "redis://h", "zookeeper://h", "postgres://h/d", "mysql+row://u:p@h/d"]
)
@pytest.mark.parametrize(
    "options",
    [
        {"ttl_s": 0},
        {"ttl_s": -1},
        {"ttl_s": float("nan")},
        {"ttl_s": float("inf")},
        {"ttl_s": "5"},
        {"ttl_s": True},
        {"timeout_s": 0},
        {"renew_ratio": 1},
        {"renew_ratio": "a third"},
        {"tll_s": 3},
    ],
)
def test_an_option_that_can_not_be_is_refused_by_its_name(url: str, options: dict[str, Any]) -> None:
    """At once: with a TTL of 0 a lock would be lost before it is had, again and again."""
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        connect(url, **options)


@pytest.mark.parametrize("scheme", ["redis", "redis+fair"])
def test_an_option_that_redis_py_does_not_know_is_refused(scheme: str) -> None:
    """At once, and not by the first acquire."""
    with pytest.raises(ConfigurationError, match="nonsense"):
        connect(f"{scheme}://h?nonsense=1")


def test_the_package_says_what_it_is() -> None:
    """Its version, and all that it raises."""
    build = tomllib.loads((Path(fencelock.__file__).parents[2] / "pyproject.toml").read_text())
    assert fencelock.__version__ == build["project"]["version"]
    assert issubclass(fencelock.NoLock, fencelock.LockError)
    for option in Options.__annotations__:
        assert f"`{option}`" in (connect.__doc__ or "")
