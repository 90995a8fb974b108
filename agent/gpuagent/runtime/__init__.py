"""What a long-running Linux service needs beside its purpose: the log, sd_notify, memory, state files."""
