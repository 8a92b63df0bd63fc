"""A Ray cluster: how one is connected to, and how work is spread over its nodes."""
