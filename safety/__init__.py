"""Who has the last word: guards, the shield over them, its profiles, and the watchdog. Pure where it rules.

Guards by their names in `rlctl why`: `sensors` is in `trust`; `load-gate` and `slack-gate` in `gates`; `slack-hold`,
`slack-floor`, `growth-rate` and `ceiling` in `growth`; `memory-pressure` and `memory-bandwidth` in `memory_guards`;
`overrun` in `gates`. `harm` bounds nothing: it waives some of them. `constants` has their constants. What one
remembers is the memory that its `advance` returns, which the `Shield` holds and no restart keeps. `batch_shield` has
the same laws for many simulated hosts.
"""
