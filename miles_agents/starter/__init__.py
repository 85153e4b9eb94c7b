"""The starter model: a tiny tool-using model made on this machine, with bad habits for RL to remove."""
