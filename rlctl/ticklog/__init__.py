"""Tick logs read back: followed, explained, run again."""
