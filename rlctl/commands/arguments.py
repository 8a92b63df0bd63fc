"""Types of arguments, and checks of them, that commands share."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rlctl.envs.host.cgroup.journal import STATE_DIR

T = TypeVar("T")


def number(made: Callable[[str], T], fits: Callable[[T], bool], unlike: str) -> Callable[[str], T]:
    """A type for argparse: what is made of the text, if it fits; else the text `unlike`, such as "is no share"."""

    def parse(text: str) -> T:
        with contextlib.suppress(ValueError):
            if fits(value := made(text)):
                return value
        raise argparse.ArgumentTypeError(f"{text!r} {unlike}")

    return parse


positive = number(float, lambda value: 0.0 < value < 1e9, "is not a positive number, such as 600 or 0.5")


def add_state(parser: argparse.ArgumentParser) -> None:
    """Declare `--state` and `--config`, which say where a service keeps what it must not forget."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--state", type=Path, metavar="DIR", help=f"default: {STATE_DIR}")
    where.add_argument("--config", type=Path, metavar="FILE", help="serve's configuration: its state_directory")


def state_of(args: argparse.Namespace) -> Path:
    """The state directory that the arguments name."""
    if args.config is None:
        return Path(args.state or STATE_DIR)
    from rlctl.config.serve import load_config  # pydantic: only where a configuration is read

    return load_config(args.config).state_directory


def add_names(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Declare `--lc`, `--be` and `--target`."""
    add_workloads(parser, required=required)
    parser.add_argument("--target", metavar="TIME", required=required, help="the LC's p95 to stay below, such as 10ms; "
                        "auto proposes one")  # fmt: skip


def add_workloads(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Declare `--lc` and `--be`."""
    parser.add_argument("--lc", metavar="NAME", required=required, help="the latency-critical service: unit, control "
                        "group, container, name:PROCESS or pod:NAMESPACE/NAME")  # fmt: skip
    parser.add_argument("--be", metavar="NAME", required=required, help="best-effort work, named likewise")
