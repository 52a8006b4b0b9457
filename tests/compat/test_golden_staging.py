"""The examples of docs/formats/staged-publication.md against the product, byte for byte."""

from __future__ import annotations

import json
import struct

from penstock._hot.mapped import MappedBytes
from penstock._hot.staged import StagedItems
from penstock.broker.publication_records import Begun, Done, HomeTold
from penstock.broker.staging import Handle
from penstock.metadata.config_files import DataVersion
from penstock.metadata.fastjson import dump_pretty
from penstock.metadata.publication_table import Elsewhere, PublicationTable, Published
from penstock.protocol.bodies.staged import decode_head, encode_head, encode_item
from tests.compat.test_golden_bytes import BORN, GOLDEN, STORED

PROPERTIES = b"UNIQ_KEY\x01U1\x02"


def test_the_body_follows_the_rules() -> None:
    head = b"orders\x012\x02"
    item = struct.pack(">iiiii", 22 + 5 + len(PROPERTIES), 1, 0, 7, 5) + b"water"
    item += struct.pack(">h", len(PROPERTIES)) + PROPERTIES
    assert struct.pack(">i", len(head)) + head + item == GOLDEN["staged-body"]


def test_the_body_is_what_is_written_and_read() -> None:
    data = GOLDEN["staged-body"]
    assert encode_head([("orders", 2)]) + encode_item(1, b"water", PROPERTIES, flag=7) == data
    topics, at = decode_head(data)
    assert topics == [("orders", 2)]
    items = StagedItems(MappedBytes(data), at, len(data))
    assert items.check(2, 32_767) == 0
    assert (items.used(), items.properties()) == ([(1, 1)], PROPERTIES)


def test_records_of_publications() -> None:
    handle = Handle(236, 181, 1, "S1")
    begun = Begun("0a3b", 41, 1, (handle,))
    assert begun.message().body == GOLDEN["publication-begun"]
    assert begun.message().properties == {"TAGS": "begun", "KEYS": "0a3b"}
    done = Done("0a3b", 41, 1, 417)
    assert done.message().body == GOLDEN["publication-done"]
    assert done.message().properties == {"TAGS": "done", "KEYS": "0a3b"}
    told = HomeTold("77c1", "broker-b")
    assert told.message().body == GOLDEN["publication-home"]
    assert told.message().properties == {"TAGS": "home", "KEYS": "77c1"}


def test_the_table() -> None:
    table = PublicationTable(DataVersion(0, 1, BORN), 3, {"0a3b": Published(41, 1, STORED)})
    table.homes["77c1"] = Elsewhere("broker-b", STORED)
    data = GOLDEN["stagedPublications.json"]
    assert dump_pretty(table.to_json()) == data
    assert PublicationTable.from_json(json.loads(data)) == table
