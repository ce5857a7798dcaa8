"""The properties, put to any implementation that offers a `Subject`."""
