"""Writes to a block device, for ever: `python -I -S writer.py DEVICE BYTES WORKERS DEPTH COUNTS COPIES`.

A best-effort job, as backups and log archives are: its CPU time is compression, its work what is on the disk. Where
COPIES is the size of a block, it copies blocks instead, as rsync does, and next to no CPU time goes by. Each of DEPTH
threads writes to a part of the device's BYTES, directly, so that the rate is the disk's and not the memory's.
COUNTS takes 8 bytes for each: what it has written. It is a file of its own in a bare interpreter, and uses nothing
outside the standard library. It says `ready` when it could begin, and begins at SIGUSR1.
"""

from __future__ import annotations

import itertools
import mmap
import os
import random
import signal
import sys
import threading
import zlib

BLOCK_BYTES = 262_144
BLOCKS = 16
LEVEL = 1
UNIT_BYTES = 4096  # of direct writes


def main(arguments: list[str]) -> int:
    """Share the threads out to the workers, and write; the arguments are those of the command line."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    size, workers, depth = map(int, arguments[1:4])
    copied_bytes = int(arguments[5])
    device = os.open(arguments[0], os.O_RDWR | os.O_DIRECT)
    with open(arguments[4], "r+b") as file:
        counts = memoryview(mmap.mmap(file.fileno(), 8 * depth)).cast("Q")
    dice = random.Random(1)
    blocks = [dice.randbytes(BLOCK_BYTES // 2).hex().encode() for _ in range(BLOCKS)]
    print("ready", flush=True)
    signal.sigwait({signal.SIGUSR1})
    worker = next((number for number in range(1, workers) if os.fork() == 0), 0)
    part = size // depth // UNIT_BYTES * UNIT_BYTES
    for number in range(worker, depth, workers):
        job = (copy, copied_bytes) if copied_bytes else (write, blocks)
        threading.Thread(target=job[0], args=(device, number, part, job[1], counts)).start()
    return 0


def copy(device: int, number: int, part: int, block_bytes: int, counts: memoryview) -> None:
    """Copy the first half of one part of the device to the second, block by block, round and round."""
    buffer = mmap.mmap(-1, block_bytes)
    blocks = part // (2 * block_bytes)
    for block in itertools.cycle(range(blocks)):
        os.preadv(device, [buffer], number * part + block * block_bytes)
        counts[number] += os.pwrite(device, buffer, number * part + (blocks + block) * block_bytes)


def write(device: int, number: int, part: int, blocks: list[bytes], counts: memoryview) -> None:
    """Write compressed blocks to one part of the device, round and round."""
    buffer = mmap.mmap(-1, 2 * BLOCK_BYTES)  # aligned, as direct writes want it
    view, offset = memoryview(buffer), 0
    for block in itertools.islice(itertools.cycle(blocks), number, None):
        data = zlib.compress(block, LEVEL)
        buffer[: len(data)] = data
        length = -(-len(data) // UNIT_BYTES) * UNIT_BYTES
        offset = offset if offset + length <= part else 0
        counts[number] += os.pwrite(device, view[:length], number * part + offset)
        offset += length


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
