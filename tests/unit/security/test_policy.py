import pytest

from penstock.errors import OptionError
from penstock.security.policy import ANY_ONE, Action, Entry, Kind, Need, Pattern, Policies, Sources

PUB = (Action.PUB,)


def entry(resource: str, *, allows: bool = True, actions: tuple[Action, ...] = PUB, **more: object) -> Entry:
    return Entry(Pattern.of(resource), actions, allows, **more)  # type: ignore[arg-type]


def may(entries: list[Entry], topic: str, source: str = "10.0.0.1", kind: Kind = Kind.TOPIC) -> bool:
    return Policies(entries).allow(Need(kind, topic, PUB), source)


def test_nothing_is_allowed_that_nothing_allows() -> None:
    assert not may([], "orders")
    assert not may([entry("Topic:orders", actions=(Action.SUB,))], "orders")
    assert not may([entry("Group:orders")], "orders")
    assert may([entry("Topic:orders", actions=(Action.ALL,))], "orders")


@pytest.mark.parametrize(
    ("topic", "allowed"),
    [("a-b-c", True), ("a-b-d", False), ("a-x", True), ("other", False)],
)
def test_the_closest_entry_speaks(topic: str, allowed: bool) -> None:
    entries = [
        entry("Topic:*", allows=False),
        entry("Topic:a-*"),
        entry("Topic:a-b-*", allows=False),
        entry("Topic:a-b-c"),
    ]
    assert may(entries, topic) is allowed
    assert may(entries[::-1], topic) is allowed


def test_of_equals_deny_wins_and_a_default_comes_last() -> None:
    assert not may([entry("Topic:a"), entry("Topic:a", allows=False)], "a")
    assert may([entry("Topic:a", allows=False, is_default=True), entry("Topic:*")], "a")
    assert may([entry("*")], "a")
    assert not may([entry("*"), entry("Topic:*", allows=False)], "a")


def test_an_entry_counts_only_from_its_sources() -> None:
    entries = [entry("Topic:a", sources=("10.0.0.0/24",))]
    assert may(entries, "a", "10.0.0.7")
    assert not may(entries, "a", "10.0.1.7")


def test_all_of_them_needs_an_entry_about_all_of_them() -> None:
    assert not may([entry("Topic:a"), entry("Topic:b*")], "*")
    assert may([entry("Topic:*")], "*")
    assert may([entry("Topic:x", allows=False), entry("Topic:a")], ANY_ONE)
    assert not may([entry("Topic:x", allows=False)], ANY_ONE)


BROKERS_TOPICS = (
    "SCHEDULE_TOPIC_XXXX",
    "rmq_sys_REVIVE_LOG_c",
    "OFFSET_MOVED_EVENT",
    "RMQ_SYS_TRANS_HALF_TOPIC",
)


@pytest.mark.parametrize("topic", BROKERS_TOPICS)
@pytest.mark.parametrize("resource", ["*", "Topic:*", "Topic:{}*"])
def test_a_star_allows_nothing_on_topics_of_the_broker(resource: str, topic: str) -> None:
    everything = (Action.ALL,)
    star = entry(resource.format(topic[:-1]), actions=everything)
    for action in (Action.SUB, Action.PUB, Action.GET, Action.UPDATE):
        need = Need(Kind.TOPIC, topic, (action,))
        assert not Policies([star]).allow(need, "10.0.0.1")
        named = entry(f"Topic:{topic}", actions=everything)
        assert Policies([star, named]).allow(need, "10.0.0.1")
        denied = entry(resource.format(topic[:-1]), allows=False, actions=everything)
        assert Policies([denied]).decide(need, "10.0.0.1") is not None, "but it denies"


def test_a_star_lets_reply_and_not_read_replies() -> None:
    star = Policies([entry("Topic:*", actions=(Action.ALL,))])
    allowed = [action for action in Action if star.allow(Need(Kind.TOPIC, "c_REPLY_TOPIC", (action,)), "::1")]
    assert {Action.PUB} <= set(allowed)
    assert not {Action.SUB, Action.GET} & set(allowed)


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("192.168.0.7", "192.168.0.7", "192.168.0.8"),
        ("192.168.*.*", "192.168.3.4", "192.169.0.1"),
        ("192.168.*", "192.168.3.4", "192.169.0.1"),
        ("192.168.1-10.5", "192.168.10.5", "192.168.11.5"),
        ("192.168.0.{1,5,9}", "192.168.0.5", "192.168.0.6"),
        ("10.0.0.0/8", "10.255.0.1", "11.0.0.1"),
        ("fd00::/8", "fd12::1", "fe80::1"),
        ("::1", "::1", "127.0.0.1"),
    ],
)
def test_sources(text: str, inside: str, outside: str) -> None:
    assert Sources([text]).contain(inside)
    assert not Sources([text]).contain(outside)


def test_ipv4_address_seen_by_a_socket_for_both_is_the_same_source() -> None:
    assert Sources(["10.0.0.0/8"]).contain("::ffff:10.1.2.3")
    assert Sources(["10.0.*.*"]).contain("::ffff:10.0.2.3")
    assert not Sources(["10.0.0.0/8"]).contain("::ffff:11.1.2.3")


def test_a_source_that_is_none_is_in_nothing() -> None:
    assert not Sources(["10.0.0.0/8"]).contain("")
    assert Sources(["*"]).contain("")


@pytest.mark.parametrize("text", ["10.0.0", "10.0.0.300", "a.b.c.d", "10.0.0.{1", "10.0.0.1-", "." * 300])
def test_what_is_no_source_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="address"):
        Sources([text])


@pytest.mark.parametrize("text", ["orders", "Topic:", "Topic:a*b", "Queue:a", "", "Topic:" + "x" * 600])
def test_what_is_no_resource_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="resource"):
        Pattern.of(text)
