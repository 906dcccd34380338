"""What a trained model knows, and changing it."""
