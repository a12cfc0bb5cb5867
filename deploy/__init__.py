"""How the parts become processes: command line, settings, all-in-one, composition root."""
