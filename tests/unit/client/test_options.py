import pytest

from penstock.client.options import (
    ClientOptions,
    ConsumerOptions,
    ProducerOptions,
    parse_name_servers,
    read_client_settings,
    read_settings,
)
from penstock.errors import OptionError


@pytest.mark.seed("S3-67")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("127.0.0.1:9876", ("127.0.0.1:9876",)),
        ("a:1;b:2", ("a:1", "b:2")),
        ("a, b:2 ; a", ("a:9876", "b:2")),
        (["a:1", "b"], ("a:1", "b:9876")),
        ("[::1]:5", ("[::1]:5",)),
        ("[::1]", ("[::1]:9876",)),
    ],
)
def test_name_servers_in_every_spelling(given, expected):
    assert parse_name_servers(given) == expected


@pytest.mark.parametrize(
    "given", ["", " ; ", [], "a:b", "a:0", "a:70000", "http://a:1", "a b:1", ":1", "user@a"]
)
def test_what_is_no_address_is_refused(given):
    with pytest.raises(OptionError):
        parse_name_servers(given)


@pytest.mark.parametrize(
    "wrong",
    [
        {"send_timeout_ms": 0},
        {"retries": -1},
        {"retries": True},
        {"linger_ms": 1.5},
        {"batch_bytes": 10},
        {"compression": "bzip2"},
        {"durability": "eternal"},
        {"group": ""},
        {"group": "a\nb"},
    ],
)
def test_producer_options_have_ranges(wrong):
    with pytest.raises(OptionError) as caught:
        ProducerOptions(**wrong)
    assert next(iter(wrong)) in str(caught.value)


@pytest.mark.parametrize(
    "wrong", [{"call_timeout_ms": 0}, {"instance_name": "a@b"}, {"client_ip": "x" * 200}]
)
def test_client_options_have_ranges(wrong):
    with pytest.raises(OptionError):
        ClientOptions(**wrong)


def test_batching_is_on_unless_the_batch_size_is_one():
    assert ProducerOptions().batching
    assert not ProducerOptions(batch_size=1, linger_ms=1).batching
    assert ProducerOptions(batch_size=10).batching
    assert ProducerOptions().batch_messages_max == 1024
    assert ProducerOptions(batch_size=10).batch_messages_max == 10


def test_settings_find_their_class():
    client, producer = read_settings(
        {"name_servers": "a:1", "linger_ms": 3, "group": "g"}, ClientOptions, ProducerOptions
    )
    assert client.name_servers == ("a:1",)
    assert (producer.linger_ms, producer.group) == (3, "g")


def test_a_misspelt_setting_is_answered_with_the_right_one():
    with pytest.raises(OptionError, match="linger_ms"):
        read_settings({"linger": 3}, ClientOptions, ProducerOptions)
    with pytest.raises(OptionError, match="the options are"):
        read_client_settings({"zzz": 1})


@pytest.mark.parametrize("name", ["", "with.dot", "with space", "g" * 121, "gr\u00fcn", "a/b"])
def test_a_group_that_brokers_would_ignore_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match="use 1 to 120 letters, digits"):
        ConsumerOptions(group=name)
    assert ConsumerOptions(group="%RETRY%a|b_c-1").group
