"""Control groups, v1 and v2: where they are mounted, what is written to them, and how it is put back."""
