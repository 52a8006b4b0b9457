"""Options from files, environment and flags: order, types, and complaints that name their place."""

import contextlib
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.options import BrokerOptions
from penstock.cli import rocketmq_config
from penstock.cli.config import SECTIONS, Configuration, options_class
from penstock.cli.config_text import read_properties, read_toml
from penstock.cli.options import ProcessOptions
from penstock.cli.settings import Setting, build, convert, option_names
from penstock.errors import OptionError
from penstock.remoting.options import RemotingOptions
from penstock.store.options import FlushMode, StoreOptions
from scripts import docs_config

ALL = ("nameserver", "broker", "store", "remoting", "tls")


class Colour(Enum):
    RED = "red"
    DEEP_BLUE = "deep-blue"


@dataclass(frozen=True)
class Sample:
    port: int = 1
    share: float = 0.5
    name: str = "x"
    loud: bool = False
    peers: tuple[str, ...] = ()
    colour: Colour = Colour.RED
    where: Path = Path()
    size_bytes: int = 1
    wait_ms: int = 1
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.port > 100:
            raise OptionError(f"port is {self.port}", "use at most 100")
        if (self.loud and self.share > 1) or self.wait_ms == 13:
            raise OptionError("this does not go together", "change one")


def toml(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "penstock.toml"
    path.write_text(text, "utf-8")
    return path


def conf(tmp_path: Path, text: str, name: str = "broker.conf") -> Path:
    path = tmp_path / name
    path.write_text(text, "utf-8")
    return path


def use_file(path: Path) -> None:
    configuration = Configuration(ALL)
    configuration.add_file(path)
    configuration.options("broker", BrokerOptions)
    configuration.options("store", StoreOptions)


# -- values ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("port", "12", 12),
        ("port", 12, 12),
        ("port", "1_000", 1000),
        ("share", "0.25", 0.25),
        ("share", 1, 1.0),
        ("name", "a b", "a b"),
        ("loud", "yes", True),
        ("loud", "OFF", False),
        ("loud", True, True),
        ("peers", "a:1;b:2, c:3", ("a:1", "b:2", "c:3")),
        ("peers", ["a:1", "b:2"], ("a:1", "b:2")),
        ("peers", "", ()),
        ("colour", "deep-blue", Colour.DEEP_BLUE),
        ("colour", "Deep_Blue", Colour.DEEP_BLUE),
        ("where", "a/b", Path("a/b")),
        ("size_bytes", "64K", 65536),
        ("size_bytes", "2 MiB", 2 << 20),
        ("size_bytes", "1gb", 1 << 30),
        ("wait_ms", "5s", 5000),
        ("wait_ms", "250ms", 250),
        ("wait_ms", "2m", 120_000),
        ("limit", "", None),
        ("limit", "7", 7),
    ],
)
def test_values_become_what_their_field_is(name: str, raw: object, value: object) -> None:
    converted = convert(Sample, name, raw)
    assert converted == value
    assert type(converted) is type(value)


@pytest.mark.parametrize(
    ("name", "raw", "complaint"),
    [
        ("port", "many", "not a whole number"),
        ("port", 1.5, "not a whole number"),
        ("port", True, "not a whole number"),
        ("port", "4K", "it has no unit"),
        ("share", "half", "not a number"),
        ("share", False, "not a number"),
        ("name", 4, "write it in quotes"),
        ("loud", "perhaps", "use true or false"),
        ("loud", 1, "use true or false"),
        ("peers", 3, "not a list"),
        ("peers", ["a", 3], "write it in quotes"),
        ("colour", "green", "use red or deep-blue"),
        ("size_bytes", "4 parsecs", "not a whole number"),
        ("size_bytes", "4X", "units are K, M, G"),
        ("wait_ms", "4w", "units are ms, s, m, h, d"),
        ("port", "9" * 500, "not a whole number"),
    ],
)
def test_values_that_do_not_fit_are_told_with_their_origin(name: str, raw: object, complaint: str) -> None:
    with pytest.raises(OptionError) as caught:
        build(Sample, [Setting("sample", name, raw, "here:7")])
    assert str(caught.value).startswith(f"here:7: {name} is ")
    assert complaint in str(caught.value)
    assert len(str(caught.value)) < 200


