"""The folder of a training run: everything that reproduces it, what came of it, and from where it can go on.

best_model.zip       the best weights so far, as Stable-Baselines3 saves them
checkpoints/N/       model.zip, state.json and, for DQN, replay.npz after N timesteps; the newest stays
                     with testbeds of a cluster also rollouts.json, as it was then
evaluations.npz      in Stable-Baselines3's shape, with QoS and BE beside the returns
config.yml args.yml hosts.yml profiles/ command.txt versions.yml      what it was asked for, and with what
init_model.zip init_card.json    the model that it began with, if there was one, and the card of that one's run
tensorboard/ bundle/
"""

from __future__ import annotations

import contextlib
import platform
import shutil
import subprocess
import zipfile
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import yaml

from rlctl import __version__
from rlctl.agents.served import bundle
from rlctl.agents.served.card import Card
from rlctl.agents.served.network import first_line
from rlctl.agents.training.host_kinds import Hosts, Kind
from rlctl.agents.training.recipe import as_document
from rlctl.envs.errors import ConfigError, RlctlError
from rlctl.envs.whole_file import is_ours, whole, write_whole
from rlctl.envs.yaml_edge import YAML, Strict

if TYPE_CHECKING:
    from rlctl.agents.training.training_run import TrainingRun

ANOTHER = "holds a run already; give another --out, or --resume it"

BEST, CONFIG, HOSTS, ARGUMENTS = "best_model.zip", "config.yml", "hosts.yml", "args.yml"
OFFLINE, TRANSITIONS = "offline.json", "transitions.jsonl"  # of a run on a dataset, and of one on a live testbed
INIT, INIT_CARD, COPIES = "init_model.zip", "init_card.json", "profiles"
MODEL, STATE, REPLAY = "model.zip", "state.json", "replay.npz"

MOST_REPLAY_BYTES = 1 << 27
"""Of a larger replay buffer only the newest rows are kept."""

LIBRARIES = ("torch", "stable-baselines3", "sb3-contrib", "gymnasium", "numpy")
REPLAYED = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")


class State(Strict, extra="ignore"):
    """Counters of a checkpoint; those that an older rlctl kept beside them are left out.

    Attributes:
        seconds: Wall-clock time that this took, over all sessions.
        calls: What Stable-Baselines3 calls `_n_calls`: target networks go by it.
        block: The block of seeds that the hosts had, see `host_kinds.build`; the next session takes the next one.
        multiplier: Price of a missed window that PPO-Lagrangian has found so far.
    """

    timesteps: int
    seconds: float
    calls: int
    block: int
    multiplier: float = 1.0


class Checkpoint(NamedTuple):
    """Where a run can go on: a folder with the model's file and perhaps the replay buffer's, and the counters there."""

    folder: Path
    state: State


def is_run(folder: Path) -> bool:
    """True when a run was begun there."""
    return (folder / CONFIG).is_file()


def require_run(folder: Path) -> None:
    """Raise ConfigError where no run was begun in a folder."""
    if not is_run(folder):
        raise ConfigError(f"is no folder of a run: there is no {CONFIG}", folder)


def begin(run: TrainingRun) -> None:
    """Make the folder of a new run with copies of files that it needs; ConfigError where there is a run already."""
    folder, init = run.folder, run.init
    if is_run(folder):  # a trial of a search brings a model along
        raise ConfigError(ANOTHER, folder)
    sources: dict[str, Path] = {}
    for file in (*run.inputs, *(file for kind in run.hosts.kinds for file in _files(kind).values())):
        if (other := sources.setdefault(file.name, file.resolve())) != file.resolve():
            raise ConfigError(f"would overwrite the copy of {other} in the run's folder; rename one of the two", file)
    folder.mkdir(parents=True, exist_ok=True)
    for name, file in sources.items():  # they may change later
        (folder / COPIES).mkdir(exist_ok=True)
        shutil.copyfile(file, folder / COPIES / name)
    _write_yaml(folder / HOSTS, _with_copies(run.hosts).model_dump(mode="json"))
    (folder / INIT_CARD).unlink(missing_ok=True)  # of a start that failed
    if init is not None and init.resolve() != (folder / INIT).resolve():
        shutil.copyfile(init, folder / INIT)
        if before := card_beside(init):
            write_whole(folder / INIT_CARD, before.model_dump_json(by_alias=True))
    note_origin(folder, run.arguments, run.command)
    _write_yaml(folder / CONFIG, as_document(run.recipe))  # the last one: its presence says that the others are there


def card_beside(model: Path) -> Card | None:
    """The card of the run that a model is of; None where there is none."""
    try:
        return bundle.read(model.resolve().parent / "bundle")[0]
    except RlctlError:
        return None


def init_card(folder: Path) -> Card | None:
    """The card of the run whose model this one began with; None where there was none."""
    file = folder / INIT_CARD
    try:
        return Card.model_validate_json(file.read_bytes()) if file.is_file() else None
    except ValueError as error:
        raise ConfigError("is no card; remove it, and the new one says nothing of the run before", file) from error


