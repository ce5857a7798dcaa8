"""`kvrooms soak`: rooms between real processes that are aborted, stopped, killed and lied to; every byte is checked."""
