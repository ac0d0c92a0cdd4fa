"""Reading: the services that send stored blocks to readers: `block_subscribe`, `block_get` and `block_status`."""
