"""What `scripts/fuzz` feeds to rlctl: a module per target, the engine beneath them, and cases that broke it once."""
