"""Models behind an OpenAI-compatible API (`/chat/completions`): to be evaluated."""

from miles_agents.engines.openai.model import OpenAIChatModel

__all__ = ["OpenAIChatModel"]
