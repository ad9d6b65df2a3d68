"""What a task makes of its text: computed, and printed."""
