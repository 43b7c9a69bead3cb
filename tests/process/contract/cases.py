"""The cases of the contract, in their order. contract.py runs them."""
import command_line_cases  # noqa: F401  these fill the table
import life_cases  # noqa: F401
import output_cases  # noqa: F401
from table import CASES, ENVIRONMENT, FQDN, HAS_TORCH, PYTHON

__all__ = ["CASES", "ENVIRONMENT", "FQDN", "HAS_TORCH", "PYTHON"]
