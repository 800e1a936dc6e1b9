"""The reproduction as a page, a document, figures and traces."""

from genprior.report.reproduction.render import write_report

__all__ = ["write_report"]
