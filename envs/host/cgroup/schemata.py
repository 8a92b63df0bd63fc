"""The language of resctrl's `schemata`: which ways of a cache and how much memory bandwidth a class may use.

L3:0=fffff;1=fffff        masks of ways, by cache (or L3CODE and L3DATA, where mounted with cdp)
MB:0=100;1=100            percent of the bandwidth below each cache, or MB/s (mounted with mba_MBps)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

CACHES = ("L3", "L3CODE", "L3DATA")
BANDWIDTH = "MB"

_PAIR = r"\d{1,9}= *[0-9a-fA-F]{1,16}"  # kernels until 2025 fill all values of a resource up to the widest of any
_LINE = re.compile(rf"\s*([A-Z][A-Z0-9]{{0,15}}):({_PAIR}(?:;{_PAIR})*)\s*")


@dataclass(frozen=True, slots=True)
class Schemata:
    """What one class may use.

    Attributes:
        caches: Masks of ways by cache id, by resource (`L3`, or `L3CODE` and `L3DATA`).
        bandwidth: Percent or MB/s by cache id.
    """

    caches: Mapping[str, Mapping[int, int]] = field(default_factory=lambda: MappingProxyType({}))
    bandwidth: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def parse(cls, text: str) -> Schemata:
        """From a file's content; resources that rlctl has no use for (L2, SMBA) are left out."""
        caches: dict[str, Mapping[int, int]] = {}
        bandwidth: Mapping[int, int] = {}
        for line in text.splitlines():
            if not line.strip():
                continue
            match = _LINE.fullmatch(line)
            if match is None:
                raise ValueError(f"{line[:60]!r} is no line of a schemata")
            # Masks are hexadecimal, bandwidth is decimal (Documentation/arch/x86/resctrl.rst).
            base = 16 if match[1] in CACHES else 10
            if match[1] in CACHES or match[1] == BANDWIDTH:
                pairs = (pair.split("=") for pair in match[2].split(";"))
                values = {int(domain): int(value, base) for domain, value in pairs}
                if base == 16:
                    caches[match[1]] = values
                else:
                    bandwidth = values
        return cls(caches, bandwidth)

    def __str__(self) -> str:
        """As the kernel takes it, in one write: it wants the newline at the end."""
        lines = [
            _line(name, {domain: f"{mask:x}" for domain, mask in one.items()}) for name, one in self.caches.items()
        ]
        lines += [_line(BANDWIDTH, {domain: str(most) for domain, most in self.bandwidth.items()})]
        return "".join(line for line in lines if line)

    def includes(self, other: Schemata) -> bool:
        """Whether everything that the other says stands here too."""
        return all(self.caches.get(name) == masks for name, masks in other.caches.items()) and (
            not other.bandwidth or self.bandwidth == other.bandwidth
        )


def high_ways(full_mask: int, ratio: float, min_ways: int) -> int:
    """The mask of a share of a cache: the highest ways of it, in a row as the hardware wants them.

    Args:
        ratio: Share of them; rounded down.

    Returns:
        At least `min_ways` ways, and so few that as many are left, where there are enough.
    """
    # Masks are rows of ones without a gap, of min_cbm_bits at least (Documentation/arch/x86/resctrl.rst, "info").
    ways = full_mask.bit_length()
    most = max(ways - min_ways, min_ways)
    count = min(max(int(ratio * ways), min_ways), most, ways)
    return ((1 << count) - 1) << (ways - count)


def _line(name: str, values: Mapping[int, str]) -> str:
    return f"{name}:{';'.join(f'{domain}={text}' for domain, text in sorted(values.items()))}\n" if values else ""
