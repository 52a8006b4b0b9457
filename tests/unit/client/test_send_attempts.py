import pytest

from penstock.client.results import BatchResult, SendResult, SendStatus, read_result
from penstock.client.send_attempts import RETRIED_CODES, SendAttempts, Verdict
from penstock.errors import (
    CallTimeoutError,
    CodecError,
    ConnectError,
    ConnectionLostError,
    SendFailedError,
    SendUnknownError,
)
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.command import Command

QUEUES = [MessageQueue("T", name, 0) for name in ("a", "b", "c")]


def other_broker(queues, avoid):
    return next(queue for queue in queues if queue.broker_name != avoid)


def attempts(count=3, **more):
    return SendAttempts(other_broker, attempts_max=count, **more)


def result(status=SendStatus.OK, durability=""):
    return SendResult(status, "id", QUEUES[0], 5, durability)


def refuse(code, remark="no", **fields):
    return Command(code, fields, remark=remark, flag=1)


def test_a_stored_message_is_done():
    send = attempts()
    assert send.choose(QUEUES).broker_name == "a"
    assert send.stored_as(result()) is Verdict.DONE
    assert send.count == 1
    assert send.shortfall() is None


@pytest.mark.seed("S1-87")
def test_a_retry_goes_to_another_broker():
    send = attempts()
    first = send.choose(QUEUES)
    assert send.refused(refuse(14)) is Verdict.RETRY
    assert send.choose(QUEUES).broker_name != first.broker_name


def test_attempts_are_limited():
    send = attempts(2)
    send.choose(QUEUES)
    assert send.lost(ConnectError("refused")) is Verdict.RETRY
    send.choose(QUEUES)
    assert send.lost(ConnectError("refused")) is Verdict.GIVE_UP
    error = send.error()
    assert isinstance(error, SendFailedError)
    assert error.attempts == ("a:0 refused", "b:0 refused")
    assert "2 attempts" in str(error)


@pytest.mark.parametrize("code", sorted(RETRIED_CODES))
def test_codes_after_which_another_broker_may_do_better(code):
    send = attempts()
    send.choose(QUEUES)
    assert send.refused(refuse(code)) is Verdict.RETRY


@pytest.mark.parametrize("code", [13, 29, 3, 26])
def test_what_is_wrong_with_the_message_is_not_tried_again(code):
    send = attempts()
    send.choose(QUEUES)
    assert send.refused(refuse(code, "too large")) is Verdict.GIVE_UP
    error = send.error()
    assert (error.code, error.outcome_unknown) == (code, False)
    assert "too large" in str(error)


@pytest.mark.parametrize("lost", [CallTimeoutError("silence"), ConnectionLostError("cut")])
def test_without_an_answer_the_outcome_is_unknown_even_if_later_attempts_fail(lost):
    send = attempts(2)
    send.choose(QUEUES)
    assert send.lost(lost) is Verdict.RETRY
    send.choose(QUEUES)
    assert send.refused(refuse(14)) is Verdict.GIVE_UP
    error = send.error()
    assert isinstance(error, SendUnknownError)
    assert error.outcome_unknown
    assert "may be stored" in error.hint


def test_stale_routes_are_told():
    send = attempts()
    send.choose(QUEUES)
    send.lost(ConnectError("refused"))
    assert send.route_is_stale
    send.choose(QUEUES)
    assert not send.route_is_stale
    send.refused(refuse(17))
    assert send.route_is_stale


def test_a_broker_may_say_when_to_come_back():
    send = attempts()
    send.choose(QUEUES)
    send.refused(refuse(2, penstockRetryAfterMs="40"))
    assert send.retry_after_ms == 40
    send.refused(refuse(2, penstockRetryAfterMs="soon"))
    assert send.retry_after_ms == 0


@pytest.mark.parametrize(
    ("status", "reached", "enough"),
    [
        (SendStatus.OK, "flushed", True),
        (SendStatus.OK, "replicated", True),
        (SendStatus.OK, "memory", False),
        (SendStatus.OK, "", True),  # a RocketMQ broker, which does not say
        (SendStatus.FLUSH_DISK_TIMEOUT, "memory", False),
        (SendStatus.FLUSH_DISK_TIMEOUT, "", False),
    ],
)
def test_a_demand_that_was_not_met_is_an_error_that_holds_the_result(status, reached, enough):
    send = attempts(durability="flushed")
    send.choose(QUEUES)
    assert send.stored_as(result(status, reached)) is Verdict.DONE
    error = send.shortfall()
    assert (error is None) is enough
    if error is not None:
        assert error.outcome_unknown
        assert error.result == result(status, reached)
        assert error.code == 10