def test_a_refused_value_is_told_with_its_origin() -> None:
    settings = [Setting("sample", "name", "x", "here:1"), Setting("sample", "port", "101", "here:2")]
    with pytest.raises(OptionError, match=r"^here:2: port is 101; use at most 100$"):
        build(Sample, settings)


def test_what_the_message_does_not_name_is_found_by_trying() -> None:
    settings = [Setting("sample", "loud", True, "a:1"), Setting("sample", "share", 9, "b:2")]
    with pytest.raises(OptionError, match=r"^a:1, b:2: this does not go together; change one$"):
        build(Sample, settings)
    with pytest.raises(OptionError, match=r"^b:2: this does not go together"):
        build(Sample, [Setting("sample", "name", "x", "a:1"), Setting("sample", "wait_ms", 13, "b:2")])


@pytest.mark.parametrize("section", SECTIONS)
def test_every_option_of_every_room_can_be_written_as_text(section: str) -> None:
    """The generic conversion knows every type that is in use, and a default written down comes back."""
    room = options_class(section)
    defaults = room()
    for name in option_names(room):
        value = getattr(defaults, name)
        text = ";".join(value) if isinstance(value, tuple) else str(getattr(value, "value", value))
        if value is None:
            text = "none"
        assert convert(room, name, text) == value, name


# -- TOML --------------------------------------------------------------------------------------------------------


def test_toml_sections_reach_their_rooms(tmp_path: Path) -> None:
    path = toml(
        tmp_path,
        'data = "here"\nlog_level = "info"\n\n[broker]\nport = 0\nname_servers = ["a:1", "b:2"]\n\n'
        '[store]\nflush_mode = "sync"\nsegment_size_bytes = "64M"\n',
    )
    configuration = Configuration(ALL)
    configuration.add_file(path)
    assert configuration.options("", ProcessOptions) == ProcessOptions("here", log_level="info")
    broker = configuration.options("broker", BrokerOptions)
    assert (broker.port, broker.name_servers) == (0, ("a:1", "b:2"))
    store = configuration.options("store", StoreOptions)
    assert (store.flush_mode, store.segment_size_bytes) == (FlushMode.SYNC, 64 << 20)
    assert configuration.options("remoting", RemotingOptions) == RemotingOptions()
    assert configuration.warnings == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "[broker]\nport = 1\nprot = 2\n",
            "penstock.toml:3: [broker] has no option 'prot'; did you mean port?",
        ),
        ("[brokr]\nport = 1\n", "penstock.toml:2: there is no section 'brokr'; did you mean broker?"),
        ("flush_mode = 'sync'\n", "penstock.toml:1: the part before any table has no option 'flush_mode'; "),
        ("flush_mode = 'sync'\n", "it belongs to [store]"),
        ("[broker]\n\nport = 70000\n", "penstock.toml:3: port is 70000; use 0 to 65535"),
        ("broker.port = 'x'\n", "penstock.toml:1: port is 'x', not a whole number"),
        ("[broker]\nport = \n", "penstock.toml:2: Invalid value"),
        ("[store]\nflush_mode = 'later'\n", "penstock.toml:2: flush_mode is 'later': use async or sync"),
        ("[broker.deep]\nx = 1\n", "[broker] has no option 'deep'"),
    ],
)
def test_mistakes_in_toml_are_told_with_file_and_line(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(OptionError) as caught:
        use_file(toml(tmp_path, text))
    assert complaint in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path))


def test_sections_of_other_commands_are_skipped(tmp_path: Path) -> None:
    configuration = Configuration(["nameserver"])
    configuration.add_file(toml(tmp_path, "[broker]\nport = 0\n[store]\nflush_mode = 'sync'\n"))
    assert configuration.given("broker", "port") is None


def test_files_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    configuration = Configuration(ALL)
    with pytest.raises(OptionError, match="No such file"):
        configuration.add_file(tmp_path / "absent.toml")
    broken = tmp_path / "latin.conf"
    broken.write_bytes(b"a=1\nname=caf\xe9\n")
    with pytest.raises(OptionError, match=r"latin\.conf:2: not UTF-8"):
        configuration.add_file(broken)
    large = tmp_path / "large.toml"
    large.write_bytes(b"#" * (1 << 20) + b"\n")
    with pytest.raises(OptionError, match="at most 1 MiB"):
        configuration.add_file(large)


