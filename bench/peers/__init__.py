"""Other servers that the node is compared with: which there are, how they are started, and how they are measured."""

from bench.peers.kinds import KINDS, Kind, Work
from bench.peers.running import Peer, running_peers

__all__ = ["KINDS", "Kind", "Peer", "Work", "running_peers"]
