"""Pure functions of (guess, truth) and, later, of (real, release)."""
