"""What is inside a lock backend, for tests that look."""

from typing import Any, cast

from fencelock import LockBackend, Session, portal


def of_threads(backend: LockBackend) -> Any:
    """The backend's connection that all threads share."""

    async def here() -> Any:
        return backend.here()

    return portal.run(here())


def shared(session: Session) -> Any:
    """The lease in etcd that the session's locks share."""
    return cast(Any, session._session)._session
