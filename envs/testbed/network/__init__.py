"""A network link between LC and client whose rate somebody else provisioned, and a best-effort job that fills it."""
