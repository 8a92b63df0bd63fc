"""A network link or disk with a provisioned rate that LC and BE share: it lies behind the CPU, where no weight reaches.

Both write into one queue that a server of constant rate empties. Below saturation it is an M/M/1 queue. At saturation
the flow control of BE (TCP's, or a bounded queue depth) keeps the utilisation at 1. The queue then wanders over all of
its buffer, so its delay is bounded. What has no bound is the LC's own backlog, where its part of the full link is less
than it asks for.
"""

from __future__ import annotations

import math

from rlctl.envs.law import law
from rlctl.envs.rows import Row


@law
def link_rate(c: Row, seconds: float, tick_seconds: float, credit_bytes: float) -> float:
    """Bytes per second that the link takes in a control period.

    Args:
        seconds: When the period begins, since the start of the run.
        credit_bytes: Credits that are left then.
    """
    stepped = math.floor(seconds / c["link_step_seconds"]) % 2 == 1
    top = c["link_bytes_per_second"] * (c["link_step_ratio"] if stepped else 1.0)
    # A token bucket with a peak rate (RFC 2698): what flows beyond the base rate is paid for by credits.
    return min(top, top * c["link_base_ratio"] + credit_bytes / tick_seconds)


@law
def credits_after(c: Row, credit_bytes: float, sent_bytes_per_second: float, tick_seconds: float) -> float:
    """Credits after a control period in which so much was sent; they refill at the base rate."""
    refilled = c["link_bytes_per_second"] * c["link_base_ratio"]
    left = credit_bytes + (refilled - sent_bytes_per_second) * tick_seconds
    return min(max(left, 0.0), c["link_credit_bytes"])


@law
def queue_seconds(q: float, c: Row, lc: float, be: float, rate: float) -> float:
    """The q-quantile of what a reply of the LC waits in the queue.

    Args:
        q: The quantile, in (0, 1).
        lc, be: Bytes per second that both offer.
        rate: Bytes per second that the link takes.
    """
    # Work in an M/M/1 queue (Kleinrock 1975, Queueing Systems I, chapter 3): there is some with probability rho, and
    # then it is exponential with mean J / (1 - rho), where J is the mean job. One J for both: BE's quota has it send
    # in pieces that are no longer than the LC's replies, as the sweep of the link shows.
    rho = (lc + be) / rate
    # A finite buffer M cuts that distribution off: P(work > x) = rho (e^-ax - e^-aM) / (1 - e^-aM) with
    # a = (1 - rho) / J, as in M/M/1/K (Kleinrock, section 3.6). At rho = 1 it is uniform over the buffer, and is
    # taken to stay so beyond: loss makes TCP back off until the link is just full, and its windows' sawtooth takes the
    # queue from empty to full and back (Appenzeller, Keslassy and McKeown 2004, Sizing router buffers).
    most = c["link_queue_bytes"] + c["link_bucket_bytes"]
    fall = max((1.0 - rho) / c["link_burst_bytes"], 1e-9 / most)
    met = 1.0 - (1.0 - q) / max(min(rho, 1.0), 1.0 - q)  # 0 where fewer meet a queue than q leaves out
    work = -math.log1p(met * math.expm1(-fall * most)) / fall
    # Bursts that fit into a token bucket pass at once: its delay is that of the plain queue less the bucket
    # (Berger and Whitt 1992, The impact of a job buffer in a token-bank rate-control throttle).
    return max(work - c["link_bucket_bytes"], 0.0) / rate


@law
def lc_room(c: Row, be: float, rate: float) -> float:
    """Bytes per second that the LC can send beside a BE that offers so many."""
    # What BE leaves, and never less than the part of its own flows: max-min fairness (Bertsekas and Gallager 1992, Data
    # Networks, chapter 6), to which TCP's flows come near, and a throttle that serves writers in turn.
    return max(rate - be, c["link_lc_ratio"] * rate)


@law
def be_cpus_carried(be_bytes: float, be_cpus: float, lc: float, rate: float) -> float:
    """Of BE's CPU time per second that whose output the link lets through beside so many bytes of the LC.

    Args:
        be_bytes: What a second of BE's CPU time puts on the link.
    """
    return min(be_cpus, max(rate - lc, 0.0) / max(be_bytes, 1e-9))
