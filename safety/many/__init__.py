"""The shield of many hosts in arrays, which answers host by host as `rlctl.safety.shield.Shield` does."""
