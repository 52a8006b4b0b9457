"""The broker: takes messages from producers, keeps them in its store and hands them to consumers."""
