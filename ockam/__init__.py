"""Actors that exchange routed messages, and the TCP transport that carries them between nodes."""
