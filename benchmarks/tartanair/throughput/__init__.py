"""How fast clips of this loader come, as shares of what this machine's memory can copy."""
