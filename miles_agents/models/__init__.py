"""Models on disk: where they are cached, and loading, saving and converting them (torch and transformers)."""
