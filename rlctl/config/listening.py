"""Where rlctl listens, and who may ask."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Self

from pydantic import field_validator, model_validator

from rlctl.config.fields import Described

_ADDRESS = re.compile(r"(?P<host>[0-9.]+|\[[0-9a-fA-F:.]+\]|localhost):(?P<port>[0-9]{1,5})")


class Listening(Described):
    """An address that answers HTTP.

    Attributes:
        listen: IP address and port, with brackets for IPv6: `[::1]:9842`. Anything but loopback needs all of what
            follows.
        tls_certificate: PEM file with the certificate and its chain.
        tls_key: PEM file with the certificate's key, without a passphrase; not readable by everybody.
        bearer_token_file: One line that a peer has to send as `Authorization: Bearer ...`; not readable by everybody.
            The files are read again when they have changed.
    """

    listen: str
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    bearer_token_file: Path | None = None

    @field_validator("listen")
    @classmethod
    def _listenable(cls, listen: str) -> str:
        parts = _ADDRESS.fullmatch(listen)
        if parts is None or not 0 <= int(parts["port"]) <= 65535:
            raise ValueError(f"{listen!r} is no IP address and port, such as 127.0.0.1:9842 or [::1]:9842")
        if parts["host"] != "localhost":
            ipaddress.ip_address(parts["host"].strip("[]"))
        return listen

    @model_validator(mode="after")
    def _closed_to_strangers(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("'tls_certificate' and 'tls_key' go together")
        if not self.loopback and (self.tls_certificate is None or self.bearer_token_file is None):
            raise ValueError(
                f"{self.listen} is not loopback: it needs 'tls_certificate', 'tls_key' and 'bearer_token_file'"
            )
        return self

    @property
    def address(self) -> tuple[str, int]:
        """IP address and port; port 0 is any free one."""
        host, _, port = self.listen.rpartition(":")
        return "127.0.0.1" if host == "localhost" else host.strip("[]"), int(port)

    @property
    def loopback(self) -> bool:
        """True when only this host can reach it."""
        return ipaddress.ip_address(self.address[0]).is_loopback
