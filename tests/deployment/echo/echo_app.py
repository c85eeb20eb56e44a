# SPDX-License-Identifier: Apache-2.0
"""A Flower app that sends every node an array and checks that the same comes back."""

import json
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

server = ServerApp()
client = ClientApp()


@client.train()
def echo(message: Message, context: Context) -> Message:
    """Return what has come."""
    return Message(message.content, reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Write what came back, and the names under which the nodes are known, to the file ``out``."""
    nodes = {node.node_id: node.name for node in grid.get_nodes()}
    sent = np.random.default_rng(7).random(int(context.run_config["megabytes"]) * 131072)
    content = RecordDict({"arrays": ArrayRecord({"sent": Array(sent)})})
    replies = grid.send_and_receive([Message(content, node, "train") for node in nodes], timeout=240)
    same = {
        nodes[reply.metadata.src_node_id]: not reply.has_error()
        and np.array_equal(reply.content.array_records["arrays"]["sent"].numpy(), sent)
        for reply in replies
    }
    Path(str(context.run_config["out"])).write_text(json.dumps({"nodes": sorted(nodes.values()), "same": same}))
