"""Published claims, measured again on this machine: which of them hold here."""
