"""How wide output is."""

import pytest

from gpuwatch.app.cli.terminal import output


def test_a_pipe_is_160_wide_unless_columns_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert output().width == 160
    monkeypatch.setenv("COLUMNS", "100")
    assert output().width == 100


def test_a_terminal_has_its_own_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert output().width == 80
