"""What an engine in another process could not do."""

from __future__ import annotations

from medusa_cli.support.errors import MedusaError


class EngineError(Exception):
    """No fault of whoever asked."""


class EngineLost(EngineError):
    """Its process ended while it worked on this."""


class EngineFailed(EngineError):
    """It could not do this; the log has the reason."""


class EngineClosed(EngineError):
    """It takes no more work."""


class TooLong(MedusaError):
    """A message of the prompt is too long."""
