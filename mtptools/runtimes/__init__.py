"""Real runtimes, asked over HTTP: level L5 of `verify`. Nothing here is imported unless a runtime is asked for."""
