"""Which names and addresses a name server hands out."""

import pytest

from penstock.errors import RequestError
from penstock.protocol.identity import (
    check_address,
    check_name,
    is_anywhere,
    is_loopback,
    is_name,
    seen_from,
)


@pytest.mark.parametrize(
    "name",
    [
        "broker-a",
        "DefaultCluster",
        "ip-10-0-0-1.example.com",
        "%RETRY%group",
        "%RETRY%group+topic",
        "INST_ns%topic",
        "room@broker",
        "rmq_sys_SYNC_BROKER_MEMBER_broker-a",
        "a" * 255,
    ],
)
def test_names_that_brokers_have(name: str) -> None:
    assert check_name("name", name) == name


@pytest.mark.abuse("A6")
@pytest.mark.parametrize(
    "name",
    ["", "a b", "a/b", "a\\b", "..", "a..b", "a\x00", "ä", "a\n", "a,b", 'a"b', "a:b", "a;b", "a" * 256],
)
def test_names_that_nobody_has(name: str) -> None:
    assert not is_name(name)
    with pytest.raises(RequestError) as caught:
        check_name("broker name", name)
    assert caught.value.code == 29
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "address",
    [
        "10.0.0.1:10911",
        "127.0.0.1:1",
        "broker-0.broker.default.svc.cluster.local:10911",
        "my_broker:65535",
        "[2001:db8::1]:10911",
        "2001:db8::1:10911",
        "0.0.0.0:10911",
        "[::]:10911",
        "3com.example:80",
        "metadata.example.org:10911",
        "metadata-0.metadata.kafka.svc:10911",
        "google.internal:10911",
        "169-255-169-254.example:80",
        "[2002:0a00:0001::1]:10911",
    ],
)
def test_addresses_that_clients_can_dial(address: str) -> None:
    assert check_address("brokerAddr", address) == address


@pytest.mark.abuse("A12")
@pytest.mark.parametrize(
    "address",
    [
        "",
        ":",
        ":80",
        "host",
        "host:",
        "host:0",
        "host:65536",
        "host:-1",
        "host:8x",
        "host:²",
        "ho st:80",
        "http://host:80",
        "user@host:80",
        "host:80/path",
        "-host:80",
        "[1.2.3.4]:80",
        "[2001:db8::1:80",
        "2001:db8::1]:80",
        "169.254.169.254:80",
        "[::ffff:169.254.169.254]:80",
        "[fe80::1]:80",
        "[fe80::1%eth0]:80",
        "[fd00:ec2::254]:80",
        "100.100.100.200:80",
        "224.0.0.1:80",
        "[ff02::1]:80",
        "255.255.255.255:80",
        "2852039166:80",
        "0xa9fea9fe:80",
        "169.254.43518:80",
        "0251.0376.0251.0376:80",
        "0XA9FEA9FE:80",
        "025177524776:80",
        "0xa9.0xfe.0xa9.0xfe:80",
        "0251.254.169.254:80",
        "169.16689662:80",
        "2852039166.:80",
        "169.254.169.254.:80",
        "169.254.170.2:80",
        "169.254.0.23:80",
        "192.0.0.192:80",
        "\uff11\uff16\uff19.254.169.254:80",
        "169\u3002254\u3002169\u3002254:80",
        "[::ffff:a9fe:a9fe]:80",
        "::ffff:a9fe:a9fe:80",
        "[0:0:0:0:0:ffff:169.254.169.254]:80",
        "[::169.254.169.254]:80",
        "[::a9fe:a9fe]:80",
        "[64:ff9b::a9fe:a9fe]:80",
        "[64:ff9b::169.254.169.254]:80",
        "[2002:a9fe:a9fe::1]:80",
        "[2001:0:a9fe:a9fe::1]:80",
        "[::ffff:100.100.100.200]:80",
        "[FD00:0EC2:0:0:0:0:0:0254]:80",
        "[fd00:ec2::23]:80",
        "[fd20:ce::254]:80",
        "[::ffff:224.0.0.1]:80",
        "metadata:80",
        "METADATA:80",
        "metadata.:80",
        "metadata.google.internal:80",
        "Metadata.Google.Internal:80",
        "metadata.google.internal.:80",
        "x.metadata.google.internal:80",
        "metadata.goog:80",
        "instance-data:80",
        "instance-data.ec2.internal:80",
        "metadata.azure.internal:80",
        "metadata.tencentyun.com:80",
        "169.254.169.254.nip.io:80",
        "169-254-169-254.sslip.io:80",
        "www.169-254-169-254.sslip.io:80",
        "a9fea9fe.nip.io:80",
        "a" * 254 + ":80",
        "a" * 100_000 + ":80",
    ],
)
def test_addresses_that_nobody_should_be_given(address: str) -> None:
    with pytest.raises(RequestError) as caught:
        check_address("brokerAddr", address)
    assert caught.value.code == 29
    assert len(str(caught.value)) < 300


def test_the_address_that_was_dialled() -> None:
    assert is_anywhere("0.0.0.0:10911")
    assert is_anywhere("[::]:10911")
    assert not is_anywhere("10.0.0.1:10911")
    assert not is_anywhere("10.0.0.0:10911")
    assert seen_from("0.0.0.0:10911", "192.168.1.5") == "192.168.1.5:10911"
    assert seen_from("0.0.0.0:10911", "fd00::5") == "[fd00::5]:10911"
    assert seen_from("0.0.0.0:10911", "") == "0.0.0.0:10911"
    assert seen_from("10.0.0.1:10911", "192.168.1.5") == "10.0.0.1:10911"


def test_loopback() -> None:
    assert is_loopback("127.0.0.1")
    assert is_loopback("127.8.8.8")
    assert is_loopback("::1")
    assert not is_loopback("10.0.0.1")
    assert not is_loopback("localhost.evil.example")
