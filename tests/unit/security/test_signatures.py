import base64
import hashlib
import hmac

import pytest

from penstock.protocol.codes import V4_9_3, V5_3_3
from penstock.security.signatures import is_signed, sign


def test_the_vector_of_the_reference() -> None:
    assert (
        sign("sk", {"AccessKey": "ak", "queueId": "0", "topic": "T"}, b"hi") == "mkoio365tMrLGezPv94Zx/ECkWI="
    )


def test_names_are_ordered_as_java_orders_them() -> None:
    """Upper case before lower case, and beyond the first plane before U+E000: by UTF-16 units."""
    fields = {"b": "3", "B": "2", "\ue000": "5", "\U0001f600": "4", "A": "1"}
    expected = base64.b64encode(hmac.new(b"k", b"12345", hashlib.sha1).digest()).decode()
    assert sign("k", fields, b"") == expected


@pytest.mark.parametrize(
    "change",
    [{"topic": "U"}, {"more": "x"}, {"Signature": "A" * 28}, {"Signature": ""}, {"AccessKey": "other"}],
)
def test_whatever_is_changed_breaks_the_signature(change: dict[str, str]) -> None:
    fields = {"AccessKey": "ak", "topic": "T"}
    fields["Signature"] = sign("secret", fields, b"body")
    assert is_signed("secret", fields, b"body", V5_3_3)
    assert not is_signed("secret", {**fields, **change}, b"body", V5_3_3)
    assert not is_signed("secret", fields, b"bodY", V5_3_3)
    assert not is_signed("other", fields, b"body", V5_3_3)


def test_go_leaves_the_token_out_and_java_does_not() -> None:
    fields = {"AccessKey": "ak", "SecurityToken": "token", "topic": "T"}
    java = {**fields, "Signature": sign("secret", fields, b"")}
    go = {**fields, "Signature": sign("secret", fields, b"", "SecurityToken")}
    assert is_signed("secret", java, b"", V5_3_3)
    assert is_signed("secret", go, b"", V5_3_3)
    assert not is_signed("secret", {**java, "SecurityToken": "stolen"}, b"", V5_3_3)


def test_old_java_clients_do_not_sign_the_mark_of_a_unique_key() -> None:
    fields = {"AccessKey": "ak", "key": "k", "_UNIQUE_KEY_QUERY": "true"}
    fields["Signature"] = sign("secret", fields, b"", "_UNIQUE_KEY_QUERY")
    assert is_signed("secret", fields, b"", V4_9_3)
    assert not is_signed("secret", fields, b"", V5_3_3)


def test_a_lone_surrogate_is_refused_and_not_a_crash() -> None:
    assert not is_signed("secret", {"Signature": "\ud800" * 28, "x": "\ud800"}, b"", V5_3_3)
