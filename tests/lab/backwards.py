"""An engine in this process that answers in an unusual order."""

from dataclasses import dataclass, field

from genprior.engines import Crew, Engine, Place, Poisoned


@dataclass(frozen=True)
class Backwards(Engine):
    """Takes all tasks that there are at once, and answers the last one first."""

    poisoned: int = -1
    """The number of a task that is not answered."""
    limits: list[float | None] = field(default_factory=list)
    """Gets the seconds that each task may take by its own limits."""

    @property
    def size(self):
        return 1

    def run(self, batches):
        solve = batches.work.open(Place())
        tasks = [(number, batches.task(number, False)) for number in batches.numbers]
        self.limits.extend(batches.seconds(number) for number, _ in tasks)
        for number, task in reversed(tasks):
            for _ in range(2):
                batches.watch(Crew("nobody", len(tasks), alive=len(tasks)))
            yield number, Poisoned("3 workers were lost with it") if number == self.poisoned else solve(task)
