"""All sections that the plan adds to the report of a run."""

from __future__ import annotations

from typing import Any

from frog.core.runs.history import History
from frog.core.runs.record import RunFile
from frog.plan.report.network_section import network_section
from frog.plan.report.prediction_section import prediction_section
from frog.plan.report.strategy_section import strategy_section


def report_sections(run: RunFile, history: History) -> dict[str, dict[str, Any] | None]:
    """Return each section's data by its name in the report's template; None for a section without content."""
    return {
        "strategy": strategy_section(run, history),
        "prediction": prediction_section(run, history),
        "network": network_section(history),
    }
