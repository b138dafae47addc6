"""The options of a store's URL, and the errors when its server is not as it says: real servers, Sentinels, TLS."""

import subprocess
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from app.errors import ConfigurationError, StockUnavailable
from app.stock import registry
from lab.servers import Valkey, valkey_binary
from lab.servers.process import Process, free_port
from lab.servers.valkey import ask
from tests.harness.servers import optional_server
from tests.harness.waiting import eventually, eventually_async

PASSWORD = "s3cret"
OF_SENTINELS = "sesame"


@pytest.fixture(scope="module")
def locked() -> Iterator[Valkey]:
    with Valkey(options=("--requirepass", PASSWORD)) as server:
        yield server


def sentinel(primary: Valkey, *options: str, tls: Path | None = None) -> Process:
    """A Sentinel on its own, of a set called "shop"."""
    port = free_port()
    at = [f"port {port}"]
    if tls is not None:
        at = ["port 0", f"tls-port {port}", *tls_options(tls), "tls-replication yes"]
    watched = primary.port
    lines = (*at, "bind 127.0.0.1 ::1", f"sentinel monitor shop 127.0.0.1 {watched} 1", *options)

    def argv(directory: Path) -> list[str]:
        (directory / "sentinel.conf").write_text("\n".join(lines))
        return [str(program(tls)), str(directory / "sentinel.conf"), "--sentinel"]

    process = Process(str(port), argv, ready=lambda: "+monitor" in process.last_lines(1000))
    return process


def program(tls: Path | None) -> Path:
    return valkey_binary() if tls is None else optional_server("redis-server", "redis-server")


def tls_options(folder: Path) -> list[str]:
    cert = folder / "cert.pem"
    return [
        f"tls-cert-file {cert}",
        f"tls-key-file {folder / 'key.pem'}",
        f"tls-ca-cert-file {cert}",
        "tls-auth-clients no",
    ]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,IP:::1,DNS:localhost"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *subject, *files], check=True)
    return folder


async def well(url: str) -> None:
    # A sentinel that gets no time of the machine takes its primary for dead, until it hears of it again.
    await eventually_async(lambda: answers(url), despite=StockUnavailable)


async def answers(url: str) -> bool:
    async with AsyncExitStack() as stack:
        store = registry.connect(url, "fence")
        stack.push_async_callback(store.close)
        await store.ping()
        return True


async def why_not(url: str) -> str:
    with pytest.raises(StockUnavailable) as refused:
        await answers(url)
    assert PASSWORD not in str(refused.value)
    return str(refused.value)


async def test_a_server_that_refuses_us_is_told_from_one_with_a_foreign_key(locked: Valkey) -> None:
    """No password, a wrong one, a database that is not there, a name that nobody knows."""
    at = f"127.0.0.1:{locked.port}"
    await well(f"redis://:{PASSWORD}@{at}/0?client_name=shop&health_check_interval=3")
    assert "wants a password" in await why_not(f"redis://{at}/0")
    assert "refuses the user or the password" in await why_not(f"redis://:x@{at}/0")
    assert "no database of that number: DB index is out of range" in await why_not(f"redis://:{PASSWORD}@{at}/99")
    assert "connecting to nowhere.invalid" in await why_not("redis://nowhere.invalid:6379/0")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://h/0?nonsense=1", "no option 'nonsense'; it knows db, "),
        ("redis+cluster://h/0?nonsense=1", "no option 'nonsense'; it knows db, "),
        ("redis+sentinel://h/shop?nonsense=1", "no option 'nonsense'; it knows db, .*sentinel_password"),
        ("redis://h/0?socket_timeout=abc", "'socket_timeout' must be seconds"),
        ("redis://h/0?db=1&db=2", "'db' is given twice"),
        ("redis://h/abc", "not a store's URL"),
        ("redis://h/0?ssl_ca_certs=/x", "'ssl_ca_certs' needs rediss://"),
        ("rediss+sentinel://h/shop?ssl_ca_certs=/nowhere.pem", "'ssl_ca_certs' must be a file that can be read"),
        ("rediss://h/0?ssl_cert_reqs=perhaps", "'ssl_cert_reqs' must be required, optional or none"),
        (f"redis://:{PASSWORD}?x=y@h/0", "not a store's URL"),
    ],
)
def test_an_option_is_taken_or_refused_by_name(url: str, said: str) -> None:
    """At once, as a setting that is wrong, and without a part of the password."""
    with pytest.raises(ConfigurationError, match=said) as refused:
        registry.connect(url, "fence")
    assert PASSWORD not in str(refused.value)


async def test_what_sentinels_say(locked: Valkey) -> None:
    """They may be at IPv6, and have a password of their own; what they refuse is said in their words, without it."""
    primary, name = f":{PASSWORD}@", "shop/0"
    with (
        sentinel(locked, f"sentinel auth-pass shop {PASSWORD}") as plain,
        sentinel(locked, f"sentinel auth-pass shop {PASSWORD}", f"requirepass {OF_SENTINELS}") as closed,
    ):
        eventually(lambda: b"ok" in ask_state(plain, "shop"), "it knows that the primary is there")
        await well(f"redis+sentinel://{primary}127.0.0.1:{plain.name}/{name}")
        await well(f"redis+sentinel://{primary}[::1]:{plain.name}/{name}")
        own = f"redis+sentinel://{primary}127.0.0.1:{closed.name}/{name}"
        await well(f"{own}?sentinel_password={OF_SENTINELS}")
        await well(f"{own}?sentinel_username=default&sentinel_password={OF_SENTINELS}")
        assert f"Sentinel 127.0.0.1:{closed.name}: Authentication required" in await why_not(own)
        wrong = await why_not(f"{own}?sentinel_password=wrong")
        assert f"Sentinel 127.0.0.1:{closed.name}: invalid username-password pair" in wrong
        other = await why_not(f"redis+sentinel://127.0.0.1:{plain.name}/other/0")
        assert f"Sentinel 127.0.0.1:{plain.name}: no master 'other', it knows shop" in other
    assert "Sentinel nowhere.invalid:26379: Error" in await why_not("redis+sentinel://nowhere.invalid/shop")


def ask_state(of: Process, name: str) -> bytes:
    said = ask(int(of.name), "SENTINEL", "CKQUORUM", name)
    return str(said).lower().encode()


async def test_tls_to_the_server_and_to_sentinels(certificate: Path) -> None:
    """`rediss+sentinel` speaks TLS to both, and believes the CA that the URL names, and no other."""
    port = free_port()
    words = [word for line in tls_options(certificate) for word in f"--{line}".split(" ")]
    options = ("--port", "0", "--tls-port", str(port), *words)

    def argv(directory: Path) -> list[str]:
        return [str(program(certificate)), *options, "--dir", str(directory), "--save", "", "--bind", "127.0.0.1"]

    server = Process("tls", argv, ready=lambda: "Ready to accept" in server.last_lines(1000))
    primary = Valkey()
    primary.port = port
    ca = f"ssl_ca_certs={certificate / 'cert.pem'}"
    with server, sentinel(primary, tls=certificate) as watching:
        await well(f"rediss://127.0.0.1:{port}/0?{ca}")
        await well(f"rediss+sentinel://127.0.0.1:{watching.name}/shop/0?{ca}")
        assert "certificate" in await why_not(f"rediss://127.0.0.1:{port}/0")
        assert "certificate" in await why_not(f"rediss+sentinel://127.0.0.1:{watching.name}/shop/0")
