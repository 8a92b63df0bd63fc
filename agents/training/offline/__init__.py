"""Learning from recorded transitions alone: datasets, and who learns from them."""
