"""The reproduction as a page, a document, figures and traces."""

from genprior.lab.reports.reproduction.render import claim_row, write_report

__all__ = ["claim_row", "write_report"]
