"""What a host could have carried, and under whom, from recorded logs alone."""
