"""Events in order of time -> what is known as of any moment: a state that every event updates, and its features."""
