"""The starting package that `python -m miles_agents.environments new` writes."""

from miles_agents.scaffold.package import check_name, class_name_of, write_package

__all__ = ["check_name", "class_name_of", "write_package"]
