"""The configuration: YAML or flags → frozen models. An error names the place, the value and the fix; all are told at once."""

from gateway.config.models import Config, Listener
from gateway.config.problems import refusals, warnings
from gateway.config.source import ConfigError, from_flags, load, parse

__all__ = ["Config", "ConfigError", "Listener", "from_flags", "load", "parse", "refusals", "warnings"]
