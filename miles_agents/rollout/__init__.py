"""Rollout: playing episodes, the buffer with bounded staleness, and the workers between them."""
