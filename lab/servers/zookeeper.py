"""ZooKeeper, a standalone server. It is a Java program without a wheel."""

import shutil
import socket
from collections.abc import Sequence
from pathlib import Path

from app.errors import ConfigurationError
from lab.servers.process import Process, free_port

# Debian's jar names all the jars that it needs in its manifest, except for a logger.
_DEBIAN_JARS = (Path("/usr/share/java/zookeeper.jar"), Path("/usr/share/java/slf4j-simple.jar"))

_JAVA_OPTIONS = (
    # A quick start of a small server matters more here than its top speed.
    *("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx128m"),
    "-XX:-UsePerfData",  # otherwise a killed Java leaves a file in /tmp/hsperfdata_*
    "-Djava.net.preferIPv4Stack=true",  # 127.0.0.1 itself, not an IPv6 socket mapped to it
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.log.org.apache.zookeeper.server.ServerCnxn=off",  # a stack trace when asked too early
)


def java_binary() -> Path:
    """Return `java` from PATH."""
    found = shutil.which("java")
    if found is None:
        raise ConfigurationError(
            "ZooKeeper needs Java, which is not on PATH; on Debian: apt-get install default-jre-headless"
        )
    return Path(found)


def zookeeper_classpath() -> str:
    """Return the jars of Debian's ZooKeeper. For a download they would be "apache-zookeeper-3.9.3-bin/lib/*"."""
    if not all(jar.exists() for jar in _DEBIAN_JARS):
        raise ConfigurationError("ZooKeeper is missing; on Debian: apt-get install libzookeeper-java")
    return ":".join(map(str, _DEBIAN_JARS))


class ZooKeeper(Process):
    """A standalone ZooKeeper. `durable`: every write is on disk before it is answered.

    `tick_ms` is the resolution of its clock: sessions end up to one tick late, and none is shorter than two ticks.
    """

    graceful = False

    def __init__(
        self,
        name: str = "zookeeper",
        *,
        tick_ms: int = 200,
        durable: bool = False,
        classpath: str | None = None,
        options: Sequence[str] = (),
    ) -> None:
        """Prepare a server; `options` are further lines of `zoo.cfg`."""
        self.port = free_port()
        self.hosts = f"127.0.0.1:{self.port}"
        java, jars = str(java_binary()), classpath or zookeeper_classpath()

        def argv(directory: Path) -> list[str]:
            config = directory / "zoo.cfg"
            lines = [
                f"dataDir={directory / 'data'}",
                "clientPortAddress=127.0.0.1",
                f"clientPort={self.port}",
                f"tickTime={tick_ms}",
                "maxSessionTimeout=60000",  # the default is 20 ticks
                "maxClientCnxns=0",  # no limit: all clients come from one address
                "admin.enableServer=false",
                "4lw.commands.whitelist=*",
                *options,
            ]
            config.write_text("\n".join(lines) + "\n")
            return [
                java,
                *_JAVA_OPTIONS,
                f"-Dzookeeper.forceSync={'yes' if durable else 'no'}",
                *("-cp", jars, "org.apache.zookeeper.server.ZooKeeperServerMain", str(config)),
            ]

        super().__init__(name, argv, ready=self._serves)

    def ask(self, word: str, *, within_s: float = 2.0) -> str:
        """Return the answer to a four-letter word: "dump" lists sessions and nodes. Raises `OSError` without one."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=within_s) as connection:
            connection.sendall(word.encode())
            with connection.makefile(encoding="utf-8") as answer:
                return answer.read()

    def _serves(self) -> bool:
        try:
            # If asked too early, the server forgets to hang up (ZOOKEEPER-5051).
            return "Mode: standalone" in self.ask("srvr", within_s=0.2)
        except OSError:
            return False
