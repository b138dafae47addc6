"""All payment providers, by their names. They are imported only where they are switched on, as some need an extra."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Final, NamedTuple

from app.errors import ConfigurationError
from app.payments.report import Reader

OWN: Final = "SECKILL_PROVIDERS"


class Provider(NamedTuple):
    """A provider. `setting`: switches it on, with the secret that verifies its notices; `reader`: module and class."""

    setting: str
    reader: str


# A new provider is its module and a line here. It takes `POST /payments/NAME`.
PROVIDERS: Final = {
    "webhook": Provider("SECKILL_PAYMENTS_SECRET", "app.payments.generic:StandardWebhooks"),
    "stripe": Provider("SECKILL_STRIPE_SECRET", "app.payments.stripe:Stripe"),
    "alipay": Provider("SECKILL_ALIPAY_KEY", "app.payments.alipay:Alipay"),
}


def providers(own: str) -> dict[str, Provider]:
    """All providers, with a shop's own: `name=module:Class`, separated by commas. Raises `ConfigurationError`."""
    found = dict(PROVIDERS)
    for entry in filter(None, own.replace(" ", "").split(",")):
        name, _, reader = entry.partition("=")
        if not name.isidentifier() or name in found or not all(reader.partition(":")):
            raise ConfigurationError(f"{OWN}: {entry!r} is not a new name, =, a module, : and its class")
        found[name] = Provider("SECKILL_PROVIDER_SECRETS", reader)
    return found


def reader_class(provider: Provider) -> type[Reader]:
    """A provider's class. Raises `ConfigurationError` if there is none."""
    module, _, name = provider.reader.partition(":")
    try:
        kind = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"{OWN}: {provider.reader}: {error}") from None
    if not (isinstance(kind, type) and issubclass(kind, Reader)):
        raise ConfigurationError(f"{OWN}: {provider.reader} is not a Reader of app.payments")
    return kind


def classes(secrets: Mapping[str, Sequence[str]], own: str = "") -> dict[str, type[Reader]]:
    """The classes of the providers that have a secret, by their names. Raises `ConfigurationError`."""
    all_of_them = providers(own)
    if unknown := secrets.keys() - all_of_them.keys():
        raise ConfigurationError(f"SECKILL_PROVIDER_SECRETS: there is no provider {min(unknown)!r} in {OWN}")
    return {name: reader_class(all_of_them[name]) for name in secrets}


def readers(secrets: Mapping[str, Sequence[str]], own: str = "", **options: Mapping[str, Any]) -> dict[str, Reader]:
    """The readers of the providers that have a secret, with their options, by their names. As `classes`, it raises."""
    return {name: kind(secrets[name], **options.get(name, {})) for name, kind in classes(secrets, own).items()}
