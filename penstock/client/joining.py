"""Which group a consumer is in that names none and wants to read its topic point to point.

    subscribe(topic)  ->  SUBSCRIPTIONS (9029): who reads the topic  ->  the group that does, or a new one

Rules. The coordinator says which; the consumer joins it as any other, with a beat that names the group, so whoever
may not be in it is refused. A new group is called as the subscription is: topic and mode. So consumers that come at
the same time come to the same group. Should another one take the topic in between, the beat is refused and says by
whom. Without a coordinator that answers nothing is joined. Belongs to the consumer's event loop.
"""

from __future__ import annotations

from penstock.client.instance import ClientInstance
from penstock.client.options import GROUP_NAME_MAX, ClientOptions, check_name
from penstock.errors import ClientClosedError, ClientError, ResponseError
from penstock.remoting import RpcHook, TlsOptions
from penstock.runtime import Runtime


def without_topic() -> ClientClosedError:
    """For what a consumer is asked before it can have a group."""
    return ClientClosedError(
        "the consumer has no group yet: it is to be in the one that reads its topic",
        "subscribe to a topic first",
    )


async def find_group(
    topic: str,
    options: ClientOptions,
    *,
    runtime: Runtime | None = None,
    tls: TlsOptions | None = None,
    rpc_hook: RpcHook | None = None,
) -> str:
    """The group that reads a topic point to point, or is to. ClientError if the coordinator does not say."""
    check_name("topic", topic)
    instance = await ClientInstance.acquire(options, runtime=runtime, tls=tls, rpc_hook=rpc_hook)
    try:
        if instance.coordinators is None:
            raise AssertionError("broken invariant: balanced by a coordinator without one")
        found = (await instance.coordinators.subscriptions(topic)).join
    except ResponseError as error:
        raise ClientError(
            f"no group was found for topic {topic!r}: {error.message}", "name a group of the consumer's own"
        ) from error
    finally:
        await instance.release()
    check_name("the group of the topic", found, GROUP_NAME_MAX)
    return found
