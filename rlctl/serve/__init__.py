"""The service around the loop: how it is built, started, watched, measured and told about."""
