"""Who is pushed to, and what is parked, as the admin client sees it; and having it go on. Every master is asked."""

from __future__ import annotations

from penstock.client.cluster_calls import ClusterCalls
from penstock.protocol.bodies.push import PushListBody, PushResumed, PushResumedBody
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.headers.push import PushListRequestHeader, PushResumeRequestHeader

# A RocketMQ broker pushes to nobody.
_NEVER_HEARD = (ResponseCode.REQUEST_CODE_NOT_SUPPORTED,)


class PushAdmin:
    """Questions about pushing."""

    def __init__(self, calls: ClusterCalls) -> None:
        self._calls = calls

    async def clients(self, group: str) -> dict[str, PushListBody]:
        """By broker: the clients of a group, or all of them."""
        header = PushListRequestHeader(consumer_group=group or None)
        answers = await self._calls.ask_each(
            await self._calls.masters(), RequestCode.PUSH_LIST, header, also=_NEVER_HEARD
        )
        return {name: PushListBody.decode(answer.body) for name, answer in answers.items()}

    async def resume(self, group: str, client: str) -> dict[str, tuple[PushResumed, ...]]:
        """By broker: what became of each task of a group, or of one client in it; of a client alone in all."""
        groups = {group} if group else await self._groups_of(client)
        found: dict[str, tuple[PushResumed, ...]] = {}
        for name in sorted(groups):
            header = PushResumeRequestHeader(consumer_group=name, client_id=client or None)
            answers = await self._calls.ask_each(
                await self._calls.masters(), RequestCode.PUSH_RESUME, header, also=_NEVER_HEARD
            )
            for broker, answer in answers.items():
                found[broker] = (*found.get(broker, ()), *PushResumedBody.decode(answer.body).tasks)
        return found

    async def _groups_of(self, client: str) -> set[str]:
        return {
            task.group
            for body in (await self.clients("")).values()
            for one in body.clients
            if one.name == client
            for task in one.subscriptions
        }
