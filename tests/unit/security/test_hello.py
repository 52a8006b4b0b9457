"""The proof of the cluster's secret."""

import pytest

from penstock.errors import FrameError
from penstock.security.hello import MAGIC, Hello

SECRET = "a long secret of this cluster"


def sides(dialler: str = SECRET, listener: str = SECRET) -> tuple[Hello, Hello]:
    return Hello(dialler, b"d" * 16, dials=True), Hello(listener, b"l" * 16, dials=False)


def test_both_sides_prove_it_and_what_follows_is_kept() -> None:
    dialler, listener = sides()
    answer = listener.feed(dialler.begin())
    proof = dialler.feed(answer + b"first")
    assert dialler.is_done
    assert dialler.rest == b"first"
    assert not listener.is_done
    assert listener.feed(proof + b"report") == b""
    assert listener.is_done
    assert listener.rest == b"report"
    assert SECRET.encode() not in answer + proof


def test_byte_by_byte() -> None:
    dialler, listener = sides()
    answer = b"".join(listener.feed(bytes([one])) for one in dialler.begin())
    proof = b"".join(dialler.feed(bytes([one])) for one in answer)
    for one in proof:
        listener.feed(bytes([one]))
    assert dialler.is_done
    assert listener.is_done


@pytest.mark.abuse("A12")
def test_another_secret_is_refused_by_whoever_hears_it_first() -> None:
    dialler, listener = sides(dialler="another secret of someone")
    answer = listener.feed(dialler.begin())
    with pytest.raises(FrameError, match="another cluster secret"):
        dialler.feed(answer)


@pytest.mark.abuse("A12")
def test_a_dialler_without_the_secret_gets_nothing() -> None:
    _, listener = sides()
    listener.feed(MAGIC + b"x" * 16)
    with pytest.raises(FrameError, match="another cluster secret"):
        listener.feed(b"y" * 32)


@pytest.mark.abuse("A10")
def test_a_recorded_proof_is_no_good_for_the_next_connection() -> None:
    dialler, listener = sides()
    proof = dialler.feed(listener.feed(dialler.begin()))
    later = Hello(SECRET, b"L" * 16, dials=False)
    later.feed(dialler.begin())
    with pytest.raises(FrameError):
        later.feed(proof)


@pytest.mark.parametrize("data", [b"\0" * 8, b"GET / HTTP/1.1", b"\x16\x03\x01", b"PSTKHELP" + b"x" * 16])
def test_what_is_no_hello_is_refused_at_its_first_bytes(data: bytes) -> None:
    with pytest.raises(FrameError, match="hello"):
        sides()[1].feed(data)
