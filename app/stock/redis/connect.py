"""Makes redis-py's client for a store's URL: of a server, a Sentinel set, or a Cluster."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import hiredis
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

import fencelock
from app.errors import ConfigurationError
from fencelock.kit import LockUrl

_ASK_SENTINEL_S: Final = 1.0  # tries at most; a call's deadline is for all of them together
_SENTINEL_PORT: Final = 26379


def _truth(text: str) -> bool:
    return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[text.lower()]


def _file(text: str) -> str:
    with Path(text).open("rb"):
        return text


def _one_of(*words: str) -> Callable[[str], str]:
    return lambda text: words[words.index(text)]


# The options behind the `?`: how each is parsed, and the expected value for the error's text.
_PLAIN: Final[dict[str, tuple[Callable[[str], Any], str]]] = {
    "db": (int, "a number"),
    "username": (str, "text"),
    "password": (str, "text"),
    "client_name": (str, "text"),
    "socket_timeout": (float, "seconds"),
    "socket_connect_timeout": (float, "seconds"),
    "socket_keepalive": (_truth, "true or false"),
    "health_check_interval": (int, "seconds"),
}
_TLS: Final[dict[str, tuple[Callable[[str], Any], str]]] = {
    "ssl_ca_certs": (_file, "a file that can be read"),
    "ssl_certfile": (_file, "a file that can be read"),
    "ssl_keyfile": (_file, "a file that can be read"),
    "ssl_password": (str, "text"),
    "ssl_cert_reqs": (_one_of("required", "optional", "none"), "required, optional or none"),
    "ssl_check_hostname": (_truth, "true or false"),
}
_SENTINEL: Final[dict[str, tuple[Callable[[str], Any], str]]] = {
    "sentinel_username": (str, "text"),
    "sentinel_password": (str, "text"),
    "sentinel_ssl": (_truth, "true or false"),
}


def connect(url: str, options: dict[str, Any], connections: int) -> list[Any]:
    """Make the client that the URL names, and other clients that it needs.

    Raises `ConfigurationError`, which names the option that is wrong, and `ValueError` or `RedisError`, whose text may
    have a part of the password.
    """
    base, _, query = url.partition("?")
    scheme, _, rest = base.partition("://")
    plain, _, kind = scheme.partition("+")
    if kind not in ("", "sentinel", "cluster"):
        raise ValueError(f"unknown kind {kind!r} (sentinel and cluster are known)")
    own = _read(query, _PLAIN | (_SENTINEL if kind == "sentinel" else {}) | (_TLS if plain == "rediss" else {}))
    if kind == "sentinel":
        return _sentinel(plain, rest, options, own)
    if plain != "unix" and urlsplit(base).path.strip("/").strip("0123456789"):
        raise ValueError("what follows the host is the number of a database")
    if kind == "cluster":
        cluster: Any = redis.asyncio.RedisCluster.from_url(
            f"{plain}://{rest}", max_connections=connections, **options | own
        )
        return [cluster]
    return [_with_packing(redis.asyncio.Redis.from_url(base, max_connections=connections, **options | own))]


def _read(query: str, known: Mapping[str, tuple[Callable[[str], Any], str]]) -> dict[str, Any]:
    if "@" in query:  # more likely a password with a question mark
        raise ValueError
    found: dict[str, Any] = {}
    for name, text in parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else ():
        if name not in known:
            raise ConfigurationError(
                f"{name!r} needs rediss://"
                if name in _TLS
                else f"the store's URL has no option {name!r}; it knows {', '.join(known)}"
            )
        if name in found:
            raise ConfigurationError(f"the option {name!r} is given twice")
        read, expected = known[name]
        try:
            found[name] = read(text)
        except (ValueError, KeyError, OSError):
            raise ConfigurationError(f"the option {name!r} must be {expected}") from None
    return found


def _with_packing(client: Any) -> Any:
    pool = client.connection_pool
    pool.connection_class = type("PackingConnection", (_Packing, pool.connection_class), {})
    return client


def _sentinel(scheme: str, rest: str, options: dict[str, Any], own: dict[str, Any]) -> list[Any]:
    try:
        url = LockUrl.parse(f"{scheme}://{rest}")
    except fencelock.ConfigurationError:
        raise ValueError from None
    service, _, db = url.path.strip("/").partition("/")
    if not service or not url.hosts or db.strip("0123456789"):
        raise ValueError("a Sentinel URL is redis+sentinel://host:26379,host:26379/master-name/0")
    of_sentinels = {name: own.pop(f"sentinel_{name}", None) for name in ("username", "password", "ssl")}
    tls = {name: value for name, value in own.items() if name in _TLS}
    secure = scheme == "rediss"
    options = dict(options, db=int(db or 0), ssl=secure, username=url.user, password=url.password) | own
    addresses = [urlsplit(f"//{host}") for host in url.hosts]
    patience_s = min(_ASK_SENTINEL_S, options["socket_connect_timeout"] / (len(addresses) + 2))
    if of_sentinels["ssl"] is None:
        of_sentinels["ssl"] = secure
    finder: Any = _Finder(  # type: ignore[no-untyped-call]
        [(address.hostname, address.port or _SENTINEL_PORT) for address in addresses],
        sentinel_kwargs={
            "socket_timeout": patience_s,
            "socket_connect_timeout": patience_s,
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),  # else the error would come after the call's deadline
            **of_sentinels,
            **(tls if of_sentinels["ssl"] else {}),
        },
    )
    return [_with_packing(finder.master_for(service, **options)), *finder.sentinels]


class _Finder(Sentinel):
    """Reports the error of each Sentinel, where redis-py reports how its clients are configured."""

    async def discover_master(self, service_name: str) -> Any:
        try:
            return await super().discover_master(service_name)
        except MasterNotFoundError:
            said = await asyncio.gather(*(self._reason(sentinel, service_name) for sentinel in self.sentinels))
            raise MasterNotFoundError("; ".join(said)) from None

    async def _reason(self, sentinel: Any, service_name: str) -> str:
        to = sentinel.connection_pool.connection_kwargs
        try:
            known = sorted(await sentinel.sentinel_masters())
        except (RedisError, OSError) as error:
            return f"Sentinel {to['host']}:{to['port']}: {error}"
        if service_name in known:
            return f"Sentinel {to['host']}:{to['port']}: its master {service_name!r} is down"
        return f"Sentinel {to['host']}:{to['port']}: no master {service_name!r}, it knows {', '.join(known) or 'none'}"


class _Packing:
    """Mixed into redis-py's connections, which pack commands in Python over asyncio; hiredis is nine times as fast."""

    def pack_command(self, *args: Any) -> list[bytes]:
        # A command of two words is one argument to redis-py.
        return [hiredis.pack_command((*args[0].split(), *args[1:]) if " " in args[0] else args)]
