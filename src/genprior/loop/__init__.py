"""THE loop: begin or resume, look, step, retire, record; restarts, best iterates, history, checkpoints, progress."""
