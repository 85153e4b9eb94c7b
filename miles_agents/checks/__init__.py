"""Contract suites for people who write their own parts. Nothing here needs pytest."""
