"""The kernel's network as rlctl touches it, by netlink: namespaces, routes, queueing disciplines and packet rules."""
