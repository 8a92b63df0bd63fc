"""Where the LC's tail latency comes from: the kernel's TCP sockets, an endpoint, a log, or how long the LC waits.

Each source yields figures, and `figures` checks them and makes the readings of a tick. The quantile is the SLO's, 95 %
unless told: `tcp_window` and `window` take it of requests, `histogram` of counts; other endpoints say it themselves.
"""
