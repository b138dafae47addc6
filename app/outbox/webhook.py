"""A webhook: where messages go."""

from collections.abc import Sequence

from app.errors import ConfigurationError
from app.outbox.endpoint import Result, ShopEndpoint
from app.outbox.message import Message
from app.outbox.receiver import Receiver


class Webhook:
    """A receiver's endpoint. It lives on one event loop. Raises `ConfigurationError` for a URL that is none.

    `where`: the receiver, for logs and people;
    `batch`: events of a request at most; with more than 1 all of them come as batches. The rest: see `ShopEndpoint`.
    """

    def __init__(
        self, receiver: Receiver, secrets: Sequence[str], *, timeout_s: float, at_once: int, batch: int = 1
    ) -> None:
        try:
            self._endpoint = ShopEndpoint(receiver.url, secrets, timeout_s=timeout_s, at_once=at_once)
        except ConfigurationError as error:
            raise ConfigurationError(f"the receiver {receiver.name}: {error}" if receiver.suffix else error) from None
        self.receiver = receiver
        self.where = f"{receiver.suffix} {self._endpoint.where}".lstrip()
        self.batch = batch

    async def post(self, messages: Sequence[Message]) -> Result:
        """Send some messages in one request, once."""
        message = Message.batch(messages) if self.batch > 1 else messages[0]
        more = {"traceparent": message.traceparent} if message.traceparent else None
        return await self._endpoint.post(message.id, message.body, more)

    async def close(self) -> None:
        """Close all connections."""
        await self._endpoint.close()
