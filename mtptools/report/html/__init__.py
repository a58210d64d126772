"""A report as one HTML file."""

from __future__ import annotations

from mtptools.report.html.page import html_report

__all__ = ["html_report"]
