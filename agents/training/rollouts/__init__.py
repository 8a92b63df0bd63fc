"""Training on the testbeds of a cluster."""
