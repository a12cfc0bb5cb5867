"""Topics, records and the log behind one port; the gateway onto them. Never learns what a model is made of."""
