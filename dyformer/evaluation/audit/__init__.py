"""A log and methods -> checks that no result depends on what it must not depend on."""
