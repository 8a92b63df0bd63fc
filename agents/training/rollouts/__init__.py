"""Training on transitions that the testbeds of a Ray cluster send, simulated or live."""
