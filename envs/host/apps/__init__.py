"""Best-effort applications with working modes: described, launched or adopted, and told which mode they are in."""
