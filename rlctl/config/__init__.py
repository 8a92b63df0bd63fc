"""The serve configuration: each section a module, all of it data."""
