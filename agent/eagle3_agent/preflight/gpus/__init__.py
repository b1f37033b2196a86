"""The host's GPUs: facts by NVML, and the checks that judge them."""
