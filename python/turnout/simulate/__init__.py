"""The fleet simulator: scenarios in, numbers and pictures out. The router in it is the real one."""
