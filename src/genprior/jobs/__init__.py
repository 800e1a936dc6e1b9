"""Jobs on files: recovery, the check of a generator, the defence by projection."""
