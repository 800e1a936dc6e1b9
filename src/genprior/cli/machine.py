"""Options for device, threads and output that many commands share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from genprior.cli.speech import check_device

if TYPE_CHECKING:
    from genprior.cli.threads import Watch
    from genprior.generators import Generator


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Device, threads and output format."""

    device: str = "cpu"
    """Device for torch, for example cpu, cuda or mps."""
    threads: int | None = None
    """Threads for torch; by default measured at the start: torch's own number, or fewer where other processes are busy. The
    last bits of results depend on it."""
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

    def watch(self) -> Watch:
        """Of the number of threads of a job, where none was given: measures when the job begins, and while it runs."""
        from genprior.cli.threads import Watch  # noqa: PLC0415 - slow to import

        return Watch(fixed=self.threads is not None)

    def choose_threads(self, generator: Generator | None = None, *, fixed: int | None = None) -> None:
        """Where no number of threads was given, measure which one is fastest: for this generator, or that of digits.

        ``fixed`` is that of work which no other number can continue: it is set, where there are so many threads.
        """
        import torch  # noqa: PLC0415

        most = torch.get_num_threads()
        if self.threads is not None or most == 1 or not self.device.startswith("cpu"):
            return
        if fixed is not None and 1 <= fixed <= most:
            torch.set_num_threads(fixed)
            return
        from genprior.cli.threads import choose  # noqa: PLC0415
        from genprior.models.bundled import load_generator  # noqa: PLC0415

        choose(load_generator("mnist") if generator is None else generator)
