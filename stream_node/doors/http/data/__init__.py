"""Data over HTTP: push, read and follow messages, keep the positions of consumers, and administer streams.
Every handler uses an ordinary client of the node with the identity of the caller
(`stream_node.doors.http.app.HttpCall.client`): a push is answered after its sync, and the rules decide as for everybody
else."""
