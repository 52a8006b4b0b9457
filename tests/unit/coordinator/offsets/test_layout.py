"""TubeMQ's paths and values, to the letter."""

import pytest

from penstock.coordinator.offsets import OffsetKey, StoredOffset, broker_id_of
from penstock.coordinator.offsets.layout import (
    decoded,
    encoded,
    normalised_root,
    offset_path,
    partition_of,
)
from penstock.coordinator.offsets.options import OffsetStorageOptions
from penstock.errors import CodecError, OptionError


@pytest.mark.feature("offsets-in-zookeeper", "tubemq")
@pytest.mark.seed("S0-3", "S0-4", "S0-9", "S0-10", "S0-11")
def test_the_path_of_the_seed() -> None:
    options = OffsetStorageOptions()
    below = offset_path(OffsetKey("tboy", "test", 0), 2130706433)
    assert options.zookeeper().root + below == "/tubemq/consumers-v3/tboy/offsets/test/2130706433-0"


@pytest.mark.feature("offsets-in-zookeeper", "tubemq")
@pytest.mark.seed("S0-12")
def test_a_broker_id_may_be_an_address() -> None:
    assert broker_id_of("127.0.0.1") == 2130706433
    assert broker_id_of("127.0.0.1:10911") == 2130706433
    assert broker_id_of("255.255.255.255") == 2**32 - 1
    for wrong in ("", "localhost", "localhost:1", "::1", "127.0.0.1.1", "300.0.0.1"):
        with pytest.raises(OptionError):
            broker_id_of(wrong)


@pytest.mark.feature("offsets-in-zookeeper", "tubemq")
@pytest.mark.seed("S0-2")
@pytest.mark.parametrize(
    ("text", "root"),
    [("/tubemq", "/tubemq"), ("tubemq", "/tubemq"), ("/tubemq/", "/tubemq"), (" a/b/ ", "/a/b"), ("/", "/")],
)
def test_the_root_is_normalised(text: str, root: str) -> None:
    assert normalised_root(text) == root
    assert OffsetStorageOptions(root=text).zookeeper().root == root


@pytest.mark.feature("offsets-in-zookeeper", "tubemq")
@pytest.mark.seed("S0-13")
def test_the_value_is_message_id_and_offset() -> None:
    assert encoded(StoredOffset(offset=100, message_id=4711)) == b"4711-100"
    assert encoded(StoredOffset(7)) == b"0-7"
    for stored in (StoredOffset(0), StoredOffset(2**63 - 1, 2**63 - 1), StoredOffset(28, 1)):
        assert decoded(encoded(stored), "/x") == stored


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"-",
        b"1",
        b"1-",
        b"-1",
        b"-1-1",
        b"1--1",
        b"1-2-3",
        b"a-1",
        b" 1-1",
        b"1-1\n",
        b"1-" + b"9" * 19,
        b"9" * 30,
    ],
)
def test_what_is_no_value_is_refused_with_its_place(value: bytes) -> None:
    with pytest.raises(CodecError, match="/x/y"):
        decoded(value, "/x/y")


def test_leaves_of_other_brokers_are_not_ours() -> None:
    assert partition_of("7-3", 7) == 3
    assert partition_of("77-3", 7) is None
    for other in ("7", "7-", "-3", "7-x", "7-3-1", "x", ""):
        assert partition_of(other, 7) is None


@pytest.mark.abuse("A6")
@pytest.mark.parametrize("name", ["", "a/b", "/"])
def test_names_that_are_paths_are_refused(name: str) -> None:
    for key in (OffsetKey(name, "t", 0), OffsetKey("g", name, 0)):
        with pytest.raises(CodecError):
            offset_path(key, 1)


@pytest.mark.feature("offsets-in-zookeeper", "tubemq")
def test_defaults_are_tubemqs() -> None:
    options = OffsetStorageOptions()
    assert (options.hosts, options.root) == ("localhost:2181", "/tubemq")
    assert (options.session_timeout_ms, options.connect_timeout_ms) == (30_000, 30_000)
    assert (options.commit_interval_ms, options.stop_tries) == (5_000, 10)


@pytest.mark.parametrize(
    "name", ["commit_interval_ms", "stop_tries", "retry_wait_ms", "parallel_writes", "session_timeout_ms"]
)
def test_options_outside_their_range_are_refused(name: str) -> None:
    with pytest.raises(OptionError, match=name):
        OffsetStorageOptions(**{name: 0})
