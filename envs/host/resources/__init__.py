"""What LC and BE share beside CPUs: memory, disks, cache, memory bandwidth, power; each where the host has it."""
