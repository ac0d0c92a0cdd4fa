"""The block node: publish, verify, persist, subscribe, status and access for chains of blocks, on the streams.

A program takes names from their modules, since a client or an export must not load the node: the client is
`block_node.client`, the node's parts are put together in `block_node.node`, `block_node.read.services` and
`block_node.backfill.service`, and blocks as bytes are `block_node.blocks`.
"""
