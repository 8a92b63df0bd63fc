"""Best-effort applications with working modes: described, launched or adopted, and given a mode each."""