def check_new(folder: Path) -> None:
    """Raise ConfigError where a folder holds a run already, of whatever kind."""
    if is_run(folder):
        raise ConfigError(ANOTHER, folder)
    if any((folder / name).exists() for name in (BEST, OFFLINE, TRANSITIONS)):
        raise ConfigError("holds a run already; give another --out", folder)


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Go on with a run that nobody else goes on with; ConfigError: somebody does, or there is none."""
    require_run(folder)
    with (folder / CONFIG).open("r+b") as file:
        if not is_ours(file):
            raise ConfigError("another process goes on with this run; end it first", folder)
        yield


def undo_begin(folder: Path) -> None:
    """A run that could not start was none: its folder may be begun again."""
    (folder / CONFIG).unlink(missing_ok=True)


def note_origin(folder: Path, arguments: Mapping[str, Any], command: str) -> None:
    """Write down what a run was asked for, and with what it was made."""
    _write_yaml(folder / ARGUMENTS, arguments)
    _write_yaml(folder / "versions.yml", versions())
    (folder / "command.txt").write_text(command + "\n")


def copy_of(folder: Path, name: str) -> str:
    """A file of the user's as the folder of a run has it; whatever has no copy there as it is."""
    copy = folder / COPIES / Path(name).name
    return str(copy) if copy.suffix in YAML and copy.is_file() else name


def _with_copies(hosts: Hosts) -> Hosts:
    """The hosts with the copies of files of the user's, which stand beside them."""
    kinds = (
        kind.model_copy(update={key: f"{COPIES}/{file.name}" for key, file in _files(kind).items()})
        for kind in hosts.kinds
    )
    return hosts.model_copy(update={"kinds": tuple(kinds)})


def _files(kind: Kind) -> dict[str, Path]:
    """The files that a kind of hosts names."""
    return {key: Path(name) for key in ("profile", "safety") if Path(name := getattr(kind, key) or "").suffix}


def versions() -> dict[str, str]:
    """What the run was made with."""
    found = {"rlctl": __version__, "code": code_version(), "python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def code_version() -> str:
    """The commit that this rlctl runs from, with `+` where files of it were changed; its version outside of one."""
    here = Path(__file__).resolve().parent
    # An installed rlctl may lie within a repository of somebody else's, which does not have this file.
    ours = _git(here, "ls-files", "--error-unmatch", Path(__file__).name)
    commit = _git(here, "rev-parse", "--short=12", "HEAD") if ours else ""
    changed = _git(here, "status", "--porcelain", "--untracked-files=no")
    return f"{commit}{'+' if changed else ''}" if commit else __version__


def _git(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def newest_checkpoint(folder: Path) -> Checkpoint:
    """From where a run goes on; ConfigError where there is no run, or it has not come to a checkpoint."""
    require_run(folder)
    unread = ""
    for one in sorted(_checkpoints(folder), key=lambda path: -int(path.name)):
        if (one / STATE).is_file():
            try:
                return Checkpoint(one, State.model_validate_json((one / STATE).read_text()))
            except ValueError as error:  # of a machine that lost its power, or of another rlctl
                unread = f"; {one / STATE} cannot be read: {first_line(error)}"
    raise ConfigError(f"has no checkpoint to go on from; start it anew with another --out{unread}", folder)


def _checkpoints(folder: Path) -> Iterator[Path]:
    return (path for path in (folder / "checkpoints").glob("*") if path.name.isdigit())


def checkpoint_folder(folder: Path, timesteps: int) -> Path:
    """Where the checkpoint after so many timesteps goes; made."""
    made = folder / "checkpoints" / f"{timesteps:012d}"
    made.mkdir(parents=True, exist_ok=True)
    return made


def write_state(folder: Path, state: State) -> None:
    """Complete a checkpoint: one without this file does not count."""
    write_whole(folder / STATE, state.model_dump_json() + "\n", lasting=True)  # the older ones go at once


def drop_older(folder: Path, newest: Path) -> None:
    """Remove all checkpoints but one."""
    for one in _checkpoints(folder):
        if one != newest:
            shutil.rmtree(one)


def write_replay(buffer: Any, folder: Path) -> None:
    """Keep a replay buffer of Stable-Baselines3 as plain arrays, oldest first: all of it, or the newest that fit."""
    size = buffer.buffer_size
    row_bytes = sum(getattr(buffer, name)[0].nbytes for name in REPLAYED)
    count = min(size if buffer.full else buffer.pos, MOST_REPLAY_BYTES // row_bytes)
    newest = (buffer.pos - count + np.arange(count)) % size
    arrays = {name: getattr(buffer, name)[newest] for name in REPLAYED}  # copies
    arrays["timeouts"][-1:] = 1.0  # where a run goes on its hosts begin anew: returns of several steps end here
    with whole(folder / REPLAY, lasting=True) as file:
        np.savez(file, pos=count % size, full=count == size, **arrays)


def read_replay(buffer: Any, folder: Path) -> bool:
    """Fill a replay buffer with what `write_replay` kept; False when nothing was, or of another shape."""
    if not (folder / REPLAY).is_file():
        return False
    try:
        with (folder / REPLAY).open("rb") as file, np.load(file) as kept:
            arrays = dict(kept)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):  # torn: of an rlctl that wrote it in place
        return False
    if arrays["observations"].shape[1:] != buffer.observations.shape[1:] or len(arrays["rewards"]) > buffer.buffer_size:
        return False
    for name in REPLAYED:
        getattr(buffer, name)[: len(arrays[name])] = arrays[name]
    buffer.pos, buffer.full = int(arrays["pos"]), bool(arrays["full"])
    return True


def _write_yaml(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(yaml.safe_dump(dict(data), sort_keys=False, default_flow_style=None, width=110))
