"""The address of a database and our account in it, as a URL gives them."""

import ssl
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

from ..errors import ConfigurationError

_URL: Final = "mysql://user:password@host:3306/database, percent-escaped, and ?ssl_ca=/path/to/ca.pem for TLS"


@dataclass(frozen=True, slots=True)
class Address:
    """A database, and the account that uses it. Without `ssl_ca` there is no TLS."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    database: str
    ssl_ca: str | None

    @classmethod
    def parse(cls, url: str) -> "Address":
        """Parse a URL. Raises `ConfigurationError`."""
        # Errors never quote the URL: with an unescaped "/" or "@" a password may be anywhere, even in the port.
        try:
            parts = urlsplit(url)
            port = parts.port or 3306
            options = parse_qs(parts.query, strict_parsing=True) if parts.query else {}
            if options.pop("charset", ["utf8mb4"]) != ["utf8mb4"]:  # many URLs have it, and we use the same
                raise ValueError
            address = cls(
                host=parts.hostname or "",
                port=port,
                user=unquote(parts.username or ""),
                password=unquote(parts.password or ""),
                database=unquote(parts.path[1:]),
                ssl_ca=options["ssl_ca"][-1] if "ssl_ca" in options else None,
            )
        except ValueError:
            raise ConfigurationError(f"not a MySQL URL; it looks like {_URL}") from None
        whole = address.host and address.user and address.database and parts.scheme in ("mysql", "mariadb")
        if not whole or options.keys() - {"ssl_ca"} or parts.fragment or "/" in parts.path[1:] or "@" in parts.path:
            raise ConfigurationError(f"not a MySQL URL; it looks like {_URL}")
        return address

    def tls(self) -> ssl.SSLContext | None:
        """Return the context that checks the server's certificate; None without TLS. Raises `ConfigurationError`."""
        if self.ssl_ca is None:
            return None
        try:
            return ssl.create_default_context(cafile=self.ssl_ca)
        except OSError as error:
            raise ConfigurationError(f"ssl_ca of the MySQL URL can't be read: {error}") from None
