"""Messages as consumers see them: decoded, unpacked within bounds, of the topic that was asked for."""

import zlib

import pytest

from penstock.client.received import ReceivedMessage, decode_records, retry_topic
from penstock.errors import CodecError, CorruptRecordError, MessageTooLargeError
from penstock.protocol.bodies import MessageQueue
from tests.unit.client.consumer_messages import QUEUE, received, records, stored

VECTOR = (
    "00000065 daa320a7 58932aac 00000001 00000000 0000000000000005 0000000000000100 00000000 0000018bcfe56800"
    "7f00000100001388 0000018bcfe56801 7f00000100002a9f 00000000 0000000000000000 00000002 6869 01 54"
    "0007 54414753016102"
)


def test_the_vector_of_the_fact_sheet() -> None:
    [message] = decode_records(bytes.fromhex(VECTOR.replace(" ", "")), MessageQueue("T", "b-a", 1))
    assert (message.topic, message.body, message.tag) == ("T", b"hi", "a")
    assert (message.queue_offset, message.log_offset, message.size) == (5, 256, 0x65)
    assert message.queue == MessageQueue("T", "b-a", 1)
    assert message.msg_id == message.offset_msg_id == "7F00000100002A9F0000000000000100"
    assert str(message.born_host) == "127.0.0.1:5000"
    assert message.store_timestamp == message.born_timestamp + 1


def test_several_records_follow_each_other() -> None:
    body = records(*(stored(offset, b"x" * offset) for offset in range(5)))
    assert [m.queue_offset for m in decode_records(body, QUEUE)] == [0, 1, 2, 3, 4]
    assert decode_records(b"", QUEUE) == []


def test_the_producers_id_is_the_id() -> None:
    message = received(properties={"UNIQ_KEY": "ABC", "KEYS": "k1 k2"})
    assert message.msg_id == "ABC"
    assert message.keys == ["k1", "k2"]
    assert "ABC" in repr(message)


def test_a_message_that_is_tried_again_shows_its_own_topic() -> None:
    message = received(topic=retry_topic("g"), properties={"RETRY_TOPIC": "Orders"}, tries=2)
    assert message.topic == "Orders"
    assert message.tries == 2
    assert received(topic="%DLQ%g", properties={"RETRY_TOPIC": "Orders"}).topic == "%DLQ%g"


def test_a_packed_body_is_unpacked_when_it_is_read() -> None:
    message = received(body=zlib.compress(b"y" * 10_000), sys_flag=0x1)
    assert message.body == b"y" * 10_000
    assert message.body is message.body
    assert received(body=zlib.compress(b"z"), sys_flag=0x301).body == b"z"


@pytest.mark.abuse("A5")
def test_a_bomb_fails_its_own_message_only() -> None:
    bomb = zlib.compress(bytes(50_000_000))
    body = records(stored(0, bomb, sys_flag=0x1), stored(1, b"fine"))
    bad, good = decode_records(body, QUEUE)
    with pytest.raises(MessageTooLargeError):
        _ = bad.body
    assert good.body == b"fine"
    small = ReceivedMessage.of(stored(0, zlib.compress(b"12345"), sys_flag=0x1), QUEUE, body_bytes_max=4)
    with pytest.raises(MessageTooLargeError):
        _ = small.body


def test_a_body_that_is_not_packed_as_its_flag_says_is_an_error() -> None:
    with pytest.raises(CodecError):
        _ = received(body=b"plain", sys_flag=0x1).body


@pytest.mark.invariant("I12")
@pytest.mark.parametrize("damage", [0, 4, 20, 60, 90])
def test_damage_is_found_and_placed(damage: int) -> None:
    first, second = records(stored(0)), bytearray(records(stored(1, b"x" * 40)))
    second[damage] ^= 0xFF
    if damage in (20, 60):
        # Fields without a checksum of their own: only what can be noticed is noticed.
        decode_records(first + bytes(second), QUEUE)
        return
    with pytest.raises(CorruptRecordError) as caught:
        decode_records(first + bytes(second), QUEUE)
    assert caught.value.position == len(first)


@pytest.mark.parametrize("cut", [1, 3, 50])
def test_a_record_that_ends_early_is_found(cut: int) -> None:
    body = records(stored(0), stored(1))
    with pytest.raises(CorruptRecordError):
        decode_records(body[:-cut], QUEUE)


@pytest.mark.abuse("A26")
def test_a_record_of_another_topic_is_refused() -> None:
    body = records(stored(0), stored(1, topic="Secret"))
    with pytest.raises(CorruptRecordError, match="Secret"):
        decode_records(body, QUEUE)
    assert [m.queue.topic for m in decode_records(body)] == ["T", "Secret"]
