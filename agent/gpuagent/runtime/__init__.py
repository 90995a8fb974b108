"""What a long-running Linux service needs beside its purpose: the log, systemd's notify socket, and its scheduler."""
