"""`wordle-v0`: find a word of five letters by guesses that are marked letter by letter."""
