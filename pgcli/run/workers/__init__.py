"""Where rows are answered: this process, engine processes on this machine, and Ray actors."""
