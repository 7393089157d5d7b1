"""What TensorRT says goes to ``logging`` at a matching level; what becomes an exception is no warning besides."""

from __future__ import annotations

import logging

import pytest

from torchkiln_runtime.library import Messages

LEVELS = {
    "INTERNAL_ERROR": (logging.INFO, logging.WARNING),
    "ERROR": (logging.INFO, logging.WARNING),
    "WARNING": (logging.INFO, logging.WARNING),
    "INFO": (logging.DEBUG, logging.DEBUG),
    "VERBOSE": (logging.DEBUG, logging.DEBUG),
}


@pytest.mark.parametrize("severity", LEVELS)
def test_levels(severity: str, caplog: pytest.LogCaptureFixture):
    messages = Messages()
    with caplog.at_level(logging.DEBUG):
        with messages.collect("torchkiln.build") as collection:
            messages.add(severity, "while it builds")
        messages.add(severity, "at any other time")
    found = [(record.name, record.levelno, record.getMessage()) for record in caplog.records]
    during, outside = LEVELS[severity]
    assert found == [
        ("torchkiln.build", during, "TensorRT: while it builds"),
        ("torchkiln.runtime", outside, "TensorRT: at any other time"),
    ]
    assert ("while it builds" in collection.text) is ("ERROR" in severity)
