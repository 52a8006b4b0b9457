import os
import threading

import pytest

from penstock.client.identity import UniqueIds, client_id, month_start_ms
from penstock.runtime import Runtime, SeededEntropy
from penstock.testing.clock import ManualClock

MONTH = month_start_ms(1_700_000_000_000)


def runtime(now_ms=MONTH + 5_000, seed=1):
    return Runtime(clock=ManualClock(now_ms), entropy=SeededEntropy(seed))


def test_a_client_id_names_machine_process_and_unit():
    found = client_id("10.0.0.1", "", "", runtime())
    ip, _, instance = found.partition("@")
    assert ip == "10.0.0.1"
    assert instance.startswith(f"{os.getpid()}#")
    assert client_id("10.0.0.1", "rmq-instance", "", runtime()) == "10.0.0.1@rmq-instance"
    assert client_id("10.0.0.1", "i", "unit", runtime()) == "10.0.0.1@i@unit"


def test_two_clients_of_a_process_have_different_ids():
    same = runtime()
    assert client_id("::1", "", "", same) != client_id("::1", "", "", same)


@pytest.mark.parametrize(("ip", "length"), [("10.0.0.1", 32), ("::1", 56)])
def test_the_parts_of_a_unique_id(ip, length):
    found = UniqueIds(ip, runtime()).next()
    assert len(found) == length
    assert found == found.upper()
    raw = bytes.fromhex(found)
    host = raw[:-12]
    assert len(host) == (4 if length == 32 else 16)
    assert int.from_bytes(raw[-12:-10], "big") == os.getpid() & 0xFFFF
    assert int.from_bytes(raw[-6:-2], "big") == 5_000
    assert raw[-2:] == b"\0\0"


def test_ids_differ_although_the_clock_stands_still():
    ids = UniqueIds("10.0.0.1", runtime())
    found = {ids.next() for _ in range(70_000)} | set(ids.take(70_000))
    assert len(found) == 140_000


@pytest.mark.fault("F10")
def test_ids_do_not_repeat_when_the_clock_goes_back():
    world = runtime()
    ids = UniqueIds("10.0.0.1", world)
    found = ids.take(1000)
    world.clock.jump(-3_600_000)
    found += ids.take(70_000)
    world.clock.jump(3_600_000)
    found += ids.take(1000)
    assert len(set(found)) == len(found)


def test_a_new_month_begins_the_time_again_under_another_number():
    world = runtime()
    ids = UniqueIds("10.0.0.1", world)
    first = ids.next()
    world.clock.jump(40 * 86_400_000)
    (second,) = ids.take(1)
    assert int(second[20:28], 16) < 40 * 86_400_000
    assert first[12:20] != second[12:20]


def test_threads_never_get_the_same_id():
    ids = UniqueIds("10.0.0.1", Runtime.system())
    found: list[str] = []

    def take():
        found.extend([ids.next() for _ in range(2_000)] + ids.take(2_000))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 16_000
