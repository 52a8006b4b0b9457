"""Messages that wait for their time: how many there are, and taking one back.

Rule: a handle comes from anywhere; only a broker of this cluster is asked about it, by the name that the handle has.
"""

from __future__ import annotations

from penstock.client.admin_results import TimersWaiting
from penstock.client.cluster_calls import ClusterCalls
from penstock.client.results import Recalled
from penstock.errors import RouteNotFoundError
from penstock.metadata.fastjson import loads
from penstock.metadata.json_fields import INT64_MAX, JsonFields
from penstock.protocol.codes import RequestCode
from penstock.protocol.headers import RecallMessageRequestHeader, TimerMetricsRequestHeader
from penstock.protocol.recall import RecallHandle

TOOLS_GROUP = "TOOLS_PRODUCER"
_BODY_BYTES_MAX = 64 << 20


class TimerAdmin:
    """Questions about timers."""

    def __init__(self, calls: ClusterCalls) -> None:
        self._calls = calls

    async def recall(self, handle: str) -> Recalled:
        """Take a message back before its time. CodecError for what is no handle, ResponseError 604 if it is too
        late."""
        found = RecallHandle.decode(handle)
        masters = await self._calls.masters()
        if found.broker_name not in masters:
            raise RouteNotFoundError(
                f"there is no broker {found.broker_name[:80]!r}, which has the message",
                "is it of another cluster, or without a master now?",
            )
        header = RecallMessageRequestHeader(
            producer_group=TOOLS_GROUP,
            topic=found.topic,
            recall_handle=handle,
            broker_name=found.broker_name,
        )
        answer = await self._calls.ask(masters[found.broker_name], RequestCode.RECALL_MESSAGE, header)
        return Recalled(answer.fields.get("msgId", ""), answer.fields.get("MSG_REGION", ""))

    async def waiting(self) -> list[TimersWaiting]:
        """What waits at each broker."""
        header, masters = TimerMetricsRequestHeader(penstock_ahead=True), await self._calls.masters()
        answers = await self._calls.ask_each(masters, RequestCode.GET_TIMER_METRICS, header)
        return [_read(name, bytes(answer.body)) for name, answer in sorted(answers.items())]


def _read(broker: str, body: bytes) -> TimersWaiting:
    source = f"timers of broker {broker}"
    fields = JsonFields(loads(body, source=source, max_bytes=_BODY_BYTES_MAX), source)
    topics = {
        name: metric.integer("count", 0, -INT64_MAX, INT64_MAX)
        for name, metric in fields.table("timingCount")
    }
    # RocketMQ does not say.
    ahead = fields.inner("timingAhead")
    numbers = {} if ahead is None else ahead.named_integers(0, INT64_MAX)
    return TimersWaiting(
        broker,
        {name: count for name, count in topics.items() if count > 0},
        {int(seconds): count for seconds, count in numbers.items() if seconds.isdecimal()},
    )
