"""Tables, weights and tracked runs -> addresses below one root, and back."""
