"""What chapters share."""