@given(st.text(max_size=60))
def test_any_text_is_toml_or_an_option_error(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(text.encode("utf-8"))
    with contextlib.suppress(OptionError):
        assert all(isinstance(line.key, str) for line in read_toml(path))


# -- the order of sources ----------------------------------------------------------------------------------------


def test_flags_win_over_environment_over_files(tmp_path: Path) -> None:
    configuration = Configuration(ALL)
    configuration.add_file(toml(tmp_path, "[broker]\nport = 1\nbroker_id = 1\nbroker_name = 'toml'\n"))
    configuration.add_environment({"PENSTOCK_BROKER_PORT": "2", "PENSTOCK_BROKER_BROKER_ID": "2"})
    configuration.add_flags([("--port", "broker.port", 3), ("--host", "broker.host", None)])
    configuration.add_pairs(["broker.cluster_name = set"])
    broker = configuration.options("broker", BrokerOptions)
    assert (broker.port, broker.broker_id, broker.broker_name, broker.cluster_name) == (3, 2, "toml", "set")
    assert broker.host == "127.0.0.1"


def test_the_environment_names_sections_and_options() -> None:
    configuration = Configuration(ALL)
    configuration.add_environment(
        {
            "PENSTOCK_DATA": "there",
            "PENSTOCK_STORE_FLUSH_MODE": "sync",
            "PENSTOCK_BROKER_PROT": "1",
            "PENSTOCK_BROKER_HOST": "",
            "PENSTOCK_NAMESERVER": "a client's own",
            "PENSTOCK_PURE": "1",
            "PATH": "/bin",
        }
    )
    assert configuration.options("", ProcessOptions).data == "there"
    assert configuration.options("store", StoreOptions).flush_mode is FlushMode.SYNC
    assert configuration.options("broker", BrokerOptions).host == "127.0.0.1"
    (warning,) = configuration.warnings
    assert (
        warning == "PENSTOCK_BROKER_PROT is not known and has no effect; did you mean PENSTOCK_BROKER_PORT?"
    )


def test_bad_values_in_the_environment_and_in_flags_are_told() -> None:
    configuration = Configuration(ALL)
    configuration.add_environment({"PENSTOCK_BROKER_PORT": "http"})
    with pytest.raises(OptionError, match=r"^PENSTOCK_BROKER_PORT: port is 'http', not a whole number$"):
        configuration.options("broker", BrokerOptions)
    configuration.add_pairs(["broker.port=99999"])
    with pytest.raises(OptionError, match=r"^--set broker\.port: port is 99999; use 0 to 65535$"):
        configuration.options("broker", BrokerOptions)
    with pytest.raises(OptionError, match="no value"):
        configuration.add_pairs(["broker.port"])
    with pytest.raises(OptionError, match="there is no section 'boker'; did you mean broker"):
        configuration.add_pairs(["boker.port=1"])


# -- RocketMQ's files --------------------------------------------------------------------------------------------

BROKER_CONF = """\
# as delivered with RocketMQ, and a little more
brokerClusterName = DefaultCluster
brokerName=broker-b
brokerId : 0
deleteWhen = 04
fileReservedTime = 48
brokerRole = ASYNC_MASTER
flushDiskType = SYNC_FLUSH
namesrvAddr=192.168.1.1:9876;\\
            192.168.1.2:9876
listenPort 20911
mappedFileSizeConsumeQueue=6000000
mappedFileSizeCommitLog=1073741824
maxMessageSize=65536
storePathRootDir=/data/store
serverChannelMaxIdleTimeSeconds=60
sendMessageThreadPoolNums=16
! comment
autoCreateTopicEnabel=false
"""


def test_a_broker_conf_is_understood(tmp_path: Path) -> None:
    configuration = Configuration(ALL)
    configuration.add_file(conf(tmp_path, BROKER_CONF))
    broker = configuration.options("broker", BrokerOptions)
    assert (broker.broker_name, broker.port, broker.broker_id) == ("broker-b", 20911, 0)
    assert broker.name_servers == ("192.168.1.1:9876", "192.168.1.2:9876")
    store = configuration.options("store", StoreOptions)
    assert (store.flush_mode, store.file_reserved_hours) == (FlushMode.SYNC, 48)
    assert (store.queue_file_entries, store.max_message_size_bytes) == (300_000, 65536)
    assert configuration.options("", ProcessOptions).data == "/data/store"
    assert configuration.options("remoting", RemotingOptions).idle_timeout_ms == 60_000
    (warning,) = configuration.warnings
    assert "sendMessageThreadPoolNums (line 17)" in warning
    assert "autoCreateTopicEnabel (line 19; did you mean autoCreateTopicEnable?)" in warning
    assert "brokerRole" not in warning


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "a=1\nflushDiskType=LATER\n",
            "broker.conf:2: flushDiskType is 'LATER': use SYNC_FLUSH or ASYNC_FLUSH",
        ),
        ("listenPort=http", "broker.conf:1 (listenPort): port is 'http', not a whole number"),
        ("\nlistenPort=70000", "broker.conf:2 (listenPort): port is 70000; use 0 to 65535"),
        ("brokerRole=SLAVE", "a slave needs a broker_id above 0"),
        ("brokerRole=LEADER", "broker.conf:1 (brokerRole): role is 'LEADER': use async_master or"),
        ("storeType=defaultRocksDB", "broker.conf:1: storeType is defaultRocksDB; "),
        ("mappedFileSizeConsumeQueue=x", "broker.conf:1: mappedFileSizeConsumeQueue is 'x'"),
        ("name=\\u00", "broker.conf:1: \\u without four hex digits"),
    ],
)
def test_mistakes_in_a_broker_conf_are_told_with_file_and_line(
    tmp_path: Path, text: str, complaint: str
) -> None:
    with pytest.raises(OptionError) as caught:
        use_file(conf(tmp_path, text))
    assert complaint in str(caught.value)


