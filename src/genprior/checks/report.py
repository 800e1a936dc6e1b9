"""The report of a self-check."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One law, whether it holds, and what to do if not."""

    law: str
    holds: bool | None
    """None: not checked, which is never counted as holding."""
    measured: str
    advice: str = ""


@dataclass(frozen=True)
class Report:
    """The findings about one part. Print it to read it; programs use ``report.ok``."""

    subject: str
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether every law was checked and holds."""
        return all(finding.holds for finding in self.findings)

    @property
    def failures(self) -> tuple[Finding, ...]:
        """The laws that do not hold."""
        return tuple(finding for finding in self.findings if finding.holds is False)

    @property
    def unchecked(self) -> tuple[Finding, ...]:
        """The laws that were not checked."""
        return tuple(finding for finding in self.findings if finding.holds is None)

    def raise_if_failed(self) -> None:
        """Raise ``ValueError`` with the readable report if a law does not hold."""
        if not self.ok:
            raise ValueError(str(self))

    def __repr__(self) -> str:
        return f"Report({self.subject}: {self._summary()})"

    def __str__(self) -> str:
        width = max((len(finding.law) for finding in self.findings), default=0)
        lines = [f"{self.subject}: {self._summary()}"]
        for finding in self.findings:
            mark = {True: "ok  ", False: "FAIL", None: "?   "}[finding.holds]
            lines.append(f"  {mark} {finding.law:<{width}}  {finding.measured}")
            if not finding.holds and finding.advice:
                lines.append(f"       {'':<{width}}  -> {finding.advice}")
        return "\n".join(lines)

    def _summary(self) -> str:
        if self.ok:
            return "all laws hold"
        parts = [f"{len(self.failures)} of {len(self.findings)} fail"] if self.failures else []
        return ", ".join([*parts, f"{len(self.unchecked)} not checked"] if self.unchecked else parts)


def small(law: str, error: float, limit: float, advice: str) -> Finding:
    """A law that holds when an error is within a limit (NaN never is)."""
    return Finding(law, error <= limit, f"error {error:.2e}, allowed {limit:.0e}", advice)
