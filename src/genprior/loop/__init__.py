"""The loop: begin or resume, check, step, retire, record; restarts, best iterates, history, checkpoints, progress."""
