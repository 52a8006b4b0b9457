"""Dead letters of a cluster: which groups have some and why, one by one, and sent again.

    for summary in admin.dead_letters.groups(): ...
    for letter in admin.dead_letters.read("billing", reason="timeout"): ...
    for result in admin.dead_letters.redrive("billing", reason="timeout", rate=100): ...

Rules: reading changes nothing. What a broker that is away holds is never taken for absent: `groups` says so in the
summary, `read` and `redrive` raise. `redrive` is described in `redriving`. `AsyncDeadLetters` belongs to the event
loop of its admin client, `DeadLetters` is the same for threads.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from typing import Any, Protocol, TypedDict, TypeVar, Unpack

from penstock.client.admin_groups import GroupAdmin
from penstock.client.cluster_calls import ClusterCalls
from penstock.client.dead_letters import (
    DeadLetter,
    DeadLetterSummary,
    Selection,
    Summing,
    group_of,
    sampled,
)
from penstock.client.options import require_seconds, require_text
from penstock.client.outgoing import check_parts
from penstock.client.queue_reading import read_queue
from penstock.client.received import dead_letter_topic
from penstock.client.redrive_marks import MARKS_TOPIC, MarkLog, copy_id
from penstock.client.redriving import Outcome, RedriveResult, Redriving, no_origin
from penstock.errors import ClientClosedError, OptionError, PenstockError, RouteNotFoundError

T = TypeVar("T")
# Slower, and the lock would run out between two messages.
RATE_MIN = 0.1
RATE_MAX = 1_000_000.0
SAMPLE_MAX = 100_000
_PAGE = 256


class SelectionParts(TypedDict, total=False):
    """The fields of `Selection`."""

    reason: str
    since_ms: int
    until_ms: int
    key: str
    topic: str
    ids: Iterable[str]
    redriven: bool | None
    sample: int


class Topics(Protocol):
    """What is needed of an admin client besides its calls."""

    async def list_topics(self, *, internal: bool = False) -> list[str]: ...

    async def create_topic(self, topic: str, queues: int = 4) -> None: ...


class AsyncDeadLetters:
    """Dead letters inside an event loop; made by the admin client."""

    def __init__(self, calls: Callable[[], ClusterCalls], topics: Topics) -> None:
        self._of = calls
        self._topics = topics

    # -- reading ---------------------------------------------------------------------------------------------

    async def groups(
        self, *names: str, progress: Callable[[int], None] | None = None
    ) -> list[DeadLetterSummary]:
        """The groups that have dead letters, or those named, each with its reasons. `progress` is told how many
        dead letters were read so far."""
        for name in names:
            require_text("a group", name)
        topics = await self._topics.list_topics(internal=True)
        found = names or tuple(sorted(group for group in map(group_of, topics) if group))
        summaries: list[DeadLetterSummary] = []
        for group in found:
            before = sum(summary.count for summary in summaries)
            summaries.append(await self._summary(group, before, progress))
        return [summary for summary in summaries if summary.count or summary.error]

    async def _summary(
        self, group: str, count: int, progress: Callable[[int], None] | None
    ) -> DeadLetterSummary:
        summing = Summing(group)
        try:
            async for page in self.pages(group):
                for letter in page:
                    summing.add(letter)
                count += len(page)
                if progress is not None:
                    progress(count)
        except PenstockError as error:
            return summing.summary(str(error))
        return summing.summary()

    async def pages(self, group: str, selection: Selection | None = None) -> AsyncIterator[list[DeadLetter]]:
        """The dead letters of a group that are meant, many at a time, as they lie."""
        require_text("group", group)
        chosen = selection or Selection()
        if not chosen.sample:
            async for page in self._matching(group, chosen):
                yield page
            return
        if chosen.sample > SAMPLE_MAX:
            raise OptionError(f"a sample of {chosen.sample}", f"at most {SAMPLE_MAX}, or all")
        # Kept: what may still be in the sample. Twice as many at most, because each cut costs a sort.
        kept: list[DeadLetter] = []
        async for page in self._matching(group, chosen):
            kept += page
            if len(kept) >= 2 * chosen.sample:
                kept = sampled(kept, chosen.sample)
        picked = sampled(kept, chosen.sample)
        for at in range(0, len(picked), _PAGE):
            yield picked[at : at + _PAGE]

    async def _matching(self, group: str, selection: Selection) -> AsyncIterator[list[DeadLetter]]:
        calls = self._of()
        topic = dead_letter_topic(group)
        try:
            route = await calls.instance.routes.refresh(topic)
        except RouteNotFoundError:
            return
        tries_max = await GroupAdmin(calls).tries_max(group)
        marks = await MarkLog(calls).read(group)
        for queue in route.subscribe_queues:
            address = route.address(queue.broker_name)
            if address is None:
                raise RouteNotFoundError(f"broker {queue.broker_name!r} is not there now")
            async for page in read_queue(calls, address, queue):
                letters = []
                for message in page:
                    letter = DeadLetter(group, message, tries_max)
                    mark = marks.sent.get(letter.name)
                    if mark is not None:
                        letter = DeadLetter(group, message, tries_max, mark)
                    if selection.matches(letter):
                        letters.append(letter)
                if letters:
                    yield letters

    async def read(self, group: str, **parts: Unpack[SelectionParts]) -> AsyncIterator[DeadLetter]:
        """The dead letters of a group that are meant, one by one."""
        async for page in self.pages(group, selection_of(parts)):
            for letter in page:
                yield letter

    # -- sending again ---------------------------------------------------------------------------------------

    async def redrive(
        self,
        group: str,
        *,
        to: str = "",
        rate: float = 0,
        dry_run: bool = False,
        wait_s: float = 0,
        **parts: Unpack[SelectionParts],
    ) -> AsyncIterator[RedriveResult]:
        """Send dead letters again, to the topics they came from or to another, at most `rate` a second (0: as fast
        as it goes), and tell the result of each. Those that were sent again before are skipped. If somebody else
        is at it, wait so long for them to end."""
        _check(group, to, rate, wait_s)
        selection = selection_of(parts)
        if dry_run:
            async for page in self.pages(group, selection):
                for letter in page:
                    yield _rehearsed(letter, to)
            return
        calls = self._of()
        await self._make_room_for_marks(calls, group)
        redriving = Redriving(calls, group, to=to, rate=rate, wait_s=wait_s)
        try:
            async for page in self.pages(group, selection):
                async for result in redriving.run(page):
                    yield result
        finally:
            await redriving.close()

    async def _make_room_for_marks(self, calls: ClusterCalls, group: str) -> None:
        """The topic of the notes, at every broker that has dead letters of the group."""
        try:
            route = await calls.instance.routes.refresh(dead_letter_topic(group))
        except RouteNotFoundError:
            return
        brokers = {queue.broker_name for queue in route.subscribe_queues}
        if await MarkLog(calls).missing_at(brokers):
            await self._topics.create_topic(MARKS_TOPIC, 1)


def selection_of(parts: SelectionParts) -> Selection:
    """The fields given, as one value."""
    given: dict[str, Any] = {**parts}
    check_parts(given.keys() - SelectionParts.__annotations__.keys(), SelectionParts.__annotations__)
    if "ids" in given:
        ids = given["ids"]
        if not isinstance(ids, Iterable):
            raise OptionError(f"ids are {ids!r}", "use an id, or a list of ids")
        given["ids"] = frozenset([ids] if isinstance(ids, str) else ids)
    return Selection(**given)


def _check(group: str, to: str, rate: float, wait_s: float) -> None:
    require_text("group", group)
    require_text("to", to)
    require_seconds("wait_s", wait_s)
    if not isinstance(rate, int | float):
        raise OptionError(f"rate is {rate!r}", "use messages a second, or 0")
    if to.startswith("%"):
        raise OptionError(f"{to!r} is a topic of the system", "name a topic that consumers subscribe to")
    if rate and not RATE_MIN <= rate <= RATE_MAX:
        raise OptionError(f"rate is {rate}", f"use {RATE_MIN} to {RATE_MAX:.0f} messages a second, or 0")


def _rehearsed(letter: DeadLetter, to: str) -> RedriveResult:
    topic = to or letter.redrive_topic
    if letter.redriven is not None:
        mark = letter.redriven
        reason = f"it was sent again to {mark.topic} before"
        return RedriveResult(letter, Outcome.SKIPPED, mark.topic, mark.msg_id, reason)
    if not topic:
        return RedriveResult(letter, Outcome.FAILED, "", reason=no_origin(letter))
    return RedriveResult(letter, Outcome.WOULD_SEND, topic, copy_id(letter.name, topic, letter.died_ms))


class DeadLetters:
    """The same for threads; made by the admin client."""

    def __init__(
        self, dead_letters: AsyncDeadLetters, run: Callable[[Coroutine[Any, Any, Any]], Any]
    ) -> None:
        self._async = dead_letters
        self._run = run

    def groups(self, *names: str, progress: Callable[[int], None] | None = None) -> list[DeadLetterSummary]:
        """The groups that have dead letters, or those named, each with its reasons. `progress` is called in the
        client's thread."""
        found: list[DeadLetterSummary] = self._run(self._async.groups(*names, progress=progress))
        return found

    def read(self, group: str, **parts: Unpack[SelectionParts]) -> Iterator[DeadLetter]:
        """The dead letters of a group that are meant, one by one."""
        for page in self._each(self._async.pages(group, selection_of(parts))):
            yield from page

    def redrive(
        self,
        group: str,
        *,
        to: str = "",
        rate: float = 0,
        dry_run: bool = False,
        wait_s: float = 0,
        **parts: Unpack[SelectionParts],
    ) -> Iterator[RedriveResult]:
        """As the asynchronous one; nothing is sent before the first result is asked for."""
        _check(group, to, rate, wait_s)
        selection_of(parts)
        return self._each(
            self._async.redrive(group, to=to, rate=rate, dry_run=dry_run, wait_s=wait_s, **parts)
        )

    def _each(self, items: AsyncIterator[T]) -> Iterator[T]:
        end = object()

        async def following() -> Any:
            return await anext(items, end)

        try:
            while (item := self._run(following())) is not end:
                yield item
        finally:
            closing: Callable[[], Awaitable[None]] | None = getattr(items, "aclose", None)
            if closing is not None:
                try:
                    self._run(_awaited(closing()))
                except ClientClosedError:
                    pass  # the admin client was closed first, and everything with it


async def _awaited(work: Awaitable[None]) -> None:
    await work
