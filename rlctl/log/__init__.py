"""The tick log: its records, its writer, and what is read from it (why, top, replay)."""
