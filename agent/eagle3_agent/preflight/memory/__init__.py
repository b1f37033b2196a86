"""What a run will hold in memory, on each GPU and on the host, against what is there."""
