"""Learning from recorded transitions."""
