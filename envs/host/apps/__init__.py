"""Best-effort applications with working modes: described, launched, and given a mode each."""
