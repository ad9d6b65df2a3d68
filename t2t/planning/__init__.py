"""What a training step costs on devices that are not here."""
