"""What commands of the laboratory share: options, checks of them, and the command line that they make."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rlctl.commands.arguments import number
from rlctl.envs.errors import ConfigError

if TYPE_CHECKING:
    from rlctl.safety.profile import Profile


not_negative = number(float, lambda value: 0.0 <= value < 1e9, "is not a number from 0, such as 300 or 0")
positive_int = number(int, lambda value: value >= 1, "is not a positive whole number, such as 1000")


def split_names(text: str) -> tuple[str, ...]:
    """The names between commas, for argparse too; empty ones are left out."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def require_names(option: str, text: str) -> tuple[str, ...]:
    """As `split_names`, each once; ConfigError: the option names nothing."""
    if not (names := tuple(dict.fromkeys(split_names(text)))):
        raise ConfigError(f"{option} names nothing")
    return names


def address(text: str) -> str:
    """The address of a Ray cluster, for argparse: an empty one comes of a shell variable that was not set."""
    if not text:
        raise argparse.ArgumentTypeError("is empty; give local, auto, or HOST:PORT of a cluster's head")
    return text


def add_ray(parser: argparse.ArgumentParser, text: str, default: str | None = None) -> None:
    """Declare `--ray`, which cluster the work is done on."""
    parser.add_argument("--ray", type=address, metavar="ADDRESS", default=default, help=text)


def refuse_given(args: argparse.Namespace, names: Sequence[str], why: str) -> None:
    """Raise ConfigError where an option was given (is not None) that means nothing beside the others."""
    if given := [name for name in names if getattr(args, name) is not None]:
        raise ConfigError(f"--{given[0].replace('_', '-')} {why}")


def command_line(command: str, options: Mapping[str, object]) -> str:
    """The command line with these options, to be typed again; None and False are left out, tuples are repeated."""
    words = ["rlctl", command]
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif isinstance(value, tuple):
            words += [word for one in value for word in (option, str(one))]
        elif value is not None and value is not False:
            words += [option, str(value)]
    return shlex.join(words)


def distinct_profiles(shields: Sequence[str]) -> tuple[Profile, ...]:
    """Safety profiles, each with rows of its own in a table; ConfigError: two go by one name."""
    from rlctl.safety.profile import load_shield

    profiles = tuple(load_shield(shield) for shield in shields)
    names = [profile.name for profile in profiles]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"--shield names {twice[0]!r} twice; a profile goes by the `name` in its file")
    return profiles


def distinct_policies(option: str, names: Sequence[str]) -> tuple[str, ...]:
    """Who an option names, each with a row of its own in a table; ConfigError: nobody, or two go by one name."""
    from rlctl.agents.catalogue import label

    if not names:
        raise ConfigError(f"{option} names none; see `rlctl managers`")
    labels = [label(name) for name in names]
    if twice := [name for name in labels if labels.count(name) > 1]:
        way_out = "a bundle goes by the name of its folder, code by its class"
        raise ConfigError(f"{option} names {twice[0]!r} twice; {way_out}")
    return tuple(names)
