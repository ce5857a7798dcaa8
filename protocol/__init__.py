"""What is said between engines: values, manifest, wire codecs and errors. No I/O, no clock, no threads."""
