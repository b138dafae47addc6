"""The URL of a lock system, with everything that is needed to reach it."""

import re
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import parse_qsl, unquote

from .errors import ConfigurationError

_URL = re.compile(r"([a-z][a-z0-9+_-]*)://(?:([^@/?#]*)@)?([^@/?#]*)(/[^?#@]*)?(?:\?([^#]*))?", re.DOTALL)
LOOKS_LIKE = "it looks like scheme://user:password@host:port,host:port/path?option=value, percent-escaped"


@dataclass(frozen=True, slots=True)
class LockUrl:
    """`scheme://user:password@host:port,host:port/path?option=value`, its parts percent-decoded.

    `rest`: the text behind the scheme, as it was written, for a client that reads URLs itself.
    """

    scheme: str
    user: str | None
    password: str | None = field(repr=False)
    hosts: tuple[str, ...]
    path: str
    options: dict[str, str] = field(repr=False)
    rest: str = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a URL. Raises `ConfigurationError`, which quotes nothing: an unescaped password may be anywhere."""
        match = _URL.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise ConfigurationError(f"not a lock's URL; {LOOKS_LIKE}")
        scheme, login, hosts, path, query = match.groups()
        user, _, password = (login or "").partition(":")
        try:
            pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
        except ValueError:
            raise ConfigurationError(f"not a lock's URL; {LOOKS_LIKE}") from None
        options = dict(pairs)
        if len(options) < len(pairs):
            raise ConfigurationError("an option of a lock's URL is given twice")
        return cls(
            scheme=scheme,
            user=unquote(user) or None,
            password=unquote(password) or None,
            hosts=tuple(host.strip() for host in hosts.split(",") if host.strip()),
            path=unquote(path or ""),
            options=options,
            rest=text.partition("://")[2],
        )

    @property
    def secure(self) -> bool:
        """True if the scheme asks for TLS."""
        return self.scheme.partition("+")[0] in ("etcds", "rediss", "redlocks", "zookeepers")

    def refuse_rest(self) -> None:
        """Raise `ConfigurationError` if anything follows the scheme."""
        if self.rest:
            raise ConfigurationError(f"nothing follows {self.scheme}://, it has no server")

    def refuse_options(self, *known: str) -> None:
        """Raise `ConfigurationError` for an option that is not among `known`."""
        for name in self.options:
            if name not in known:
                expected = f"it knows {', '.join(known)}" if known else "it knows none"
                raise ConfigurationError(f"{self.scheme}:// has no option {name!r}; {expected}")
