"""Goal: a node that was killed listens at its address again, whatever other programs connect to meanwhile.

Method: another socket asks for the port while the node is down, as the system does for an outgoing connection.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from ockam.actors.address import split_host_port
from stream_node.node.process import NodeProcess

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps a port for a node that is down")


def test_nobody_gets_the_port_of_a_node_that_is_down(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data") as node:
        address = node.address
        for end in (node.kill, node.stop):
            end()
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind(split_host_port(address))
            # Nobody listens there: who connects is refused at once.
            with socket.socket() as client, pytest.raises(ConnectionRefusedError):
                client.connect(split_host_port(address))
            node.start()
            assert node.address == address
            socket.create_connection(split_host_port(address)).close()
        node.kill()
    with socket.socket() as other:
        other.bind(split_host_port(address))
