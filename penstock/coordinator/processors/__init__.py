"""What a coordinator answers, by request code."""
