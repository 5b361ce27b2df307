"""The part of `cachalot simulate` inside Python programs: it watches PyTorch's memory and helps its ranks.

Each module has one task. after_import waits for torch, process_end for the end of the process, and kills lets other processes
write their reports before this one kills them. At the end, ending writes how the program ended, with the steps that steps has
counted, and observer what torch did with memory: history asks torch to record what it allocates and writes that as a trace,
owners marks in it which modules run and what tensors are for, and attribution and places evaluate this record.
object_collectives and absent_ranks replace functions of torch.distributed.
"""

from __future__ import annotations

from typing import Any

from cachalot_simulator.settings import setting


def is_observed() -> bool:
    """Returns whether `cachalot simulate` runs the program."""
    return setting("observe") is not None


def watch_program() -> None:
    """Watches the program that this Python runs, from its start on."""
    from cachalot_simulator.after_import import after_import
    from cachalot_simulator.ending import Ending
    from cachalot_simulator.kills import see_kills
    from cachalot_simulator.process_end import ProcessEnd

    end = ProcessEnd()
    see_kills()
    ending = Ending(end)

    def watch_torch(torch: Any) -> None:
        from cachalot_simulator import absent_ranks, object_collectives  # nothing in programs without torch
        from cachalot_simulator.observer import watch

        owners = watch(torch, end, ending)
        object_collectives.install(torch)
        absent_ranks.install(torch)
        ending.count_steps(owners.stepped if owners else None)
        end.watch_signals()

    after_import("torch", watch_torch)
