"""`reasoning_gym-v0`: the generated puzzles of the package `reasoning-gym`, scored by the package."""
