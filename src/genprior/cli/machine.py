"""Options for device, threads and output that many commands share."""

from __future__ import annotations

from dataclasses import dataclass

from genprior.cli.speech import check_device


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Device, threads and output format."""

    device: str = "cpu"
    """Device for torch, for example cpu, cuda or mps."""
    threads: int | None = None
    """Threads for torch; by default torch chooses."""
    json: bool = False
    """Print one JSON document and nothing else."""

    @property
    def device_here(self) -> str:
        """The device that this process uses."""
        return self.device

    def settle(self) -> None:
        """Check the device, set the threads."""
        import torch  # noqa: PLC0415 - slow to import

        from genprior import _validate  # noqa: PLC0415

        check_device(self.device_here)
        if self.threads is not None:
            torch.set_num_threads(_validate.whole("threads", self.threads))
