"""Files that the demonstration writes into its directory, to be read, changed and run again."""

from __future__ import annotations

from penstock.cli.demo_orders import WATERMARK_MINUTES, WINDOW_MINUTES
from penstock.cli.demo_shop import ORDERS, POISON, TOTALS
from penstock.cli.demo_workload import OPTIONS

PIPELINE = f"""\
# Revenue by channel in windows of the shop's time, from a topic into a topic.
# penstock pipeline stream validate orders.toml; penstock pipeline stream run orders.toml
name = "orders"
nameserver = "{{nameserver}}"
checkpoint = "pipeline"

[sources.orders]
topic = "{ORDERS}"
group = "orders-pipeline"                      # penstock group describe orders-pipeline shows how far it is
fields = "order_id string, customer string, channel string, item string, amount_cents bigint, at timestamp"
columns = ["store_time"]
watermark = {{{{ column = "at", delay = "{WATERMARK_MINUTES} minutes" }}}}
deduplicate = ["order_id"]                     # sent twice, counted once

[steps.totals]
sql = '''
select window.start as from_time, window.end as to_time, channel, count(*) as orders, sum(amount_cents) as cents
from (select window(at, '{WINDOW_MINUTES} minutes') as window, channel, amount_cents from orders)
group by window, channel
'''

[sinks.totals]
from = "totals"
topic = "{TOTALS}"
body = "json"
keys = "channel"
trigger = "2 seconds"

[sinks.poison]                                 # bodies that do not have the fields
from = "orders_bad"
topic = "{POISON}"
trigger = "2 seconds"
"""

NODE = f"""\
# The node of the demonstration: penstock up --config node.toml
data = "{{data}}"

[store]
segment_size_bytes = {OPTIONS.segment_size_bytes}
queue_file_entries = {OPTIONS.queue_file_entries}
index_slots = {OPTIONS.index_slots}
index_entries = {OPTIONS.index_entries}
"""


def pipeline_text(nameserver: str) -> str:
    return PIPELINE.format(nameserver=nameserver)


def node_text(data: str) -> str:
    return NODE.format(data=data)
