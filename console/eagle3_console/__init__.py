"""The workstation half: the TUI and the headless command line over one core."""
