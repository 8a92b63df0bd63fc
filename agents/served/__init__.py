"""What a daemon serves: bundles, their cards and signatures, and the fallback chain around a learned policy."""
