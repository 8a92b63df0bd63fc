"""What a user's code raises, told as one line with the place in the user's file."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path

from rlctl.envs.errors import PolicyError, RlctlError


@contextlib.contextmanager
def errors_located(file: str, what: str) -> Iterator[None]:
    """Tell what the code of a file raises as a PolicyError, `FILE:LINE: WHAT raised ...`."""
    try:
        yield
    except RlctlError:
        raise
    except (Exception, SystemExit) as error:  # a script's sys.exit is a mistake here, not the end of the command
        raised = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        message = f"{what} raised {raised}{_way_out(error, Path(file).parent)}"
        raise PolicyError(message, shown_path(file), _line(error, file)) from error


def shown_path(path: str) -> Path:
    """As a user would write it who stands in the current folder."""
    return Path(path).relative_to(Path.cwd()) if Path(path).is_relative_to(Path.cwd()) else Path(path)


def _way_out(error: BaseException, folder: Path) -> str:
    module = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if not module or not ((folder / f"{module}.py").is_file() or (folder / module).is_dir()):
        return ""
    return f"; a file is loaded alone, modules beside it are found with PYTHONPATH={shown_path(str(folder))}"


def _line(error: BaseException, path: str) -> int | None:
    """The last line of the file on the error's way."""
    if isinstance(error, SyntaxError) and error.filename == path:
        return error.lineno
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return lines[-1] if lines else None
