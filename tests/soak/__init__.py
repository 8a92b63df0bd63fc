"""The soak: whether `rlctl serve` stays as small as it starts, over a hundred thousand ticks and over half an hour."""
