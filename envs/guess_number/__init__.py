"""`guess_number-v0`: find a number by guesses that are answered "too low" or "too high"."""
