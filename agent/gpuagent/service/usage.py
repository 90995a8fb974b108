"""The usage ledger in the service: its settings, and the question behind `gpuagent usage`."""

from __future__ import annotations

from gpuagent.config.models import Config
from gpuagent.core.identity import NodeIdentity
from gpuagent.driver.backend import longest_gap
from gpuagent.node import Node
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.problem import StoreFailure
from gpuagent_alerts.usage.accounting import UsageAccounting, UsageSettings
from gpuagent_alerts.usage.summary import Document, GroupBy, Price
from gpuagent_exporters.api.alert_routes import NotNow


def usage_settings(config: Config) -> UsageSettings:
    """Return what the configuration says of the ledger."""
    usage = config.usage
    price = None if usage.price_per_gpu_hour is None else Price(usage.price_per_gpu_hour, usage.currency)
    return UsageSettings(price, usage.idle_after, int(usage.keep // 86_400))


def usage_of(config: Config, node: Node, store: Store, where: NodeIdentity) -> UsageAccounting:
    """Return the ledger of a node; what it keeps goes to `store`."""
    return UsageAccounting(
        usage_settings(config),
        node.clock,
        store,
        longest_gap(config.poll_interval, node.clock.speed),
        node=where.node,
        simulated=node.place.simulated,
    )


class UsageCommands:
    """Answers who has used the GPUs."""

    def __init__(self, usage: UsageAccounting) -> None:
        self._usage = usage

    async def usage(self, by: str, since_seconds: float) -> Document:
        """Return the summary; `by` is one of `GroupBy`. Raises NotNow and ValueError."""
        try:
            return await self._usage.document(GroupBy(by), since_seconds)
        except StoreFailure as error:
            raise NotNow(f"the daily table of usage cannot be read: {error}") from None
