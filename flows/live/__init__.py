"""A log and the events that go on coming -> a source's best targets as of now: a command, a server and its page."""
