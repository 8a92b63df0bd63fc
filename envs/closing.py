"""What is closed when its block ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """Closed by the end of its `with` block."""

    @abstractmethod
    def close(self) -> object:
        """Let go of what is held. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
