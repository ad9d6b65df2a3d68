"""What a run needs of its machine and of the other processes: memory, flags, folders, messages, the end."""