def test_the_same_key_means_the_role_of_its_file(tmp_path: Path) -> None:
    configuration = Configuration(ALL)
    configuration.add_file(conf(tmp_path, "listenPort=19876\n", "namesrv.properties"))
    configuration.add_file(conf(tmp_path, "listenPort=20911\n"))
    nameserver, broker = configuration.given("nameserver", "port"), configuration.given("broker", "port")
    assert nameserver is not None
    assert broker is not None
    assert (nameserver.value, broker.value) == ("19876", "20911")
    only = Configuration(["nameserver"])
    only.add_file(conf(tmp_path, "listenPort=1\n", "anything.conf"), role="nameserver")
    assert only.given("nameserver", "port") is not None


def test_properties_are_read_as_java_reads_them(tmp_path: Path) -> None:
    text = (
        "  spaced  =  value with spaces  \n"
        "colon:x\n"
        "blank y\n"
        "a\\=b=c\\:d\\u0041\\t.\n"
        "empty\n"
        "!no=1\n"
        "#no=1\n"
        "long=one,\\\n   two,\\\r\n  three\n"
        "twice=1\ntwice=2\n"
        "path=C:\\\\dir\n"
        "ends=with\\"
    )
    values = {line.key: line.value for line in read_properties(conf(tmp_path, text))}
    assert values == {
        "spaced": "value with spaces",
        "colon": "x",
        "blank": "y",
        "a=b": "c:dA\t.",
        "empty": "",
        "long": "one,two,three",
        "twice": "2",
        "path": "C:\\dir",
        "ends": "with",
    }


@given(st.text(max_size=80))
def test_any_text_is_properties_or_an_option_error(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.conf"
    path.write_bytes(text.encode("utf-8"))
    with contextlib.suppress(OptionError):
        assert all(isinstance(line.value, str) for line in read_properties(path))


def named_in_comments(room: str) -> dict[str, str]:
    """RocketMQ's name for each option of a room, as its comment gives it."""
    return {
        option.rocketmq_name.partition(" ")[0]: option.name
        for group in docs_config.read_all()
        if group.room == room
        for option in group.options
        if option.rocketmq_name
    }


@pytest.mark.parametrize(
    ("room", "role"), [("store", "broker"), ("broker", "broker"), ("nameserver", "nameserver")]
)
def test_every_name_in_the_options_comments_is_understood(room: str, role: str) -> None:
    named = named_in_comments(room)
    assert named
    known = {key: entry.name for key, entry in rocketmq_config.KEYS[role].items() if entry.section == room}
    assert {key: name for key, name in named.items() if known.get(key) != name} == {}


def test_every_key_leads_to_an_option_that_exists() -> None:
    for keys in rocketmq_config.KEYS.values():
        for key, entry in keys.items():
            assert entry.name in option_names(options_class(entry.section)), key
