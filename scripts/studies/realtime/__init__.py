"""Wake-up latency of a real-time task beside several loads, under several kinds of isolation."""