def test_less_durable_than_configured_is_a_status_unless_retries_are_wanted():
    send = attempts()
    send.choose(QUEUES)
    assert send.stored_as(result(SendStatus.SLAVE_NOT_AVAILABLE)) is Verdict.DONE
    assert send.shortfall() is None
    again = attempts(2, retry_not_durable=True)
    again.choose(QUEUES)
    assert again.stored_as(result(SendStatus.FLUSH_DISK_TIMEOUT)) is Verdict.RETRY
    again.choose(QUEUES)
    assert again.lost(ConnectError("refused")) is Verdict.GIVE_UP
    assert isinstance(again.error(), SendUnknownError)
    last = attempts(1, retry_not_durable=True)
    last.choose(QUEUES)
    assert last.stored_as(result(SendStatus.FLUSH_DISK_TIMEOUT)) is Verdict.DONE


def answer(code=0, **fields):
    given = {
        "msgId": "AA",
        "queueId": "1",
        "queueOffset": "7",
        "MSG_REGION": "r",
        "TRACE_ON": "false",
        **fields,
    }
    return Command(code, given, flag=1)


def test_a_result_is_read_from_an_answer():
    found = read_result(answer(10, transactionId="t", durability="memory"), "id", "T", "a", 2)
    assert found == SendResult(
        SendStatus.FLUSH_DISK_TIMEOUT, "id", MessageQueue("T", "a", 1), 7, "memory", "AA", "t", "r", False, 2
    )
    assert not found.is_ok
    with pytest.raises(CodecError, match="queueOffset"):
        read_result(answer(queueOffset="x"), "id", "T", "a")


def test_the_messages_of_a_batch_have_their_own_results():
    first = read_result(answer(msgId="AA,BB,CC"), "1", "T", "a")
    batch = BatchResult(first, ["1", "2", "3"])
    assert [(r.msg_id, r.queue_offset, r.offset_msg_id) for r in batch] == [
        ("1", 7, "AA"),
        ("2", 8, "BB"),
        ("3", 9, "CC"),
    ]
    assert len(batch) == 3
    assert batch[-1] == batch[2]
    assert [r.msg_id for r in batch[1:]] == ["2", "3"]
    with pytest.raises(IndexError):
        batch[3]
    inner = BatchResult(read_result(answer(msgId="ONE"), "1", "T", "a"), ["1", "2"])
    assert [r.offset_msg_id for r in inner] == ["", ""]


# -- while there is no master --------------------------------------------------------------------------------


def test_waiting_for_a_master_uses_up_no_attempt_and_asks_for_the_route():
    send = attempts(2, wait_until_ms=1_000)
    for now_ms in (0, 500, 999):
        assert send.absent(ConnectError("nobody there"), now_ms) is Verdict.RETRY
        assert send.route_is_stale
    assert (send.count, send.absences, send.number) == (0, 3, 4)
    assert send.absent(ConnectError("nobody there"), 1_000) is Verdict.RETRY  # the first attempt that counts
    assert send.absent(ConnectError("nobody there"), 1_000) is Verdict.GIVE_UP
    assert isinstance(send.error(), SendFailedError)


@pytest.mark.parametrize("code", [1, 2, 14])
@pytest.mark.parametrize("remark", ["[REJECTREQUEST]is a slave", "[IN_SYNC_REPLICAS_NOT_ENOUGH]2"])
def test_a_broker_that_says_not_here_is_no_attempt_while_there_is_time(code, remark):
    send = attempts(1, wait_until_ms=1_000)
    send.choose(QUEUES)
    assert send.refused(refuse(code, remark, penstockRetryAfterMs="70"), 999) is Verdict.RETRY
    assert (send.absences, send.retry_after_ms, send.route_is_stale) == (1, 70, True)
    assert send.refused(refuse(code, remark), 1_000) is Verdict.GIVE_UP


def test_an_unknown_outcome_is_an_attempt_whatever_its_remark():
    send = attempts(1, wait_until_ms=1_000)
    send.choose(QUEUES)
    answer = refuse(14, "[REJECTREQUEST]not sure", penstockOutcome="unknown")
    assert send.refused(answer, 0) is Verdict.GIVE_UP
    assert isinstance(send.error(), SendUnknownError)


def test_a_broker_that_did_not_answer_may_have_been_replaced():
    send = attempts()
    send.choose(QUEUES)
    assert send.lost(CallTimeoutError("no answer")) is Verdict.RETRY
    assert send.route_is_stale
