"""Who has the last word: guards, the shield over them, its profiles, and the watchdog. Pure where it rules.

| guard (as in `rlctl why`) | file |
| --- | --- |
| `sensors` | `trust.py`: which readings are believed at all |
| `load-gate`, `slack-gate` | `gates.py`: suspend BE |
| `slack-hold`, `slack-floor`, `growth-rate`, `ceiling` | `growth.py`: how much, and how fast it may grow |
| `memory-pressure`, `memory-bandwidth` | `memory_guards.py` |

A guard's constants are in `profile.py`. What it remembers is the memory that its `advance` returns, which the `Shield`
holds and no restart keeps. `many` has the same guards for hosts in arrays.
"""
