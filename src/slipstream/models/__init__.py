"""Models: each implements slipstream.core.ports.Model; imported lazily, since each brings a library of its own."""
