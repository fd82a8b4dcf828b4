"""The commands as a person types them, in this process."""

import json
from typing import Any

from click.testing import CliRunner, Result

from gpuwatch.app.cli.main import cli


def gpuwatch(*arguments: object, **environment: str) -> Result:
    return CliRunner(env=environment).invoke(cli, [*map(str, arguments)], catch_exceptions=False)


def document(*arguments: object, code: int = 0) -> dict[str, Any]:
    """The JSON of a command that ends with this code."""
    result = gpuwatch(*arguments, "-o", "json")
    assert result.exit_code == code, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found
