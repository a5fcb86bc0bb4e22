"""Tables, weights and tracked runs -> addresses below one root; an address -> its content."""
