"""What `rlctl train | tune | dataset` are asked for, and what came of it."""
